//! The graph of simulated jobs of every shape.

use std::sync::Arc;

use drawn::SimulatedSource;
use measure::graph::Condensed;
use measure::map::map_rank;
use measure::own_time::{OwnTime, of_run};
use model::options::Options;
use model::source::Source;
use simulator::{Fault, Job, Shape, What, simulate};
use topology::join::{Join, by_rank};

use crate::bubbles::bubbles;
use crate::lost_time::{Accounted, Part};
use crate::scaled::Scaled;
use crate::tests::kineto::matched_of;

const SHAPES: [Shape; 13] = [
    Shape::Ddp,
    Shape::Gloo,
    Shape::Hierarchical,
    Shape::TwoCommunicators,
    Shape::Fsdp { two_streams: false },
    Shape::Fsdp { two_streams: true },
    Shape::Hsdp,
    Shape::Tensor(2),
    Shape::ContextRing(2),
    Shape::Pipeline { stages: 2, tensor: 1 },
    Shape::Experts,
    Shape::Rooted,
    Shape::Halo,
];

/// A job on one clock.
fn accounted(shape: Shape) -> Accounted {
    accounted_by(shape, true)
}

/// The same by its rows, or by its collectives only.
fn accounted_by(shape: Shape, has_rows: bool) -> Accounted {
    accounted_job(&Job { steps: 6, layers: 4, host_ranks: 2, ..Job::new(shape, 4) }, has_rows).0
}

fn accounted_job(job: &Job, has_rows: bool) -> (Accounted, Vec<OwnTime>, Join) {
    let source = SimulatedSource::of(job, &simulate(job, 1).unwrap()).unwrap();
    let map = |rank: i32| map_rank(source.load(rank).unwrap(), &Options::default(), None);
    let mut parts: Vec<_> = source.ranks().into_iter().map(map).collect();
    let instances = matched_of(parts.iter().map(|part| &part.outline));
    let mut own_time: Vec<OwnTime> = of_run(parts.iter_mut().map(|part| *part.straggler.take().unwrap()).collect());
    for own_time in own_time.iter_mut().filter(|_| !has_rows) {
        own_time.graph = Some(Arc::new(Condensed::of_collectives(own_time, 20_000)));
    }
    let parts = by_rank(&own_time);
    let (one_clock, error_ns) = (|_: i32, _: bool, ns: i64| ns, |_: i32, _: bool| Some(0));
    let join = Join::of(&parts, instances, &one_clock);
    let graphs = parts.iter().map(|part| part.graph.clone()).collect();
    let is_shown = vec![false; parts.len()];
    let account = Accounted::of(graphs, &parts, &join, (&one_clock, &error_ns), (&is_shown, 3)).unwrap();
    (account, own_time, join)
}

fn scaled(shape: Shape) -> Scaled {
    accounted(shape).run
}

/// Invariant (verdicts): The graph of a run with nothing changed is as long as the recording, to the ns.
#[test]
fn the_unchanged_graph_is_the_recording() {
    for (shape, has_rows) in SHAPES.into_iter().flat_map(|shape| [(shape, true), (shape, false)]) {
        let scaled = accounted_by(shape, has_rows).run;
        let bounds_ns = scaled.bounds_ns(&scaled.graph.recorded_ns());
        let mut ends_ns = Vec::new();
        assert_eq!(scaled.graph.replay(&scaled.graph.recorded_ns(), &mut ends_ns), scaled.graph.end_ns, "{shape:?}");
        assert!(bounds_ns.len() == 7 && bounds_ns.is_sorted(), "{shape:?}: {bounds_ns:?}");
        assert!(*bounds_ns.last().unwrap() <= scaled.graph.end_ns, "{shape:?}: {bounds_ns:?}");
    }
}

/// Nothing changed saves nothing; shorter transfers make no run longer, longer ones none shorter.
#[test]
fn the_run_follows_its_transfers() {
    for shape in SHAPES {
        let scaled = scaled(shape);
        let length_ns = |scale: f64| {
            let mut spans_ns = scaled.graph.recorded_ns();
            scaled.scale_transfers(&mut spans_ns, &|_| scale);
            scaled.lengths_ns(&spans_ns).iter().sum::<i64>()
        };
        let lengths_ns = [0.0, 0.5, 1.0, 2.0].map(length_ns);
        assert!(lengths_ns.is_sorted(), "{shape:?}: {lengths_ns:?}");
        assert!(lengths_ns[3] > lengths_ns[2], "{shape:?}: {lengths_ns:?}");
    }
}

/// No run is shorter if its collectives block. Ranks that send before they receive then wait for each other for ever.
#[test]
fn collectives_that_block_save_nothing() {
    for (shape, has_rows) in SHAPES.into_iter().flat_map(|shape| [(shape, true), (shape, false)]) {
        let run = accounted_by(shape, has_rows).run;
        let spans_ns = run.graph.recorded_ns();
        let Some(blocked) = run.blocked(4) else {
            let sends = matches!(shape, Shape::ContextRing(_) | Shape::Halo | Shape::Pipeline { .. });
            assert!(sends, "{shape:?}");
            continue;
        };
        let [recorded_ns, blocked_ns]: [i64; 2] =
            [&run, &blocked].map(|run| run.lengths_ns(&spans_ns).into_iter().sum());
        assert!(blocked_ns >= recorded_ns, "{shape:?}: {blocked_ns} of {recorded_ns}");
    }
}

/// The graph is right about steps whose lengths it has not seen.
#[test]
fn the_lengths_of_half_of_the_steps_foresee_the_others() {
    for shape in SHAPES {
        let foreseen = accounted(shape).lost_time.foreseen.unwrap();
        assert!(foreseen.is_right(), "{shape:?}: {foreseen:?}");
    }
}

/// All forward, then all backward: of p equal stages with m microbatches, each waits (p − 1) times as long as a microbatch takes.
#[test]
fn even_stages_wait_as_long_as_their_schedule_says() {
    for (stages, microbatches) in [(2, 4), (2, 8), (4, 8)] {
        let shape = Shape::Pipeline { stages, tensor: 1 };
        let (launch_ns, transfer_ns) = (1_000, 10_000);
        let job = Job { sigma: 0.0, launch_ns, transfer_ns, layers: microbatches, ..Job::new(shape, stages) };
        let expected_ns = 3 * (stages as i64 - 1) * job.layer_ns;
        let (account, parts, join) = accounted_job(&Job { steps: 6, ..job }, true);
        let rows = bubbles(&account, &parts.iter().collect::<Vec<_>>(), &join);
        assert_eq!(rows.len(), 6 * stages);
        for row in rows.iter().filter(|row| (1..5).contains(&row.step)) {
            let off_ns = (row.bubble_ns - expected_ns).abs();
            assert!(50 * off_ns < row.step_ns, "{stages} stages, {microbatches} microbatches: {row:?}, {expected_ns}");
        }
    }
}

/// Invariant (verdicts): The parts of each step sum to its recorded length, to the ns; nothing lasts longer than recorded.
#[test]
fn the_parts_of_a_step_sum_to_it() {
    for shape in SHAPES {
        let Accounted { run, lengths, lost_time } = accounted(shape);
        let recorded_ns = run.lengths_ns(&run.graph.recorded_ns());
        let of_step = |step: usize| lost_time.parts.iter().map(|(_, ns)| ns[step]).sum::<i64>();
        assert_eq!((0..recorded_ns.len()).map(of_step).collect::<Vec<_>>(), recorded_ns, "{shape:?}");
        let is_above = |(more, less): (&i64, &i64)| more >= less;
        assert!(lengths.recorded_ns.iter().zip(&lengths.typical_ns).all(is_above), "{shape:?}");
        assert!(lengths.typical_ns.iter().zip(&lengths.steady_ns).all(is_above), "{shape:?}");
    }
}

/// Invariant (verdicts): Uneven stages take what a pipeline with the same work in each stage saves.
#[test]
fn uneven_stages_take_what_even_ones_save() {
    let shape = Shape::Pipeline { stages: 2, tensor: 1 };
    let even = |layer_ns: i64| Job { sigma: 0.0, steps: 6, layers: 8, layer_ns, ..Job::new(shape, 4) };
    let layer_ns = Job::new(shape, 4).layer_ns;
    let uneven = even(layer_ns).fault(Fault::of(2..4, What::SlowDevice(400)));
    let step_ns = |job: &Job| accounted_job(job, true).0.lost_time.step_ns();
    let expected_ns = step_ns(&uneven) - step_ns(&even(layer_ns * 12 / 10));
    for (job, expected_ns) in [(even(layer_ns), 0), (uneven, expected_ns)] {
        let account = accounted_job(&job, true).0.lost_time;
        let (_, by_step) = account.parts.iter().find(|(part, _)| *part == Part::Stages).unwrap();
        for ns in &by_step[1..5] {
            assert!(
                50 * (ns - expected_ns).abs() < account.step_ns(),
                "{by_step:?}, {expected_ns} of {}",
                account.step_ns()
            );
        }
    }
}
