//! The state as metrics: OpenMetrics, and the older text format of Prometheus.
//!
//! The two differ in the name of a counter's family: OpenMetrics leaves `_total` out of it, and the older format, which
//! node_exporter's textfile collector and promtool read, does not.

use std::fmt::Write as _;

use model::watch::{BOUNDS_S, Phase, SlowRank, State};

/// The most slow ranks with series of their own. `rankscope_slow_ranks` counts all.
const MAX_SERIES: usize = 32;
/// Longest value of a label, in characters.
const MAX_LABEL: usize = 200;

/// The format of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus's text format 0.0.4.
    Text,
}

impl Format {
    /// The content type of HTTP.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// The metrics of a state. `step_time_s` is the time since 1970 at which the newest step was seen.
pub fn render(state: &State, step_time_s: Option<f64>, format: Format) -> String {
    let mut text = Families { text: String::new(), format };
    let run = format!("{{run_id=\"{}\",version=\"{}\"}}", label(&state.run_id), env!("CARGO_PKG_VERSION"));
    text.gauge("rankscope_watch_info", "", "The run that is watched, and the version of rankscope.", &[(run, 1.0)]);
    text.one("rankscope_ranks", "Ranks that record.", state.ranks.len() as f64);
    text.one("rankscope_world_ranks", "Ranks in the job.", f64::from(state.world_size));
    let ended = matches!(state.phase, Phase::Ended { .. });
    text.one("rankscope_run_ended", "Whether the run has ended.", f64::from(u8::from(ended)));
    if let Some(step) = state.step {
        text.one("rankscope_newest_step", "The newest step that all ranks have written.", f64::from(step));
    }
    if let Some(time_s) = step_time_s {
        let help = "Time at which that step was seen, since 1970.";
        text.gauge("rankscope_newest_step_timestamp_seconds", "seconds", help, &[(String::new(), time_s)]);
    }
    text.one("rankscope_slow_ranks", "Ranks that slow the job down.", state.slow.len() as f64);
    let delays: Vec<(String, f64)> = state.slow.iter().take(MAX_SERIES).map(delay).collect();
    let help = "Time by which a slow rank delays each step.";
    text.gauge("rankscope_slow_rank_delay_seconds", "seconds", help, &delays);
    let hang = f64::from(u8::from(state.hang.is_some()));
    text.one("rankscope_hang", "Whether collectives are in flight that do not end.", hang);
    let missing = state.missing.iter().take(MAX_SERIES).map(|rank| (format!("{{rank=\"{rank}\"}}"), 1.0));
    let help = "A rank that is missing from such a collective.";
    text.gauge("rankscope_missing_rank", "", help, &missing.collect::<Vec<_>>());
    text.counter("rankscope_lost_rows", "Rows that the recorders lost.", state.lost_rows.max(0) as u64);
    text.counter("rankscope_unreadable_shards", "Shards that could not be read.", state.unreadable);
    text.steps(state);
    text.text.push_str("# EOF\n");
    text.text
}

fn delay(slow: &SlowRank) -> (String, f64) {
    let identity = &slow.identity;
    let mut labels = format!("{{rank=\"{}\"", identity.rank);
    let device = identity.device_id.map(|device| device.to_string());
    let pid = identity.pid.map(|pid| pid.to_string());
    for (name, value) in [("host", &identity.host), ("pid", &pid), ("device", &device), ("uuid", &identity.device_uuid)]
    {
        if let Some(value) = value {
            let _ = write!(labels, ",{name}=\"{}\"", label(value));
        }
    }
    (labels + "}", slow.step_delay_ns as f64 / 1e9)
}

/// The value of a label, escaped and shortened.
fn label(value: &str) -> String {
    let mut text = String::new();
    for c in value.chars().take(MAX_LABEL) {
        match c {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            c if trace::terminal::is_control(c) => drop(write!(text, "\\\\u{{{:x}}}", u32::from(c))),
            c => text.push(c),
        }
    }
    text
}

struct Families {
    text: String,
    format: Format,
}

impl Families {
    fn head(&mut self, name: &str, kind: &str, unit: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}");
        let _ = writeln!(self.text, "# TYPE {name} {kind}");
        if !unit.is_empty() && self.format == Format::OpenMetrics {
            let _ = writeln!(self.text, "# UNIT {name} {unit}");
        }
    }

    /// A gauge with a value for each set of labels.
    fn gauge(&mut self, name: &str, unit: &str, help: &str, values: &[(String, f64)]) {
        self.head(name, "gauge", unit, help);
        for (labels, value) in values {
            let _ = writeln!(self.text, "{name}{labels} {value}");
        }
    }

    fn one(&mut self, name: &str, help: &str, value: f64) {
        self.gauge(name, "", help, &[(String::new(), value)]);
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        let total = format!("{name}_total");
        let family = if self.format == Format::OpenMetrics { name } else { &total };
        self.head(family, "counter", "", help);
        let _ = writeln!(self.text, "{total} {value}");
    }

    fn steps(&mut self, state: &State) {
        let name = "rankscope_step_duration_seconds";
        let help = "Length of a step, the lower median over the ranks, for all steps since the watch began.";
        self.head(name, "histogram", "seconds", help);
        let mut sum = 0;
        let bounds = BOUNDS_S.iter().map(|bound| format!("{bound:?}")).chain(["+Inf".to_string()]);
        for (bound, count) in bounds.zip(state.histogram.counts) {
            sum += count;
            let _ = writeln!(self.text, "{name}_bucket{{le=\"{bound}\"}} {sum}");
        }
        let _ = writeln!(self.text, "{name}_sum {}", state.histogram.sum_ns as f64 / 1e9);
        let _ = writeln!(self.text, "{name}_count {sum}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::analysis::RankIdentity;
    use model::watch::Histogram;

    fn state() -> State {
        let mut histogram = Histogram::default();
        histogram.counts[4] = 3;
        histogram.sum_ns = 270_000_000;
        let identity =
            RankIdentity { rank: 5, host: Some("a\"b\\c\nd\u{1b}[2J".into()), pid: Some(7), ..Default::default() };
        let slow = SlowRank { identity, step_delay_ns: 12_000_000, interval_ns: None, location: String::new() };
        State {
            run_id: "r".into(),
            world_size: 8,
            ranks: (0..8).collect(),
            step: Some(118),
            histogram,
            slow: vec![slow],
            hang: Some(String::new()),
            missing: vec![2],
            lost_rows: 9,
            ..State::new("run".as_ref())
        }
    }

    #[test]
    fn metrics_have_their_families_and_end() {
        let text = render(&state(), Some(1.5), Format::OpenMetrics);
        insta::assert_snapshot!("metrics", text);
        assert!(text.ends_with("# EOF\n") && text.matches("# EOF").count() == 1);
    }

    #[test]
    fn the_older_format_differs_only_in_counters_and_units() {
        let (new, old) = (render(&state(), Some(1.5), Format::OpenMetrics), render(&state(), Some(1.5), Format::Text));
        let new = new.lines().filter(|line| !line.starts_with("# UNIT"));
        let differ: Vec<(&str, &str)> = new.zip(old.lines()).filter(|(a, b)| a != b).collect();
        assert_eq!(differ.len(), 4, "{differ:?}");
        assert!(
            differ.iter().all(|(a, b)| a.replace("_rows ", "_rows_total ").replace("_shards ", "_shards_total ") == *b)
        );
    }
}
