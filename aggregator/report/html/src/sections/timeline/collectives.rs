//! The collectives of the drawn steps: when each rank arrived, and what the transfer achieved.

use rustc_hash::FxHashMap;
use serde::Serialize;
use trace::{InstanceRow, Text};

use crate::string_pool::StringPool;
use align::aligned::Analyzed;

/// The collectives of all drawn steps, found by a rank and its arrival.
#[derive(Debug, Default)]
pub(super) struct Instances<'a> {
    rows: Vec<&'a InstanceRow>,
    by_arrival: FxHashMap<(i32, i64), usize>,
    /// Rank and arrival of each, in the order of `rows`.
    arrivals: Vec<Vec<(i32, i64)>>,
}

impl<'a> Instances<'a> {
    pub(super) fn of(analyzed: &'a Analyzed, drawn: &dyn Fn(i32) -> bool) -> Self {
        let tables = &analyzed.analysis.tables;
        let rows: Vec<&InstanceRow> =
            tables.collective_instances.iter().filter(|row| row.step.is_some_and(drawn)).collect();
        let places: FxHashMap<i64, usize> = rows.iter().enumerate().map(|(at, row)| (row.instance, at)).collect();
        let mut arrivals = vec![Vec::new(); rows.len()];
        let mut by_arrival = FxHashMap::default();
        for wait in &tables.collective_waits {
            let Some(at) = places.get(&wait.instance) else { continue };
            arrivals[*at].push((wait.rank, wait.arrival_ns));
            by_arrival.insert((wait.rank, wait.arrival_ns), *at);
        }
        Self { rows, by_arrival, arrivals }
    }

    /// The collective that a rank entered at a time, as a position in the list.
    pub(super) fn of_arrival(&self, rank: i32, arrival_ns: i64) -> Option<usize> {
        self.by_arrival.get(&(rank, arrival_ns)).copied()
    }

    /// The last arrival at that collective. Only collectives that synchronise their ranks have one: those with a transfer time,
    /// or with a bandwidth with waits if the transfer time is below the clock error.
    pub(super) fn last_arrival(&self, rank: i32, arrival_ns: i64) -> Option<i64> {
        let row = self.rows[self.of_arrival(rank, arrival_ns)?];
        (row.transfer_ns.is_some() || row.busbw_incl_wait_gbs.is_some()).then_some(row.last_start_ns)
    }

    /// The collectives at these positions as the page shows them, with at most `most_arrivals` arrivals. The second value is the
    /// number of collectives whose arrivals did not fit.
    pub(super) fn shown(
        &self,
        positions: &[usize],
        comm_names: &FxHashMap<i64, Text>,
        names: &mut StringPool,
        most_arrivals: usize,
    ) -> (Vec<Call>, usize) {
        let (mut room, mut without) = (most_arrivals, 0);
        let mut call = |at: &usize| {
            let (row, arrivals) = (self.rows[*at], &self.arrivals[*at]);
            let fits = arrivals.len() <= room;
            room -= if fits { arrivals.len() } else { 0 };
            without += usize::from(!fits);
            let after_first = |(rank, at): &(i32, i64)| [i64::from(*rank), at - row.first_start_ns];
            Call {
                op: names.id(&row.op),
                communicator: comm_names.get(&row.comm_id).map(|name| names.id(name)),
                bytes: row.bytes,
                seq: row.seq,
                bucket: row.bucket,
                last: row.last_rank,
                expected: row.ranks_expected,
                transfer_ns: row.transfer_ns,
                busbw_gbs: row.busbw_gbs.map(|gbs| (gbs * 1e3).round() / 1e3),
                error_ns: row.error_ns,
                arrivals: if fits { arrivals.iter().flat_map(after_first).collect() } else { Vec::new() },
            }
        };
        let calls = positions.iter().map(&mut call).collect();
        (calls, without)
    }
}

/// A collective in the page.
#[derive(Debug, Serialize)]
pub(super) struct Call {
    op: usize,
    communicator: Option<usize>,
    bytes: Option<i64>,
    seq: Option<i64>,
    bucket: Option<i32>,
    /// The rank that arrived last.
    last: i32,
    expected: Option<i32>,
    transfer_ns: Option<i64>,
    busbw_gbs: Option<f64>,
    error_ns: Option<i64>,
    /// Two numbers for each rank: the rank, and its arrival after that of the first rank in ns. Empty if they did not fit.
    arrivals: Vec<i64>,
}
