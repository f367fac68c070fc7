//! `aggregator table`.

use std::collections::BTreeSet;
use std::io::{IsTerminal, Write};
use std::ops::Range;
use std::path::PathBuf;

use clap::Args;
use rayon::prelude::*;
use regex::Regex;
use serde::Serialize;
use trace::terminal::{self, Form};
use trace::{OmissionRow, worst_omission};

use crate::cli::input::{InputArguments, input_help, open};
use crate::cli::output::text_output;
use crate::cli::output::{Outcome, print_omissions};
use crate::cli::output::{colour, width, with_bar};
use key_averages::table::{GroupBy, KeyAverages, SortKey, TableOptions, key_averages};
use model::Error;
use model::options::{Options, parse_ranks, parse_steps};
use model::selection::{Held, require_any};
use model::source::{Source, no_rank};
use model::steps::{active_numbers, mark_steps};
use report_text::key_averages::{TableStyle, render};

/// Print the table of torch.profiler's key_averages().table() for a run or for traces.
///
/// There is one table per rank, as in torch.profiler, because sums over ranks hide the rank that differs. Without
/// --ranks, only the table of the lowest rank is printed.
#[derive(Debug, Args)]
pub struct Arguments {
    #[arg(required = true, value_name = "RUN|TRACES", help = input_help())]
    paths: Vec<PathBuf>,
    /// Sort by a key of torch.profiler, such as self_cpu_time_total or count; `cuda` and `device` mean the same.
    /// [default: self_cuda_time_total, or self_cpu_time_total if no device was recorded]
    #[arg(long, value_name = "KEY", value_parser = parse_sort_by)]
    sort_by: Option<SortBy>,
    /// Print so many rows of each table; -1 prints all. [default: 20; with --json all]
    #[arg(long, value_name = "N", value_parser = parse_row_limit, allow_hyphen_values = true)]
    row_limit: Option<usize>,
    /// Group rows by name and this.
    #[arg(long, value_enum, default_value_t, value_name = "WHAT")]
    group_by: GroupBy,
    /// With --group-by stack, distinguish so many innermost frames.
    #[arg(long, value_name = "N", default_value_t = 5)]
    stack_frames: usize,
    /// Count Python functions too.
    #[arg(long)]
    python_functions: bool,
    /// Print the tables of these ranks, as in 0,2,4..8, or of `all`.
    #[arg(long, value_name = "LIST", value_parser = Ranks::parse)]
    ranks: Option<Ranks>,
    /// Use only these steps: a..b (b not included), a..=b, a.., ..b or one step.
    #[arg(long, value_name = "A..B", value_parser = parse_steps)]
    steps: Option<Range<i32>>,
    /// Take the host ranges (record_function, NVTX) whose name matches as the steps.
    #[arg(long, value_name = "REGEX")]
    step_marker: Option<Regex>,
    #[command(flatten)]
    input: InputArguments,
    /// Print JSON, times in ns.
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// Ranks on the command line.
#[derive(Clone, Debug)]
pub(super) enum Ranks {
    All,
    Listed(BTreeSet<i32>),
}

impl Ranks {
    /// Parses `all`, or a list as in `0,2,4..8`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if text == "all" { Ok(Self::All) } else { parse_ranks(text).map(Self::Listed) }
    }
}

const ROW_LIMIT: usize = 20;
/// Version of the JSON: raised if a key is removed or changes its meaning.
const VERSION: u32 = 1;

/// The table of a rank, its omissions, and the numbers of its recorded steps.
type OneTable = (KeyAverages, Vec<OmissionRow>, Vec<i32>);

#[derive(Serialize)]
struct Document<'a> {
    format: &'static str,
    version: u32,
    sorted_by: &'a str,
    tables: &'a [KeyAverages],
    omissions: &'a [OmissionRow],
}

/// Runs the command.
pub(super) fn run(arguments: Arguments) -> Result<Outcome, Error> {
    let mut steps = arguments.steps.clone();
    let source = open(arguments.paths.clone(), arguments.input, &mut steps)?;
    let options = TableOptions {
        group_by: arguments.group_by,
        stack_frames: arguments.stack_frames,
        steps: steps.clone(),
        python_functions: arguments.python_functions,
    };
    let chosen = chosen_ranks(source.as_ref(), arguments.ranks.as_ref())?;
    let mut omissions = source.problems();
    let table_of_rank = |rank: &i32| -> Result<OneTable, Error> {
        let (mut data, details) = source.load_detailed(*rank)?;
        if let Some(marker) = &arguments.step_marker {
            mark_steps(&mut data, marker);
        }
        let steps = active_numbers(&data.outline.steps);
        Ok((key_averages(&data, &details, &options), data.omissions, steps))
    };
    let loaded = with_bar(|progress| {
        let done = std::sync::atomic::AtomicUsize::new(0);
        let tables: Result<Vec<_>, Error> = chosen
            .par_iter()
            .with_max_len(1)
            .map(|rank| {
                let table = table_of_rank(rank);
                progress(done.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1, chosen.len());
                table
            })
            .collect();
        tables
    })?;
    let held = loaded.iter().map(|(_, _, steps)| Held { recorded_steps: steps, has_time: true });
    let selection = Options { steps, ..Options::default() };
    require_any(held, &selection, &source.info().path)?;
    let mut tables = Vec::new();
    for (table, left_out, _) in loaded {
        tables.push(table);
        omissions.extend(left_out);
    }
    let has_device = tables.iter().any(|table| table.device.is_some());
    let (word, key) = match &arguments.sort_by {
        Some((word, key)) => (word.as_str(), *key),
        None if has_device => ("self_cuda_time_total", SortKey::SelfDeviceTimeTotal),
        None => ("self_cpu_time_total", SortKey::SelfCpuTimeTotal),
    };
    tables.iter_mut().for_each(|table| key.sort(&mut table.rows));
    if arguments.json {
        print_json(&mut tables, word, arguments.row_limit, &omissions)?;
    } else {
        print_tables(&tables, (word, key), arguments.row_limit)?;
    }
    if arguments.group_by == GroupBy::Stack
        && !tables.iter().flat_map(|table| &table.rows).any(|row| !row.group.is_empty())
    {
        terminal::say(format_args!(
            "the trace has no Python stacks, so the rows are grouped by name only; record with with_stack=True"
        ));
    }
    print_notes(source.as_ref(), &chosen, arguments.ranks.is_some(), &omissions);
    Ok(arguments.input.outcome(worst_omission(&omissions)))
}

/// Returns the chosen ranks, or the lowest rank without a list.
pub(super) fn chosen_ranks(source: &dyn Source, list: Option<&Ranks>) -> Result<Vec<i32>, Error> {
    let all = source.ranks();
    let chosen: Vec<i32> = match list {
        None => all.iter().copied().take(1).collect(),
        Some(Ranks::All) => all.clone(),
        Some(Ranks::Listed(wanted)) => all.iter().copied().filter(|rank| wanted.contains(rank)).collect(),
    };
    let wanted = match list {
        Some(Ranks::Listed(wanted)) => Some(wanted),
        _ => None,
    };
    if chosen.is_empty() { Err(no_rank(source, wanted)) } else { Ok(chosen) }
}

/// A sort key as given, and its meaning.
type SortBy = (String, SortKey);

fn parse_sort_by(text: &str) -> Result<SortBy, String> {
    Ok((text.to_string(), SortKey::parse(text)?))
}

/// Parses a number of rows; -1 is `usize::MAX`.
fn parse_row_limit(text: &str) -> Result<usize, String> {
    let rows = if text == "-1" { Some(usize::MAX) } else { text.parse().ok() };
    rows.filter(|rows| *rows > 0).ok_or_else(|| "expected 1 or more, or -1 for all".to_string())
}

fn print_json(
    tables: &mut [KeyAverages],
    sorted_by: &str,
    row_limit: Option<usize>,
    omissions: &[OmissionRow],
) -> Result<(), Error> {
    if let Some(limit) = row_limit {
        tables.iter_mut().for_each(|table| table.rows.truncate(limit));
    }
    let mut out = terminal::stdout(Form::Json);
    let document = Document { format: "rankscope.key_averages", version: VERSION, sorted_by, tables, omissions };
    serde_json::to_writer_pretty(&mut out, &document)?;
    writeln!(out)?;
    Ok(out.flush()?)
}

fn print_tables(tables: &[KeyAverages], sorted_by: (&str, SortKey), row_limit: Option<usize>) -> Result<(), Error> {
    // Files and pipes have no width unless COLUMNS sets one.
    let bounded = std::io::stdout().is_terminal() || std::env::var_os("COLUMNS").is_some();
    let style = TableStyle { width: bounded.then(width), colour: colour(), rows: Some(row_limit.unwrap_or(ROW_LIMIT)) };
    let texts: Vec<String> = tables.iter().map(|table| render(table, Some(sorted_by), &style)).collect();
    let mut out = text_output();
    out.write_all(texts.join("\n").as_bytes())?;
    Ok(out.flush()?)
}

/// Prints on stderr how many ranks are not shown, and the omissions.
fn print_notes(source: &dyn Source, chosen: &[i32], ranks_given: bool, omissions: &[OmissionRow]) {
    let all = source.ranks();
    if !ranks_given && all.len() > chosen.len() {
        terminal::say(format_args!(
            "rank {} of {} ranks; --ranks LIST or all prints the others, and `rankscope analyze` names the slow one",
            chosen[0],
            all.len()
        ));
    }
    print_omissions(omissions);
}
