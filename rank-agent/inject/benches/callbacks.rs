//! Cost of recording for NCCL's threads: nanoseconds per call into the plugin, through the built library.
//!
//! ```console
//! cargo bench -p rankscope-inject
//! ```
//!
//! It sends bursts that fit the queue, with pauses in which the worker empties it, so that no call is refused. It uses one
//! thread. Percentiles are over means of 32 calls, because the clock cannot resolve single calls.

use std::process::Command;
use std::time::{Duration, Instant};

use fixtures::nccl_replay::abi::{Coll, Descriptor, kind};
use fixtures::nccl_replay::ffi::{Comm, Plugin};
use rustix::time::ClockId;

const CHUNK: usize = 32;
const BURST: usize = 4096;
const BURSTS: usize = 40;
/// Set in the process that measures.
const RECORDING: &str = "RANKSCOPE_RUN";

fn main() -> Result<(), String> {
    if std::env::var_os(RECORDING).is_none() {
        return start_recorded();
    }
    let bench = std::env::current_exe().map_err(|error| error.to_string())?;
    let built = bench.parent().ok_or("no directory")?.join("librankscope_inject.so");
    let mut clock = Samples::new();
    (0..BURSTS).for_each(|_| drop(calls(&mut clock, BURST, |_| rustix::time::clock_gettime(ClockId::MonotonicRaw))));
    println!("ns per call{:>23}{:>9}{:>9}{:>9}{:>9}", "mean", "p50", "p90", "p99", "max");
    // Every event reads the clock: its cost on this machine is the lower bound.
    report("(reading the clock)", clock);
    for version in [3, 5, 7] {
        let plugin = Plugin::load(&built, version)?;
        measure(&plugin, version);
    }
    Ok(())
}

/// Runs this program again, with the variables to record into a temporary directory.
fn start_recorded() -> Result<(), String> {
    let run = std::env::temp_dir().join(format!("rankscope-callbacks-{}", std::process::id()));
    let bench = std::env::current_exe().map_err(|error| error.to_string())?;
    let pid = std::process::id().to_string();
    let variables = [("RUN_ID", "bench"), ("RANK", "0"), ("WORLD_SIZE", "1"), ("AGENT_PID", &*pid)];
    let mut command = Command::new(bench);
    command.env(RECORDING, &run).env("RANKSCOPE_NCCL_DETAIL", "proxy");
    command.envs(variables.map(|(name, value)| (format!("RANKSCOPE_{name}"), value)));
    let status = command.status().map_err(|error| error.to_string())?;
    std::fs::remove_dir_all(&run).ok();
    if status.success() { Ok(()) } else { Err(status.to_string()) }
}

fn measure(plugin: &Plugin, version: u8) {
    let comm = Comm { name: "bench", hash: 0xfeed, nodes: 1, ranks: 2, rank: 0 };
    let context = plugin.init(&comm);
    let coll = Coll {
        comm_hash: 0xfeed,
        seq: 1,
        func: c"AllReduce",
        count: 1 << 20,
        root: 0,
        datatype: c"ncclFloat32",
        channels: 8,
        algo: c"RING",
        proto: c"LL128",
    };
    let operation = plugin.start(context, Descriptor::coll(version, 0, 0, coll).bytes());
    let channel = Descriptor::kernel_ch(version, operation, 3, 1_756_000_000_000_000_000);
    let all_reduce = Descriptor::coll(version, 0, 0, coll);
    let unwanted = Descriptor::new(version, kind::PROXY_CTRL, 0);
    let (mut starts, mut states, mut stops, mut colls, mut others, mut lates) = six();
    for _ in 0..BURSTS {
        let handles = calls(&mut starts, BURST, |_| plugin.start(context, channel.bytes()));
        let open: Vec<usize> = handles.into_iter().filter(|handle| *handle != 0).collect();
        calls(&mut states, open.len(), |i| plugin.record_state(open[i], 22, Some(1_756_000_000_000_000_100)));
        calls(&mut stops, open.len(), |i| plugin.stop(open[i]));
        calls(&mut lates, open.len(), |i| plugin.stop(open[i]));
        std::thread::sleep(Duration::from_millis(60));
        let handles = calls(&mut colls, BURST, |_| plugin.start(context, all_reduce.bytes()));
        handles.into_iter().for_each(|handle| plugin.stop(handle));
        calls(&mut others, BURST, |_| plugin.start(context, unwanted.bytes()));
        std::thread::sleep(Duration::from_millis(60));
    }
    println!("v{version}");
    report("startEvent KernelCh", starts);
    report("recordEventState", states);
    report("stopEvent", stops);
    report("startEvent Coll (5 strings)", colls);
    report("startEvent, not wanted", others);
    report("stopEvent, twice", lates);
    plugin.finalize(context);
}

type Samples = Vec<f64>;

fn six() -> (Samples, Samples, Samples, Samples, Samples, Samples) {
    Default::default()
}

/// Times `amount` calls in chunks.
fn calls<T>(samples: &mut Samples, amount: usize, mut call: impl FnMut(usize) -> T) -> Vec<T> {
    let mut results = Vec::with_capacity(amount);
    let mut done = 0;
    while done + CHUNK <= amount {
        let start = Instant::now();
        for i in 0..CHUNK {
            results.push(call(done + i));
        }
        samples.push(start.elapsed().as_nanos() as f64 / CHUNK as f64);
        done += CHUNK;
    }
    results.extend((done..amount).map(call));
    results
}

fn report(name: &str, mut samples: Samples) {
    samples.sort_by(f64::total_cmp);
    let at = |share: f64| samples.get(((samples.len() - 1) as f64 * share) as usize).copied().unwrap_or(f64::NAN);
    let mean = samples.iter().sum::<f64>() / samples.len() as f64;
    println!("  {name:<28}{mean:>5.0}{:>9.0}{:>9.0}{:>9.0}{:>9.0}", at(0.5), at(0.9), at(0.99), at(1.0));
}
