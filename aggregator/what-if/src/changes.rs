//! Predictions: the length of a step if something were different, with an interval.
//!
//! ```text
//!   step            1      2      3      4
//!   recorded        ####|######|####|####          lengths of the steps
//!   replayed        ###|####|###|###               what is saved: the mean of the differences, and its interval by Student's t
//! ```
//!
//! The replay of [`account`] knows own work, transfers and which rank waits for which. Of other buckets it knows the times of
//! transfers by their sizes.

use std::collections::BTreeMap;

use serde::Serialize;

use account::AnalyzedReplay;
use account::{Bound, CommChoice, Different, Replayed};
use model::analysis::Analysis;
use model::stats::student_quantile;
use model::units::ranks_named;

/// The variance between runs over that of a run's steps, as in [`compare`](diff).
const BETWEEN_RUNS: f64 = 1.0;
/// The changes that are listed if none is asked for.
const MAX_LISTED: usize = 10;
/// The factor of the transfers in the listed changes.
const LISTED_SCALE: f64 = 0.5;
/// The sizes of gradient buckets in the listed changes.
const LISTED_BUCKETS_MB: [u32; 4] = [5, 25, 50, 100];
/// Of slow ranks, so many are replayed alone for the list.
const MAX_RANKS: usize = 32;
/// Of communicators, so many are replayed with faster transfers for the list.
const MAX_COMMS: usize = 32;

/// What is asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Asked {
    /// Ranks without the work beyond that of their role.
    pub without: Vec<i32>,
    /// All ranks so.
    pub role_median: bool,
    /// A factor of all transfers.
    pub comm_scale: Option<f64>,
    /// Every collective blocks.
    pub no_overlap: bool,
    /// Roles' medians, and transfers of no length.
    pub perfect: bool,
    /// The size at which gradient buckets close.
    pub bucket_mb: Option<u32>,
}

/// A change and what it saves. Times are per step, in ns.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// The change.
    pub change: String,
    /// The mean length of a step.
    pub step_ns: i64,
    /// The interval in which the mean of another run of as many steps lies, at 95 %; null for a single step.
    pub step_low_ns: Option<i64>,
    pub step_high_ns: Option<i64>,
    /// By how much the mean is shorter; negative if it is longer.
    pub saved_ns: i64,
    /// The interval of that, at 95 %; null for a single step.
    pub saved_low_ns: Option<i64>,
    pub saved_high_ns: Option<i64>,
}

/// The predictions for a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WhatIf {
    /// The steps that were replayed; of four or more, the inner ones.
    pub steps: usize,
    /// Their recorded mean length.
    pub step_ns: i64,
    /// How much of a step begins later than anything that was recorded explains: an error of every prediction, in all intervals.
    pub replay_error_ns: i64,
    /// The predictions: of what was asked for, or those that save most, the largest first.
    pub changes: Vec<Prediction>,
}

/// Predicts what was asked for, or lists what would save most.
///
/// # Errors
/// The reason why it cannot be replayed.
pub fn predict(analyzed: &AnalyzedReplay, asked: &Asked) -> Result<WhatIf, &'static str> {
    if let Some(why) = analyzed.replayed.unaccounted() {
        return Err(why);
    }
    let predictor = Predictor::of(&analyzed.replayed).ok_or("no step can be replayed")?;
    if asked.bucket_mb.is_some() && runs_on_devices(&analyzed.analysis) {
        return Err(BUCKETS_ON_DEVICES);
    }
    let changes = match asked == &Asked::default() {
        true => predictor.listed(&analyzed.analysis, &analyzed.comm_names),
        false => vec![predictor.asked(asked, &analyzed.analysis).ok_or(match asked.bucket_mb {
            Some(_) => "other buckets need steps with at least two, and rows that show when their gradients are ready",
            None => "ranks would wait for each other for ever",
        })?],
    };
    let Predictor { recorded_ns, .. } = predictor;
    let error_ns = analyzed.replayed.error_ns(&asked.different(&analyzed.replayed));
    Ok(WhatIf { steps: recorded_ns.len(), step_ns: mean_ns(&recorded_ns), replay_error_ns: error_ns, changes })
}

/// Why other buckets are not predicted for devices.
const BUCKETS_ON_DEVICES: &str = "the step with other gradient buckets is unknown for a job on devices: even for the recorded size, \
                                  the replay would be wrong by 5 to 32 % of a step";

fn runs_on_devices(analysis: &Analysis) -> bool {
    !analysis.tables.gpu_utilization.is_empty()
}

impl Asked {
    fn different(&self, replayed: &Replayed) -> Different {
        let all = self.role_median || self.perfect;
        Different {
            typical: if all { replayed.ranks() } else { &self.without }.iter().copied().collect(),
            scales: (self.comm_scale.or(self.perfect.then_some(0.0)))
                .map(|scale| (CommChoice::All, scale))
                .into_iter()
                .collect(),
            blocks: self.no_overlap,
            bucket_bytes: self.bucket_mb.map(|mb| i64::from(mb) << 20),
            bound: Bound::Expected,
        }
    }

    fn said(&self) -> String {
        let without =
            (!self.without.is_empty()).then(|| format!("without the excess of {}", ranks_named(&self.without)));
        let said = [
            without,
            self.role_median.then(|| ROLE_MEDIAN.into()),
            self.comm_scale.map(|scale| format!("transfers take {scale} of their time")),
            self.bucket_mb.map(|mb| format!("gradient buckets of {mb} MiB")),
            self.no_overlap.then(|| "no overlap: every collective blocks".into()),
            self.perfect.then(|| "perfect: ranks work as is typical of their role, transfers take no time".into()),
        ];
        said.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

impl Prediction {
    /// Limits the bounds to what can be: no step is shorter than nothing, so none of `recorded_ns` saves more than that.
    fn possible(self, recorded_ns: i64) -> Self {
        let (length, saved) = (|ns: i64| ns.max(0), |ns: i64| ns.min(recorded_ns));
        Self {
            step_ns: length(self.step_ns),
            step_low_ns: self.step_low_ns.map(length),
            step_high_ns: self.step_high_ns.map(length),
            saved_low_ns: self.saved_low_ns.map(saved),
            saved_high_ns: self.saved_high_ns.map(saved),
            ..self
        }
    }
}

const ROLE_MEDIAN: &str = "all ranks work as is typical of their role";

struct Predictor<'a> {
    replayed: &'a Replayed,
    /// The lengths of the replayed steps with nothing changed.
    recorded_ns: Vec<i64>,
}

impl<'a> Predictor<'a> {
    fn of(replayed: &'a Replayed) -> Option<Self> {
        let [recorded_ns, _] = replayed.step_lengths_ns(&Different::default())?;
        (!recorded_ns.is_empty()).then_some(Self { replayed, recorded_ns })
    }

    fn predict(&self, change: String, different: &Different) -> Option<Prediction> {
        let recorded_ns = &self.recorded_ns;
        let [_, lengths_ns] = self.replayed.step_lengths_ns(different)?;
        let error_ns = self.replayed.error_ns(different);
        let saved_ns: Vec<i64> = recorded_ns.iter().zip(&lengths_ns).map(|(before, after)| before - after).collect();
        let (saved, step) = (mean_ns(&saved_ns), mean_ns(&lengths_ns));
        // By how much the steps may be shorter or longer by what the recording leaves open.
        let open_ns = |bound: Bound| {
            let [_, lengths_ns] = self.replayed.step_lengths_ns(&Different { bound, ..different.clone() })?;
            Some(mean_ns(&lengths_ns) - step)
        };
        let (shorter_ns, longer_ns) = (open_ns(Bound::Short)?.min(0), open_ns(Bound::Long)?.max(0));
        let around = |ns: i64, scatter_ns: Option<f64>, (below_ns, above_ns): (i64, i64)| {
            let off_ns = scatter_ns.map(|scatter_ns| scatter_ns.round() as i64 + error_ns);
            (off_ns.map(|off_ns| ns + below_ns - off_ns), off_ns.map(|off_ns| ns + above_ns + off_ns))
        };
        let (saved_low_ns, saved_high_ns) = around(saved, error_of_mean_ns(&saved_ns, 0.0), (-longer_ns, -shorter_ns));
        let (step_low_ns, step_high_ns) = around(
            step,
            error_of_mean_ns(&lengths_ns, BETWEEN_RUNS).map(|ns| ns * 2.0_f64.sqrt()),
            (shorter_ns, longer_ns),
        );
        let prediction = Prediction {
            change,
            step_ns: step,
            step_low_ns,
            step_high_ns,
            saved_ns: saved,
            saved_low_ns,
            saved_high_ns,
        };
        Some(prediction.possible(mean_ns(recorded_ns)))
    }

    fn asked(&self, asked: &Asked, analysis: &Analysis) -> Option<Prediction> {
        let prediction = self.predict(asked.said(), &asked.different(self.replayed))?;
        // The delay of one rank is that of the verdict, which may leave out steps in which the rank is not late.
        let only_rank =
            asked.without.first().filter(|rank| asked == &Asked { without: vec![**rank], ..Asked::default() });
        let row = only_rank.and_then(|rank| analysis.tables.stragglers.iter().find(|row| row.rank == *rank));
        Some(match row.and_then(|row| row.step_delay_low_ns.zip(row.step_delay_high_ns)) {
            Some((low_ns, high_ns)) => {
                let saved_ns = row.map_or(prediction.saved_ns, |row| row.step_delay_ns);
                let step_ns = prediction.step_ns + prediction.saved_ns - saved_ns;
                Prediction { step_ns, saved_ns, saved_low_ns: Some(low_ns), saved_high_ns: Some(high_ns), ..prediction }
            }
            None => prediction,
        })
    }

    /// The changes that would save most.
    fn listed(&self, analysis: &Analysis, comm_names: &BTreeMap<i64, String>) -> Vec<Prediction> {
        let mut rows: Vec<_> = analysis.tables.stragglers.iter().filter(|row| row.step_delay_ns > 0).collect();
        rows.sort_by_key(|row| (std::cmp::Reverse(row.step_delay_ns), row.rank));
        let of_rank = |rank: i32| Asked { without: vec![rank], ..Asked::default() };
        let ranks = rows.into_iter().take(MAX_RANKS).map(|row| of_rank(row.rank));
        let all = [
            Asked { role_median: true, ..Asked::default() },
            Asked { comm_scale: Some(LISTED_SCALE), ..Asked::default() },
            Asked { perfect: true, ..Asked::default() },
        ];
        let sizes: &[u32] = if runs_on_devices(analysis) { &[] } else { &LISTED_BUCKETS_MB };
        let buckets = sizes.iter().map(|mb| Asked { bucket_mb: Some(*mb), ..Asked::default() });
        let asked = ranks.chain(all).chain(buckets).filter_map(|asked| self.asked(&asked, analysis));
        let of_comm = |comm_id: i64| {
            let scales = vec![(CommChoice::Only(comm_id), LISTED_SCALE)];
            let name = comm_names.get(&comm_id)?;
            self.predict(
                format!("transfers of communicator {name} take {LISTED_SCALE} of their time"),
                &Different { scales, ..Different::default() },
            )
        };
        let comms = if comm_names.len() > 1 { longest_transfers(analysis) } else { Vec::new() };
        let comms = comms.into_iter().take(MAX_COMMS).filter_map(of_comm);
        let mut listed: Vec<Prediction> = asked.chain(comms).filter(|p| p.saved_ns > 0).collect();
        listed.sort_by(|a, b| b.saved_ns.cmp(&a.saved_ns).then_with(|| a.change.cmp(&b.change)));
        listed.truncate(MAX_LISTED);
        listed
    }
}

/// The communicators, those with the longest transfers first. A communicator saves at most its transfers.
fn longest_transfers(analysis: &Analysis) -> Vec<i64> {
    let mut transfers_ns: BTreeMap<i64, i64> = BTreeMap::new();
    for row in &analysis.tables.collective_instances {
        let sum_ns = transfers_ns.entry(row.comm_id).or_default();
        *sum_ns = sum_ns.saturating_add(row.transfer_ns.unwrap_or(0));
    }
    let mut comms: Vec<(i64, i64)> = transfers_ns.into_iter().collect();
    comms.sort_by_key(|(comm_id, sum_ns)| (std::cmp::Reverse(*sum_ns), *comm_id));
    comms.into_iter().map(|(comm_id, _)| comm_id).collect()
}

fn mean_ns(values: &[i64]) -> i64 {
    (values.iter().map(|ns| *ns as f64).sum::<f64>() / values.len().max(1) as f64).round() as i64
}

/// Half of the interval of a mean at 95 %, by Student's t; `None` for a single value. `between_runs` is the variance between runs
/// over that of a run's steps.
fn error_of_mean_ns(values: &[i64], between_runs: f64) -> Option<f64> {
    let n = values.len() as f64;
    if values.len() < 2 {
        return None;
    }
    let mean = values.iter().map(|ns| *ns as f64).sum::<f64>() / n;
    let variance = values.iter().map(|ns| (*ns as f64 - mean).powi(2)).sum::<f64>() / (n - 1.0);
    Some(student_quantile(0.025, n - 1.0) * (variance * (1.0 / n + between_runs)).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_length_is_negative() {
        let wide = Prediction {
            change: String::new(),
            step_ns: 96,
            step_low_ns: Some(-203),
            step_high_ns: Some(395),
            saved_ns: 4,
            saved_low_ns: Some(-295),
            saved_high_ns: Some(303),
        };
        let found = wide.possible(100);
        assert_eq!((found.step_low_ns, found.step_ns, found.step_high_ns), (Some(0), 96, Some(395)));
        assert_eq!((found.saved_low_ns, found.saved_high_ns), (Some(-295), Some(100)));
    }
}
