//! What `what-if` predicts is compared with the job that is simulated with that change.

#![expect(clippy::unwrap_used, reason = "tests may, and their helpers too")]

use drawn::SimulatedSource;
use model::options::Options;
use simulator::{Fault, Job, Place, Shape, What, simulate};
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

/// What is asked of a job, and the job that it asks for.
type Question = fn(&Job) -> (Asked, Job);

/// The questions. A typical rank has no noise and no fault.
const QUESTIONS: [(&str, Question); 6] = [
    ("without", |job| (Asked { without: vec![3], ..Asked::default() }, Job { faults: Vec::new(), ..job.clone() })),
    ("role median", |job| (Asked { role_median: true, ..Asked::default() }, typical(job))),
    ("perfect", |job| (Asked { perfect: true, ..Asked::default() }, Job { transfer_ns: 0, ..typical(job) })),
    ("half transfers", |job| transfers(job, 0.5)),
    ("double transfers", |job| transfers(job, 2.0)),
    ("no overlap", |job| (Asked { no_overlap: true, ..Asked::default() }, Job { blocks: true, ..job.clone() })),
];

fn typical(job: &Job) -> Job {
    Job { sigma: 0.0, faults: Vec::new(), ..job.clone() }
}

fn transfers(job: &Job, factor: f64) -> (Asked, Job) {
    let transfer_ns = (job.transfer_ns as f64 * factor) as i64;
    (Asked { comm_scale: Some(factor), ..Asked::default() }, Job { transfer_ns, ..job.clone() })
}

fn predicted(job: &Job, asked: &Asked) -> Prediction {
    let source = SimulatedSource::of(job, &simulate(job, 1).unwrap()).unwrap();
    let analyzed = pipeline::analyze::analyze_replayed(&source, &Options::default(), &|_, _| ()).unwrap();
    predict(&analyzed, asked).unwrap().changes.remove(0)
}

/// Every shape of job, with a rank that pauses and with one whose device is slow.
#[test]
fn a_change_saves_what_the_job_then_saves() {
    let mut wrong = Vec::new();
    for (at, shape) in SHAPES.into_iter().enumerate() {
        let job = Job { steps: 8, host_ranks: 4, ..Job::new(shape, 8) };
        let pauses = job.clone().pause(3, 3_000_000, Place::Forward);
        // Every second job's hosts never wait for their devices. Their pauses would delay the first step alone.
        let is_slow = Job { synchronizes: at % 2 == 0, ..job }.fault(Fault::of([3], What::SlowDevice(150)));
        for (job, (question, other)) in [pauses, is_slow].iter().flat_map(|job| QUESTIONS.map(|asked| (job, asked))) {
            let (asked, other) = other(job);
            let found = predicted(job, &asked);
            let end_ns = |job: &Job| simulate(job, 1).unwrap().outcome.end_ns;
            let true_ns = (end_ns(job) - end_ns(&other)) as f64 / job.steps as f64;
            println!(
                "{shape:?}, {question}: saves {true_ns:.0} ns, said {} ({:?} to {:?}) of {}",
                found.saved_ns, found.saved_low_ns, found.saved_high_ns, found.step_ns
            );
            let off_ns = (found.saved_ns as f64 - true_ns).abs();
            if off_ns > SHARE * true_ns.abs() && off_ns > SHARE_OF_STEP * (found.step_ns + found.saved_ns) as f64 {
                wrong.push((shape, question));
            }
        }
    }
    assert_eq!(wrong, []);
}
