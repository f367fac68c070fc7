//! One clock for all ranks, with its error.

use std::collections::BTreeMap;

use trace::{ClockFitRow, ClockSampleRow, OmissionRow};

use crate::model::{Instance, RankData, RankInfo};

/// What the fit needs of one rank: small enough to hold for every rank of a run.
#[derive(Clone, Copy, Debug)]
pub struct RankClock<'a> {
    /// Who it is, and its clock domain.
    pub info: &'a RankInfo,
    /// Its clock comparisons.
    pub samples: &'a [ClockSampleRow],
    /// First and last time recorded, in the rank's clock; the errors hold in between. `None`: nothing was recorded.
    pub window_ns: Option<(i64, i64)>,
    /// Whether some rows carry a device's times.
    pub has_device_rows: bool,
}

impl<'a> RankClock<'a> {
    /// The part of a loaded rank that the fit needs.
    pub fn of(data: &'a RankData) -> Self {
        let _ = &data.events;
        Self { info: &data.info, samples: &data.clock_samples, window_ns: None, has_device_rows: false }
    }
}

/// How every rank's clocks map to global time, the clock of the reference rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Clocks {
    rows: Vec<ClockFitRow>,
    by_clock: BTreeMap<(i32, bool), usize>,
    /// Evidence that contradicts itself, with what makes it; never averaged away.
    pub contradictions: Vec<OmissionRow>,
}

/// Fits the clocks of all ranks.
pub fn fit(ranks: &[RankClock<'_>], instances: &[Instance]) -> Clocks {
    let _ = (ranks, instances);
    Clocks::default()
}

impl Clocks {
    /// Global time of `t_ns`, a time in the host's clock of `rank`, or in its devices'. Exact where drift is null or zero. A rank
    /// that was not fitted maps to itself; a rank without a device fit uses the host's.
    pub fn global(&self, rank: i32, device: bool, t_ns: i64) -> i64 {
        let _ = (rank, device);
        t_ns
    }

    /// 95 % of the error of a difference of global times between two ranks; `None`: unknown.
    pub fn error_between(&self, a: i32, b: i32, device: bool) -> Option<i64> {
        let _ = device;
        (a == b).then_some(0)
    }

    /// Guaranteed error of a difference of global times between two ranks; `None`: there is no guarantee.
    pub fn bound_between(&self, a: i32, b: i32, device: bool) -> Option<i64> {
        let _ = device;
        (a == b).then_some(0)
    }

    /// The fit of one clock.
    pub fn row(&self, rank: i32, device: bool) -> Option<&ClockFitRow> {
        self.by_clock.get(&(rank, device)).map(|i| &self.rows[*i])
    }

    /// All fits: by rank, the host's clock before the device's.
    pub fn rows(&self) -> &[ClockFitRow] {
        &self.rows
    }

    /// The rank whose host clock is global time.
    pub fn reference_rank(&self) -> Option<i32> {
        self.rows.first().map(|r| r.reference_rank)
    }
}

/// Sorts instances by global time (the last arrival, then the members) and numbers them anew.
pub fn number_by_time(instances: &mut [Instance], clocks: &Clocks) {
    instances.sort_by_cached_key(|i| {
        let arrivals = i.members.iter().map(|m| clocks.global(m.rank, m.device_clock, m.start_ns));
        (arrivals.max(), i.comm_id, i.seq, i.members.first().map(|m| (m.rank, m.index)))
    });
    for (id, instance) in instances.iter_mut().enumerate() {
        instance.id = id as i64;
    }
}
