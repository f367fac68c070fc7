//! Replays the calls that NCCL makes into its profiler plugin: `nccl_replay LIBRARY SCENARIO VERSION [NUMBER]`.
//!
//! Prints what it did as `name=value` lines. Where the plugin records is said by its own environment variables.

mod abi;
mod ffi;
mod hostile;
mod sequence;

use std::path::{Path, PathBuf};
use std::time::Duration;

use ffi::Plugin;

/// The GPU's `globaltimer` of this harness: the host's clock plus a constant, so that the truth is known.
pub(crate) const GPU_OFFSET_NS: u64 = 1_756_000_000_000_000_000;

/// The GPU's time now.
pub(crate) fn gpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicRaw);
    (time.tv_sec * 1_000_000_000 + time.tv_nsec) as u64 + GPU_OFFSET_NS
}

fn number(name: &str) -> i32 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or_default()
}

fn main() -> Result<(), String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [library, scenario, version, rest @ ..] = &arguments[..] else {
        return Err("nccl_replay LIBRARY SCENARIO VERSION [NUMBER]".into());
    };
    let version: u8 = version.parse().map_err(|_| "VERSION is 3 to 7")?;
    let amount: u64 = rest.first().and_then(|text| text.parse().ok()).unwrap_or(0);
    run(&PathBuf::from(library), scenario, version, amount)
}

fn run(library: &Path, scenario: &str, version: u8, amount: u64) -> Result<(), String> {
    let (rank, ranks) = (number("RANKSCOPE_RANK"), number("RANKSCOPE_WORLD_SIZE").max(2));
    let plugin = Plugin::load(library, version)?;
    assert_eq!(plugin.name(), "rankscope");
    match scenario {
        "sequence" => {
            println!("operations={}", sequence::sequence(&plugin, version, rank, ranks, amount));
        }
        "hostile" => hostile::hostile(&plugin, version).iter().for_each(|case| println!("survived={case}")),
        "processes" => hostile::processes(&plugin, version).iter().for_each(|case| println!("survived={case}")),
        "exhaust" => {
            let (asked, taken) = hostile::exhaust(&plugin, version);
            println!("asked={asked}\ntaken={taken}");
        }
        "flood" => {
            let (events, refused) = hostile::flood(&plugin, version, amount);
            println!("events={events}\nrefused={refused}");
        }
        "steady" => sequence::steady(&plugin, version, (rank, ranks), amount),
        "hang" => sequence::hang(&plugin, version, (rank, ranks, amount as i32), Duration::from_secs(60)),
        "dlclose" => {
            // The worker runs on in a library that its loader has closed; then NCCL loads it again.
            sequence::sequence(&plugin, version, rank, ranks, amount);
            println!("calls={}", plugin.close());
            std::thread::sleep(Duration::from_millis(100));
            let again = Plugin::load(library, version)?;
            sequence::sequence(&again, version, rank, ranks, amount);
            println!("survived=dlclose while the worker runs\ncalls={}", again.close());
            return Ok(());
        }
        "inert" => {
            let context = plugin.init(&ffi::Comm { name: "x", hash: 1, nodes: 1, ranks: 2, rank: 0 });
            assert_eq!((context, ffi::mask()), (0, 0));
            let descriptor = abi::Descriptor::new(version, abi::kind::COLL, 0);
            assert_eq!(plugin.start(context, descriptor.bytes()), 0);
            plugin.finalize(context);
            assert_eq!(ffi::initialize_injection(library)?, 1);
            println!("survived=nobody asked to record");
        }
        other => return Err(format!("no scenario {other}")),
    }
    println!("calls={}", plugin.calls());
    Ok(())
}
