//! Drawn ranks: one column is 10 µs.

use drawn::Drawn;
use proptest::prelude::*;

use super::*;
use model::{Collective, Kind};
use trace::CollectiveRow;

const COLUMN_NS: i64 = 10_000;

/// The drawing in columns of [`COLUMN_NS`]. A row of NCCL or gloo that begins and ends with a collective is its row.
fn drawn(rank: Drawn) -> RankData {
    let mut data = rank.data();
    let long = |ns: &mut i64| *ns *= COLUMN_NS;
    data.events.ts_ns.iter_mut().for_each(long);
    data.events.dur_ns.iter_mut().for_each(long);
    for step in &mut data.outline.steps {
        (step.start_ns, step.end_ns) = (step.start_ns * COLUMN_NS, step.end_ns * COLUMN_NS);
    }
    let events = &data.events;
    let row = |collective: &Collective| {
        let mut row = collective.row();
        (row.start_ns, row.end_ns) = (row.start_ns.map(|ns| ns * COLUMN_NS), row.end_ns.map(|ns| ns * COLUMN_NS));
        let times = (row.start_ns, row.end_ns);
        let is_it = |event: &usize| {
            let name = &data.names[events.name[*event] as usize];
            let is_library = name.starts_with("nccl") || name.starts_with("gloo");
            is_library && (Some(events.ts_ns[*event]), Some(events.end_ns(*event))) == times
        };
        let event = (0..events.len()).find(is_it);
        CollectiveRow { event_id: event.map(|event| events.id[event]), ..row }
    };
    data.outline.collectives = Collective::list(data.outline.collectives.iter().map(row).collect::<Vec<_>>());
    data.measure_outline();
    data
}

fn graph(rank: Drawn) -> RankGraph {
    let data = drawn(rank);
    RankGraph::of(&data, &Launches::collect(&data.events)).unwrap()
}

/// What the node of a kind that ends in this column waits for: kind and column in which it ended.
fn causes(graph: &RankGraph, kind: NodeKind, end: i64) -> Vec<(NodeKind, i64)> {
    let node = graph.nodes.iter().position(|node| node.kind == kind && node.end_ns == end * COLUMN_NS).unwrap();
    let of_edge = |edge: &Edge| {
        let from = &graph.nodes[edge.from as usize];
        (from.kind, from.end_ns / COLUMN_NS)
    };
    let mut causes: Vec<_> = graph.edges(node).iter().map(of_edge).collect();
    causes.sort_unstable();
    causes
}

#[test]
fn kernels_wait_for_their_launch_and_their_stream() {
    let graph = graph(
        Drawn::rank(0)
            .launches(1, ".#.#..............#.")
            .device(Kind::Kernel, "k", (0, 7), 1, "..####..............")
            .device(Kind::Kernel, "l", (0, 7), 2, "......######........")
            .device(Kind::Kernel, "m", (0, 7), 3, "...................#"),
    );
    assert_eq!(causes(&graph, NodeKind::Work, 6), [(NodeKind::Host, 1)]);
    assert_eq!(causes(&graph, NodeKind::Work, 12), [(NodeKind::Host, 3), (NodeKind::Work, 6)]);
    assert_eq!(causes(&graph, NodeKind::Work, 20), [(NodeKind::Host, 18), (NodeKind::Work, 12)]);
    assert_eq!(causes(&graph, NodeKind::Host, 18), [(NodeKind::Host, 3)], "the host runs ahead");
}

#[test]
fn a_synchronising_call_waits_for_the_last_work() {
    let graph = graph(
        Drawn::rank(0)
            .launches(1, ".#..........#.")
            .host(Kind::Runtime, "cudaStreamSynchronize", 1, "...########...")
            .device(Kind::Kernel, "k", (0, 7), 1, "..########....")
            .device(Kind::Kernel, "l", (0, 7), 2, ".............#"),
    );
    assert_eq!(causes(&graph, NodeKind::Wait, 11), [(NodeKind::Host, 3), (NodeKind::Work, 10)]);
    assert_eq!(causes(&graph, NodeKind::Host, 12), [(NodeKind::Wait, 11)]);
    let wait = graph.nodes.iter().find(|node| node.kind == NodeKind::Wait).unwrap();
    assert_eq!(wait.begin_ns, 10 * COLUMN_NS, "what the call does after the wait is its own");
}

/// The profiler says for which stream the call waited: not for the one whose work ends with the call.
#[test]
fn a_call_waits_for_the_stream_that_the_profiler_names() {
    let mut data = drawn(
        Drawn::rank(0)
            .launches(1, ".#.#..........")
            .host(Kind::Runtime, "cudaStreamSynchronize", 1, "....########..")
            .device(Kind::Kernel, "short", (0, 7), 1, "..#####.......")
            .device(Kind::Kernel, "long", (0, 8), 2, "....########..")
            .device(Kind::Sync, "Stream Sync", (0, 7), 9, "....########.."),
    );
    let is_call = |row: &usize| &*data.names[data.events.name[*row] as usize] == "cudaStreamSynchronize";
    let call = (0..data.events.len()).find(is_call).unwrap();
    data.events.correlation[call] = 9;
    let graph = RankGraph::of(&data, &Launches::collect(&data.events)).unwrap();
    assert_eq!(causes(&graph, NodeKind::Wait, 12), [(NodeKind::Host, 4), (NodeKind::Work, 7)]);
}

/// No row begins or ends for more than a ms, until the kernel has ended.
#[test]
fn the_host_may_wait_without_a_call() {
    let quiet = ".".repeat(150);
    let host = format!(".#{quiet}..#");
    let graph = graph(
        Drawn::rank(0)
            .launches(1, &host)
            .host(Kind::CpuOp, "aten::mm", 1, &format!("#.{quiet}.##"))
            .device(Kind::Kernel, "k", (0, 7), 1, &format!("..{}..", "#".repeat(150)))
            .device(Kind::Kernel, "l", (0, 7), 2, &format!("..{quiet}...#")),
    );
    assert_eq!(causes(&graph, NodeKind::Wait, 152), [(NodeKind::Host, 2), (NodeKind::Work, 152)]);
}

#[test]
fn a_collective_waits_for_computation_and_computation_for_a_collective() {
    let graph = graph(
        Drawn::rank(0)
            .launches(1, ".#.#.#............")
            .host(Kind::Runtime, "cudaStreamWaitEvent", 1, "..#...#...........")
            .launches(4, "........#.........")
            .device(Kind::Kernel, "k", (0, 7), 1, "..####............")
            .device(Kind::Kernel, "ncclDevKernel_AllReduce", (0, 20), 2, "......######......")
            .device(Kind::Kernel, "other", (0, 7), 3, "......##..........")
            .device(Kind::Kernel, "update", (0, 7), 4, "............####..")
            .collectives("......######......"),
    );
    let [arrive, leave] = graph.collectives[0].unwrap();
    assert_eq!((graph.nodes[arrive as usize].end_ns, graph.nodes[leave as usize].end_ns), (60_000, 120_000));
    assert_eq!(causes(&graph, NodeKind::Arrive, 6), [(NodeKind::Host, 3), (NodeKind::Work, 6)]);
    assert_eq!(causes(&graph, NodeKind::Work, 16), [(NodeKind::Host, 8), (NodeKind::Work, 8), (NodeKind::Leave, 12)]);
}

/// `next` waits for one of two collectives: for the one at whose end it begins.
#[test]
fn computation_follows_as_many_collectives_as_calls_let_it() {
    let graph = graph(
        Drawn::rank(0)
            .launches(1, ".#...#...#............")
            .host(Kind::Runtime, "cudaStreamWaitEvent", 1, "....#...#..#..........")
            .launches(4, ".............#........")
            .device(Kind::Kernel, "k", (0, 7), 1, "..##..................")
            .device(Kind::Kernel, "ncclDevKernel_AllGather", (0, 20), 2, "......#########.......")
            .device(Kind::Kernel, "ncclDevKernel_ReduceScatter", (0, 21), 3, "..........###.........")
            .device(Kind::Kernel, "next", (0, 7), 4, "...............###....")
            .collectives("......#########.......")
            .collectives("..........###........."),
    );
    let causes = causes(&graph, NodeKind::Work, 18);
    assert_eq!(causes, [(NodeKind::Host, 13), (NodeKind::Work, 4), (NodeKind::Leave, 15)]);
}

/// The stream of `k` was told to wait for the all-gather before the other stream was told to wait for `k`.
#[test]
fn a_collective_follows_what_computation_waits_for() {
    let graph = graph(
        Drawn::rank(0)
            .launches(1, ".#...#................")
            .host(Kind::Runtime, "cudaStreamWaitEvent", 1, "....#..##.............")
            .launches(3, "..........#...........")
            .device(Kind::Kernel, "k", (0, 7), 1, "..##..................")
            .device(Kind::Kernel, "ncclDevKernel_AllGather", (0, 20), 2, "......#########.......")
            .device(Kind::Kernel, "ncclDevKernel_ReduceScatter", (0, 21), 3, "...............###....")
            .collectives("......#########.......")
            .collectives("...............###...."),
    );
    let causes = causes(&graph, NodeKind::Arrive, 15);
    assert_eq!(causes, [(NodeKind::Host, 10), (NodeKind::Work, 4), (NodeKind::Leave, 15)]);
}

/// `k` takes 4 columns, and 5 beside communication.
#[test]
fn computation_takes_longer_beside_communication() {
    let data = |beside: &str| {
        let launches = ".#".repeat(10);
        let rank = Drawn::rank(0).launches(1, &format!("{launches}{}", ".".repeat(60)));
        let alone = "####.".repeat(6);
        let rank = rank.device(Kind::Kernel, "k", (0, 7), 1, &format!("{}{alone}{}", ".".repeat(20), beside.repeat(6)));
        rank.device(Kind::Kernel, "nccl", (0, 20), 90, &format!("{}{}", ".".repeat(50), "#".repeat(36)))
    };
    let of = |beside: &str| Contention::of(&drawn(data(beside)));
    let window = model::intervals::Interval::new(50 * COLUMN_NS, 55 * COLUMN_NS);
    assert_eq!(of("#####.").map(|contention| contention.longer_ns(window)), Some(COLUMN_NS));
    assert_eq!(of("####.."), None, "it takes as long as without");
}

#[test]
fn without_devices_the_host_waits_in_rows_that_say_so() {
    let graph = graph(
        Drawn::rank(0)
            .host(Kind::CpuOp, "aten::mm", 1, "####..............####")
            .host(Kind::CpuOp, "c10d::allreduce_", 1, "....#.................")
            .host(Kind::CpuOp, "_c10d_functional::wait_tensor", 1, "......############....")
            .host(Kind::UserAnnotation, "gloo:all_reduce", 2, ".....#############....")
            .collectives(".....#############...."),
    );
    assert_eq!(causes(&graph, NodeKind::Arrive, 5), [(NodeKind::Host, 4)]);
    assert_eq!(causes(&graph, NodeKind::Wait, 18), [(NodeKind::Host, 6), (NodeKind::Leave, 18)]);
    assert_eq!(causes(&graph, NodeKind::Host, 22), [(NodeKind::Wait, 18)]);
}

proptest! {
    /// Whatever was recorded, nodes come after what they wait for, and no piece of work or collective is lost.
    #[test]
    fn every_work_is_a_node_after_its_causes(
        launches in "[.#]{40}", one in "[.#]{40}", two in "[.#]{40}", comm in "[.#]{40}", sync in "[.#]{40}",
    ) {
        let data = drawn(
            Drawn::rank(0)
                .launches(1, &launches)
                .host(Kind::Runtime, "cudaDeviceSynchronize", 1, &sync)
                .device(Kind::Kernel, "k", (0, 7), 1, &one)
                .device(Kind::Kernel, "l", (0, 8), 5, &two)
                .device(Kind::Kernel, "ncclDevKernel_AllReduce", (0, 20), 9, &comm)
                .collectives(&comm),
        );
        let works = data.events.kind.iter().filter(|kind| kind.is_device_work()).count();
        prop_assume!(works > 0);
        // Nothing says what communication waited for whose calls are mostly unknown.
        let Some(graph) = RankGraph::of(&data, &Launches::collect(&data.events)) else { return Ok(()) };
        let has_rows = graph.nodes.iter().filter(|node| matches!(node.kind, NodeKind::Work | NodeKind::Arrive)).count();
        prop_assert_eq!(has_rows, works);
        prop_assert_eq!(graph.starts.all as usize, works);
        prop_assert!(graph.collectives.iter().all(Option::is_some));
        for node in 0..graph.nodes.len() {
            prop_assert!(graph.edges(node).iter().all(|edge| (edge.from as usize) < node));
            prop_assert!(node == 0 || !graph.edges(node).is_empty());
        }
    }
}

/// Ends of all nodes if host, device work and late starts of each segment are as long as these factors say. The ends of collectives stay.
fn ends_ns(graph: &RankGraph, condensed: &Condensed, factors: &[[f64; 3]]) -> Vec<f64> {
    let segment_of = condensed::segment_of_nodes(graph, &condensed.segments);
    let mut ends: Vec<f64> = Vec::new();
    for (at, node) in graph.nodes.iter().enumerate() {
        let own = condensed::own_length(graph, at);
        let before = graph.edges(at).iter().map(|edge| ends[edge.from as usize] + edge.after_ns as f64);
        let ready = before.fold(f64::NEG_INFINITY, f64::max);
        ends.push(match node.kind {
            NodeKind::Begin => node.end_ns as f64,
            _ => ready + own.length(factors[segment_of[at] as usize]),
        });
    }
    ends
}

proptest! {
    /// Invariant (verdicts): The kept nodes end where they end in the whole graph, if the parts of each segment are longer or shorter.
    #[test]
    fn kept_nodes_end_as_in_the_whole_graph(
        host in "[.#]{60}",
        works in prop::collection::vec((0_usize..60, 1_usize..12, 0_i64..3), 1..12),
        factors in prop::collection::vec(0_usize..10, 64),
        steps in prop::collection::vec(0_i64..60, 0..3),
    ) {
        let mut rank = Drawn::rank(0).launches(1, &host);
        for (at, (from, len, stream)) in works.iter().enumerate() {
            let to = (from + len).min(60);
            let lane = format!("{}{}", ".".repeat(*from), "#".repeat(to - from));
            rank = rank.device(Kind::Kernel, "k", (0, *stream), at as i64 + 1, &lane);
        }
        let mut whole = graph(rank);
        for (number, pair) in (0..).zip(steps.windows(2)) {
            let window = model::intervals::Interval::new(pair[0] * COLUMN_NS, pair[1].max(pair[0]) * COLUMN_NS);
            whole.steps.push(model::steps::StepWindow { step: number, window });
        }
        let condensed = Condensed::of(&whole);
        let factors: Vec<[f64; 3]> = factors.into_iter().map(|at| condensed::FACTORS[at]).collect();
        for factors in [&[[1.0; 3]; 64][..], &factors] {
            let all = ends_ns(&whole, &condensed, factors);
            let mut found: Vec<f64> = Vec::new();
            for (at, node) in condensed.nodes.iter().enumerate() {
                let paths = condensed.paths_to(at);
                let lengths = paths.map(|path| found[path.from as usize] + path.length(factors[node.segment as usize]));
                let end = lengths.fold(f64::NEG_INFINITY, f64::max);
                found.push(if end.is_finite() { end } else { node.end_ns as f64 });
                let is_it = |other: &Node| (other.kind, other.at_ns, other.end_ns) == (node.kind, node.at_ns, node.end_ns);
                let whole = (0..all.len()).filter(|other| is_it(&whole.nodes[*other])).map(|other| all[other]);
                let off = whole.map(|end| (end - found[at]).abs()).fold(f64::INFINITY, f64::min);
                prop_assert!(off < 1e-3, "{node:?}: {off}");
            }
        }
    }
}
