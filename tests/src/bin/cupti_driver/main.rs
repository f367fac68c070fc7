//! Plays a program that trains on a GPU, on top of the stand-in for libcupti, and records it with the real recorder.
//!
//! `cupti-driver RUN SCENARIO` prints what the test wants to know, one `word value` a line;
//! `cupti-driver iterate LIBRARY` steps through records with a real libcupti; `cupti-driver injected` is a program under
//! `rank-agent exec`, `cupti-driver steps N` one that marks its steps.

mod ffi;
mod injected;
// NCCL's side, as the replay harness has it.
#[path = "../../../../inject/examples/nccl_replay/abi.rs"]
#[expect(dead_code, reason = "the harness has more")]
mod nccl_abi;
#[path = "../../../../inject/examples/nccl_replay/ffi.rs"]
#[expect(dead_code, reason = "the harness has more")]
mod nccl_ffi;
mod play;

use std::path::{Path, PathBuf};
use std::time::Duration;

use recorder::cupti::{Cupti, LIBRARY_VARIABLE, Settings};
use recorder::{Kind, Options, Phase, Recorder};
use trace::{Manifest, SCHEMA_VERSION};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [command, library] if command == "iterate" => iterate(Path::new(library)),
        [command] if command == "injected" => injected::run(None),
        [command, steps] if command == "steps" => injected::run(Some(steps.parse().unwrap())),
        [run, scenario] => record(Path::new(run), scenario),
        _ => panic!("cupti-driver RUN SCENARIO | iterate LIBRARY | injected | steps N"),
    }
}

/// One record of every kind, twice over.
fn iterate(library: &Path) {
    let bytes = |version| {
        let once = play::one_of_each(version);
        [once.clone(), once].concat()
    };
    let (version, starts, status) = ffi::iterate(library, bytes);
    let starts: Vec<String> = starts.iter().map(usize::to_string).collect();
    println!("version {version}\nstatus {status}\nstarts {}", starts.join(","));
}

fn record(run: &Path, scenario: &str) {
    let manifest = Manifest {
        schema_version: SCHEMA_VERSION,
        run_id: "stand-in".into(),
        world_size: 1,
        created_utc_ns: 1,
        tool: "cupti-driver".into(),
        command: vec![],
        config: Default::default(),
    };
    manifest.write(run).unwrap();
    let recorder = Recorder::start(Options::new(run, "stand-in", 0, 1)).unwrap();
    let settings = Settings {
        nvtx: true,
        buffer_bytes: 64 << 10,
        max_buffers: if scenario == "few_buffers" { 1 } else { 64 },
        // Only when asked, where the test says what is lost without.
        flush_period: Duration::from_millis(if scenario == "few_buffers" { 3_600_000 } else { 20 }),
        ..Settings::default()
    };
    let cupti = match Cupti::start(&recorder, settings.clone()) {
        Ok(cupti) => cupti,
        Err(error) => {
            println!("error {error}");
            // As a program would: unrecorded devices are no reason to stop.
            let thread = recorder.thread("main");
            recorder.begin_step(0, Phase::Active);
            drop(thread.scope(Kind::CpuOp, recorder.intern("on the host")));
            recorder.end_step(None);
            return println!("closed {}", recorder.finish().closed_cleanly);
        }
    };
    println!("version {}", cupti.version());
    println!("twice {}", Cupti::start(&recorder, settings).unwrap_err());
    let library = PathBuf::from(std::env::var_os(LIBRARY_VARIABLE).unwrap());
    let gpu = play::Gpu::new(ffi::StandIn::open(&library), &recorder, cupti);
    gpu.describe();
    match scenario {
        "train" => gpu.train(),
        "few_buffers" => gpu.flood(),
        "fork" => println!("child {}", gpu.fork()),
        "context" => gpu.destroy_context(),
        "pause" => gpu.pause(),
        "exit" => {
            gpu.train();
            // Neither the session nor the recorder is ended by the program.
            std::process::exit(0);
        }
        other => panic!("no scenario {other}"),
    }
    let summary = cupti.finish();
    assert_eq!(summary, cupti.finish(), "a second call returns the same");
    println!("summary {summary}\nown_clock {}\nfailure {:?}", summary.own_clock, summary.failure);
    println!("dropped {}", summary.dropped);
    println!("closed {}", recorder.finish().closed_cleanly);
}
