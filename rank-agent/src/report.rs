//! What rank 0 tells the person who started the job, on stderr: little, and at the end what to do next.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use recorder::Summary;

use crate::cli::{BackendChoice, Options};
use crate::job::{Outcome, StepTime, Totals};
use crate::setup::RunPlace;
use crate::trainer::StepResult;

/// Progress lines come no faster than this.
const PROGRESS_PERIOD: Duration = Duration::from_secs(5);

/// Rank 0's voice; other ranks are silent.
#[derive(Debug)]
pub struct Report {
    speaks: bool,
    size: usize,
    steps: u32,
    said: Instant,
    shows_every_step: bool,
    backend_was_chosen: bool,
    why_chosen: Option<String>,
    model: String,
}

impl Report {
    /// The report of `rank`.
    pub fn new(rank: usize, size: usize, options: &Options) -> Self {
        let crate::model::ModelConfig { layers, hidden, batch, .. } = options.model;
        Self {
            speaks: rank == 0,
            size,
            steps: options.steps,
            said: Instant::now(),
            shows_every_step: rank == 0 && std::io::stderr().is_terminal(),
            backend_was_chosen: options.backend == BackendChoice::Auto,
            why_chosen: None,
            model: format!("{layers} layers of {hidden}, batch {batch}"),
        }
    }

    /// Notes why `--backend auto` chose as it did.
    pub fn because(&mut self, why: Option<&str>) {
        self.why_chosen = why.map(str::to_owned);
    }

    /// What is about to happen: `gradients` are their bytes and buckets, `notes` are sentences of their own.
    pub fn begin(
        &self,
        backend: &str,
        (gradient_bytes, buckets): (usize, usize),
        hosts: usize,
        place: Option<&RunPlace>,
        notes: &[String],
    ) {
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
            bytes(gradient_bytes as u64),
            plural(buckets as u64, "bucket"),
        ));
        for note in notes {
            self.say(note);
        }
    }

    /// Progress: every step on a terminal, in one line that is overwritten; a line now and then elsewhere.
    pub fn step(&mut self, step: u32, result: &StepResult, time: Duration) {
        if !self.speaks {
            return;
        }
        let text = format!(
            "step {}/{}  loss {:.4}  {:.1} ms",
            step + 1,
            self.steps,
            result.mean_loss,
            time.as_secs_f64() * 1e3
        );
        if self.shows_every_step {
            let end = if step + 1 == self.steps { "\r\x1b[K" } else { "" };
            let _ = write!(std::io::stderr(), "\r\x1b[K{text}{end}");
        } else if self.said.elapsed() >= PROGRESS_PERIOD {
            self.said = Instant::now();
            self.say(&text);
        }
    }

    /// What came of it. `totals` are those of all ranks, `summary` is this rank's own.
    pub fn end(
        &mut self,
        outcome: &Outcome,
        time: Option<StepTime>,
        totals: Totals,
        place: Option<&RunPlace>,
        summary: &Summary,
    ) {
        let (first, last) = outcome.losses;
        let time = time.map_or(String::new(), |StepTime { time, steps, what }| {
            format!("; {:.2} ms a step ({what} of {steps} active)", time.as_secs_f64() * 1e3)
        });
        self.say(&format!("{} done: loss {first:.6} → {last:.6}{time}", plural(u64::from(self.steps), "step")));
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
        self.say(&format!("the run is in {0}; next: aggregator analyze {0}", place.shown.display()));
    }

    /// A message is worth less than the job: if stderr is gone, the job goes on.
    fn say(&self, text: &str) {
        if self.speaks {
            tell(text);
        }
    }
}

/// A message on stderr.
pub(crate) fn tell(text: &str) {
    let _ = writeln!(std::io::stderr(), "rank-agent: {text}");
}

fn plural(number: u64, word: &str) -> String {
    format!("{number} {word}{}", if number == 1 { "" } else { "s" })
}

/// A size as people say it, in decimal units.
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
