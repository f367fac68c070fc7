//! Arguments that select a part of a run and the clock: shared by the commands over all ranks.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use clap::Args;
use regex::Regex;

use model::clock_choice::Choice;
use model::communication::{Communication, Counted};
use model::options::{Options, TimeBound, parse_ranks, parse_steps};
use model::places::Places;

/// Options that change which device work is communication.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Analysis")]
pub(super) struct CommunicationArguments {
    /// Count device work whose name matches as communication too. `hta`: count only the kernels that HTA counts.
    #[arg(long, value_name = "REGEX|hta", value_parser = counted)]
    comm: Option<Counted>,
    /// Do not count device work whose name matches as communication, whatever else says that it is.
    #[arg(long, value_name = "REGEX")]
    not_comm: Option<Regex>,
}

impl CommunicationArguments {
    /// Returns the rule of these options.
    pub(super) fn rule(&self) -> Communication {
        Communication { counted: self.comm.clone(), not_counted: self.not_comm.clone() }
    }
}

fn counted(text: &str) -> Result<Counted, regex::Error> {
    if text == "hta" { Ok(Counted::Hta) } else { Regex::new(text).map(Counted::Matching) }
}

/// Where ranks are.
#[derive(Debug, Args)]
#[command(next_help_heading = "Analysis")]
pub(super) struct PlaceArguments {
    /// Read from this file where hosts or ranks are, to find out whether the slow ranks share a rack, a switch or a rail: CSV
    /// whose first column is host or rank, or SLURM's topology.conf.
    #[arg(long, value_name = "FILE", value_parser = |path: &str| Places::read(path).map(Arc::new))]
    pub(super) places: Option<Arc<Places>>,
}

/// The selected part of a run.
#[derive(Debug, Args)]
#[command(next_help_heading = "Selection")]
pub(super) struct ScopeArguments {
    /// Use only these steps: a..b (b not included), a..=b, a.., ..b or one step.
    #[arg(long, value_name = "A..B", value_parser = parse_steps)]
    steps: Option<Range<i32>>,
    /// Use only the time from here on: a global time in ns, or +1.5s, +200ms since the start.
    #[arg(long, value_name = "TIME", value_parser = TimeBound::parse, allow_hyphen_values = true)]
    from: Option<TimeBound>,
    /// Use only the time before this: a global time in ns, or +1.5s, +200ms since the start.
    #[arg(long, value_name = "TIME", value_parser = TimeBound::parse, allow_hyphen_values = true)]
    to: Option<TimeBound>,
    /// Use only these ranks, as in 0,2,4..8.
    #[arg(long, value_name = "LIST", value_parser = parse_ranks)]
    ranks: Option<BTreeSet<i32>>,
    /// Take the host ranges (record_function, NVTX) whose name matches as the steps.
    #[arg(long, value_name = "REGEX")]
    step_marker: Option<Regex>,
    /// Choose how to align the clocks. If the method joins no ranks, the command fails; it never falls back.
    #[arg(long, value_enum, value_name = "METHOD", default_value_t = Choice::Auto)]
    clock: Choice,
}

impl ScopeArguments {
    /// Returns options with this selection; all other options have their defaults.
    pub(super) fn options(&self) -> Options {
        Options {
            steps: self.steps.clone(),
            from: self.from,
            to: self.to,
            ranks: self.ranks.clone(),
            step_marker: self.step_marker.clone(),
            clock: self.clock,
            ..Options::default()
        }
    }
}
