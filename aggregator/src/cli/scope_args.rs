//! Arguments that select a part of a run and the clock: shared by the commands over all ranks.

use clap::Args;

use crate::Error;
use crate::cli::analyze::{regex, value};
use crate::model::clock_choice::Choice;
use crate::model::options::{Options, TimeBound, parse_ranks, parse_steps};

/// The selected part of a run.
#[derive(Debug, Args)]
pub(super) struct ScopeArguments {
    /// Use only these steps: a..b (b not included), a..=b, a.., ..b or one step.
    #[arg(long, value_name = "A..B")]
    steps: Option<String>,
    /// Use only the time from here on: a global time in ns, or +1.5s, +200ms since the start.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    from: Option<String>,
    /// Use only the time before this: a global time in ns, or +1.5s, +200ms since the start.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    to: Option<String>,
    /// Use only these ranks, as in 0,2,4..8.
    #[arg(long, value_name = "LIST")]
    ranks: Option<String>,
    /// Take the host ranges (record_function, NVTX) whose name matches as the steps.
    #[arg(long, value_name = "REGEX")]
    step_marker: Option<String>,
    /// Choose how to align the clocks. If the method joins no ranks, the command fails; it never falls back.
    #[arg(long, value_enum, value_name = "METHOD", default_value_t = Choice::Auto)]
    clock: Choice,
}

impl ScopeArguments {
    /// Returns options with this selection; all other options have their defaults.
    pub(super) fn resolve(&self) -> Result<Options, Error> {
        Ok(Options {
            steps: value("steps", &self.steps, parse_steps)?,
            from: value("from", &self.from, TimeBound::parse)?,
            to: value("to", &self.to, TimeBound::parse)?,
            ranks: value("ranks", &self.ranks, parse_ranks)?,
            step_marker: value("step-marker", &self.step_marker, regex)?,
            clock: self.clock,
            ..Options::default()
        })
    }
}
