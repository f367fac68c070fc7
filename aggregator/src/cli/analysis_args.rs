//! Arguments of the commands that map, reduce or do both: the options of the analysis, and how it is printed.

use std::path::PathBuf;

use clap::Args;
use regex::Regex;
use trace::terminal::{self, Form};

use crate::cli::output::text_output;
use crate::cli::output::{colour, width};
use crate::cli::scope_args::{CommunicationArguments, PlaceArguments, ScopeArguments};
use crate::cli::thresholds::ThresholdArguments;
use measure::reduced::Reduced;
use model::Error;
use model::options::Options;
use model::shown_ranks::MOST_RANKS;
use report_tables::json;
use report_text::summary::{self, TerminalStyle};

/// The options of an analysis.
#[derive(Debug, Args)]
pub(super) struct AnalysisArguments {
    #[command(flatten)]
    scope: ScopeArguments,
    #[command(flatten)]
    communication: CommunicationArguments,
    /// Use only the time inside host ranges whose name matches.
    #[arg(long, value_name = "REGEX", help_heading = "Selection")]
    range: Option<Regex>,
    /// Look for kernel sequences in operators and ranges whose name matches, instead of in every outermost operator.
    #[arg(long, value_name = "REGEX")]
    sequences_of: Option<Regex>,
    #[command(flatten)]
    places: PlaceArguments,
    #[command(flatten)]
    thresholds: ThresholdArguments,
}

impl AnalysisArguments {
    /// Returns the options.
    pub(super) fn options(&self) -> Options {
        Options {
            range: self.range.clone(),
            sequences_of: self.sequences_of.clone(),
            thresholds: self.thresholds.thresholds(),
            communication: self.communication.rule(),
            places: self.places.places.clone(),
            ..self.scope.options()
        }
    }
}

/// How an analysis is printed.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(super) struct PrintArguments {
    /// Print the analysis as JSON instead of the summary. Of more than 512 ranks it has the worst and typical ones; --full prints
    /// all.
    #[arg(long)]
    json: bool,
    /// Print so many rows of each table of the summary, and count the rest. [default: as many ranks as fit 24 lines; 12 with
    /// --full]
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    /// Print also the findings, communication, buckets, devices, kernels, modules, memory, clocks, and what was left out. With
    /// --json: all rows.
    #[arg(long)]
    full: bool,
}

impl PrintArguments {
    /// Prints an analysis of `paths`.
    pub(super) fn print(&self, reduced: &mut Reduced<'_>, paths: &[PathBuf]) -> Result<(), Error> {
        let analysis = if self.json || self.full { reduced.whole() } else { &reduced.analysis };
        if self.json {
            let most = if self.full { usize::MAX } else { MOST_RANKS };
            return json::render(analysis, most, terminal::stdout(Form::Json));
        }
        let mut paths = paths.iter().map(|path| path.display().to_string());
        let first = paths.next().unwrap_or_default();
        let input = if paths.next().is_some() { format!("{first} …") } else { first };
        let style = TerminalStyle { width: width(), colour: colour(), top: self.top, full: self.full, input };
        summary::render(analysis, &style, text_output())
    }
}
