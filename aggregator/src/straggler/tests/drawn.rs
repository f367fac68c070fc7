//! Timelines drawn and checked. One column is 10 ns unless a drawing says otherwise.

use super::build::{Job, Row, TRANSFER_NS, Work, instance, push_row, repeat, verdicts};
use crate::model::{Instance, Kind, Member, RankData, RankInfo};
use crate::straggler::{RankPart, StepPart, Stragglers, Stretch, Thresholds, map_rank, reduce};

/// Times of drawings are far below any timing error.
fn exact() -> Thresholds {
    Thresholds { host_error_ns: 0, device_error_ns: 0, ..Thresholds::default() }
}

fn work(name: &'static str, ns: i64) -> Work {
    vec![(name, ns)]
}

/// A rank's collectives: `(communicator, from, start, end)`; each stretch begins at the end of the collective before.
fn part(rank: i32, collectives: &[(i64, i64, i64, i64)]) -> (RankPart, Vec<(i64, Member)>) {
    let mut stretches = Vec::new();
    let mut members = Vec::new();
    for (i, &(comm, from_ns, start_ns, end_ns)) in collectives.iter().enumerate() {
        stretches.push(Stretch {
            since_ns: from_ns,
            from_ns,
            start_ns,
            end_ns: Some(end_ns),
            own_ns: Some(start_ns - from_ns),
            previous: (i as u32).checked_sub(1),
            step: Some(0),
        });
        members.push((comm, Member { rank, index: i as u32, start_ns, end_ns: Some(end_ns), device_clock: false }));
    }
    let steps = vec![StepPart { step: 0, dur_ns: 1000, device_busy_ns: 0 }];
    (RankPart { rank, stretches, steps, ..RankPart::default() }, members)
}

/// Reduces drawn parts; members of the same communicator meet in one instance.
fn reduce_drawn(ranks: Vec<(RankPart, Vec<(i64, Member)>)>) -> Stragglers {
    let (parts, members): (Vec<RankPart>, Vec<Vec<(i64, Member)>>) = ranks.into_iter().unzip();
    let mut members: Vec<(i64, Member)> = members.into_iter().flatten().collect();
    members.sort_by_key(|(comm, m)| (*comm, m.rank));
    let instances: Vec<Instance> = members
        .chunk_by(|a, b| a.0 == b.0)
        .enumerate()
        .map(|(id, group)| {
            let all = group.iter().map(|(_, m)| m.clone()).collect();
            Instance { comm_id: group[0].0, ..instance(id, 0, group.len(), all) }
        })
        .collect();
    reduce(&parts, &instances, &|_, _, t_ns| t_ns, &exact())
}

/// ```text
///   rank 0   ###[~~~~~~~AAA]         30 to 100
///   rank 1   ######[~~~~AAA]         60 to 100
///   rank 2   ##########[AAA]
/// ```
#[test]
fn a_gap_is_shared_by_all_who_are_missing() {
    let ranks = [30, 60, 100].iter().enumerate().map(|(r, &start)| part(r as i32, &[(1, 0, start, 130)])).collect();
    let result = reduce_drawn(ranks);
    assert_eq!(result.waits.iter().map(|w| w.wait_ns).collect::<Vec<_>>(), [70, 40, 0]);
    assert_eq!(result.charged_ns, [0, 15, 15 + 40 + 40]);
    assert_eq!((result.waited_ns, result.before_recording_ns), (110, 0));
    assert_eq!(result.stragglers[0].suffered_wait_ns, 70);
    assert_eq!(result.waits.iter().map(|w| w.wait_clockfree_ns).collect::<Vec<_>>(), [Some(70), Some(40), Some(0)]);
    assert_eq!(result.waits.iter().map(|w| w.own_excess_ns).collect::<Vec<_>>(), [-30, 0, 40]);
}

/// Rank 1 arrives last at `B`, but only because rank 0 had held it up in `A`.
///
/// ```text
///   rank 0   ##########[AA]
///   rank 1   #[~~~~~~~~~AA]#[BB]     10 ns of its own before each
///   rank 2   ##[~~~~~~~~~~~~~BB]
/// ```
#[test]
fn an_inherited_delay_goes_back_to_who_caused_it() {
    let result = reduce_drawn(vec![
        part(0, &[(1, 0, 100, 120)]),
        part(1, &[(1, 0, 10, 120), (2, 120, 130, 150)]),
        part(2, &[(2, 0, 20, 150)]),
    ]);
    assert_eq!(result.waited_ns, 90 + 110);
    assert_eq!(result.charged_ns, [200, 0, 0], "arrived last, and caused nothing");
    let inherited: Vec<i64> = result.stragglers.iter().map(|r| r.inherited_ns).collect();
    assert_eq!(inherited, [0, 110, 0]);
    let delays: Vec<i64> = result.stragglers.iter().map(|r| r.step_delay_ns).collect();
    assert_eq!(delays, [90, 0, 0], "the chain leads from B over rank 1 to A and rank 0");
}

/// Rank 1 began 50 ns late, before anything was recorded: nobody here did that.
#[test]
fn what_was_brought_along_is_charged_to_nobody() {
    let result = reduce_drawn(vec![part(0, &[(1, 0, 30, 100)]), part(1, &[(1, 50, 80, 100)])]);
    assert_eq!((result.waited_ns, result.before_recording_ns), (50, 50));
    assert_eq!(result.charged_ns, [0, 0]);
}

/// Rank 1 leaves `A` 20 ns after rank 0, from the same collective: that is its own affair.
#[test]
fn leaving_a_common_collective_late_is_not_inherited() {
    let result =
        reduce_drawn(vec![part(0, &[(1, 0, 10, 20), (2, 20, 30, 60)]), part(1, &[(1, 0, 10, 40), (2, 40, 50, 60)])]);
    assert_eq!(result.charged_ns, [0, 20]);
}

/// Two collectives at once on rank 0 (two streams): a wait is counted once.
///
/// ```text
///   rank 0   #[~~~~AA]
///              [~~~~~~~~BB]          20 to 100; 20 to 60 is the same time as in A
///   rank 1   #####[AA]
///            #########[BB]
/// ```
#[test]
fn waits_at_the_same_time_count_once() {
    let result =
        reduce_drawn(vec![part(0, &[(1, 0, 10, 80), (2, 20, 20, 120)]), part(1, &[(1, 0, 60, 80), (2, 80, 100, 120)])]);
    assert_eq!(result.stragglers[0].suffered_wait_ns, 90);
    assert_eq!(result.charged_ns.iter().sum::<i64>() + result.before_recording_ns, 90);
}

/// A rank that leaves before the last has come (a one-sided operation) waited until it left.
#[test]
fn a_wait_ends_when_the_rank_leaves() {
    let result = reduce_drawn(vec![part(0, &[(1, 0, 10, 40)]), part(1, &[(1, 0, 100, 120)])]);
    assert_eq!((result.waited_ns, result.charged_ns), (30, vec![0, 30]));
}

/// Rank 1's optimiser is slow. It runs after the step's last collective, and delays the next step's first.
#[test]
fn slow_work_after_the_last_collective_counts() {
    let rank = |optimizer| vec![work("forward", 1000), work("optimizer", optimizer)];
    let job = Job { steps: repeat(6, &[rank(100), rank(700), rank(100), rank(100)]), ..Job::default() };
    let result = job.analyze(&exact());
    assert_eq!(verdicts(&result), ["victim", "cause", "victim", "victim"]);
    let row = &result.stragglers[1];
    assert_eq!((row.own_excess_ns, row.step_delay_ns), (600, 600));
    assert_eq!(
        (row.own_excess_low_ns, row.own_excess_high_ns),
        (Some(0), Some(600)),
        "the first step has no such past"
    );
    assert_eq!((row.evidence_range.as_deref(), row.evidence_excess_ns), (Some("optimizer"), Some(600)));
    assert_eq!((row.steps, row.steps_last), (6, 5));
    // Six steps: 6 × (1000 + 100) and five optimisers of 700 on the chain, or of 100 without it.
    let (with, without) = (6 * (1000 + TRANSFER_NS) + 5 * 700, 6 * (1000 + TRANSFER_NS) + 5 * 100);
    assert_eq!(row.slowdown, Some(with as f64 / without as f64));
    assert_eq!(result.stragglers[0].slowdown, Some(1.0));
}

/// Own stretches, and self times inside them.
///
/// ```text
///   ProfilerStep#7  |--------------------------------------------------|
///   forward              |---------------------|
///   gemm                    |-----|
///   cudaLaunchKernel          |-|                                             counts for gemm
///   cudaStreamSynchronize               |---|                                 blocks: counts for nobody
///   ## wait() ##                                |---|                         waits: counts for nobody
///   collective                                              [####]
///   own stretch     |---------------------------------------|
/// ```
#[test]
fn self_times_in_own_stretches() {
    let mut data = RankData::default();
    let mut push = |kind, name, from_ns, ns| push_row(&mut data, Row { kind, name, thread: 1, step: 7, from_ns, ns });
    push(Kind::UserAnnotation, "ProfilerStep#7", 0, 520);
    push(Kind::UserAnnotation, "forward", 50, 230);
    push(Kind::CpuOp, "gemm", 80, 70);
    push(Kind::Runtime, "cudaLaunchKernel", 100, 20);
    push(Kind::Kernel, "gemm_kernel", 130, 100);
    push(Kind::Kernel, "gemm_kernel", 180, 100);
    push(Kind::Runtime, "cudaStreamSynchronize", 200, 50);
    push(Kind::UserAnnotation, "## wait() ##", 290, 50);
    push(Kind::Kernel, "ncclDevKernel_AllReduce", 400, 60);
    data.steps = Job { steps: repeat(1, &[vec![work("x", 520)]]), ..Job::default() }.run().0[0].steps.clone();
    data.steps[0].step = 7;
    data.collectives = vec![trace::CollectiveRow {
        op: "allreduce".into(),
        start_ns: Some(400),
        end_ns: Some(460),
        ..Default::default()
    }];
    let part = map_rank(&data, &exact());
    let times: Vec<(&str, i64)> = part.ranges.iter().map(|r| (&*r.name, r.self_ns[0])).collect();
    assert_eq!(times, [("ProfilerStep", 50 + 10 + 60), ("forward", 230 - 70 - 50), ("gemm", 70)]);
    assert_eq!(part.steps, [StepPart { step: 7, dur_ns: 520, device_busy_ns: 150 }]);
    assert_eq!(part.stretches[0].own_ns, Some(400));
    let few = map_rank(&data, &Thresholds { max_ranges: 1, ..exact() });
    assert_eq!((few.ranges.len(), few.ranges_dropped, few.dropped_max_ns), (1, 2, 110));
}

/// Frames of Python's stack are the innermost rows; one fills the range that the user named, the other does not.
///
/// ```text
///   ProfilerStep#7        |--------------------------------------|
///   injected_delay            |------------|
///   train.py(7): delay         |-----------|
///   <built-in sleep>            |----------|
///   forward                                    |---------------|
///   <built-in linear>                                |----|
///   collective                                                 [##]
/// ```
#[test]
fn a_frame_that_fills_a_named_range_says_so() {
    let mut data = RankData::default();
    let mut push = |kind, name, from_ns, ns| push_row(&mut data, Row { kind, name, thread: 1, step: 7, from_ns, ns });
    push(Kind::UserAnnotation, "ProfilerStep#7", 0, 520);
    push(Kind::UserAnnotation, "injected_delay", 50, 100);
    push(Kind::PythonFunction, "train.py(7): delay", 51, 99);
    push(Kind::PythonFunction, "<built-in sleep>", 52, 98);
    push(Kind::UserAnnotation, "forward", 200, 200);
    push(Kind::PythonFunction, "<built-in linear>", 250, 50);
    data.steps = Job { steps: repeat(1, &[vec![work("x", 520)]]), ..Job::default() }.run().0[0].steps.clone();
    data.steps[0].step = 7;
    data.collectives =
        vec![trace::CollectiveRow { start_ns: Some(400), end_ns: Some(460), ..trace::CollectiveRow::default() }];
    let part = map_rank(&data, &exact());
    let mut fills: Vec<_> = part.ranges.iter().map(|r| (&*r.name, r.self_ns[0], r.fills.as_deref())).collect();
    fills.sort_unstable();
    assert_eq!(
        fills,
        [
            ("<built-in linear>", 50, None),
            ("<built-in sleep>", 98, Some("injected_delay")),
            ("ProfilerStep", 100, None),
            ("forward", 150, None),
            ("injected_delay", 1, None),
            ("train.py(7): delay", 1, None),
        ]
    );
}

/// Computation goes on while a collective is on its way, and the main thread records when it waits for one.
///
/// ```text
///   comm thread      [~~~A~~~]    [B]
///   backward   |--------|                ten before A, twenty while A is on its way
///   wait_all_reduce      |---------|
/// ```
#[test]
fn work_under_a_collective_is_own_work() {
    let mut data = RankData::default();
    let mut push = |kind, name, from_ns, ns| push_row(&mut data, Row { kind, name, thread: 1, step: 0, from_ns, ns });
    push(Kind::UserAnnotation, "backward", 0, 300);
    push(Kind::CpuOp, "wait_all_reduce", 300, 400);
    data.steps = Job { steps: repeat(1, &[vec![work("x", 1000)]]), ..Job::default() }.run().0[0].steps.clone();
    for (start_ns, end_ns) in [(100, 500), (600, 650)] {
        data.collectives.push(trace::CollectiveRow {
            start_ns: Some(start_ns),
            end_ns: Some(end_ns),
            ..Default::default()
        });
    }
    let part = map_rank(&data, &exact());
    let own: Vec<Option<i64>> = part.stretches.iter().map(|s| s.own_ns).collect();
    assert_eq!(own, [Some(100), Some(200 + 100)], "200 under A, 100 after it");
    assert_eq!(part.ranges[0].self_ns, [300], "backward is all own work");
    data.events.name[1] = data.events.name[0];
    let silent = map_rank(&data, &exact());
    assert_eq!(silent.stretches[1].own_ns, Some(100), "without a row that waits nothing tells work from waiting");
}

/// A second window of steps begins after warm-up: what lies between was not recorded, and is nobody's own stretch.
#[test]
fn a_stretch_does_not_reach_over_a_gap() {
    let rank = || vec![work("forward", 1000), work("optimizer", 100)];
    let (ranks, _) = Job { steps: repeat(4, &[rank(), rank()]), ..Job::default() }.run();
    let mut data = ranks[0].clone();
    data.steps[1].phase = "warmup".into();
    data.collectives.remove(1);
    let part = map_rank(&data, &exact());
    assert_eq!(part.stretches.iter().map(|s| s.own_ns).collect::<Vec<_>>(), [Some(1000), Some(1000), Some(1100)]);
    assert_eq!(part.stretches.iter().map(|s| s.previous).collect::<Vec<_>>(), [None, None, Some(1)]);
    assert_eq!(part.steps.iter().map(|s| s.step).collect::<Vec<_>>(), [0, 2, 3]);
}

/// A device that idles while the host is busy makes the reason `host`; one that is busy itself makes it `compute`.
#[test]
fn reasons() {
    let reason = |busy_ns: i64, range: &'static str| {
        let slow = |ns| vec![work(range, ns), work("optimizer", 10)];
        let job = Job { steps: repeat(5, &[slow(1000), slow(3000), slow(1000)]), ..Job::default() };
        let (ranks, instances) = job.run();
        let parts: Vec<RankPart> = ranks.iter().map(|r| map_rank(r, &exact())).collect();
        let parts: Vec<RankPart> = parts
            .into_iter()
            .map(|mut part| {
                part.has_device = busy_ns > 0;
                for step in &mut part.steps {
                    step.device_busy_ns = if part.rank == 1 { busy_ns } else { 900 };
                }
                part
            })
            .collect();
        let result = reduce(&parts, &instances, &|_, _, t| t, &exact());
        assert_eq!(verdicts(&result), ["victim", "cause", "victim"]);
        result.stragglers[1].reason.clone().unwrap()
    };
    assert_eq!(&*reason(0, "forward"), "compute");
    assert_eq!(&*reason(900, "forward"), "host");
    assert_eq!(&*reason(2900, "forward"), "compute");
    assert_eq!(&*reason(900, "input"), "input");
    assert_eq!(&*reason(900, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"), "input");
}

#[test]
fn two_causes_are_both_named() {
    let rank = |ns| vec![work("forward", ns), work("optimizer", 100)];
    let slow: Vec<Vec<Work>> = [1000, 1001, 1500, 1002, 999, 1400, 1000, 1001].map(rank).to_vec();
    let result = Job { steps: repeat(5, &slow), ..Job::default() }.analyze(&exact());
    let causes: Vec<i32> = result.stragglers.iter().filter(|r| &*r.verdict == "cause").map(|r| r.rank).collect();
    assert_eq!(causes, [2, 5]);
}

/// Rank 1 loses time in two ranges: the larger is named, but both make the step longer.
#[test]
fn the_delay_counts_every_range_that_stands_out() {
    let rank = |forward, backward| vec![work("forward", forward), work("backward", backward), work("optimizer", 100)];
    let normal = rank(1000, 2000);
    let job = Job { steps: repeat(5, &[normal.clone(), rank(1300, 2200), normal.clone(), normal]), ..Job::default() };
    let result = job.analyze(&exact());
    assert_eq!(verdicts(&result), ["victim", "cause", "victim", "victim"]);
    let row = &result.stragglers[1];
    assert_eq!((row.evidence_range.as_deref(), row.evidence_excess_ns), (Some("forward"), Some(300)));
    assert_eq!((row.own_excess_ns, row.step_delay_ns), (500, 500));
}

#[test]
fn two_ranks_are_compared_with_the_faster() {
    let rank = |ns| vec![work("forward", ns), work("optimizer", 100)];
    let result = Job { steps: repeat(5, &[rank(1000), rank(1300)]), ..Job::default() }.analyze(&exact());
    assert_eq!(verdicts(&result), ["victim", "cause"]);
    let row = &result.stragglers[1];
    assert_eq!((row.own_excess_ns, row.step_delay_ns, row.evidence_excess_ns), (300, 300, Some(300)));
    assert_eq!(row.z, None, "nothing varies");
    assert_eq!(result.stragglers[0].own_excess_ns, 0);
}

/// Nothing to compare is not a panic, and says why.
#[test]
fn degenerate_runs() {
    let rank = |ns| vec![work("forward", ns), work("optimizer", 100)];
    let evidence = |result: &Stragglers| result.stragglers[0].evidence.clone().unwrap();

    let alone = Job { steps: repeat(5, &[rank(1000)]), ..Job::default() }.analyze(&exact());
    assert_eq!(verdicts(&alone), ["ok"]);
    assert!(evidence(&alone).contains("only rank"), "{}", evidence(&alone));

    let silent = Job { steps: repeat(5, &[vec![work("forward", 10)], vec![work("forward", 90)]]), ..Job::default() };
    assert_eq!(verdicts(&silent.analyze(&exact())), ["undecided", "undecided"]);

    let once = Job { steps: repeat(1, &[rank(1000), rank(2000), rank(1000)]), ..Job::default() }.analyze(&exact());
    assert_eq!(verdicts(&once), ["ok", "undecided", "ok"]);

    let nothing = reduce(&[], &[], &|_, _, t| t, &exact());
    assert!(nothing.stragglers.is_empty() && nothing.waits.is_empty());

    let no_steps = RankData { info: RankInfo { rank: 4, ..RankInfo::default() }, ..RankData::default() };
    let part = map_rank(&no_steps, &exact());
    let result = reduce(&[part.clone(), RankPart { rank: 5, ..part }], &[], &|_, _, t| t, &exact());
    assert_eq!(verdicts(&result), ["undecided", "undecided"]);
    assert!(evidence(&result).contains("no step"), "{}", evidence(&result));
}

/// A collective that never ended, a member that points nowhere, and a rank without a part.
#[test]
fn broken_recordings_are_counted() {
    let rank = |ns| vec![work("forward", ns), work("optimizer", 100)];
    let (mut ranks, mut instances) =
        Job { steps: repeat(9, &[rank(1000), rank(1300), rank(1000)]), ..Job::default() }.run();
    ranks[0].collectives[4].end_ns = None;
    instances[4].members[0].end_ns = None;
    instances[3].members[2].index = 99;
    instances[2].members.push(Member { rank: 7, index: 0, start_ns: 0, end_ns: None, device_clock: false });
    let parts: Vec<RankPart> = ranks.iter().map(|r| map_rank(r, &exact())).collect();
    let result = reduce(&parts, &instances, &|_, _, t| t, &exact());
    assert_eq!(&*result.stragglers[1].verdict, "cause");
    assert_eq!(result.omissions.iter().map(|o| o.amount).collect::<Vec<_>>(), [Some(2), Some(1)]);
    assert_eq!(result.stragglers.iter().map(|r| r.steps).collect::<Vec<_>>(), [8, 8, 7]);
    assert_eq!(result.charged_ns.iter().sum::<i64>() + result.before_recording_ns, result.waited_ns);
}
