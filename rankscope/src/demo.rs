//! `rankscope demo`: simulates a job in which one rank is slow, and analyses it. It shows an answer before anything is recorded.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use simulator::{Level, Request, Slowness, Straggler, is_written, write_request};
use trace::terminal::say;

/// Analyze a simulated job with one slow rank, to see what an answer looks like
///
/// Simulates 8 GPUs on two hosts that train for 20 steps. The kernels of rank 5 take 15 % longer. The job is written as a run, as if
/// it had been recorded, and analyzed like any other. It needs no GPU, no MPI and no network, and takes seconds.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Write the run into this directory. If it holds the demo already, that is analyzed again
    #[arg(short, long, value_name = "DIR", default_value = "rankscope-demo")]
    out: PathBuf,
}

/// The rank whose kernels take longer, and by how many percent.
const SLOW: (usize, i64) = (5, 15);

/// Writes the job, unless it is there, and lets `analyze` print its analysis. Returns the exit code.
pub(crate) fn main(arguments: &Arguments, program: &str, analyze: impl FnOnce(&Path) -> ExitCode) -> ExitCode {
    let out = &*arguments.out;
    let (rank, percent) = SLOW;
    let request = Request {
        steps: 20,
        host_ranks: 4,
        stragglers: vec![Straggler { level: Level::Rank(rank), slowness: Slowness::Longer { permille: 10 * percent } }],
        clock_offset_ns: 3_000_000,
        clock_drift_ppb: 5_000.0,
        ..Request::default()
    };
    let written = match is_written(&request, out) {
        Ok(false) => write_request(&request, out).map(drop),
        is_there => is_there.map(drop),
    };
    if let Err(error) = written {
        say(format_args!("{program}: {error}"));
        return ExitCode::from(1);
    }
    say("This job is simulated: 8 GPUs on two hosts whose clocks differ.");
    say(format_args!(
        "The kernels of rank {rank} take {percent} % longer than those of the others. The analysis says:"
    ));
    say("");
    let code = analyze(out);
    let out = out.display();
    say("");
    say("Next:");
    say(format_args!("  {program} report {out} -o report.html       the same as a page, with a timeline of all ranks"));
    say(format_args!("  duckdb -c \".read '{out}/analysis/views.sql'\" -c \"FROM stragglers\""));
    say(format_args!(
        "  {program} analyze TRACES                    your traces of torch.profiler, Nsight Systems, XLA, rocprofv3"
    ));
    say(format_args!("  {program} exec --out run -- python train.py    record your program"));
    code
}
