//! `rankscope simulate`: writes a job whose truth is known, to try an analysis at any size.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;

use aggregator::cli::start_threads;
use clap::{Args, ValueEnum};
use simulator::{Level, Parallel, Request, Slowness, Straggler, write_request};
use trace::terminal::say;

/// Write a simulated job whose stragglers, clocks and missing ranks are known
///
/// Ranks are simulated event by event and written as a run or as traces of torch.profiler. The same options and seed give the
/// same bytes. The truth is written beside them: who is slow, why, what it costs per step (the difference to the same job
/// without it), the clocks, and the ranks that are missing or cut.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Write the job into this directory, which is new or empty, and the truth into OUT.truth.json
    #[arg(short, long, value_name = "OUT")]
    out: PathBuf,
    /// What to write
    #[arg(long, value_enum, default_value = "run")]
    format: Format,
    /// Replicas, ranks that share each layer, and stages; the number of ranks is the product
    #[arg(long, value_name = "dp=N,tp=N,pp=N", default_value = "dp=8", value_parser = parallel)]
    parallel: Parallel,
    /// Number of steps
    #[arg(long, value_name = "N", default_value_t = 5)]
    steps: usize,
    /// Number of layers; with pp, of microbatches
    #[arg(long, value_name = "N", default_value_t = 8)]
    layers: usize,
    /// Number of ranks on a host
    #[arg(long, value_name = "N", default_value_t = 8)]
    host_ranks: usize,
    /// A straggler; may be given several times
    ///
    /// WHERE is rank=N, host=N, stage=N, model=N..M (hosts whose devices are of another model), comm=N (transfers of a
    /// communicator) or link=N (the link into a rank). ms=X is a pause of the host in each forward pass; percent=X is how much
    /// longer kernels or transfers take.
    #[arg(long, value_name = "WHERE,ms=X|percent=X", value_parser = straggler)]
    slow: Vec<Straggler>,
    /// Largest offset and drift of the hosts' clocks; each host draws its own
    #[arg(long, value_name = "offset_ms=X,drift_ppm=X", value_parser = clocks, default_value = "offset_ms=0")]
    clocks: Clocks,
    /// Ranks whose files are missing
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    missing: Vec<usize>,
    /// Ranks whose trace, or whose shard of events, is cut in the middle
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    cut: Vec<usize>,
    /// Seed of all random draws
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

const EXAMPLES: &str = "\
Examples:
  rankscope simulate --out job --parallel dp=128,tp=8 --slow rank=37,ms=3 --missing 5,900
  rankscope simulate --out traces --format kineto --parallel dp=4,tp=8,pp=4 --slow host=3,percent=20
  rankscope simulate --out big --parallel dp=1250,tp=8 --steps 3 --clocks offset_ms=500,drift_ppm=20";

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// A run, as ranks record it
    Run,
    /// Traces of torch.profiler
    Kineto,
}

#[derive(Clone, Copy, Debug, Default)]
struct Clocks {
    offset_ns: i64,
    drift_ppb: f64,
}

/// Writes the job and returns the exit code.
pub(crate) fn main(arguments: Arguments, program: &str) -> ExitCode {
    start_threads();
    let Arguments { out, format, parallel, steps, layers, host_ranks, slow, clocks, missing, cut, seed } = arguments;
    let request = Request {
        parallel,
        steps,
        layers,
        host_ranks,
        stragglers: slow,
        clock_offset_ns: clocks.offset_ns,
        clock_drift_ppb: clocks.drift_ppb,
        missing: BTreeSet::from_iter(missing),
        cut: BTreeSet::from_iter(cut),
        is_run: matches!(format, Format::Run),
        seed,
    };
    match write_request(&request, &out) {
        Ok(truth) => {
            say(format_args!("{}: {} ranks; the truth is in {}", out.display(), parallel.ranks(), truth.display()));
            ExitCode::SUCCESS
        }
        Err(error) => {
            say(format_args!("{program}: {error}"));
            ExitCode::from(if error.is_usage() { 2 } else { 1 })
        }
    }
}

/// The `key=value` parts of an option.
fn pairs(text: &str) -> Result<Vec<(&str, &str)>, String> {
    text.split(',').map(|part| part.split_once('=').ok_or_else(|| format!("{part:?} is not key=value"))).collect()
}

fn number<T: std::str::FromStr>(key: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{value:?} is no number that {key} can have"))
}

/// A finite value of at least 0, as an integer of a smaller unit.
fn scaled(key: &str, value: &str, factor: f64) -> Result<i64, String> {
    let number: f64 = number(key, value)?;
    let scaled = (number * factor).round();
    // Far below the largest i64, so that sums of it do not overflow.
    let is_usable = (0.0..1e15).contains(&scaled);
    is_usable.then_some(scaled as i64).ok_or_else(|| format!("{key}={value} is out of range"))
}

fn parallel(text: &str) -> Result<Parallel, String> {
    let mut parallel = Parallel { data: 1, tensor: 1, stages: 1 };
    for (key, value) in pairs(text)? {
        match key {
            "dp" => parallel.data = number(key, value)?,
            "tp" => parallel.tensor = number(key, value)?,
            "pp" => parallel.stages = number(key, value)?,
            _ => return Err(format!("{key:?} is not dp, tp or pp")),
        }
    }
    Ok(parallel)
}

fn straggler(text: &str) -> Result<Straggler, String> {
    let (mut level, mut slowness) = (None, None);
    for (key, value) in pairs(text)? {
        match key {
            "rank" => level = Some(Level::Rank(number(key, value)?)),
            "host" => level = Some(Level::Host(number(key, value)?)),
            "stage" => level = Some(Level::Stage(number(key, value)?)),
            "model" => level = Some(Level::Model(range(value)?)),
            "comm" => level = Some(Level::Comm(number(key, value)?)),
            "link" => level = Some(Level::Link(number(key, value)?)),
            "ms" => slowness = Some(Slowness::Pause { ns: scaled(key, value, 1e6)? }),
            "percent" => slowness = Some(Slowness::Longer { permille: scaled(key, value, 10.0)? }),
            _ => return Err(format!("{key:?} is not rank, host, stage, model, comm, link, ms or percent")),
        }
    }
    let level = level.ok_or("it does not say where: rank, host, stage, model, comm or link")?;
    let slowness = slowness.ok_or("it does not say how slow: ms or percent")?;
    Ok(Straggler { level, slowness })
}

fn range(text: &str) -> Result<Range<usize>, String> {
    let (first, end) = text.split_once("..").ok_or("the hosts of a model are N..M")?;
    let range = number("model", first)?..number("model", end)?;
    if range.is_empty() { Err(format!("{text} holds no host")) } else { Ok(range) }
}

fn clocks(text: &str) -> Result<Clocks, String> {
    let mut clocks = Clocks::default();
    for (key, value) in pairs(text)? {
        match key {
            "offset_ms" => clocks.offset_ns = scaled(key, value, 1e6)?,
            "drift_ppm" => clocks.drift_ppb = scaled(key, value, 1e3)? as f64,
            _ => return Err(format!("{key:?} is not offset_ms or drift_ppm")),
        }
    }
    Ok(clocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stragglers_and_clocks_are_read_and_refused() {
        let host = Straggler { level: Level::Host(3), slowness: Slowness::Longer { permille: 125 } };
        assert_eq!(straggler("host=3,percent=12.5"), Ok(host));
        assert_eq!(straggler("model=1..4,percent=1").map(|s| s.level), Ok(Level::Model(1..4)));
        for wrong in ["rank=3", "ms=3", "rank=-1,ms=3", "rank=1,ms=-3", "rank=1,ms=nan", "model=4..4,percent=1", "x"] {
            assert!(straggler(wrong).is_err(), "{wrong}");
        }
        assert!(clocks("offset_ms=1e30").is_err() && parallel("dp=2,xp=3").is_err());
        assert_eq!(parallel("dp=2,pp=3"), Ok(Parallel { data: 2, tensor: 1, stages: 3 }));
    }
}
