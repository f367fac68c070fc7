//! Clock truth on real traces. The ranks of a folder ran on one host, so the true offset between their clocks is 0. The
//! test shifts and bends every rank's times at random, and compares the fits of `--clock collective` with the planted
//! clocks.

use std::collections::BTreeMap;
use std::path::Path;

use fixtures::random::Random;
use formats::kineto::KinetoSource;
use model::Error;
use model::RankData;
use model::analysis::Analysis;
use model::clock_choice::Choice;
use model::options::Options;
use model::source::{Source, SourceInfo};
use pipeline::analyze;
use trace::{ClockFitRow, OmissionRow};

/// Folders of several ranks, from the examples and from the data beside the repository, and whether their ranks ran on
/// one host.
pub(crate) const FOLDERS: [(&str, bool); 6] = [
    ("gloo8_slow5", true),
    ("gloo4_slow2_stack", true),
    ("dlrm8", true),
    ("megatron_tp2", true),
    ("torchrec4_long_a2a", true),
    ("sampled_2of128", false),
];

const SHIFT_MAX_NS: i64 = 10_000_000_000;
const DRIFT_MAX_PPB: i64 = 50_000;

/// A clock with an offset and a drift.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bend {
    /// Time from which it drifts.
    pub(crate) origin_ns: i64,
    /// How far the clock is ahead at that time.
    pub(crate) shift_ns: i64,
    /// How much faster than true time the clock runs.
    pub(crate) drift_ppb: i64,
}

impl Bend {
    fn random(origin_ns: i64, drifting: bool, random: &mut Random) -> Self {
        let drift_ppb = if drifting { random.within(DRIFT_MAX_PPB) } else { 0 };
        Self { origin_ns, shift_ns: random.within(SHIFT_MAX_NS), drift_ppb }
    }

    /// The time that the clock shows at a true time.
    pub(crate) fn show(self, t_ns: i64) -> i64 {
        let since = i128::from(t_ns - self.origin_ns);
        t_ns + self.shift_ns + (since * i128::from(self.drift_ppb) / 1_000_000_000) as i64
    }

    /// A rank as recorded with this clock: converts all times of all rows.
    pub(crate) fn rank(self, rank: &RankData) -> RankData {
        let mut bent = rank.clone();
        for row in 0..rank.events.len() {
            bent.events.ts_ns[row] = self.show(rank.events.ts_ns[row]);
            bent.events.dur_ns[row] = self.show(rank.events.end_ns(row)) - bent.events.ts_ns[row];
        }
        for collective in &mut bent.outline.collectives {
            collective.map_times(|t| self.show(t));
        }
        for step in &mut bent.outline.steps {
            (step.start_ns, step.end_ns) = (self.show(step.start_ns), self.show(step.end_ns));
        }
        bent.memory.iter_mut().for_each(|m| m.ts_ns = self.show(m.ts_ns));
        for comm in &mut bent.outline.comms {
            for t in [&mut comm.created_ns, &mut comm.destroyed_ns] {
                *t = t.map(|t| self.show(t));
            }
        }
        bent
    }
}

/// A source of ranks that are in memory.
struct Loaded {
    info: SourceInfo,
    ranks: BTreeMap<i32, RankData>,
}

impl Source for Loaded {
    fn info(&self) -> SourceInfo {
        self.info.clone()
    }

    fn ranks(&self) -> Vec<i32> {
        self.ranks.keys().copied().collect()
    }

    fn problems(&self) -> Vec<OmissionRow> {
        Vec::new()
    }

    fn load(&self, rank: i32) -> Result<RankData, Error> {
        let why = || Error::NoRank { path: self.info.path.clone(), why: format!("there is no rank {rank}") };
        self.ranks.get(&rank).cloned().ok_or_else(why)
    }
}

/// An unbent folder, and its analysis on the clock that its ranks share.
pub(crate) struct Truth {
    straight: Loaded,
    /// The reference: the analysis by `--clock same_host`, or by `--clock collective` if the ranks ran on several
    /// hosts.
    reference: Analysis,
    /// Whether the ranks ran on several hosts. The trials then only show the changes against the reference.
    pub(crate) relative: bool,
    /// First and last recorded time.
    window: (i64, i64),
}

impl Truth {
    /// Reads a folder. Not every trace records its host, so `one_host` states whether its ranks shared one.
    pub(crate) fn of(path: &Path, one_host: bool) -> Result<Self, Error> {
        let source = KinetoSource::open(&[path.to_path_buf()])?;
        let load = |rank: i32| {
            let mut data = source.load(rank)?;
            if one_host {
                data.outline.info.clock_domain = "one host/utc".into();
            }
            Ok((rank, data))
        };
        let ranks = source.ranks().into_iter().map(load).collect::<Result<BTreeMap<i32, RankData>, Error>>()?;
        let times =
            || ranks.values().flat_map(|r| (0..r.events.len()).map(|i| (r.events.ts_ns[i], r.events.end_ns(i))));
        let window = (times().map(|t| t.0).min().unwrap_or_default(), times().map(|t| t.1).max().unwrap_or_default());
        let straight = Loaded { info: source.info(), ranks };
        let reference = by(&straight, if one_host { Choice::SameHost } else { Choice::Collective })?;
        Ok(Self { straight, reference, relative: !one_host, window })
    }

    /// Recorded time in seconds.
    pub(crate) fn span_s(&self) -> f64 {
        (self.window.1 - self.window.0) as f64 / 1e9
    }

    /// Bends every rank's clock at random, and analyses the result.
    pub(crate) fn trial(&self, choice: Choice, drifting: bool, random: &mut Random) -> Result<Trial, Error> {
        let bend = |rank: &i32| (*rank, Bend::random(self.window.0, drifting, random));
        let bends: BTreeMap<i32, Bend> = self.straight.ranks.keys().map(bend).collect();
        let bent = |(rank, data): (&i32, &RankData)| (*rank, bends[rank].rank(data));
        let bent = Loaded { info: self.straight.info.clone(), ranks: self.straight.ranks.iter().map(bent).collect() };
        let analysis = by(&bent, choice)?;
        let recovered = analysis.tables.clock_fit.iter().filter(|r| r.rank != r.reference_rank);
        let recovered = recovered.map(|row| self.recovered(row, &bends)).collect();
        let mut trial = Trial { recovered, ..Trial::default() };
        self.compare(&analysis, drifting, &mut trial);
        Ok(trial)
    }

    /// The largest distance of a fitted clock from the truth between the first and last recorded time.
    fn recovered(&self, row: &ClockFitRow, bends: &BTreeMap<i32, Bend>) -> Recovered {
        let reference = |t: i64| {
            let fits = self.reference.tables.clock_fit.iter();
            let global_at =
                |rank: i32| fits.clone().find(|f| f.rank == rank && f.clock == row.clock).map_or(t, |f| global(f, t));
            global_at(row.rank) - global_at(row.reference_rank)
        };
        let off = |t: i64| {
            let found = global(row, bends[&row.rank].show(t)) - bends[&row.reference_rank].show(t);
            (found - reference(t)).abs()
        };
        Recovered {
            device: &*row.clock == "device",
            off_ns: off(self.window.0).max(off(self.window.1)),
            error_ns: row.error_ns.max(row.bias_ns),
            bound_ns: row.bound_ns,
        }
    }

    /// Compares the other results of the analysis on bent clocks.
    fn compare(&self, bent: &Analysis, drifting: bool, trial: &mut Trial) {
        let (reference, bent) = (&self.reference.tables, &bent.tables);
        // Instances are numbered by time, which may differ by the clock error. Compare instances of equal keys in
        // order.
        let key = |i: &trace::InstanceRow| (i.comm_id, i.seq, i.op.clone(), i.step, i.bucket, i.ranks_seen);
        let mut instances: BTreeMap<_, (Vec<&trace::InstanceRow>, Vec<&trace::InstanceRow>)> = BTreeMap::new();
        reference.collective_instances.iter().for_each(|i| instances.entry(key(i)).or_default().0.push(i));
        bent.collective_instances.iter().for_each(|i| instances.entry(key(i)).or_default().1.push(i));
        for (a, b) in instances.values() {
            trial.same_instances &= a.len() == b.len();
            for (a, b) in a.iter().zip(b) {
                let off_ns = (a.skew_ns - b.skew_ns).abs();
                trial.skews.push((off_ns, b.error_ns));
            }
        }
        // Times on one rank's own clock change only by the rate of that clock.
        let rate = if drifting { 2.0 * DRIFT_MAX_PPB as f64 * 1e-9 } else { 0.0 };
        let near = |a: i64, b: i64, whole: i64| (a - b).abs() as f64 <= rate * whole as f64;
        let step_ns = reference.step_breakdown.iter().map(|s| s.wall_ns).max().unwrap_or_default();
        for (a, b) in reference.stragglers.iter().zip(&bent.stragglers) {
            // What a rank costs depends on clocks, and so does whether a small cost is suspicious.
            let is_cause = |row: &trace::StragglerRow| row.verdict == trace::Verdict::Cause;
            trial.same_verdicts &= is_cause(a) == is_cause(b);
            trial.same_verdicts &=
                a.delayed_steps != b.delayed_steps || near(a.own_excess_ns, b.own_excess_ns, step_ns);
        }
        for (a, b) in reference.step_breakdown.iter().zip(&bent.step_breakdown) {
            trial.same_breakdown &= (a.rank, a.device_id, a.step) == (b.rank, b.device_id, b.step);
            trial.same_breakdown &= near(a.wall_ns, b.wall_ns, a.wall_ns.max(1_000_000));
            trial.same_breakdown &= near(a.exposed_comm_ns, b.exposed_comm_ns, a.wall_ns.max(1_000_000));
        }
    }
}

fn by(source: &Loaded, clock: Choice) -> Result<Analysis, Error> {
    let options = Options { clock, ..Options::default() };
    analyze(source, &options, &|_, _| ())
}

/// Global time according to a row of `clock_fit`.
fn global(fit: &ClockFitRow, t_ns: i64) -> i64 {
    let drift = fit.drift_ppb.unwrap_or(0.0) * 1e-9;
    t_ns + fit.offset_ns + (drift * (t_ns - fit.origin_ns) as f64).round() as i64
}

/// The result for one clock of one trial.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recovered {
    /// Whether this is a device's clock.
    pub(crate) device: bool,
    /// Distance from the truth.
    pub(crate) off_ns: i64,
    /// Error stated for 95 % of clocks, or the bias that collectives do not show if that is larger.
    pub(crate) error_ns: Option<i64>,
    /// Guaranteed error.
    pub(crate) bound_ns: Option<i64>,
}

/// The result of one trial.
#[derive(Debug)]
pub(crate) struct Trial {
    /// All clocks except the reference's.
    pub(crate) recovered: Vec<Recovered>,
    /// For each collective: the distance of its skew from the true skew, and the stated error.
    pub(crate) skews: Vec<(i64, Option<i64>)>,
    /// Whether the same collectives were matched.
    pub(crate) same_instances: bool,
    /// Whether the ranks have the same verdicts with the same ranges.
    pub(crate) same_verdicts: bool,
    /// Whether the steps have the same breakdown.
    pub(crate) same_breakdown: bool,
}

impl Default for Trial {
    fn default() -> Self {
        let (recovered, skews) = (Vec::new(), Vec::new());
        Self { recovered, skews, same_instances: true, same_verdicts: true, same_breakdown: true }
    }
}

/// Summary of many trials.
#[derive(Debug, Default)]
pub(crate) struct Score {
    /// Distances from the truth, sorted.
    off_ns: Vec<i64>,
    /// Stated errors, sorted.
    error_ns: Vec<i64>,
    bound_ns: Vec<i64>,
    /// Number of clocks without a guarantee.
    pub(crate) unbound: usize,
    /// Number of clocks within the stated error.
    pub(crate) within_error: usize,
    /// Number of clocks beyond the guarantee.
    pub(crate) beyond_bound: usize,
}

impl Score {
    /// Summarizes the host clocks or the device clocks.
    pub(crate) fn of(trials: &[Trial], device: bool) -> Self {
        let mut score = Self::default();
        for r in trials.iter().flat_map(|t| &t.recovered).filter(|r| r.device == device) {
            score.off_ns.push(r.off_ns);
            score.error_ns.extend(r.error_ns);
            score.bound_ns.extend(r.bound_ns);
            score.unbound += usize::from(r.bound_ns.is_none());
            score.within_error += usize::from(r.error_ns.is_some_and(|e| r.off_ns <= e));
            score.beyond_bound += usize::from(r.bound_ns.is_some_and(|b| r.off_ns > b));
        }
        for values in [&mut score.off_ns, &mut score.error_ns, &mut score.bound_ns] {
            values.sort_unstable();
        }
        score
    }

    /// Number of fitted clocks.
    pub(crate) fn clocks(&self) -> usize {
        self.off_ns.len()
    }

    /// Share of the clocks within the stated error.
    pub(crate) fn within_pct(&self) -> f64 {
        100.0 * self.within_error as f64 / self.clocks().max(1) as f64
    }

    /// Median and maximum of the error, of the stated error and of the bound; in µs.
    pub(crate) fn line(&self) -> String {
        let us = |values: &[i64], at: usize| values.get(at).map_or("-".into(), |ns| format!("{:.1}", *ns as f64 / 1e3));
        let pair = |values: &[i64]| {
            format!("{:>10} {:>10}", us(values, values.len() / 2), us(values, values.len().wrapping_sub(1)))
        };
        format!(
            "{} {} {} {:>7.1} {:>7}",
            pair(&self.off_ns),
            pair(&self.error_ns),
            pair(&self.bound_ns),
            self.within_pct(),
            if self.unbound > 0 { "-".into() } else { self.beyond_bound.to_string() },
        )
    }
}

/// Percentage of skews within the stated error, and the largest distance from the true skew in µs.
pub(crate) fn skews(trials: &[Trial]) -> (f64, f64) {
    let all = || trials.iter().flat_map(|t| &t.skews);
    let within = all().filter(|(off, error)| error.is_some_and(|e| *off <= e)).count();
    let worst = all().map(|(off, _)| *off).max().unwrap_or_default();
    (100.0 * within as f64 / all().count().max(1) as f64, worst as f64 / 1e3)
}
