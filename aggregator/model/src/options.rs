//! Options of an analysis. The defaults analyse the whole run.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use regex::Regex;

use crate::MAX_RANKS;
use crate::clock_choice::Choice;
use crate::communication::Communication;
use crate::limits::Limits;
use crate::places::Places;
use crate::thresholds::Thresholds;

/// Options of an analysis.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Analyse only these steps. The end is exclusive. Default: all.
    pub steps: Option<Range<i32>>,
    /// Analyse only rows that begin at or after this time. Default: the start of the recording.
    pub from: Option<TimeBound>,
    /// Analyse only rows that begin before this time. Default: the end of the recording.
    pub to: Option<TimeBound>,
    /// Analyse only the time inside host ranges whose name matches. Default: everything.
    pub range: Option<Regex>,
    /// Analyse only these ranks. Default: all.
    pub ranks: Option<BTreeSet<i32>>,
    /// Host ranges whose name matches mark the steps. Default: the steps that the run recorded.
    pub step_marker: Option<Regex>,
    /// Evidence that the clocks are fitted by. Default: the best available.
    pub clock: Choice,
    /// What counts as communication, beside what the rules say. Default: only what they say.
    pub communication: Communication,
    /// Operators and host ranges that are searched for kernel sequences. Default: every outermost operator.
    pub sequences_of: Option<Regex>,
    /// Thresholds of the straggler verdict.
    pub thresholds: Thresholds,
    /// Limits of the findings.
    pub limits: Limits,
    /// Where ranks are: racks, switches. Default: what the recording says.
    pub places: Option<Arc<Places>>,
}

impl Options {
    /// Whether the selection has time bounds. These need fitted clocks before any row is examined.
    pub fn selects_by_time(&self) -> bool {
        self.from.is_some() || self.to.is_some()
    }

    /// Whether every row of a selected rank is analysed.
    pub fn takes_whole_ranks(&self) -> bool {
        self.steps.is_none() && self.range.is_none() && !self.selects_by_time()
    }

    /// The selection as on the command line; `None` if it is the whole run.
    pub fn selection(&self) -> Option<String> {
        let mut words = Vec::new();
        if let Some(steps) = &self.steps {
            words.push(match (steps.start, steps.end) {
                (start, i32::MAX) => format!("--steps {start}.."),
                (start, end) if end == start.saturating_add(1) => format!("--steps {start}"),
                (start, end) => format!("--steps {start}..{end}"),
            });
        }
        words.extend(self.from.map(|t| format!("--from {t}")));
        words.extend(self.to.map(|t| format!("--to {t}")));
        words.extend(self.range.as_ref().map(|r| format!("--range {r}")));
        if let Some(ranks) = &self.ranks {
            let ranks: Vec<String> = ranks.iter().map(i32::to_string).collect();
            words.push(format!("--ranks {}", ranks.join(",")));
        }
        words.extend(self.step_marker.as_ref().map(|r| format!("--step-marker {r}")));
        (!words.is_empty()).then(|| words.join(" "))
    }
}

/// A point in time, as given on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeBound {
    /// Global time.
    GlobalNs(i64),
    /// Time since the first recorded step or row of any rank.
    SinceStartNs(i64),
}

impl std::fmt::Display for TimeBound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::GlobalNs(t) => write!(f, "{t}"),
            Self::SinceStartNs(t) => {
                let units = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")];
                let unit = units.iter().find(|(size, _)| *t != 0 && t % size == 0);
                let (size, unit) = unit.copied().unwrap_or((1, "ns"));
                write!(f, "+{}{unit}", t / size)
            }
        }
    }
}

impl TimeBound {
    /// Parses `123456789` (global ns) or `+1.5s`, `+200ms`, `+30us`, `+500ns` (since the start).
    ///
    /// # Errors
    /// A sentence that states the accepted forms.
    pub fn parse(text: &str) -> Result<Self, String> {
        const ACCEPTED: &str =
            "expected a global time in ns, or + and a time since the start, as in +1.5s, +200ms, +30us";
        let Some(since) = text.strip_prefix('+') else {
            return text.parse().map(Self::GlobalNs).map_err(|_| ACCEPTED.to_string());
        };
        let units = [("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)];
        let (number, scale) =
            units.iter().find_map(|(unit, scale)| Some((since.strip_suffix(unit)?, *scale))).ok_or(ACCEPTED)?;
        let number: f64 = number.trim().parse().map_err(|_| ACCEPTED.to_string())?;
        let ns = number * scale;
        if number < 0.0 || !ns.is_finite() || ns > i64::MAX as f64 / 4.0 {
            return Err(ACCEPTED.to_string());
        }
        Ok(Self::SinceStartNs(ns.round() as i64))
    }
}

/// Parses `3..8` (steps 3 to 7), `3..=8` (3 to 8), `3..`, `..8` or `3`.
///
/// # Errors
/// A sentence that states the accepted forms.
pub fn parse_steps(text: &str) -> Result<Range<i32>, String> {
    let wrong = || "expected a..b (b not included), a..=b, a.., ..b or one step".to_string();
    let number = |text: &str, open: i32| if text.is_empty() { Ok(open) } else { text.parse().map_err(|_| wrong()) };
    let range = if let Some((first, last)) = text.split_once("..=") {
        number(first, 0)?..number(last, i32::MAX - 1)?.saturating_add(1)
    } else if let Some((first, end)) = text.split_once("..") {
        number(first, 0)?..number(end, i32::MAX)?
    } else {
        let step: i32 = text.parse().map_err(|_| wrong())?;
        step..step.saturating_add(1)
    };
    if range.is_empty() { Err(format!("{text} holds no step; {}", wrong())) } else { Ok(range) }
}

/// Parses `0,2,5..8` (0, 2, 5, 6, 7).
///
/// # Errors
/// A sentence that states the accepted forms.
pub fn parse_ranks(text: &str) -> Result<BTreeSet<i32>, String> {
    let mut ranks = BTreeSet::new();
    for part in text.split(',').map(str::trim) {
        let range = parse_steps(part).map_err(|_| format!("{part:?} is neither a rank nor a range as in 4..8"))?;
        if range.start < 0 || range.end > MAX_RANKS {
            return Err(format!("{part:?} contains a rank above {MAX_RANKS}"));
        }
        ranks.extend(range);
    }
    Ok(ranks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_bounds() {
        assert_eq!(TimeBound::parse("123"), Ok(TimeBound::GlobalNs(123)));
        assert_eq!(TimeBound::parse("-5"), Ok(TimeBound::GlobalNs(-5)));
        assert_eq!(TimeBound::parse("+1.5s"), Ok(TimeBound::SinceStartNs(1_500_000_000)));
        assert_eq!(TimeBound::parse("+200ms"), Ok(TimeBound::SinceStartNs(200_000_000)));
        assert_eq!(TimeBound::parse("+30us"), Ok(TimeBound::SinceStartNs(30_000)));
        for text in ["+1500ms", "+100s", "+7ns", "+30us", "+0ns", "-5"] {
            assert_eq!(TimeBound::parse(text).unwrap().to_string(), text);
        }
        for bad in ["", "+", "+5", "5ms", "+-5ms", "+NaNs", "+infs", "+9e99s"] {
            assert!(TimeBound::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn step_ranges() {
        assert_eq!(parse_steps("3..8"), Ok(3..8));
        assert_eq!(parse_steps("3..=8"), Ok(3..9));
        assert_eq!(parse_steps("3.."), Ok(3..i32::MAX));
        assert_eq!(parse_steps("..8"), Ok(0..8));
        assert_eq!(parse_steps("3"), Ok(3..4));
        for bad in ["", "a", "8..3", "3..3", "1..x"] {
            assert!(parse_steps(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn rank_lists() {
        assert_eq!(parse_ranks("0, 2,5..8"), Ok([0, 2, 5, 6, 7].into()));
        for bad in ["", "1,,2", "-1", "0..", "x"] {
            assert!(parse_ranks(bad).is_err(), "{bad}");
        }
    }
}
