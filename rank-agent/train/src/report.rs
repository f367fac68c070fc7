//! Rank 0's messages to the user on stderr: the setup, progress, the result, and the next command.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use agent::console;
use agent::fabric::agree::RunPlace;
use recorder::Summary;
use trace::terminal;

use crate::options::{BackendChoice, Options};
use crate::training::{Gradients, StepResult};

/// The result of a job, the same on all ranks.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Checksum of the parameters after the last step; `None` if the job trains nothing.
    pub checksum: Option<u64>,
    /// Mean loss of the first and the last step; `None` if the job trains nothing.
    pub losses: Option<(f64, f64)>,
    /// Rows lost on all ranks.
    pub dropped: u64,
    /// Number of ranks whose recording was not closed in order.
    pub unclosed: u64,
}

impl Outcome {
    /// Exit code: 0, or 3 when rows were lost.
    pub fn exit_code(&self) -> u8 {
        if self.dropped == 0 && self.unclosed == 0 { 0 } else { 3 }
    }
}

/// Sums over all ranks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Rows on disk.
    pub rows: u64,
    /// Bytes on disk.
    pub bytes: u64,
    /// Writes that failed.
    pub failed_parts: u64,
    /// CPU time of the threads that write the run, in ns.
    pub writer_cpu_ns: u64,
    /// CPU time of the ranks, all threads, in ns.
    pub cpu_ns: u64,
}

/// Duration of an active step.
#[derive(Clone, Copy, Debug)]
pub struct StepTime {
    /// The duration.
    pub time: Duration,
    /// Number of steps that it was taken from.
    pub steps: usize,
    /// `median`, or `mean` where the steps were not timed one by one.
    pub what: &'static str,
}

/// Shortest interval between progress lines.
const PROGRESS_PERIOD: Duration = Duration::from_secs(5);

/// Prints rank 0's messages; on other ranks it prints nothing.
#[derive(Debug)]
pub struct Report {
    speaks: bool,
    size: usize,
    steps: u32,
    last_progress: Instant,
    shows_every_step: bool,
    backend_was_chosen: bool,
    why_chosen: Option<String>,
    model: String,
    /// What carries the gradients.
    carrier: &'static str,
}

impl Report {
    /// The messages of `rank`.
    pub fn new(rank: usize, size: usize, options: &Options) -> Self {
        let crate::model::ModelConfig { layers, hidden, batch, .. } = options.model;
        Self {
            speaks: rank == 0,
            size,
            steps: options.steps,
            last_progress: Instant::now(),
            shows_every_step: rank == 0 && std::io::stderr().is_terminal(),
            backend_was_chosen: options.backend == BackendChoice::Auto,
            why_chosen: None,
            carrier: if options.fsdp { "sharded layer" } else { "bucket" },
            model: format!("{layers} layers of {hidden}, batch {batch}"),
        }
    }

    /// Notes the reason for the choice of `--backend auto`.
    pub fn set_reason(&mut self, why: Option<&str>) {
        self.why_chosen = why.map(str::to_owned);
    }

    /// Prints the setup of the job. `notes` are further sentences.
    pub fn begin(&self, backend: &str, gradients: Gradients, hosts: usize, place: Option<&RunPlace>, notes: &[String]) {
        let ranks = plural(self.size as u64, "rank");
        let hosts = if hosts > 1 { format!(" on {hosts} hosts") } else { String::new() };
        let chosen = match (&self.why_chosen, self.backend_was_chosen) {
            (Some(why), true) => format!(" (chosen by --backend auto: {why})"),
            (None, true) => " (chosen by --backend auto)".into(),
            (_, false) => String::new(),
        };
        let place = place.map_or("not recorded".into(), |place| format!("recorded in {}", place.shown.display()));
        self.say(&format!(
            "{ranks}{hosts}, {}, {} of gradients in {}; computed by the {backend}{chosen}; {place}",
            self.model,
            bytes(gradients.bytes as u64),
            plural(gradients.buckets as u64, self.carrier),
        ));
        for note in notes {
            self.say(note);
        }
    }

    /// Prints progress: on a terminal one line that every step overwrites, elsewhere a line every few seconds.
    pub fn step(&mut self, step: u32, result: &StepResult, time: Duration) {
        if !self.speaks {
            return;
        }
        let loss = result.learned.map_or(String::new(), |learned| format!("  loss {:.4}", learned.mean_loss));
        let text = format!("step {}/{}{loss}  {:.1} ms", step + 1, self.steps, time.as_secs_f64() * 1e3);
        if self.shows_every_step {
            terminal::overwrite(if step + 1 == self.steps { "" } else { &text });
        } else if self.last_progress.elapsed() >= PROGRESS_PERIOD {
            self.last_progress = Instant::now();
            self.say(&text);
        }
    }

    /// Prints the result. `totals` are sums over all ranks, `summary` is this rank's.
    pub fn end(
        &mut self,
        outcome: &Outcome,
        time: Option<StepTime>,
        totals: Totals,
        place: Option<&RunPlace>,
        summary: &Summary,
    ) {
        let losses = outcome.losses.map_or(String::new(), |(first, last)| format!(": loss {first:.6} → {last:.6}"));
        let time = time.map_or(String::new(), |StepTime { time, steps, what }| {
            format!("; {:.2} ms a step ({what} of {steps} active)", time.as_secs_f64() * 1e3)
        });
        self.say(&format!("{} done{losses}{time}", plural(u64::from(self.steps), "step")));
        let Some(place) = place else { return };
        let lost = if outcome.dropped == 0 { "none lost".into() } else { format!("{} LOST", outcome.dropped) };
        let Totals { rows, bytes: size, failed_parts, .. } = totals;
        let failed =
            if failed_parts == 0 { String::new() } else { format!(", {} failed", plural(failed_parts, "write")) };
        let cost = match totals.cpu_ns {
            0 => String::new(),
            all => {
                format!(
                    "; writing took {:.1} % of the ranks' CPU time",
                    100.0 * totals.writer_cpu_ns as f64 / all as f64
                )
            }
        };
        self.say(&format!("{} in {}, {lost}{failed}{cost}", plural(rows, "row"), bytes(size)));
        if outcome.unclosed > 0 {
            self.say(&format!("the recording of {} was not closed in order", plural(outcome.unclosed, "rank")));
        }
        for loss in &summary.losses {
            self.say(&format!("rank 0, {}: {} lost: {}", loss.source, plural(loss.rows, "row"), loss.why));
        }
        self.say(&format!("the run is in {0}; next: rankscope analyze {0}", place.shown.display()));
    }

    fn say(&self, text: &str) {
        if self.speaks {
            console::print("rank-agent", text);
        }
    }
}

fn plural(number: u64, word: &str) -> String {
    format!("{number} {word}{}", if number == 1 { "" } else { "s" })
}

/// A size in decimal units.
fn bytes(number: u64) -> String {
    match number {
        0..=999 => format!("{number} B"),
        1_000..=999_999 => format!("{:.1} kB", number as f64 / 1e3),
        1_000_000..=999_999_999 => format!("{:.1} MB", number as f64 / 1e6),
        _ => format!("{:.1} GB", number as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_counts_read_well() {
        assert_eq!((bytes(999).as_str(), bytes(33_554_432).as_str()), ("999 B", "33.6 MB"));
        assert_eq!((plural(1, "row"), plural(0, "row")), ("1 row".into(), "0 rows".into()));
    }
}
