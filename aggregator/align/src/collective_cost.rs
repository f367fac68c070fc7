//! The cost of a collective: when its ranks arrived, how long it moved data, and its bandwidth.
//!
//! ```text
//!  rank 0   [~~~~~~~~~~~~~####]        ~ waits for the last, # moves data
//!  rank 1        [~~~~~~~~#####]
//!  rank 2                 [###]
//!           first         L   end      skew = L − first, transfer = end − L
//! ```

use trace::{InstanceRow, OmissionRow};

use crate::clock::Clocks;
use model::stats::lower_median;
use model::{Barrier, Instance, Member, Shares};

/// The row of an instance, in global time; `None` if the instance has no member.
pub fn instance_row(instance: &Instance, clocks: &Clocks) -> Option<InstanceRow> {
    let arrival = |m: &Member| clocks.global(m.rank, m.device_clock, m.start_ns);
    let last = instance.members.iter().max_by_key(|m| (arrival(m), std::cmp::Reverse(m.rank)))?;
    let first = instance.members.iter().map(arrival).min()?;
    let last_start_ns = arrival(last);
    let end_ns =
        lower_median(instance.members.iter().filter_map(|m| Some(clocks.global(m.rank, m.device_clock, m.end_ns?))));
    let error_ns = error_ns(instance, last, clocks);
    let complete = instance.complete();
    let synchronizes = instance.barrier != Barrier::OneSided;
    // A transfer time below the clock error, or with an unknown error, has no meaning.
    let transfer_ns = end_ns
        .map(|end| end - last_start_ns)
        .filter(|transfer| complete && synchronizes && error_ns.is_some_and(|error| *transfer > error.max(0)));
    let (bytes, factor) = moved(instance);
    let algbw_gbs = match (bytes, transfer_ns) {
        (Some(bytes), Some(transfer)) => Some(bytes as f64 / transfer as f64),
        _ => None,
    };
    let mean_dur = mean_duration_ns(instance);
    let incl_wait = bytes.zip(mean_dur).filter(|_| complete && synchronizes);
    Some(InstanceRow {
        instance: instance.id,
        comm_id: instance.comm_id,
        seq: instance.seq,
        op: instance.op.clone(),
        bytes: instance.bytes,
        step: instance.step,
        bucket: instance.bucket,
        ranks_expected: instance.ranks_expected,
        ranks_seen: instance.members.len() as i32,
        complete,
        first_start_ns: first,
        last_start_ns,
        last_rank: last.rank,
        end_ns: end_ns.unwrap_or(last_start_ns),
        skew_ns: last_start_ns - first,
        transfer_ns,
        algbw_gbs,
        busbw_gbs: algbw_gbs.zip(factor).map(|(rate, factor)| rate * factor),
        busbw_incl_wait_gbs: incl_wait.zip(factor).map(|((bytes, dur), factor)| bytes as f64 / dur * factor),
        error_ns,
        r#match: instance.level.into(),
        clocks_disagree: clocks_disagree(instance, last_start_ns, error_ns, clocks),
    })
}

/// The bytes of the whole array, and the factor from algorithm bandwidth to bus bandwidth. A share for the rank itself crosses no
/// link. Where shares are unequal, the rank that sends or receives most of all decides how long the transfer takes.
fn moved(instance: &Instance) -> (Option<i64>, Option<f64>) {
    // The bytes of one collective over the time of several are no bandwidth.
    if instance.fused {
        return (None, None);
    }
    match instance.shares {
        Shares::Equal => {
            let ranks = instance.ranks_expected.unwrap_or(instance.members.len() as i32);
            (instance.bytes, bus_factor(&instance.op, ranks))
        }
        Shares::Unequal { array_bytes, crossing_bytes } => {
            (Some(array_bytes), (array_bytes > 0).then(|| crossing_bytes as f64 / array_bytes as f64))
        }
        Shares::Unknown | Shares::Contradicted => (None, None),
    }
}

/// The lines for all-to-alls whose bandwidth is unknown because their shares are.
pub fn unknown_shares(instances: &[Instance]) -> Vec<OmissionRow> {
    let line = |shares: Shares, of: fn(&'static str, &'static str) -> OmissionRow, why: &'static str| {
        let count = instances.iter().filter(|instance| instance.shares == shares).count();
        (count > 0).then(|| of("bandwidths of all-to-alls", why).amount(count as i64))
    };
    let unknown = "the ranks exchange unequal shares, and the lists of their sizes are cut, lack or do not fit";
    let contradicted = "a rank says that it received other sizes than another one says it sent";
    let lines = [
        line(Shares::Unknown, OmissionRow::note, unknown),
        line(Shares::Contradicted, OmissionRow::left_out, contradicted),
    ];
    lines.into_iter().flatten().collect()
}

/// The line for collectives whose bandwidth is unknown because the library fused them.
pub fn fused(instances: &[Instance]) -> Option<OmissionRow> {
    let count = instances.iter().filter(|instance| instance.fused).count();
    let why = "the library carried them out together with others of their group, whose times they share";
    (count > 0).then(|| OmissionRow::note("bandwidths of collectives", why).amount(count as i64))
}

/// The largest clock error between the last rank and another member; `None` if any of these errors is unknown.
fn error_ns(instance: &Instance, last: &Member, clocks: &Clocks) -> Option<i64> {
    let errors = instance.members.iter().map(|m| clocks.error_between(last.rank, m.rank, m.device_clock));
    errors.reduce(|a, b| Some(a?.max(b?))).flatten()
}

/// The factor from algorithm bandwidth to bus bandwidth for `n` ranks (nccl-tests, PERFORMANCE.md). The algorithm
/// bandwidth must count the bytes of the whole array.
fn bus_factor(op: &str, n: i32) -> Option<f64> {
    let n = f64::from(n);
    match op {
        "allreduce" => Some(2.0 * (n - 1.0) / n),
        "allgather" | "reducescatter" | "alltoall" => Some((n - 1.0) / n),
        "broadcast" | "reduce" | "send" | "recv" => Some(1.0),
        _ => None,
    }
}

fn mean_duration_ns(instance: &Instance) -> Option<f64> {
    let total: i64 = instance.members.iter().map(|m| Some(m.end_ns? - m.start_ns)).sum::<Option<i64>>()?;
    (total > 0).then(|| total as f64 / instance.members.len() as f64)
}

/// Whether the two measures of a wait differ by more than the clock error for any rank. One measure uses the aligned
/// clocks; the other is clock-free: duration − shortest duration. They also differ, with correct clocks, if the ranks
/// leave at different times.
fn clocks_disagree(instance: &Instance, last_start_ns: i64, error_ns: Option<i64>, clocks: &Clocks) -> bool {
    let Some(error_ns) = error_ns.filter(|_| instance.complete() && instance.barrier != Barrier::OneSided) else {
        return false;
    };
    let durations = || instance.members.iter().filter_map(|m| Some((m, m.end_ns? - m.start_ns)));
    let Some(shortest) = durations().map(|(_, dur)| dur).min() else { return false };
    durations().any(|(m, dur)| {
        let arrival = clocks.global(m.rank, m.device_clock, m.start_ns);
        let wait = (last_start_ns - arrival).min(dur);
        (wait - (dur - shortest)).abs() > error_ns
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::tests::support::{TestRank, collective, fitted_by, matched};
    use model::clock_choice::Choice;
    use trace::OmissionKind;

    /// ```text
    /// rank 0   [~~~~####]
    /// rank 1       [####]      transfer 500 ns, if the clocks are known
    /// ```
    #[test]
    fn a_transfer_time_requires_a_known_clock_error() {
        let rank = |rank, start_ns, domain: &str| TestRank {
            rank,
            rows: vec![collective(rank, "allreduce", start_ns, 1_500)],
            domain: domain.into(),
            ..TestRank::default()
        };
        let transfer = |domain: &str, choice| {
            let ranks = [rank(0, 0, domain), rank(1, 1_000, domain)];
            let (instances, _) = matched(&ranks);
            let row = instance_row(&instances[0], &fitted_by(&ranks, &instances, choice)).unwrap();
            (row.transfer_ns, row.error_ns)
        };
        assert_eq!(transfer("a host/utc", Choice::SameHost), (Some(500), Some(0)));
        assert_eq!(transfer("a host/utc", Choice::Utc), (None, None));
    }

    #[test]
    fn a_fused_collective_has_times_but_no_bandwidth() {
        let rank = |rank| {
            let row = collective(rank, "allreduce", 0, 1_000);
            let row = trace::CollectiveRow { bytes: Some(8_000), fused: Some(rank == 1), ..row };
            TestRank { rank, rows: vec![row], domain: "a host/utc".into(), ..TestRank::default() }
        };
        let ranks = [rank(0), rank(1)];
        let (instances, _) = matched(&ranks);
        let row = instance_row(&instances[0], &fitted_by(&ranks, &instances, Choice::SameHost)).unwrap();
        assert_eq!((row.transfer_ns, row.algbw_gbs, row.busbw_incl_wait_gbs), (Some(1_000), None, None));
        assert_eq!(fused(&instances).unwrap().amount, Some(1));
    }

    #[test]
    fn equal_shares_have_the_bandwidth_of_the_formula_and_unknown_ones_none() {
        for ranks in [2, 3, 8_i32] {
            let rank = |rank| {
                let row = collective(rank, "alltoall", 0, 1_000);
                let bytes = Some(i64::from(ranks) * 4_000);
                let row = trace::CollectiveRow { bytes, comm_size: Some(ranks), ..row };
                TestRank { rank, rows: vec![row], domain: "a host/utc".into(), ..TestRank::default() }
            };
            let ranks: Vec<TestRank> = (0..ranks).map(rank).collect();
            let (instances, _) = matched(&ranks);
            let clocks = fitted_by(&ranks, &instances, Choice::SameHost);
            let with = |shares| Instance { shares, ..instances[0].clone() };
            let rates = |shares| {
                let row = instance_row(&with(shares), &clocks).unwrap();
                [row.algbw_gbs, row.busbw_gbs, row.busbw_incl_wait_gbs]
            };
            let (array_bytes, crossing_bytes) = (4_000 * ranks.len() as i64, 4_000 * (ranks.len() as i64 - 1));
            let [equal, listed] = [Shares::Equal, Shares::Unequal { array_bytes, crossing_bytes }].map(rates);
            for (equal, listed) in equal.into_iter().zip(listed) {
                assert!((equal.unwrap() / listed.unwrap() - 1.0).abs() < 1e-12);
            }
            assert_eq!(listed[1], Some(crossing_bytes as f64 / 1_000.0));
            for (shares, kind) in [(Shares::Unknown, OmissionKind::Note), (Shares::Contradicted, OmissionKind::LeftOut)]
            {
                assert_eq!(rates(shares), [None; 3]);
                assert_eq!(unknown_shares(&[with(shares)])[0].kind, kind);
            }
        }
    }
}
