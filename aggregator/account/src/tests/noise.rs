//! Simulated noise: measures how often a clean run has a cause, and how often a slow rank is found.
//!
//! The model is a machine with more ranks than cores. A range is preempted once per 12 ms of its own work on average,
//! each time for a slice whose length has a heavy tail. The scheduler favours some ranks: the rate of preemption
//! differs by rank for the whole run, and drifts from step to step.

use crate::stragglers::Stragglers;
use crate::tests::build::{Job, Work};
use model::thresholds::Thresholds;
use trace::random::SplitMix64;

const MS: f64 = 1e6;

/// A stream of draws.
pub(super) struct Random(SplitMix64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(SplitMix64(seed))
    }

    /// A uniform number in (0, 1).
    pub(super) fn unit(&mut self) -> f64 {
        ((self.0.next_u64() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    pub(super) fn normal(&mut self) -> f64 {
        (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// A Pareto number with exponent 1.5 (infinite variance), limited to 15 times its minimum.
    pub(super) fn heavy_tail(&mut self) -> f64 {
        self.unit().powf(-1.0 / 1.5).min(15.0)
    }
}

/// The noise of a machine.
#[derive(Clone, Copy)]
struct Noise {
    /// The mean work between two preemptions.
    between_ms: f64,
    /// The shortest preemption.
    slice_ms: f64,
    /// The relative standard deviation of the preemption rate over ranks, and of its drift over steps.
    favour: f64,
}

const OVERSUBSCRIBED: Noise = Noise { between_ms: 12.0, slice_ms: 1.5, favour: 0.15 };
const QUIET: Noise = Noise { between_ms: 400.0, slice_ms: 0.5, favour: 0.05 };

/// A step of about 200 ms on an idle core. The phases themselves are short; the operations inside them take most of the
/// time.
const STEP: [(&str, f64); 8] = [
    ("input", 0.1),
    ("make_batch", 3.0),
    ("forward", 0.4),
    ("gemm", 55.0),
    ("bias_relu", 6.0),
    ("backward", 0.6),
    ("gemm_backward", 110.0),
    ("sgd_momentum", 12.0),
];

/// Makes a job with noise. `slow` holds a rank, one of its ranges, and the milliseconds that it waits there in each
/// step. The scheduler credits a rank for its wait, so that it preempts the rank less afterwards.
fn job(random: &mut Random, noise: Noise, ranks: usize, steps: usize, slow: Option<(usize, &str, f64)>) -> Job {
    let bias: Vec<f64> = (0..ranks).map(|_| noise.favour * random.normal()).collect();
    let mut drift = vec![0.0; ranks];
    let mut job = Job::default();
    for _ in 0..steps {
        let mut step = Vec::new();
        for rank in 0..ranks {
            drift[rank] = 0.7 * drift[rank] + 0.7 * noise.favour * random.normal();
            let rate = (1.0 + bias[rank] + drift[rank]).max(0.1) / noise.between_ms;
            let mut work: Work = Vec::new();
            let mut owed_ms = 0.0;
            for (name, base_ms) in STEP {
                let injected_ms = slow.filter(|s| s.0 == rank && s.1 == name).map_or(0.0, |s| s.2);
                owed_ms += injected_ms / 3.0;
                let mut lost_ms = 0.0;
                let mut at_ms = -random.unit().ln() / rate;
                while at_ms < base_ms {
                    lost_ms += noise.slice_ms * random.heavy_tail();
                    at_ms -= random.unit().ln() / rate;
                }
                let spared_ms = owed_ms.min(lost_ms);
                owed_ms -= spared_ms;
                work.push((name, ((base_ms + lost_ms - spared_ms + injected_ms) * MS) as i64));
            }
            let tail = work.split_off(7);
            let last_bucket = vec![("backward", (0.2 * MS) as i64)];
            step.push(vec![work, last_bucket, tail]);
        }
        job.steps.push(step);
    }
    job
}

/// The share of `runs` for which `run` returns true.
fn share(runs: u64, mut run: impl FnMut(&mut Random) -> bool) -> f64 {
    let hits = (0..runs).filter(|&seed| run(&mut Random::new(seed * 7919))).count();
    hits as f64 / runs as f64
}

fn causes(result: &Stragglers) -> Vec<i32> {
    result.stragglers.iter().filter(|r| r.verdict == trace::Verdict::Cause).map(|r| r.rank).collect()
}

/// The share of clean runs in which any rank is a cause.
fn blamed(runs: u64, noise: Noise, ranks: usize, steps: usize) -> f64 {
    let t = Thresholds::default();
    share(runs, |random| !causes(&job(random, noise, ranks, steps, None).analyze(&t)).is_empty())
}

/// The shares of runs in which the last rank, which waits 30 ms in `range`, is found: in which it stands out with that range
/// and about 30 ms as its evidence; and in which it is the only cause or truly costs little, less than 2.5 % of a step by
/// the same noise without the wait.
fn found(runs: u64, noise: Noise, ranks: usize, steps: usize, range: &str) -> [f64; 2] {
    let t = Thresholds::default();
    let slow = ranks - 1;
    let length_ms = |job: &Job| {
        let ends = job.run().0.into_iter().filter_map(|r| Some(r.outline.steps.last()?.end_ns)).max();
        ends.unwrap() as f64 / MS
    };
    let (mut stands_out, mut is_right) = (0.0, 0.0);
    share(runs, |random| {
        let clean = job(&mut Random(random.0), noise, ranks, steps, None);
        let slowed = job(random, noise, ranks, steps, Some((slow, range, 30.0)));
        let result = slowed.analyze(&t);
        let row = &result.stragglers[slow];
        let excess_ms = row.evidence_excess_ns.unwrap_or(0) as f64 / MS;
        let has_range = row.evidence_range.as_deref() == Some(range) && (27.0..33.0).contains(&excess_ms);
        let cost = length_ms(&slowed) / length_ms(&clean) - 1.0;
        stands_out += f64::from(u8::from(row.stands_on.is_some() && has_range));
        is_right += f64::from(u8::from(causes(&result) == [slow as i32] || cost < 0.025));
        true
    });
    [stands_out / runs as f64, is_right / runs as f64]
}

/// The noise is large: in one of a hundred clean runs, the median own excess of a rank exceeds 15 % of a step.
#[test]
fn a_noisy_clean_run_has_no_cause() {
    let rate = blamed(2000, OVERSUBSCRIBED, 8, 5);
    assert!(rate <= 0.005, "8 ranks: {rate}");
    for (ranks, steps) in [(2, 3), (2, 5), (3, 5), (4, 5), (8, 3), (8, 10)] {
        let rate = blamed(400, OVERSUBSCRIBED, ranks, steps);
        assert!(rate <= 0.0125, "{ranks} ranks, {steps} steps: {rate}");
    }
}

#[test]
fn a_slow_rank_is_found_in_noise() {
    for range in ["forward", "backward", "input"] {
        let rates = found(400, OVERSUBSCRIBED, 8, 5, range);
        assert!(rates[0] >= 0.45 && rates[1] >= 0.8, "{range}: {rates:?}");
    }
}

#[test]
fn verdicts_on_a_quiet_machine_are_always_right() {
    for (ranks, steps) in [(2, 5), (3, 5), (4, 5), (8, 5)] {
        assert_eq!(blamed(300, QUIET, ranks, steps), 0.0, "{ranks} ranks");
        assert_eq!(found(300, QUIET, ranks, steps, "forward"), [1.0, 1.0], "{ranks} ranks");
    }
}

/// Every operation of a rank takes a tenth longer, so no single range stands out. On a quiet machine the whole stretch
/// does.
#[test]
fn a_rank_that_is_slow_throughout_is_found_on_a_quiet_machine() {
    let t = Thresholds::default();
    for ranks in [4, 8] {
        let rate = share(200, |random| {
            let mut job = job(random, QUIET, ranks, 5, None);
            for (_, ns) in job.steps.iter_mut().flat_map(|step| &mut step[1]).flatten() {
                *ns += *ns / 10;
            }
            let result = job.analyze(&t);
            causes(&result) == [1] && result.stragglers[1].stands_on.as_deref() == Some("stretch")
        });
        assert!(rate >= 0.97, "{ranks} ranks: {rate}");
    }
}
