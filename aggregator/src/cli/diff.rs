//! `aggregator diff`.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

use clap::Args;
use regex::Regex;
use trace::place;
use trace::terminal::{self, Form};
use trace::worst_omission;

use crate::cli::input::{InputArguments, open_one_of_several};
use crate::cli::output::text_output;
use crate::cli::output::{Outcome, print_omissions};
use crate::cli::output::{colour, width, with_bar};
use crate::cli::scope_args::CommunicationArguments;
use crate::cli::thresholds::number;
use diff::{Diff, Method};
use formats::input::resolve;
use model::Error;
use model::clock_choice::Choice;
use model::options::{Options, parse_ranks, parse_steps};
use model::source::Source;
use pipeline::diff::diff;
use report_text::diff as render;
use report_text::summary::TerminalStyle;

/// Compare two runs, or two sets of runs: slowdowns and speedups with their confidence intervals.
///
/// A and B are runs or directories of traces. Runs may differ in the number of ranks, in devices, shapes and compiler: the answer says
/// what differs, compares what still has a meaning, and says what it does not compare. With several runs per side, as in `diff A1,A2,A3 B1,B2,B3`, the
/// difference between runs of one side is measured instead of assumed. Only this way can a small change of all ranks
/// be detected. Record the runs in turns (A1, B1, A2, B2, …); otherwise a machine that gets busier looks like a change.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Runs or traces from before the change, separated by commas.
    #[arg(value_name = "A")]
    a: String,
    /// Runs or traces from after the change, separated by commas.
    #[arg(value_name = "B")]
    b: String,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
    /// Exit with code 4 if anything is significantly slower by more than this share of a step, as in 5%, and with code 5
    /// if the runs cannot show a change of all ranks' step of that size.
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    fail_over: Option<f64>,
    /// Print so many rows of each table, and count the rest.
    #[arg(long, value_name = "N", default_value_t = 12)]
    top: usize,
    /// Ignore changes below this share of a step of A or B, whichever is shorter.
    #[arg(long, value_name = "PERCENT", value_parser = percent, default_value = "1%")]
    smallest: f64,
    /// Set the allowance for differences between runs: the variance between runs over the variance of a run's steps.
    /// Raise it if runs of the same program differ. It matters most with one run per side.
    #[arg(long, value_name = "RATIO", value_parser = |text: &str| number(text, f64::MAX), default_value_t = 1.0)]
    between_runs: f64,
    /// Use only these steps: a..b (b not included), a..=b, a.., ..b or one step.
    #[arg(long, value_name = "A..B", value_parser = parse_steps)]
    steps: Option<Range<i32>>,
    /// Use only these ranks, as in 0,2,4..8.
    #[arg(long, value_name = "LIST", value_parser = parse_ranks)]
    ranks: Option<BTreeSet<i32>>,
    /// Take the host ranges (record_function, NVTX) whose name matches as the steps.
    #[arg(long, value_name = "REGEX")]
    step_marker: Option<Regex>,
    /// Choose how to align the clocks. If the method joins no ranks, the command fails; it never falls back.
    #[arg(long, value_enum, value_name = "METHOD", default_value_t = Choice::Auto)]
    clock: Choice,
    #[command(flatten)]
    communication: CommunicationArguments,
    #[command(flatten)]
    input: InputArguments,
}

/// Runs the command.
pub(super) fn run(arguments: Arguments) -> Result<Outcome, Error> {
    let (a, b) = (paths_of(&arguments.a), paths_of(&arguments.b));
    let difference = with_bar(|progress| arguments.compare(&a, &b, progress))?;
    print_diff(&difference, &arguments)?;
    print_omissions(&difference.omissions);
    let failed = arguments.fail_over.and_then(|limit| gate(&difference, limit));
    Ok(failed.unwrap_or(arguments.input.outcome(worst_omission(&difference.omissions))))
}

impl Arguments {
    /// Compares the runs of two sides.
    pub(super) fn compare(
        &self,
        a: &[String],
        b: &[String],
        progress: &(dyn Fn(usize, usize) + Sync),
    ) -> Result<Diff, Error> {
        let options = Options {
            steps: self.steps.clone(),
            ranks: self.ranks.clone(),
            step_marker: self.step_marker.clone(),
            clock: self.clock,
            communication: self.communication.rule(),
            ..Options::default()
        };
        let method = Method {
            smallest_share: self.smallest / 100.0,
            between_runs: self.between_runs,
            unlike_runs: self.input.force,
            ..Method::default()
        };
        let open = |path: &String| open_one_of_several(resolve(vec![PathBuf::from(path)])?, self.input);
        let a: Vec<Box<dyn Source>> = a.iter().map(open).collect::<Result<_, _>>()?;
        let b: Vec<Box<dyn Source>> = b.iter().map(open).collect::<Result<_, _>>()?;
        let side_a: Vec<&dyn Source> = a.iter().map(Box::as_ref).collect();
        let side_b: Vec<&dyn Source> = b.iter().map(Box::as_ref).collect();
        diff(&side_a, &side_b, &options, &method, progress)
    }
}

/// The runs of one side. An existing path is used as it is, even if its name contains a comma.
fn paths_of(side: &str) -> Vec<String> {
    if place::kind(Path::new(side)).is_ok() {
        return vec![side.into()];
    }
    side.split(',').map(String::from).collect()
}

/// Parses `5%` or `5`.
fn percent(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.strip_suffix('%').unwrap_or(text).trim().parse().ok();
    number.filter(|n| *n >= 0.0 && n.is_finite()).ok_or_else(|| "expected a percentage, as in 5%".to_string())
}

fn print_diff(diff: &Diff, arguments: &Arguments) -> Result<(), Error> {
    if arguments.json {
        return render::json(diff, terminal::stdout(Form::Json));
    }
    let style =
        TerminalStyle { width: width(), colour: colour(), top: Some(arguments.top), ..TerminalStyle::default() };
    render::render(diff, &style, text_output())
}

/// The outcome of `--fail-over`; `None` if no change of that size happened. Prints the reason on stderr.
fn gate(diff: &Diff, limit: f64) -> Option<Outcome> {
    let (slower, unproved): (Vec<_>, Vec<_>) = diff.slower_than(limit).partition(|row| diff.is_proof(row));
    for row in slower.iter().take(3) {
        terminal::say(format_args!("slower by more than {limit} % of a step: {}", render::row_in_words(row)));
    }
    if !slower.is_empty() {
        return Some(Outcome::Slower);
    }
    if let Some(row) = unproved.first() {
        terminal::say(format_args!(
            "inconclusive for {limit} %: {}; one run a side does not show how much runs differ: record two or more a side",
            render::row_in_words(row)
        ));
        return Some(Outcome::CannotTell);
    }
    let detected = match diff.verdict.detectable_step_pct {
        Some(detectable) if detectable <= limit => return None,
        Some(detectable) => format!("only a change of all ranks' step above {detectable:.0} % would be detected"),
        None => "the runs have too few steps to detect any change".to_string(),
    };
    terminal::say(format_args!("inconclusive for {limit} %: {detected}; record several runs per side, or more steps"));
    Some(Outcome::CannotTell)
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
