//! A prediction of `what-if` is compared with the job that is simulated with that change.

#![expect(clippy::unwrap_used, reason = "tests may, and their helpers too")]

use drawn::SimulatedSource;
use fixtures::simulator::{Job, Shape, simulate};
use model::options::Options;
use what_if::changes::{Asked, Prediction, predict};

const SHAPES: [Shape; 11] = [
    Shape::Ddp,
    Shape::Hierarchical,
    Shape::TwoCommunicators,
    Shape::Fsdp { two_streams: false },
    Shape::Fsdp { two_streams: true },
    Shape::Hsdp,
    Shape::Tensor(2),
    Shape::ContextRing(2),
    Shape::Pipeline { stages: 2, tensor: 2 },
    Shape::Experts,
    Shape::Gloo,
];

/// A prediction is right within this share of what is saved …
const SHARE: f64 = 0.2;
/// … or of a step.
const SHARE_OF_STEP: f64 = 0.01;

fn predicted(job: &Job, asked: &Asked) -> Prediction {
    let source = SimulatedSource::of(job, &simulate(job, 1).unwrap()).unwrap();
    let analyzed = pipeline::analyze::analyze_replayed(&source, &Options::default(), &|_, _| ()).unwrap();
    predict(&analyzed, asked).unwrap().changes.remove(0)
}

/// Every shape of job, with transfers of half and of twice their time.
#[test]
fn transfers_of_another_time_save_what_the_job_then_saves() {
    let mut wrong = Vec::new();
    for (at, shape) in SHAPES.into_iter().enumerate() {
        for factor in [0.5, 2.0] {
            // Every second job's hosts never wait for their devices.
            let synchronizes = at % 2 == 0;
            let job = Job { steps: 8, host_ranks: 4, synchronizes, ..Job::new(shape, 8) };
            let other = Job { transfer_ns: (job.transfer_ns as f64 * factor) as i64, ..job.clone() };
            let found = predicted(&job, &Asked { comm_scale: Some(factor), ..Asked::default() });
            let end_ns = |job: &Job| simulate(job, 1).unwrap().outcome.end_ns;
            let true_ns = (end_ns(&job) - end_ns(&other)) as f64 / job.steps as f64;
            let off_ns = (found.saved_ns as f64 - true_ns).abs();
            println!(
                "{shape:?} × {factor}: saves {true_ns:.0} ns, said {} ({:?} to {:?}) of {}",
                found.saved_ns, found.saved_low_ns, found.saved_high_ns, found.step_ns
            );
            if off_ns > SHARE * true_ns.abs() && off_ns > SHARE_OF_STEP * (found.step_ns + found.saved_ns) as f64 {
                wrong.push((shape, factor));
            }
        }
    }
    assert_eq!(wrong, []);
}
