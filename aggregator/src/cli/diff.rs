//! `aggregator diff`.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;

use super::analyze::{colour, regex, value, width, with_bar};
use super::input::open;
use super::{Outcome, say_omissions};
use crate::Error;
use crate::clock::Choice;
use crate::diff::{Diff, Method, diff};
use crate::options::{Options, parse_ranks, parse_steps};
use crate::render::diff as render;
use crate::render::summary::Look;
use crate::source::Source;

/// Compares two runs, or two sets of runs: what got slower or faster, and how sure that is.
///
/// A and B are runs or directories of traces. With several a side, as in `diff A1,A2,A3 B1,B2,B3`, the difference
/// between runs of one side is measured instead of allowed for: that is the only way to see a small change of all
/// ranks. Record them in turns (A1, B1, A2, B2, …), or a machine that gets busier looks like a change.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Before: a run or traces, or several, separated by commas.
    #[arg(value_name = "A")]
    a: String,
    /// After: the same.
    #[arg(value_name = "B")]
    b: String,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
    /// End with exit code 4 if something is significantly slower by more than this share of a step, as in 5%.
    #[arg(long, value_name = "PERCENT")]
    fail_over: Option<String>,
    /// Rows of each table before the rest is only counted.
    #[arg(long, value_name = "N", default_value_t = 12)]
    top: usize,
    /// Smallest change that matters, as a share of A's step.
    #[arg(long, value_name = "PERCENT", default_value = "1%")]
    smallest: String,
    /// Allowance for runs that differ: variance of a run over variance of its steps. More, if clean runs differ; fewer
    /// runs a side rely on it more.
    #[arg(long, value_name = "RATIO", default_value_t = 1.0)]
    between_runs: f64,
    /// Only these steps: a..b (b not included), a..=b, a.., ..b or one step.
    #[arg(long, value_name = "A..B")]
    steps: Option<String>,
    /// Only these ranks, as in 0,2,4..8.
    #[arg(long, value_name = "LIST")]
    ranks: Option<String>,
    /// Ranges of the host whose name matches are the steps.
    #[arg(long, value_name = "REGEX")]
    step_marker: Option<String>,
    /// What puts the ranks on one clock; where it joins no ranks, that is an error and not another method.
    #[arg(long, value_enum, value_name = "METHOD", default_value_t = Choice::Auto)]
    clock: Choice,
}

/// Runs the command.
pub(super) fn run(arguments: Arguments) -> Result<Outcome, Error> {
    let options = Options {
        steps: value("steps", &arguments.steps, parse_steps)?,
        ranks: value("ranks", &arguments.ranks, parse_ranks)?,
        step_marker: value("step-marker", &arguments.step_marker, regex)?,
        clock: arguments.clock,
        ..Options::default()
    };
    let fail_over = value("fail-over", &arguments.fail_over, percent)?;
    let smallest = value("smallest", &Some(arguments.smallest.clone()), percent)?.unwrap_or(1.0);
    if !(arguments.between_runs >= 0.0 && arguments.between_runs.is_finite()) {
        let value = arguments.between_runs.to_string();
        return Err(Error::Option { option: "between-runs", value, why: "must be 0 or more".into() });
    }
    let method = Method { smallest_share: smallest / 100.0, between_runs: arguments.between_runs, ..Method::default() };
    let (a, b) = (open_side(&arguments.a)?, open_side(&arguments.b)?);
    let borrow = |side: &[Box<dyn Source>]| -> Vec<usize> { (0..side.len()).collect() };
    let (order_a, order_b) = (borrow(&a), borrow(&b));
    let side_a: Vec<&dyn Source> = order_a.iter().map(|at| a[*at].as_ref()).collect();
    let side_b: Vec<&dyn Source> = order_b.iter().map(|at| b[*at].as_ref()).collect();
    let found = with_bar(|progress| diff(&side_a, &side_b, &options, &method, progress))?;
    print(&found, &arguments)?;
    say_omissions(&found.omissions);
    match fail_over {
        Some(limit) if exceeds(&found, limit) => Ok(Outcome::Slower),
        _ if found.omissions.is_empty() => Ok(Outcome::Done),
        _ => Ok(Outcome::Partial),
    }
}

/// One run or more. A path with a comma in its name is taken as it is.
fn open_side(side: &str) -> Result<Vec<Box<dyn Source>>, Error> {
    if Path::new(side).exists() {
        return Ok(vec![open(vec![side.into()])?]);
    }
    side.split(',').map(|path| open(vec![PathBuf::from(path)])).collect()
}

/// Parses `5%` or `5`.
fn percent(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.strip_suffix('%').unwrap_or(text).trim().parse().ok();
    number.filter(|n| *n >= 0.0 && n.is_finite()).ok_or_else(|| "expected a percentage, as in 5%".to_string())
}

fn print(diff: &Diff, arguments: &Arguments) -> Result<(), Error> {
    let stdout = std::io::stdout().lock();
    if arguments.json {
        return render::json(diff, std::io::BufWriter::new(stdout));
    }
    render::render(diff, &Look { width: width(), colour: colour(), top: arguments.top }, stdout)
}

/// Says on stderr which rows are beyond the limit, and what could not be excluded.
fn exceeds(diff: &Diff, limit: f64) -> bool {
    let mut stderr = std::io::stderr().lock();
    let slower: Vec<_> = diff.slower_than(limit).collect();
    for row in slower.iter().take(3) {
        // Messages; if stderr is gone there is nobody to tell.
        let _ = writeln!(stderr, "slower by more than {limit} % of a step: {}", render::row_in_words(row));
    }
    if let (true, Some(detectable)) = (slower.is_empty(), diff.verdict.detectable_step_pct)
        && detectable > limit
    {
        let _ = writeln!(
            stderr,
            "nothing is slower by more than {limit} % for certain, but only a change of all ranks' step by {detectable:.0} % or \
             more would have been; several runs a side, or more steps, see less"
        );
    }
    !slower.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages() {
        assert_eq!((percent("5%"), percent("2.5"), percent("0 %")), (Ok(5.0), Ok(2.5), Ok(0.0)));
        for bad in ["", "%", "-1%", "five", "NaN", "inf%"] {
            assert!(percent(bad).is_err(), "{bad}");
        }
    }
}
