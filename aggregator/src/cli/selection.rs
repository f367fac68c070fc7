//! Which part of a run is looked at, on which clock: the arguments that commands over all ranks share.

use clap::Args;

use super::analyze::{regex, value};
use crate::Error;
use crate::clock::Choice;
use crate::options::{Options, TimeBound, parse_ranks, parse_steps};

/// The chosen part of a run.
#[derive(Debug, Args)]
pub(super) struct SelectionArguments {
    /// Only these steps: a..b (b not included), a..=b, a.., ..b or one step.
    #[arg(long, value_name = "A..B")]
    steps: Option<String>,
    /// Only from this time on: global ns, or +1.5s, +200ms since the start.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    from: Option<String>,
    /// Only before this time: global ns, or +1.5s, +200ms since the start.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    to: Option<String>,
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

impl SelectionArguments {
    /// Options with this selection, and else their defaults.
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
