//! Drawn timelines with their expected results. One column is 10 ns unless a drawing states another scale.

use crate::reduce;
use crate::stragglers::Stragglers;
use crate::tests::build::{Job, Row, TRANSFER_NS, Work, instance, push_row, repeat, verdicts};
use measure::own_time::{OwnTime, RangePart, StepPart, Stretch, map_rank, of_run};
use model::intervals::Interval;
use model::steps::StepWindow;
use model::{Collective, Instance, Kind, Member, RankData, thresholds::Thresholds};
use trace::Reason;

/// Thresholds without timing errors, because the times of the drawings are far below any real error.
pub(super) fn exact() -> Thresholds {
    Thresholds { host_error_ns: 0, device_error_ns: 0, max_queue_gap_ns: 0, ..Thresholds::default() }
}

pub(super) fn work(name: &'static str, ns: i64) -> Work {
    vec![(name, ns)]
}

/// The part of a rank with the collectives `(communicator, from, start, end)`; `from` is the begin of the own stretch.
fn part(rank: i32, collectives: &[(i64, i64, i64, i64)]) -> (OwnTime, Vec<(i64, Member)>) {
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
            entered: (i as u32).checked_sub(1),
            waited: (i as u32).checked_sub(1),
            step: Some(0),
        });
        members.push((comm, Member { rank, index: i as u32, start_ns, end_ns: Some(end_ns), device_clock: false }));
    }
    let steps = vec![StepPart { step: 0, dur_ns: 1000, busy_ns: 0 }];
    let path_steps = vec![StepWindow { step: 0, window: Interval::new(0, 1000) }];
    (OwnTime { rank, stretches, steps, path_steps, ..OwnTime::default() }, members)
}

/// Reduces drawn parts. All members of a communicator are in one instance.
fn reduce_drawn(ranks: Vec<(OwnTime, Vec<(i64, Member)>)>) -> Stragglers {
    let (parts, members): (Vec<OwnTime>, Vec<Vec<(i64, Member)>>) = ranks.into_iter().unzip();
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
    reduce(&parts, &instances, (&|_, _, t_ns| t_ns, &|_, _| Some(0)), &exact())
}

/// ```text
///   rank 0   ###[~~~~~~~AAA]         30 to 100
///   rank 1   ######[~~~~AAA]         60 to 100
///   rank 2   ##########[AAA]
/// ```
#[test]
fn a_gap_is_shared_by_all_missing_ranks() {
    let ranks = [30, 60, 100].iter().enumerate().map(|(r, &start)| part(r as i32, &[(1, 0, start, 130)])).collect();
    let result = reduce_drawn(ranks);
    assert_eq!(result.waits.iter().map(|w| w.wait_ns).collect::<Vec<_>>(), [70, 40, 0]);
    assert_eq!(result.charged_ns, [0, 15, 15 + 40 + 40]);
    assert_eq!((result.waited_ns, result.before_recording_ns), (110, 0));
    assert_eq!(result.stragglers[0].suffered_wait_ns, 70);
    assert_eq!(result.waits.iter().map(|w| w.wait_clockfree_ns).collect::<Vec<_>>(), [Some(70), Some(40), Some(0)]);
    assert_eq!(result.waits.iter().map(|w| w.own_excess_ns).collect::<Vec<_>>(), [-30, 0, 40]);
}

/// Rank 1 arrives last at `B`, but only because rank 0 delayed it in `A`.
///
/// ```text
///   rank 0   ##########[AA]
///   rank 1   #[~~~~~~~~~AA]#[BB]     10 ns of its own before each
///   rank 2   ##[~~~~~~~~~~~~~BB]
/// ```
#[test]
fn an_inherited_delay_is_charged_to_the_rank_that_caused_it() {
    let result = reduce_drawn(vec![
        part(0, &[(1, 0, 100, 120)]),
        part(1, &[(1, 0, 10, 120), (2, 120, 130, 150)]),
        part(2, &[(2, 0, 20, 150)]),
    ]);
    assert_eq!(result.waited_ns, 90 + 110);
    assert_eq!(result.charged_ns, [200, 0, 0], "rank 1 arrived last, but caused no wait");
    let inherited: Vec<i64> = result.stragglers.iter().map(|r| r.inherited_ns).collect();
    assert_eq!(inherited, [0, 110, 0]);
}

/// Rank 1 was 50 ns late before the recording began, so no recorded stretch explains that.
#[test]
fn a_delay_from_before_the_recording_is_charged_to_no_rank() {
    let result = reduce_drawn(vec![part(0, &[(1, 0, 30, 100)]), part(1, &[(1, 50, 80, 100)])]);
    assert_eq!((result.waited_ns, result.before_recording_ns), (50, 50));
    assert_eq!(result.charged_ns, [0, 0]);
}

/// Rank 1 leaves `A` 20 ns after rank 0. Both come from the same collective, so rank 1 is charged for these 20 ns.
#[test]
fn leaving_a_common_collective_late_is_not_inherited() {
    let result =
        reduce_drawn(vec![part(0, &[(1, 0, 10, 20), (2, 20, 30, 60)]), part(1, &[(1, 0, 10, 40), (2, 40, 50, 60)])]);
    assert_eq!(result.charged_ns, [0, 20]);
}

/// Rank 0 is in two collectives at once (two streams); its common wait counts once.
///
/// ```text
///   rank 0   #[~~~~AA]
///              [~~~~~~~~BB]          waits from 20 to 100; it waits in A, too, until 60
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

/// A rank that leaves before the last rank arrives (a one-sided operation) waits until it leaves.
#[test]
fn a_wait_ends_when_the_rank_leaves() {
    let result = reduce_drawn(vec![part(0, &[(1, 0, 10, 40)]), part(1, &[(1, 0, 100, 120)])]);
    assert_eq!((result.waited_ns, result.charged_ns), (30, vec![0, 30]));
}

/// Rank 1's optimiser is slow. It runs after the last collective of the step, and delays the first one of the next
/// step.
#[test]
fn slow_work_after_the_last_collective_counts() {
    let rank = |optimizer| vec![work("forward", 1000), work("optimizer", optimizer)];
    let job = Job { steps: repeat(6, &[rank(100), rank(700), rank(100), rank(100)]), ..Job::default() };
    let result = job.analyze(&exact());
    assert_eq!(verdicts(&result), ["victim", "cause", "victim", "victim"]);
    let row = &result.stragglers[1];
    assert_eq!((row.own_excess_ns, row.step_delay_ns), (600, 600), "of the steps between the first and the last one");
    assert_eq!(
        (row.own_excess_low_ns, row.own_excess_high_ns),
        (Some(0), Some(600)),
        "no optimiser runs before the first step"
    );
    assert_eq!((row.evidence_range.as_deref(), row.evidence_excess_ns), (Some("optimizer"), Some(600)));
    assert_eq!((row.steps, row.steps_last), (6, 5));
    assert_eq!(row.slowdown, Some((1000 + TRANSFER_NS + 700) as f64 / (1000 + TRANSFER_NS + 100) as f64));
    assert_eq!(result.stragglers[0].slowdown, Some(1.0));
}

/// Self times count only inside own stretches.
///
/// ```text
///   ProfilerStep#7  |--------------------------------------------------|
///   forward              |---------------------|
///   gemm                    |-----|
///   cudaLaunchKernel          |-|                                             counts as gemm
///   cudaStreamSynchronize               |---|                                 blocks: does not count
///   ## wait() ##                                |---|                         waits: does not count
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
    data.outline.steps =
        Job { steps: repeat(1, &[vec![work("x", 520)]]), ..Job::default() }.run().0[0].outline.steps.clone();
    data.outline.steps[0].step = 7;
    data.outline.collectives = vec![Collective::from(trace::CollectiveRow {
        op: "allreduce".into(),
        start_ns: Some(400),
        end_ns: Some(460),
        ..Default::default()
    })];
    let part = map_rank(&data, &exact());
    let times: Vec<(Option<&str>, i64)> = part.ranges.iter().map(|r| (r.name.as_deref(), r.self_ns[0])).collect();
    assert_eq!(times, [(None, 50 + 10 + 60), (Some("forward"), 230 - 70 - 50), (Some("gemm"), 70)]);
    assert_eq!(part.steps, [StepPart { step: 7, dur_ns: 520, busy_ns: 150 }]);
    assert_eq!(part.stretches[0].own_ns, Some(400));
    let few = map_rank(&data, &Thresholds { max_ranges: 1, ..exact() });
    assert_eq!((few.ranges.len(), few.ranges_dropped, few.dropped_max_ns), (1, 2, 110));
}

/// Frames of a Python stack are the innermost rows. The first frame fills the user's range, the second one does not. The user's function
/// around the time of a range is its code.
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
fn a_python_frame_has_the_name_of_the_range_that_it_fills() {
    let mut data = RankData::default();
    let mut push = |kind, name, from_ns, ns| push_row(&mut data, Row { kind, name, thread: 1, step: 7, from_ns, ns });
    push(Kind::UserAnnotation, "ProfilerStep#7", 0, 520);
    push(Kind::UserAnnotation, "injected_delay", 50, 100);
    push(Kind::PythonFunction, "train.py(7): delay", 51, 99);
    push(Kind::PythonFunction, "<built-in sleep>", 52, 98);
    push(Kind::UserAnnotation, "forward", 200, 200);
    push(Kind::PythonFunction, "<built-in linear>", 250, 50);
    data.outline.steps =
        Job { steps: repeat(1, &[vec![work("x", 520)]]), ..Job::default() }.run().0[0].outline.steps.clone();
    data.outline.steps[0].step = 7;
    data.outline.collectives =
        vec![trace::CollectiveRow { start_ns: Some(400), end_ns: Some(460), ..trace::CollectiveRow::default() }.into()];
    let part = map_rank(&data, &exact());
    let name = |r: &RangePart| r.name.clone().unwrap_or("outside".into());
    let of_range = |r: &RangePart| (name(r), r.self_ns[0], r.fills.clone(), r.code.clone());
    let mut found: Vec<_> = part.ranges.iter().map(of_range).collect();
    found.sort_unstable();
    let delay = || Some("train.py(7): delay".into());
    assert_eq!(
        found,
        [
            ("<built-in linear>".into(), 50, None, None),
            ("<built-in sleep>".into(), 98, Some("injected_delay".into()), delay()),
            ("forward".into(), 150, None, None),
            ("injected_delay".into(), 1, None, None),
            ("outside".into(), 100, None, None),
            ("train.py(7): delay".into(), 1, None, delay()),
        ]
    );
}

/// Computation overlaps a collective, and the main thread records its wait for that collective.
///
/// ```text
///   comm thread      [~~~A~~~]    [B]
///   backward   |--------|                10 columns before A, 20 during A
///   wait_all_reduce      |---------|
/// ```
#[test]
fn work_under_a_collective_is_own_work() {
    let mut data = RankData::default();
    let mut push = |kind, name, from_ns, ns| push_row(&mut data, Row { kind, name, thread: 1, step: 0, from_ns, ns });
    push(Kind::UserAnnotation, "backward", 0, 300);
    push(Kind::CpuOp, "wait_all_reduce", 300, 400);
    data.outline.steps =
        Job { steps: repeat(1, &[vec![work("x", 1000)]]), ..Job::default() }.run().0[0].outline.steps.clone();
    for (start_ns, end_ns) in [(100, 500), (600, 650)] {
        data.outline.collectives.push(Collective::from(trace::CollectiveRow {
            start_ns: Some(start_ns),
            end_ns: Some(end_ns),
            ..Default::default()
        }));
    }
    let part = map_rank(&data, &exact());
    let own: Vec<Option<i64>> = part.stretches.iter().map(|s| s.own_ns).collect();
    assert_eq!(own, [Some(100), Some(200 + 100)], "200 under A, 100 after it");
    assert_eq!(part.ranges[0].self_ns, [300], "backward is all own work");
    assert_eq!(part.by_operators.map(|other| other.stretches[1].own_ns), Some(Some(100)), "no operator ran under A");
    // The same rows as ranges of a user.
    data.events.kind[1] = Kind::UserAnnotation;
    let part = map_rank(&data, &exact());
    assert_eq!((part.stretches[1].own_ns, part.by_operators), (Some(100), None), "a user's range may hold any wait");
    assert_eq!(
        part.ranges.iter().map(|r| r.self_ns[0]).collect::<Vec<_>>(),
        [100, 100],
        "and it is own time outside of A"
    );
}

/// A rank without rows for its waits: its work under a collective is what its innermost operators do.
///
/// ```text
///   comm thread              [~~~A~~~]    [B]
///   mpi:allreduce           |-|
///   evaluate_function   |---------------|           holds a wait
///   aten::mm            |--|  |----|
///   aten::mm                     |--|               on a thread of its own
/// ```
#[test]
fn operators_under_a_collective_are_own_work() {
    let mut data = RankData::default();
    let mut push =
        |kind, name, thread, from_ns, ns| push_row(&mut data, Row { kind, name, thread, step: 0, from_ns, ns });
    push(Kind::CpuOp, "evaluate_function", 1, 0, 560);
    push(Kind::CpuOp, "aten::mm", 1, 0, 90);
    push(Kind::CpuOp, "mpi:allreduce", 1, 90, 20);
    push(Kind::CpuOp, "aten::mm", 1, 120, 180);
    push(Kind::CpuOp, "aten::mm", 2, 250, 100);
    data.outline.steps =
        Job { steps: repeat(1, &[vec![work("x", 1000)]]), ..Job::default() }.run().0[0].outline.steps.clone();
    data.outline.collectives = [(100, 500), (600, 650)]
        .map(|(start_ns, end_ns)| {
            let row = trace::CollectiveRow { start_ns: Some(start_ns), end_ns: Some(end_ns), ..Default::default() };
            Collective::from(row)
        })
        .into();
    let part = map_rank(&data, &exact());
    let own: Vec<Option<i64>> = part.stretches.iter().map(|s| s.own_ns).collect();
    assert_eq!(own, [Some(100), Some(350 - 120 + 100)], "230 under A, 100 after it");
}

/// Work under a collective means the same on all ranks: one rank that lacks the rows of its waits decides for all.
#[test]
fn ranks_are_compared_by_one_definition() {
    let one = |rank, own_ns: i64, other_ns: Option<i64>| {
        let stretch = |own_ns| vec![Stretch { own_ns: Some(own_ns), ..Stretch::default() }];
        let by_operators = other_ns.map(|ns| Box::new(OwnTime { rank, stretches: stretch(ns), ..OwnTime::default() }));
        OwnTime { rank, stretches: stretch(own_ns), by_operators, ..OwnTime::default() }
    };
    let own = |ranks: &[OwnTime]| -> Vec<Option<i64>> {
        let all = of_run(ranks.to_vec());
        assert!(all.iter().all(|rank| rank.by_operators.is_none()));
        all.iter().flat_map(|rank| rank.stretches.iter().map(|s| s.own_ns)).collect()
    };
    assert_eq!(own(&[one(0, 50, Some(40)), one(1, 60, Some(45))]), [Some(50), Some(60)]);
    assert_eq!(own(&[one(0, 50, Some(40)), one(1, 45, None)]), [Some(40), Some(45)]);
    // Neither a rank with a device nor one without collectives decides.
    let device = OwnTime { has_device: true, ..one(1, 45, None) };
    let idle = OwnTime { rank: 2, ..OwnTime::default() };
    assert_eq!(own(&[one(0, 50, Some(40)), device, idle]), [Some(50), Some(45)]);
}

/// A second window of steps begins after warm-up. The time between the windows was not recorded, so it is in no own
/// stretch.
#[test]
fn a_stretch_does_not_reach_over_a_gap() {
    let rank = || vec![work("forward", 1000), work("optimizer", 100)];
    let (ranks, _) = Job { steps: repeat(4, &[rank(), rank()]), ..Job::default() }.run();
    let mut data = ranks[0].clone();
    data.outline.steps[1].phase = "warmup".into();
    data.outline.collectives.remove(1);
    let part = map_rank(&data, &exact());
    assert_eq!(part.stretches.iter().map(|s| s.own_ns).collect::<Vec<_>>(), [Some(1000), Some(1000), Some(1100)]);
    assert_eq!(part.stretches.iter().map(|s| s.previous).collect::<Vec<_>>(), [None, None, Some(1)]);
    assert_eq!(part.steps.iter().map(|s| s.step).collect::<Vec<_>>(), [0, 2, 3]);
}

/// The reason is `compute` if the excess holds device work or, without a device, operators; else it is `host`. It is unknown
/// if neither was recorded.
#[test]
fn the_reason_is_what_was_recorded_in_the_excess() {
    let reason = |busy_ns: i64, has_device: bool, range: &'static str| {
        let slow = |ns| vec![work(range, ns), work("optimizer", 10)];
        let job = Job { steps: repeat(5, &[slow(1000), slow(3000), slow(1000)]), ..Job::default() };
        let (ranks, instances) = job.run();
        let parts: Vec<OwnTime> = ranks.iter().map(|r| map_rank(r, &exact())).collect();
        let parts: Vec<OwnTime> = parts
            .into_iter()
            .map(|mut part| {
                (part.has_device, part.has_work) = (has_device, busy_ns > 0);
                for step in &mut part.steps {
                    step.busy_ns = if part.rank == 1 { busy_ns } else { 900 };
                }
                part
            })
            .collect();
        let result = reduce(&parts, &instances, (&|_, _, t| t, &|_, _| Some(0)), &exact());
        assert_eq!(verdicts(&result), ["victim", "cause", "victim"]);
        result.stragglers[1].reason.as_ref().and_then(trace::Word::known)
    };
    for has_device in [true, false] {
        assert_eq!(reason(900, has_device, "forward"), Some(Reason::Host), "no more work than the other ranks");
        assert_eq!(reason(900, has_device, "data_wait"), Some(Reason::Waiting), "its name waits");
        assert_eq!(reason(2900, has_device, "data_wait"), Some(Reason::Compute), "it works, whatever its name");
        assert_eq!(reason(2900, has_device, "forward"), Some(Reason::Compute));
        assert_eq!(reason(900, has_device, "input"), Some(Reason::Input));
        let loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__";
        assert_eq!(reason(900, has_device, loader), Some(Reason::Input));
    }
    assert_eq!(reason(0, false, "forward"), None);
}

/// Without a device, the work of a rank is its operators: also on other threads, once where they overlap, without waits and
/// communication, and only in own stretches.
///
/// ```text
///   main       |injected_delay    |-linear--|
///   autograd                          |--addmm--|wait|
///   collective                                           [##]
///   operators                     ##############
/// ```
#[test]
fn operators_are_the_work_of_a_rank_without_a_device() {
    let mut data = RankData::default();
    let mut push =
        |kind, name, thread, from_ns, ns| push_row(&mut data, Row { kind, name, thread, step: 0, from_ns, ns });
    push(Kind::UserAnnotation, "injected_delay", 1, 0, 180);
    push(Kind::CpuOp, "aten::linear", 1, 190, 110);
    push(Kind::CpuOp, "aten::addmm", 2, 230, 200);
    push(Kind::CpuOp, "wait_for_work", 2, 380, 50);
    push(Kind::CpuOp, "mpi:allreduce", 1, 520, 40);
    data.outline.steps =
        Job { steps: repeat(1, &[vec![work("x", 520)]]), ..Job::default() }.run().0[0].outline.steps.clone();
    data.outline.collectives =
        vec![trace::CollectiveRow { start_ns: Some(500), end_ns: Some(560), ..trace::CollectiveRow::default() }.into()];
    let part = map_rank(&data, &exact());
    assert!(part.has_work && !part.has_device);
    assert_eq!(part.steps[0].busy_ns, 380 - 190);
}

/// Rank 1 does more between its ranges. The step's own range is as long as the step on every rank, so it is no evidence; the
/// time outside of all ranges is.
///
/// ```text
///   rank 0   ProfilerStep |--forward--|-----|[~~~~~~AA]
///   rank 1   ProfilerStep |--forward--|-----------|[AA]
/// ```
#[test]
fn the_steps_own_range_is_no_evidence() {
    let rank = |other| vec![vec![("forward", 1000), ("", other)], work("optimizer", 100)];
    let (mut ranks, instances) = Job { steps: repeat(5, &[rank(200), rank(900), rank(200)]), ..Job::default() }.run();
    for data in &mut ranks {
        // The unnamed work becomes a gap, and a range of any name around the whole step takes its place.
        let gap = data.names.iter().position(|name| name.is_empty()).unwrap();
        for row in (0..data.events.len()).filter(|&row| data.events.name[row] as usize == gap) {
            let step = &data.outline.steps[data.events.step[row] as usize];
            (data.events.ts_ns[row], data.events.dur_ns[row]) = (step.start_ns, step.end_ns - step.start_ns);
        }
        data.names[gap] = "train_step".into();
        model::sort_rows::sort_rows(&mut data.events);
    }
    let parts: Vec<OwnTime> = ranks.iter().map(|r| map_rank(r, &exact())).collect();
    let result = reduce(&parts, &instances, (&|_, _, t| t, &|_, _| Some(0)), &exact());
    assert_eq!(verdicts(&result), ["victim", "cause", "victim"]);
    let row = &result.stragglers[1];
    assert_eq!((row.evidence_range.as_deref(), row.evidence_excess_ns), (None, Some(700)));
    let evidence = row.evidence.as_deref().unwrap();
    assert!(evidence.contains("the time outside of all recorded ranges takes 0.001 ms longer"), "{evidence}");
}

/// Invariant (verdicts): All ranks are measured in the range that the verdict stands on.
///
/// Rank 1 is the cause by its `forward`. Rank 3 has more own work in every other step, too, but in another range each time. The
/// tables measure every rank in `forward`, so the cause stands out in them.
#[test]
fn all_ranks_are_measured_in_the_range_of_the_cause() {
    let rank = |forward, other: &'static str, ns| {
        vec![vec![("forward", forward), ("gemm", 1000), (other, ns)], work("optimizer", 100)]
    };
    let step = |name, other| vec![rank(10, name, 1), rank(310, name, 1), rank(10, name, 1), rank(10, name, other)];
    let steps = [("a", 50), ("b", 1), ("c", 50), ("d", 1), ("e", 50), ("f", 1)];
    let job = Job { steps: steps.map(|(name, other)| step(name, other)).to_vec(), ..Job::default() };
    let result = job.analyze(&exact());
    assert_eq!(verdicts(&result), ["victim", "cause", "victim", "victim"]);
    let shown: Vec<_> = result.stragglers.iter().map(|r| (r.evidence_range.as_deref(), r.evidence_excess_ns)).collect();
    assert_eq!(shown, [0, 300, 0, 0].map(|ns| (Some("forward"), Some(ns))));
    assert_eq!(result.stragglers.iter().filter(|r| r.stands_on.is_some()).count(), 1);
    let steps: Vec<_> = result.steps.iter().map(|s| (s.rank, s.step, s.evidence_excess_ns)).collect();
    assert_eq!(steps[6..8], [(1, 0, Some(300)), (1, 1, Some(300))]);
    assert_eq!(result.steps[18].own_excess_ns, Some(49));
}

/// Invariant (verdicts): A rank that costs no time is not blamed.
///
/// Rank 1 takes 600 ns longer before every collective, but the steps end no earlier without it: rank 2 or rank 3 is later
/// still, in turns. A rank that costs nothing is no cause, and no rank is its victim.
///
/// ```text
///   rank 0   ##########[~~~~~~~AA]    ##########[~~~~~~~AA]
///   rank 1   #############[~~~~AA]    #############[~~~~AA]
///   rank 2   #################[AA]    ##########[~~~~~~~AA]
///   rank 3   ##########[~~~~~~~AA]    #################[AA]
/// ```
#[test]
fn a_rank_that_lengthens_no_step_is_no_cause() {
    let rank = |ns| vec![work("forward", ns), work("optimizer", 100)];
    let step = |late: usize| {
        (0..8)
            .map(|r| {
                rank(if r == 1 {
                    1600
                } else if r == late {
                    1700
                } else {
                    1000
                })
            })
            .collect()
    };
    let job = Job { steps: (0..12).map(|s| step(2 + s % 6)).collect(), ..Job::default() };
    let result = job.analyze(&exact());
    let row = &result.stragglers[1];
    assert_eq!((&*row.verdict, row.step_delay_ns, row.own_excess_ns), ("ok", 0, 600), "{row:?}");
    assert!(verdicts(&result).iter().all(|v| *v == "ok"), "{:?}", verdicts(&result));
}

/// Gradient accumulation: only the last of four steps has a collective. Rank 1 takes 100 ns longer in each step.
///
/// ```text
///   rank 0   |###  |###  |###  |###[~~~~AA]
///   rank 1   |#### |#### |#### |####[~~~AA]
/// ```
#[test]
fn times_per_step_count_steps_without_collectives() {
    let micro = |ns| vec![vec![("input", 1), ("forward", ns)]];
    let last = |ns| vec![vec![("input", 1), ("forward", ns)], work("optimizer", 10)];
    let cycle =
        |ns: [i64; 4]| [ns.map(micro).to_vec(), ns.map(micro).to_vec(), ns.map(micro).to_vec(), ns.map(last).to_vec()];
    let job = Job { steps: (0..5).flat_map(|_| cycle([1000, 1100, 1000, 1000])).collect(), ..Job::default() };
    let result = job.analyze(&exact());
    assert_eq!(verdicts(&result), ["victim", "cause", "victim", "victim"]);
    let row = &result.stragglers[1];
    assert_eq!((row.steps, row.own_excess_ns, row.step_delay_ns, row.evidence_excess_ns), (5, 100, 100, Some(100)));
    assert_eq!((row.caused_wait_ns, result.stragglers[0].suffered_wait_ns), (300, 100));
}

#[test]
fn two_slow_ranks_are_both_causes() {
    let rank = |ns| vec![work("forward", ns), work("optimizer", 100)];
    let slow: Vec<Vec<Work>> = [1000, 1001, 1500, 1002, 999, 1400, 1000, 1001].map(rank).to_vec();
    let result = Job { steps: repeat(5, &slow), ..Job::default() }.analyze(&exact());
    let causes: Vec<i32> =
        result.stragglers.iter().filter(|r| r.verdict == trace::Verdict::Cause).map(|r| r.rank).collect();
    assert_eq!(causes, [2, 5]);
    assert_eq!(result.stragglers[5].step_delay_ns, 0, "rank 2 hides the delay of rank 5");
}

/// Rank 1 loses time in two ranges. The larger range is the evidence, but both lengthen the step.
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
    assert_eq!(row.z, None, "steps do not vary");
    assert_eq!(result.stragglers[0].own_excess_ns, 0);
}

/// A run without anything to compare does not panic, and its evidence has the reason.
#[test]
fn degenerate_runs_are_not_judged() {
    let rank = |ns| vec![work("forward", ns), work("optimizer", 100)];
    let evidence = |result: &Stragglers| result.stragglers[0].evidence.clone().unwrap();

    let alone = Job { steps: repeat(5, &[rank(1000)]), ..Job::default() }.analyze(&exact());
    assert_eq!(verdicts(&alone), ["ok"]);
    assert!(evidence(&alone).contains("only rank"), "{}", evidence(&alone));

    let no_collectives =
        Job { steps: repeat(5, &[vec![work("forward", 10)], vec![work("forward", 90)]]), ..Job::default() };
    assert_eq!(verdicts(&no_collectives.analyze(&exact())), ["undecided", "undecided"]);

    let once = Job { steps: repeat(1, &[rank(1000), rank(2000), rank(1000)]), ..Job::default() }.analyze(&exact());
    assert_eq!(verdicts(&once), ["ok", "undecided", "ok"]);

    let nothing = reduce(&[], &[], (&|_, _, t| t, &|_, _| Some(0)), &exact());
    assert!(nothing.stragglers.is_empty() && nothing.waits.is_empty());

    let mut no_steps = RankData::default();
    no_steps.outline.info.rank = 4;
    let part = map_rank(&no_steps, &exact());
    let result = reduce(&[part.clone(), OwnTime { rank: 5, ..part }], &[], (&|_, _, t| t, &|_, _| Some(0)), &exact());
    assert_eq!(verdicts(&result), ["undecided", "undecided"]);
    assert!(evidence(&result).contains("no step"), "{}", evidence(&result));
}

/// The recording has a collective that never ended, a member with an invalid position, and a member of an unknown rank.
#[test]
fn broken_recordings_are_counted() {
    let rank = |ns| vec![work("forward", ns), work("optimizer", 100)];
    let (mut ranks, mut instances) =
        Job { steps: repeat(9, &[1000, 1300, 1000, 1000, 1000].map(rank)), ..Job::default() }.run();
    ranks[0].outline.collectives[4].set_end_ns(None);
    instances[4].members[0].end_ns = None;
    instances[3].members[2].index = 99;
    instances[2].members.push(Member { rank: 7, index: 0, start_ns: 0, end_ns: None, device_clock: false });
    let parts: Vec<OwnTime> = ranks.iter().map(|r| map_rank(r, &exact())).collect();
    let result = reduce(&parts, &instances, (&|_, _, t| t, &|_, _| Some(0)), &exact());
    assert_eq!(&*result.stragglers[1].verdict, "cause");
    assert_eq!(result.omissions.iter().map(|o| o.amount).collect::<Vec<_>>(), [Some(2), Some(1)]);
    assert_eq!(result.stragglers.iter().map(|r| r.steps).collect::<Vec<_>>(), [8, 8, 7, 8, 8]);
    assert_eq!(result.charged_ns.iter().sum::<i64>() + result.before_recording_ns, result.waited_ns);
}
