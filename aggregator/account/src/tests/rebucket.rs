//! Gradient buckets of another size. One column is 10 ns.

use std::collections::BTreeMap;

use measure::graph::condensed::{Kept, Segment};
use measure::graph::{Condensed, NodeKind, Path};
use measure::own_time::{OwnTime, Stretch};
use model::intervals::Interval;
use model::steps::StepWindow;
use model::{Instance, Member};
use topology::join::Join;

use crate::rebucket::{Bound, Buckets};
use crate::scaled::Scaled;
use crate::tests::build::instance;

/// A bucket: when its gradients are ready, when its transfer begins and ends, and its bytes.
type Bucket = (i64, i64, i64, i64);

/// The graph of a rank whose host hands over these buckets, one after the other.
fn rank(buckets: &[Bucket]) -> Condensed {
    let end_ns = buckets.last().unwrap().2;
    let mut graph = Condensed::default();
    graph.segments.push(Segment { at_ns: i64::MIN, ..Segment::default() });
    graph.segments.push(Segment { at_ns: 0, step: Some(0), step_end_ns: Some(end_ns), ..Segment::default() });
    let mut add =
        |kind: NodeKind, segment: usize, (at_ns, end_ns): (i64, i64), collective: Option<u32>, paths: &[Path]| {
            graph.paths.extend(paths.iter().copied());
            let (segment, paths_end) = (segment as u32, graph.paths.len() as u32);
            graph.nodes.push(Kept { kind, segment, at_ns, end_ns, collective, paths_end });
            graph.nodes.len() as u32 - 1
        };
    let mut host = (add(NodeKind::Begin, 1, (0, 0), None, &[]), 0);
    let mut left = None;
    for (at, (ready_ns, start_ns, end_ns, _)) in (0..).zip(buckets.iter().copied()) {
        let segment = 1 + at as usize;
        let work = Path { from: host.0, host_ns: ready_ns - host.1, ..Path::default() };
        host = (add(NodeKind::Host, segment, (ready_ns, ready_ns), None, &[work]), ready_ns);
        let mut paths = vec![Path { from: host.0, ..Path::default() }];
        paths.extend(left.map(|from| Path { from, ..Path::default() }));
        let arrive = add(NodeKind::Arrive, segment + 1, (ready_ns, start_ns), Some(at), &paths);
        let whole = Path { from: arrive, fixed_ns: end_ns - start_ns, ..Path::default() };
        left = Some(add(NodeKind::Leave, segment + 1, (ready_ns, end_ns), Some(at), &[whole]));
    }
    let mut before_ns = 0;
    for (at, (ready_ns, ..)) in (0..).zip(buckets) {
        graph.segments[1 + at as usize].host_ns = ready_ns - std::mem::replace(&mut before_ns, *ready_ns);
        graph.segments.push(Segment { at_ns: *ready_ns, collective: Some(at), ..Segment::default() });
    }
    graph
}

/// The run of two ranks with these buckets, by their rows or by their collectives only, and its buckets.
fn run(buckets: &[Bucket], has_rows: bool) -> (Scaled, Vec<Buckets>) {
    let window = Interval::new(0, buckets.last().unwrap().2);
    let part = |rank: i32| {
        let stretch = |(ready_ns, start_ns, end_ns, _): &Bucket| Stretch {
            start_ns: *start_ns,
            end_ns: Some(*end_ns),
            own_ns: Some(*ready_ns),
            step: Some(0),
            ..Stretch::default()
        };
        let path_steps = vec![StepWindow { step: 0, window }];
        OwnTime { rank, stretches: buckets.iter().map(stretch).collect(), path_steps, ..OwnTime::default() }
    };
    let instance_of = |(at, (_, start_ns, end_ns, bytes)): (usize, &Bucket)| {
        let (index, end_ns) = (at as u32, Some(*end_ns));
        let member = |rank| Member { rank, index, start_ns: *start_ns, end_ns, device_clock: false };
        let members = vec![member(0), member(1)];
        Instance { bucket: Some(at as i32), bytes: Some(*bytes), ..instance(at, 0, 2, members) }
    };
    let parts = [part(0), part(1)];
    let graph = if has_rows { rank(buckets) } else { Condensed::of_collectives(&parts[0], 0) };
    let parts: Vec<&OwnTime> = parts.iter().collect();
    let one_clock = |_: i32, _: bool, ns: i64| ns;
    let join = Join::of(&parts, buckets.iter().enumerate().map(instance_of).collect(), &one_clock);
    let run = Scaled::of(&[&graph, &graph], &parts, &join, (&one_clock, &|_, _| Some(0))).unwrap();
    assert!(!has_rows || run.lengths_ns(&run.graph.recorded_ns()) == [window.end_ns]);
    (run, Buckets::of(&join))
}

/// The length of the step with buckets that close at so many bytes.
fn length_ns(buckets: &[Bucket], limit_bytes: i64) -> Option<i64> {
    let (run, buckets) = run(buckets, true);
    let changed = run.rebucketed(&buckets, limit_bytes, (&BTreeMap::new(), Bound::Expected), 2)?;
    Some(changed.lengths_ns(&changed.graph.recorded_ns())[0])
}

/// Buckets of one gradient each, 20 ns apart; transfers take 10 ns and 1 ns a byte.
const BUCKETS: [Bucket; 4] = [(120, 120, 160, 30), (140, 160, 190, 20), (160, 190, 230, 30), (180, 230, 260, 20)];

/// ```text
///   recorded        work   ##########0#1#2#3           ready at 120, 140, 160, 180; transfers of 40, 30, 40, 30
///                   comm             [0 ][1][2 ][3]    120 … 260
///   two a bucket    comm               [ 01 ][ 23 ]    140 … 200, 200 … 260: 10 + 50 each
///   all in one      comm                   [  0123  ]  180 … 290: 10 + 100
/// ```
#[test]
fn larger_buckets_start_later_and_pay_the_latency_less_often() {
    assert_eq!(length_ns(&BUCKETS, 20), Some(260), "the same buckets");
    assert_eq!(length_ns(&BUCKETS, 50), Some(260));
    assert_eq!(length_ns(&BUCKETS, 100), Some(290));
}

/// A single bucket does not show when its gradients are ready, nor do collectives alone.
#[test]
fn buckets_that_do_not_show_when_they_are_ready_are_refused() {
    assert_eq!(length_ns(&BUCKETS[..1], 20), None);
    for apart_ns in [0, 50] {
        let later = BUCKETS.map(|(ready_ns, start_ns, end_ns, bytes)| {
            let later_ns = apart_ns * (ready_ns - 120) / 20;
            (ready_ns + later_ns, start_ns + later_ns, end_ns + later_ns, bytes)
        });
        let (run, buckets) = run(&later, false);
        for limit_bytes in [20, 50, 100, i64::MAX] {
            assert!(run.rebucketed(&buckets, limit_bytes, (&BTreeMap::new(), Bound::Expected), 2).is_none());
        }
    }
}

/// No size of a bucket or of a gradient overflows.
#[test]
fn huge_buckets_are_no_panic() {
    let huge = BUCKETS.map(|(ready_ns, start_ns, end_ns, bytes)| (ready_ns, start_ns, end_ns, i64::MAX - bytes));
    let (run, buckets) = run(&huge, true);
    let sizes = BTreeMap::from([(0, vec![i64::MAX - 30]), (1, vec![i64::MAX, i64::MAX]), (2, vec![-5, 5])]);
    for limit_bytes in [1, 1 << 40, i64::MAX] {
        _ = run.rebucketed(&buckets, limit_bytes, (&sizes, Bound::Long), 2);
    }
}
