//! Clock truth on real traces: the ranks of a folder ran on one host, so their true offset is 0. Every rank's times are shifted
//! and bent at random; what the fit by collectives finds back, and with which error, is compared with that truth.

#![expect(clippy::unwrap_used, reason = "tests may, and their helpers too")]

use std::path::{Path, PathBuf};

use aggregator::clock::{Choice, Clocks, RankClock, fit};
use aggregator::kineto::KinetoSource;
use aggregator::matching::{RankCollectives, match_collectives};
use aggregator::model::{RankData, RankInfo};
use aggregator::source::Source;

const TRIALS: u64 = 50;
const SHIFT_MAX_NS: i64 = 10_000_000_000;
const DRIFT_MAX_PPB: i64 = 50_000;

/// Marsaglia's xorshift: the trials are the same on every run.
struct Random(u64);

impl Random {
    fn within(&mut self, most: i64) -> i64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % (2 * most as u64 + 1)) as i64 - most
    }
}

/// A clock that is off and runs at another rate.
#[derive(Clone, Copy)]
struct Bend {
    origin_ns: i64,
    shift_ns: i64,
    drift_ppb: i64,
}

impl Bend {
    fn apply(self, t_ns: i64) -> i64 {
        let since = i128::from(t_ns - self.origin_ns);
        t_ns + self.shift_ns + (since * i128::from(self.drift_ppb) / 1_000_000_000) as i64
    }
}

fn folder(name: &str) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let beside = root.join("../../shared/data");
    let data = std::env::var_os("RANKSCOPE_DATA").map_or(beside, PathBuf::from).join("kineto");
    [root.join("../examples/traces"), data].iter().map(|at| at.join(name)).find(|path| path.is_dir())
}

/// What a fit needs of a rank, on a bent clock of an unknown host.
fn bent(rank: &RankData, bend: Bend) -> RankData {
    let mut collectives = rank.collectives.clone();
    for row in &mut collectives {
        for t in [&mut row.ready_ns, &mut row.enqueue_ns, &mut row.start_ns, &mut row.end_ns] {
            *t = t.map(|t| bend.apply(t));
        }
    }
    let mut steps = rank.steps.clone();
    for step in &mut steps {
        (step.start_ns, step.end_ns) = (bend.apply(step.start_ns), bend.apply(step.end_ns));
    }
    let info = RankInfo { clock_domain: "utc".into(), ..rank.info.clone() };
    RankData { info, collectives, steps, comms_ids: rank.comms_ids.clone(), ..RankData::default() }
}

fn fit_of(ranks: &[RankData], has_device_rows: bool) -> Clocks {
    let collectives: Vec<RankCollectives<'_>> = ranks.iter().map(RankCollectives::of).collect();
    let (instances, _) = match_collectives(&collectives);
    let clocks: Vec<RankClock<'_>> =
        ranks.iter().map(|rank| RankClock { has_device_rows, ..RankClock::of(rank) }).collect();
    fit(&clocks, &instances, Choice::Auto)
}

/// The errors of one trial: of every rank against the first, at the first and last collective, with the stated error and bound.
fn trial(ranks: &[RankData], device: bool, drifting: bool, random: &mut Random) -> Vec<(i64, i64, i64)> {
    let times = || ranks.iter().flat_map(|r| r.collectives.iter().flat_map(|c| [c.start_ns, c.end_ns])).flatten();
    let (first, last) = (times().min().unwrap(), times().max().unwrap());
    let bends: Vec<Bend> = ranks
        .iter()
        .map(|_| Bend {
            origin_ns: first,
            shift_ns: random.within(SHIFT_MAX_NS),
            drift_ppb: if drifting { random.within(DRIFT_MAX_PPB) } else { 0 },
        })
        .collect();
    let bent: Vec<RankData> = ranks.iter().zip(&bends).map(|(rank, bend)| bent(rank, *bend)).collect();
    let clocks = fit_of(&bent, device);
    let mut errors = Vec::new();
    for (rank, bend) in ranks.iter().zip(&bends).skip(1) {
        let (a, b) = (ranks[0].info.rank, rank.info.rank);
        let stated = clocks.error_between(a, b, device).unwrap();
        let bound = clocks.bound_between(a, b, device).unwrap();
        let off = |t: i64| clocks.global(b, device, bend.apply(t)) - clocks.global(a, device, bends[0].apply(t));
        errors.push((off(first).abs().max(off(last).abs()), stated, bound));
    }
    errors
}

#[test]
fn shifts_and_drifts_are_found_back_within_the_stated_error() {
    println!("folder                drift   median error  maximum   error_ns  bound_ns  within error_ns");
    let folders = [
        ("gloo8_slow5", false),
        ("gloo4_slow2_stack", false),
        ("dlrm8", true),
        ("torchrec4_long_a2a", true),
        ("megatron_tp2", true),
    ];
    for (name, device) in folders {
        let Some(path) = folder(name) else {
            println!("{name}: skipped, not here");
            continue;
        };
        let source = KinetoSource::open(&[path]).unwrap();
        let ranks: Vec<RankData> = source.ranks().iter().map(|rank| source.load(*rank).unwrap()).collect();
        for drifting in [false, true] {
            let mut random = Random(0x9e37_79b9_7f4a_7c15);
            let mut all: Vec<(i64, i64, i64)> =
                (0..TRIALS).flat_map(|_| trial(&ranks, device, drifting, &mut random)).collect();
            let within = all.iter().filter(|(off, stated, _)| off <= stated).count() * 100 / all.len();
            all.sort_unstable();
            let (median, worst) = (all[all.len() / 2].0, all[all.len() - 1].0);
            let (stated, bound) = (all.iter().map(|a| a.1).max().unwrap(), all.iter().map(|a| a.2).max().unwrap());
            println!("{name:20} {drifting:>6} {median:>14} {worst:>8} {stated:>10} {bound:>9} {within:>5} %");
            assert!(all.iter().all(|(off, _, bound)| off <= bound), "{name}: beyond bound_ns");
            assert!(within >= 95, "{name}: {within} % within error_ns");
        }
    }
}
