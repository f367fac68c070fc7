//! `aggregator stacks`.

use std::ops::Range;
use std::path::PathBuf;

use clap::Args;
use trace::terminal::{self, Form};
use trace::worst_omission;

use crate::cli::input::{InputArguments, input_help, open};
use crate::cli::output::with_bar;
use crate::cli::output::{Outcome, print_omissions};
use crate::cli::output::{refuse_input, write_file};
use crate::cli::table::{Ranks, chosen_ranks};
use formats::input::expand_all;
use key_averages::stacks::{On, Stacks};
use model::Error;
use model::options::{Options, parse_steps};
use model::selection::{Held, require_any};
use model::steps::active_numbers;
use model::units::{plural, ranks_named};

/// Write folded stacks for flame graphs: one stack per line, with its own time in ns.
///
/// flamegraph.pl --countname=ns, inferno-flamegraph and speedscope read them.
#[derive(Debug, Args)]
pub struct Arguments {
    #[arg(required = true, value_name = "RUN|TRACES", help = input_help())]
    paths: Vec<PathBuf>,
    /// Write this file; `-` is stdout. [default: stdout]
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Show the time of host threads, or of devices under the stacks that launched their work.
    #[arg(long, value_enum, default_value_t, value_name = "WHERE")]
    on: On,
    /// Use only these ranks, as in 0,2,4..8. [default: all]
    #[arg(long, value_name = "LIST", value_parser = Ranks::parse)]
    ranks: Option<Ranks>,
    /// Use only rows of these steps: a..b (b not included), a..=b, a.., ..b or one step.
    #[arg(long, value_name = "A..B", value_parser = parse_steps)]
    steps: Option<Range<i32>>,
    #[command(flatten)]
    input: InputArguments,
}

/// Runs the command.
pub(super) fn run(arguments: Arguments) -> Result<Outcome, Error> {
    let mut steps = arguments.steps;
    let out = arguments.out.unwrap_or_else(|| "-".into());
    let paths = expand_all(arguments.paths)?;
    refuse_input(&out, &paths)?;
    let source = open(paths, arguments.input, &mut steps)?;
    let ranks = chosen_ranks(source.as_ref(), Some(arguments.ranks.as_ref().unwrap_or(&Ranks::All)))?;
    let mut omissions = source.problems();
    // Ranks are loaded one after the other, so that memory holds the rows of one rank and the tree of stacks.
    let mut recorded: Vec<Vec<i32>> = Vec::new();
    let stacks = with_bar(|progress| -> Result<Stacks, Error> {
        let mut stacks = Stacks::default();
        for (done, rank) in ranks.iter().enumerate() {
            let data = source.load(*rank)?;
            recorded.push(active_numbers(&data.outline.steps));
            stacks.add(&data, arguments.on, &|row| {
                steps.as_ref().is_none_or(|steps| steps.contains(&data.events.step[row]))
            });
            omissions.extend(data.omissions);
            progress(done + 1, ranks.len());
        }
        Ok(stacks)
    })?;
    let held = recorded.iter().map(|steps| Held { recorded_steps: steps, has_time: true });
    let selection = Options { steps: steps.clone(), ..Options::default() };
    require_any(held, &selection, &source.info().path)?;
    if stacks.is_empty() {
        let why = match arguments.on {
            On::Host => "no host row has own time; --on device shows the time of devices",
            On::Device => "no device row has own time; --on host shows the time of threads",
        };
        let why = why.to_string();
        return Err(Error::NoInput { path: source.info().path, why });
    }
    let io = |source| Error::Io { path: out.clone(), source };
    let lines = write_file(&out, Form::Text, |file| stacks.write(file).map_err(io))?;
    if out.as_os_str() != "-" {
        terminal::say(format_args!(
            "{}: {} of {}, times in ns",
            out.display(),
            plural(lines as usize, "stack"),
            ranks_named(&ranks)
        ));
    }
    omissions.extend(stacks.omission());
    print_omissions(&omissions);
    Ok(arguments.input.outcome(worst_omission(&omissions)))
}
