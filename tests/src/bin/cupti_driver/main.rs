//! Plays a program that trains on a GPU, on top of the stand-in for libcupti, and records it with the real recorder.
//!
//! `cupti-driver RUN SCENARIO` prints results for the test, one `word value` per line;
//! `cupti-driver iterate LIBRARY` iterates over records with a real libcupti; `cupti-driver injected` is a program under
//! `rank-agent exec`, and `cupti-driver steps N` is one that marks its steps.

mod ffi;
mod injected;
mod play;

use std::path::{Path, PathBuf};
use std::time::Duration;

use recorder::{Kind, Options, Phase, Recorder};
use sources::cupti::{Cupti, LIBRARY_VARIABLE, Settings};
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
        paused: scenario.starts_with("windows"),
        graphs: scenario == "windows_of_graphs",
        nvtx: true,
        buffer_bytes: if scenario == "killed" { Settings::default().buffer_bytes } else { 64 << 10 },
        max_buffers: if scenario == "few_buffers" { 1 } else { 64 },
        // No periodic flush, so that the test knows which records are lost.
        flush_period: Duration::from_millis(if scenario == "few_buffers" { 3_600_000 } else { 20 }),
        ..Settings::default()
    };
    let cupti = match Cupti::start(&recorder, settings.clone()) {
        Ok(cupti) => cupti,
        Err(error) => {
            println!("error {error}");
            // Continue like a program: missing device rows are no reason to stop.
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
        "windows" | "windows_of_graphs" => gpu.windows(false),
        "windows_of_driver_calls" => gpu.windows(true),
        "taken" => gpu.taken(),
        "mig" => gpu.describe_slice(),
        "killed" => gpu.wait_for_the_kill(),
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
