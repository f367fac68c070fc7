//! Which records become rows, and the values of their columns.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::test_runner::{Config, TestRunner};
use recorder::{
    Clock, Collective, CollectiveOp, CollectiveState, Error, Interval, Kind, Memory, Options, Phase, Recorder,
    ThreadRecorder,
};
use trace::{BucketRow, ClockSampleRow, CollectiveRow, CounterRow, EventRow, MemoryRow, RankRow, Run, StepRow, Text};

use crate::common::{RANK, active, counters, event, new_run, options, rows, wait_until};

/// ```text
/// main  [ProfilerStep#7                        ]
///         [forward           ] [backward]
///           [gemm] [bias_relu]
/// ```
#[test]
fn scopes_nest_and_carry_their_values() {
    let run = new_run();
    let recorder = Recorder::start(options(run.path())).unwrap();
    let thread = recorder.thread("main");
    let name = |name| recorder.intern(name);
    let shapes = recorder.intern_shapes(&[&[64, 1024], &[1024, 1024]], &["float", "float"]);
    recorder.begin_step(7, Phase::Active);
    {
        let _step = thread.scope(Kind::UserAnnotation, name("ProfilerStep#7"));
        {
            let _forward = thread.scope(Kind::UserAnnotation, name("forward"));
            drop(thread.scope(Kind::CpuOp, name("gemm")).bytes(4096).flops(8192).shapes(shapes));
            drop(thread.scope(Kind::CpuOp, name("bias_relu")));
        }
        drop(thread.scope(Kind::UserAnnotation, name("backward")).comm());
    }
    recorder.end_step(Some(0.5));
    assert!(recorder.finish().closed_cleanly);

    let events = rows::<EventRow>(run.path());
    assert_eq!(events.len(), 5);
    assert!(events.is_sorted_by_key(|event| event.ts_ns));
    let [step, forward, gemm, bias_relu, backward] =
        ["ProfilerStep#7", "forward", "gemm", "bias_relu", "backward"].map(|name| event(&events, name));
    assert_eq!(step.parent_id, None);
    assert_eq!([forward.parent_id, backward.parent_id], [Some(step.id); 2]);
    assert_eq!([gemm.parent_id, bias_relu.parent_id], [Some(forward.id); 2]);
    for child in [&forward, &gemm, &bias_relu, &backward] {
        assert!(step.ts_ns <= child.ts_ns && child.ts_ns + child.dur_ns <= step.ts_ns + step.dur_ns);
    }
    assert!(gemm.ts_ns + gemm.dur_ns <= bias_relu.ts_ns && forward.ts_ns + forward.dur_ns <= backward.ts_ns);
    for event in &events {
        assert_eq!((event.rank, event.step, event.open), (RANK, Some(7), Some(false)));
        assert_eq!(event.pid, Some(i64::from(std::process::id())));
        assert_eq!(event.thread_id, Some(i64::from(rustix::thread::gettid().as_raw_nonzero().get())));
        assert_eq!(event.is_comm, Some(&*event.name == "backward"));
    }
    assert_eq!((&*step.kind, &*gemm.kind), ("user_annotation", "cpu_op"));
    assert_eq!((gemm.bytes, gemm.flops), (Some(4096), Some(8192)));
    assert_eq!(gemm.input_dims.as_deref(), Some("[[64, 1024], [1024, 1024]]"));
    assert_eq!(gemm.input_types.as_deref(), Some(r#"["float", "float"]"#));
    let plain = [bias_relu.bytes, bias_relu.flops].iter().all(Option::is_none);
    assert!(plain && bias_relu.input_dims.is_none() && bias_relu.input_types.is_none());
}

#[test]
fn rows_exist_for_active_steps_only() {
    let run = new_run();
    let recorder = Recorder::start(options(run.path())).unwrap();
    let thread = recorder.thread("main");
    let op = |name: &str| thread.scope(Kind::CpuOp, recorder.intern(name));
    drop(op("before"));
    recorder.begin_step(0, Phase::Wait);
    drop(op("waited out"));
    recorder.end_step(None);
    recorder.begin_step(1, Phase::Warmup);
    let begun_inactive = op("begun inactive");
    assert_eq!((begun_inactive.id(), thread.active_step()), (None, None));
    recorder.end_step(Some(2.0));
    recorder.begin_step(2, Phase::Active);
    drop(begun_inactive);
    drop(op("active"));
    let begun_active = op("begun active");
    assert_eq!((begun_active.id().is_some(), thread.active_step()), (true, Some(2)));
    recorder.end_step(None);
    drop(op("between"));
    recorder.begin_step(3, Phase::Wait);
    drop(begun_active);
    assert_eq!(thread.interval(Kind::CpuOp, recorder.intern("late"), 1, 2), None);
    let issued = Interval { step: Some(2), ..Interval::new(Kind::CpuOp, recorder.intern("issued in 2"), 5, 3) };
    assert!(thread.record(issued).is_some());
    // A step without an end ends when the next one begins.
    recorder.begin_step(4, Phase::Warmup);
    recorder.begin_step(5, Phase::Wait);
    recorder.finish();
    drop(op("after the end"));

    let events = rows::<EventRow>(run.path());
    let steps: BTreeMap<&str, Option<i32>> = events.iter().map(|event| (&*event.name, event.step)).collect();
    let expected = [("active", 2), ("begun active", 2), ("between", -1), ("issued in 2", 2)];
    assert_eq!(steps, expected.map(|(name, step)| (name, Some(step))).into());
    let issued = event(&events, "issued in 2");
    assert_eq!((issued.ts_ns, issued.dur_ns), (5, 0), "an end before the start is the start");

    let steps = rows::<StepRow>(run.path());
    let seen: Vec<_> = steps.iter().map(|step| (step.step, &*step.phase, step.loss)).collect();
    assert_eq!(seen, [(1, "warmup", Some(2.0)), (2, "active", None), (4, "warmup", None)]);
    assert!(steps.iter().all(|step| step.end_ns >= step.start_ns && step.rank == RANK));
}

#[test]
fn a_guard_dropped_out_of_order_does_not_restore_a_closed_parent() {
    let run = new_run();
    let recorder = active(options(run.path()));
    let thread = recorder.thread("main");
    let scope = |name: &str| thread.scope(Kind::CpuOp, recorder.intern(name));
    let outer = scope("outer");
    let inner = scope("inner");
    drop(outer);
    drop(inner);
    drop(scope("next"));
    recorder.finish();
    let events = rows::<EventRow>(run.path());
    assert_eq!(event(&events, "inner").parent_id, Some(event(&events, "outer").id));
    assert_eq!(event(&events, "next").parent_id, None);
}

/// Opens and closes scopes along a random walk. The rows form the same tree.
#[test]
fn any_nesting_is_recorded_as_it_was() {
    let mut runner = TestRunner::new(Config { cases: 16, failure_persistence: None, ..Config::default() });
    let walks = proptest::collection::vec(proptest::bool::weighted(0.55), 0..200);
    let outcome = runner.run(&walks, |walk| {
        let run = new_run();
        let recorder = active(options(run.path()));
        let thread = recorder.thread("main");
        let mut open = Vec::new();
        let mut expected: BTreeMap<String, Option<String>> = BTreeMap::new();
        for (i, opens) in walk.into_iter().enumerate() {
            if opens {
                let name = format!("scope {i}");
                expected.insert(name.clone(), open.last().map(|(name, _): &(String, _)| name.clone()));
                open.push((name.clone(), thread.scope(Kind::CpuOp, recorder.intern(&name))));
            } else {
                open.pop();
            }
        }
        while open.pop().is_some() {}
        recorder.finish();
        let events = rows::<EventRow>(run.path());
        let names: BTreeMap<i64, Text> = events.iter().map(|event| (event.id, event.name.clone())).collect();
        proptest::prop_assert_eq!(names.len(), events.len());
        let parents: BTreeMap<String, Option<String>> = events
            .iter()
            .map(|event| (event.name.to_string(), event.parent_id.map(|id| names[&id].to_string())))
            .collect();
        proptest::prop_assert_eq!(parents, expected);
        Ok(())
    });
    outcome.unwrap();
}

#[test]
fn ids_are_unique_across_threads() {
    const THREADS: usize = 6;
    const EVENTS: usize = 500;
    let run = new_run();
    let recorder = active(options(run.path()));
    let name = recorder.intern("op");
    let record = |thread: ThreadRecorder| (0..EVENTS).for_each(|_| drop(thread.scope(Kind::CpuOp, name)));
    std::thread::scope(|threads| {
        for i in 0..THREADS {
            let thread = recorder.thread(&format!("worker {i}"));
            threads.spawn(move || record(thread));
        }
    });
    // All threads and their queues end before the recording.
    let summary = recorder.finish();
    assert_eq!((summary.recorded, summary.dropped), ((THREADS * EVENTS) as u64, 0));
    let events = rows::<EventRow>(run.path());
    assert_eq!(events.iter().map(|event| event.id).collect::<BTreeSet<_>>().len(), THREADS * EVENTS);
    assert_eq!(events.iter().map(|event| event.thread_id).collect::<BTreeSet<_>>().len(), THREADS);
    assert!(events.iter().all(|event| event.parent_id.is_none()), "each thread has a nesting of its own");
    let expected: Vec<_> = (0..THREADS).map(|i| (format!("host:worker {i}").into(), EVENTS as i64, 0, None)).collect();
    assert_eq!(counters(run.path()), expected);
}

#[test]
fn collectives_carry_their_times_and_their_step() {
    let run = new_run();
    let recorder = Recorder::start(options(run.path())).unwrap();
    let thread = recorder.thread("comm");
    let world = recorder.intern("world");
    let all_reduce = |seq| Collective { comm_name: Some(world), ..Collective::new(-7, seq, CollectiveOp::AllReduce) };
    thread.collective(all_reduce(0));
    recorder.begin_step(4, Phase::Active);
    thread.collective(Collective {
        comm_size: Some(4),
        dtype: Some(recorder.intern("f32")),
        count: Some(256),
        bytes: Some(1024),
        bucket: Some(2),
        ready_ns: Some(10),
        enqueue_ns: Some(11),
        start_ns: Some(12),
        end_ns: Some(20),
        event_id: Some(99),
        ..all_reduce(1)
    });
    recorder.begin_step(5, Phase::Wait);
    thread.collective(all_reduce(2));
    thread.collective(Collective { step: Some(4), ..Collective::new(-7, 3, CollectiveOp::AllGather) });
    recorder.finish();
    let rows = rows::<CollectiveRow>(run.path());
    let expected = CollectiveRow {
        rank: RANK,
        comm_id: -7,
        comm_name: Some("world".into()),
        comm_size: Some(4),
        seq: Some(1),
        op: "allreduce".into(),
        dtype: Some("f32".into()),
        count: Some(256),
        bytes: Some(1024),
        step: Some(4),
        bucket: Some(2),
        ready_ns: Some(10),
        enqueue_ns: Some(11),
        start_ns: Some(12),
        end_ns: Some(20),
        state: "done".into(),
        timing_source: "host".into(),
        event_id: Some(99),
        ..CollectiveRow::default()
    };
    let late = CollectiveRow {
        rank: RANK,
        comm_id: -7,
        seq: Some(3),
        op: "allgather".into(),
        step: Some(4),
        state: "done".into(),
        timing_source: "host".into(),
        ..CollectiveRow::default()
    };
    assert_eq!(rows, [expected, late]);
}

#[test]
fn only_collectives_without_an_end_have_unfinished_rows() {
    let run = new_run();
    let recorder = active(options(run.path()));
    let thread = recorder.thread("comm");
    let in_state =
        |seq, state| thread.collective(Collective { state, ..Collective::new(1, seq, CollectiveOp::Barrier) });
    in_state(1, CollectiveState::Enqueued);
    in_state(1, CollectiveState::Started);
    in_state(2, CollectiveState::Enqueued);
    in_state(1, CollectiveState::Done);
    in_state(3, CollectiveState::Started);
    let summary = recorder.finish();
    let seen: Vec<_> =
        rows::<CollectiveRow>(run.path()).iter().map(|row| (row.seq.unwrap(), row.state.to_string())).collect();
    assert_eq!(seen, [(1, "done".into()), (2, "enqueued".into()), (3, "started".into())]);
    assert_eq!(summary.recorded, 1, "what is not done is not counted as recorded");
}

#[test]
fn collectives_in_flight_are_bounded() {
    const HELD: i64 = 4096;
    let run = new_run();
    let recorder = active(Options { part_period: Duration::from_millis(10), ..options(run.path()) });
    let thread = recorder.thread("comm");
    let start = |seq| {
        let collective = Collective::new(1, seq, CollectiveOp::Barrier);
        thread.collective(Collective { state: CollectiveState::Started, ..collective });
    };
    let on_disk = || rows::<CollectiveRow>(run.path()).len() as i64;
    // As many as the queue holds.
    (0..HELD - 6).for_each(start);
    wait_until("the first are on disk", || on_disk() == HELD - 6);
    (HELD - 6..HELD + 4).for_each(start);
    recorder.finish();
    assert_eq!(on_disk(), HELD, "each is written once");
    let omitted: Vec<CounterRow> = rows::<CounterRow>(run.path());
    assert!(omitted.iter().all(|row| &*row.source == "writer:in_flight" && row.recorded + row.dropped == 0));
    assert_eq!(omitted.iter().map(|row| row.omitted).sum::<i64>(), 4);
}

#[test]
fn memory_is_recorded_in_every_step_and_summed() {
    let run = new_run();
    let recorder = Recorder::start(options(run.path())).unwrap();
    let thread = recorder.thread("main");
    let [weights, gradients] = ["weights", "gradients"].map(|name| recorder.intern(name));
    thread.memory(Memory::host(weights, 1000));
    recorder.begin_step(0, Phase::Active);
    thread.memory(Memory::host(gradients, 500));
    thread.memory(Memory { device_id: Some(0), address: Some(-1), ..Memory::host(weights, 64) });
    thread.memory(Memory::host(weights, -1000));
    recorder.finish();
    let rows = rows::<MemoryRow>(run.path());
    let seen: Vec<_> =
        rows.iter().map(|row| (row.name.as_deref(), row.device_id, row.delta_bytes, row.allocated_bytes)).collect();
    let expected = [
        (Some("weights"), None, 1000, Some(1000)),
        (Some("gradients"), None, 500, Some(1500)),
        (Some("weights"), Some(0), 64, None),
        (Some("weights"), None, -1000, Some(500)),
    ];
    assert_eq!(seen, expected);
}

#[test]
fn small_tables_are_handed_over_and_checked() {
    let run = new_run();
    let recorder = Recorder::start(options(run.path())).unwrap();
    let bucket = |rank, bucket| BucketRow { rank, bucket, bytes: 8, ..BucketRow::default() };
    recorder.rows(vec![bucket(RANK, 0), bucket(RANK, 1)]).unwrap();
    recorder.rows(vec![bucket(RANK, 2)]).unwrap();
    recorder.rows::<BucketRow>(vec![]).unwrap();
    let wrong_rank = recorder.rows(vec![bucket(RANK + 1, 0)]).unwrap_err();
    assert!(matches!(wrong_rank, Error::Trace(trace::Error::WrongRank { .. })), "{wrong_rank}");
    let queued = recorder.rows(vec![EventRow { rank: RANK, ..EventRow::default() }]).unwrap_err();
    assert!(matches!(queued, Error::QueuedTable { table: "events" }), "{queued}");
    let (local_ns, remote_ns, rtt_ns) = recorder.clock().utc_sample();
    let offset_ns = remote_ns - local_ns;
    let sample =
        ClockSampleRow { rank: RANK, peer_rank: None, kind: "utc".into(), local_ns, remote_ns, offset_ns, rtt_ns };
    recorder.rows(vec![sample.clone()]).unwrap();
    assert_eq!(recorder.finish().recorded, 4);
    let buckets: Vec<i32> = rows::<BucketRow>(run.path()).iter().map(|row| row.bucket).collect();
    assert_eq!(buckets, [0, 1, 2]);
    assert_eq!(rows::<ClockSampleRow>(run.path()), [sample]);
}

#[test]
fn the_rank_has_a_row_at_start_and_end() {
    let run = new_run();
    let clock = Clock::bent(1_000_000_000, 40_000);
    let versions = [("mpi".to_string(), "3.1".to_string())].into();
    let who = Options {
        clock,
        local_rank: Some(1),
        host: "node-9".into(),
        launcher: Some("openmpi".into()),
        versions,
        ..options(run.path())
    };
    let recorder = active(who);
    let before = rows::<RankRow>(run.path());
    assert_eq!(before.len(), 1);
    let expected = RankRow {
        rank: RANK,
        world_size: 4,
        local_rank: Some(1),
        host: "node-9".into(),
        pid: i64::from(std::process::id()),
        clock_domain: clock.domain().into(),
        launcher: Some("openmpi".into()),
        versions: Some(r#"{"mpi":"3.1"}"#.into()),
        boot_id: before[0].boot_id.clone(),
        ..RankRow::default()
    };
    assert_eq!(before[0], expected);
    drop(recorder.thread("main").scope(Kind::CpuOp, recorder.intern("op")));
    let first = recorder.finish();
    assert_eq!(recorder.clone().finish(), first, "the second call returns the same summary");
    assert_eq!(rows::<RankRow>(run.path())[1..], [RankRow { closed_cleanly: true, parts: Some(3), ..expected }]);

    // Every time is in the bent clock, and every shard has its clock domain.
    let event = event(&rows::<EventRow>(run.path()), "op");
    assert!(event.ts_ns > Clock::system().now_ns() && event.ts_ns <= clock.now_ns());
    let run = Run::open(run.path()).unwrap();
    assert!(run.shards(RANK, "events").iter().all(|shard| shard.meta.clock_domain == clock.domain()));
}

#[test]
fn a_disabled_recorder_does_nothing() {
    let recorder = Recorder::disabled(Clock::system());
    let thread = recorder.thread("main");
    recorder.begin_step(0, Phase::Active);
    recorder.set_active(true);
    let name = recorder.intern("op");
    assert_eq!(thread.scope(Kind::CpuOp, name).id(), None);
    assert_eq!(thread.record(Interval { step: Some(0), ..Interval::new(Kind::CpuOp, name, 1, 2) }), None);
    thread.collective(Collective { step: Some(0), ..Collective::new(1, 1, CollectiveOp::Barrier) });
    thread.memory(Memory::host(name, 1));
    recorder.end_step(None);
    recorder.rows(vec![BucketRow::default()]).unwrap();
    assert_eq!(recorder.finish(), Default::default());
}
