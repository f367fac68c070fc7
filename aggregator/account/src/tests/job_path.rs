//! The critical path of drawn and of random jobs. One column is 10 ns.

use proptest::prelude::*;
use trace::{JobPathRow, PathKind, Unexplained};

use crate::reduce;
use crate::tests::build::{Job, TRANSFER_NS, repeat};
use crate::tests::drawn::{exact, work};
use crate::tests::properties::{jobs, mangle};
use measure::own_time::{OwnTime, map_rank};
use model::thresholds::Thresholds;

fn pieces(rows: &[JobPathRow]) -> Vec<(i32, i32, &str, i64)> {
    rows.iter().map(|row| (row.step, row.rank, &*row.kind, row.dur_ns)).collect()
}

/// ```text
///   rank 0   ####[~~~~~~~~~AA]##|        A takes 100 ns after rank 1 arrived
///   rank 1   #############[AA]#|
/// ```
#[test]
fn the_path_leads_into_the_late_rank() {
    let ranks = [vec![work("forward", 40), work("optimizer", 20)], vec![work("forward", 130), work("optimizer", 10)]];
    let path = Job { steps: repeat(2, &ranks), ..Job::default() }.analyze(&exact()).job_path;
    // The second step begins when rank 0, on which the path is, begins it; rank 1 works on it since 10 ns before.
    let expected = [
        (0, 1, "work", 130),
        (0, 1, "transfer", TRANSFER_NS),
        (0, 1, "work", 10),
        (1, 1, "work", 130),
        (1, 0, "transfer", TRANSFER_NS),
        (1, 0, "work", 20),
    ];
    assert_eq!(pieces(&path), expected);
    assert!(path.iter().all(|row| row.unexplained.is_none() && row.unexplained_ns == 0), "{path:?}");
    assert_eq!(path[0].host_gap_ns, 130, "named ranges are not operators");
}

/// The arrivals of two ranks that differ by less than the clocks' error tell nothing.
#[test]
fn the_path_stays_on_a_rank_within_the_error_of_the_clocks() {
    let ranks = [vec![work("forward", 120), work("optimizer", 20)], vec![work("forward", 130), work("optimizer", 10)]];
    let job = Job { steps: repeat(1, &ranks), ..Job::default() };
    let (data, instances) = job.run();
    let parts: Vec<OwnTime> = data.iter().map(|rank| map_rank(rank, &exact())).collect();
    let of = |error_ns: Option<i64>| {
        reduce(&parts, &instances, (&|_, _, t_ns| t_ns, &move |_, _| error_ns), &exact()).job_path
    };
    assert_eq!(pieces(&of(Some(5))), [(0, 0, "work", 120), (0, 0, "transfer", 10 + TRANSFER_NS), (0, 0, "work", 20)]);
    assert_eq!(of(Some(4))[0].rank, 1);
    let unknown = of(None);
    assert_eq!(unknown[1].unexplained, Some(Unexplained::Clock.into()));
    assert_eq!(unknown[1].unexplained_ns, unknown[1].dur_ns);
}

#[test]
fn the_time_in_a_collective_without_all_its_ranks_is_not_explained() {
    let ranks = [40, 20, 130].map(|forward_ns| vec![work("forward", forward_ns), Vec::new()]);
    let (data, mut instances) = Job { steps: repeat(1, &ranks), ..Job::default() }.run();
    instances[0].members.truncate(2);
    let parts: Vec<OwnTime> = data.iter().map(|rank| map_rank(rank, &exact())).collect();
    let path = reduce(&parts[..2], &instances, (&|_, _, t_ns| t_ns, &|_, _| Some(0)), &exact()).job_path;
    assert_eq!(pieces(&path), [(0, 0, "work", 40), (0, 1, "transfer", 90 + TRANSFER_NS)]);
    assert_eq!(path[1].unexplained, Some(Unexplained::Unmatched.into()));
}

proptest! {
    /// Invariant (numbers): The pieces of the job's critical path sum to its time.
    ///
    /// The pieces follow each other without a gap, the columns of each sum to it, and the steps ascend, also where collectives are
    /// incomplete and clocks contradict each other.
    #[test]
    fn the_pieces_sum_to_the_time_of_the_job(
        job in jobs(),
        seed in any::<u64>(),
        skew in prop::collection::vec(-500_000i64..500_000, 6),
    ) {
        let (data, mut instances) = job.run();
        mangle(&mut instances, seed);
        let to_global = |rank: i32, _: bool, t_ns: i64| t_ns + skew[rank as usize];
        let parts: Vec<OwnTime> = data.iter().map(|rank| map_rank(rank, &Thresholds::default())).collect();
        let path = reduce(&parts, &instances, (&to_global, &|_, _| Some(0)), &Thresholds::default()).job_path;
        for row in &path {
            let parts = [row.cpu_ns, row.host_gap_ns, row.data_loading_ns, row.gpu_compute_ns, row.gpu_memory_ns];
            prop_assert_eq!(parts.iter().sum::<i64>() + row.transfer_ns + row.unexplained_ns, row.dur_ns);
            prop_assert!(row.dur_ns > 0 && parts.iter().all(|ns| *ns >= 0) && row.unexplained_ns >= 0);
            prop_assert_eq!(row.kind == PathKind::Work, row.op.is_none());
        }
        for pair in path.windows(2) {
            prop_assert_eq!(pair[0].ts_ns + pair[0].dur_ns, pair[1].ts_ns);
            prop_assert!(pair[0].step <= pair[1].step || pair[0].step == -1 || pair[1].step == -1);
        }
        // With clocks that agree, the path spans the job: to the end of its last rank.
        let ahead = |rank: i32, _: bool, t_ns: i64| t_ns - job.clock_ahead_ns.get(rank as usize).copied().unwrap_or(0);
        let (_, instances) = job.run();
        let path = reduce(&parts, &instances, (&ahead, &|_, _| Some(0)), &Thresholds::default()).job_path;
        let ends = data.iter().filter_map(|rank| Some(ahead(rank.outline.info.rank, false, rank.outline.steps.last()?.end_ns)));
        let has_collectives = data.iter().any(|rank| !rank.outline.collectives.is_empty());
        let last_ns = ends.max().filter(|_| has_collectives && !path.is_empty());
        prop_assert_eq!(path.last().map(|row| row.ts_ns + row.dur_ns), last_ns);
    }
}
