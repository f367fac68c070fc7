//! Operations around a change of NCCL's event mask.

use std::sync::Arc;

use recorder::{Clock, Shared};

use super::InFlight;
use crate::nccl::callbacks::{Callbacks, CommInfo, Limits};
use crate::nccl::record::{Api, Coll, Event, Launch, P2p, Record, What};
use crate::nccl::string_table::StringId;

const MS: i64 = 1_000_000;
const OPERATION: u64 = 40;
const CHANNEL: u64 = 41;

/// A communicator and its operations in flight.
struct World {
    callbacks: Callbacks,
    comm: u64,
    in_flight: InFlight,
}

impl World {
    fn new() -> Self {
        Self::of_version(0)
    }

    fn of_version(version: u8) -> Self {
        let callbacks = Callbacks::new(
            Arc::new(Shared::new(Clock::system(), true)),
            Arc::default(),
            Limits { handles: 8, comms: 2 },
        );
        let comm = callbacks.open_comm(CommInfo { hash: 7, version, ..CommInfo::default() });
        let mut in_flight = InFlight::new(0);
        in_flight.refresh_comms(&callbacks);
        Self { callbacks, comm, in_flight }
    }

    fn take(&mut self, at_ms: i64, handle: u64, what: What) {
        self.in_flight.take(&self.callbacks, Record { at_ns: at_ms * MS, handle, what });
    }

    /// Begins an all-reduce on one channel; `alone` if the mask excludes its channel.
    fn begin(&mut self, at_ms: i64, alone: bool) {
        let func = self.callbacks.strings.intern(b"AllReduce");
        let datatype = self.callbacks.strings.intern(b"ncclFloat32");
        let coll = Coll { comm_hash: 0, seq: 3, count: 5, root: 0, func, datatype, algo: 0, proto: 0, channels: 1 };
        let (comm, event) = (self.comm, Event::Coll(coll));
        self.take(at_ms, OPERATION, What::Start { comm, parent: 0, step: -1, alone, event });
        self.take(at_ms, OPERATION, What::Stop);
    }

    fn channel_runs(&mut self, from_ms: i64, to_ms: i64) {
        let (comm, parent, event) = (self.comm, OPERATION, Event::KernelCh { channel: 0, gpu_ns: 0 });
        self.take(from_ms, CHANNEL, What::Start { comm, parent, step: -1, alone: false, event });
        self.take(to_ms, CHANNEL, What::Stop);
    }

    /// State and timing source of each row that is made now, with operations older than one second.
    fn rows(&mut self, now_ms: i64, last: bool) -> Vec<(String, String)> {
        self.in_flight.publish(now_ms * MS, (now_ms - 1000) * MS, last);
        let rows = std::mem::take(&mut self.in_flight.rows.collectives);
        rows.into_iter().map(|row| (row.state.to_string(), row.timing_source.to_string())).collect()
    }

    fn mask_changes(&mut self, at_ms: i64) {
        self.in_flight.mask_changed_ns = at_ms * MS;
    }
}

fn row(state: &str, source: &str) -> Vec<(String, String)> {
    vec![(state.into(), source.into())]
}

/// ```text
/// detail   coll │ channels
/// all-reduce  E │            published here
/// ```
#[test]
fn the_mask_at_the_start_of_an_operation_counts() {
    let mut world = World::new();
    world.begin(10, true);
    world.mask_changes(11);
    assert_eq!(world.rows(30, false), row("unreported", "enqueue"));
    assert_eq!((world.rows(60_000, true), world.in_flight.unknown_ends), (vec![], 0));
}

/// ```text
/// recording   ────┐     ┌──      shorter than a period
/// all-reduce    E · ├──┤
/// ```
#[test]
fn an_operation_that_ends_after_a_pause_is_complete() {
    let mut world = World::new();
    world.begin(10, false);
    world.mask_changes(12);
    assert_eq!(world.rows(1500, false), vec![], "it may still end");
    world.channel_runs(1600, 1700);
    assert_eq!(world.rows(2500, false), row("done", "host"));
    assert_eq!((world.rows(60_000, true), world.in_flight.unknown_ends), (vec![], 0));
}

/// ```text
/// recording   ───┐   ┌──────
/// all-reduce   E ·  ·  ·  ·      no end: the mask excluded it
/// ```
#[test]
fn an_operation_without_an_end_after_a_mask_change_is_counted() {
    for (now_ms, last) in [(20_000, false), (200, true)] {
        let mut world = World::new();
        world.begin(10, false);
        world.mask_changes(12);
        assert_eq!(world.rows(150, false), vec![]);
        assert_eq!((world.rows(now_ms, last), world.in_flight.unknown_ends), (vec![], 1));
        assert_eq!((world.rows(60_000, true), world.in_flight.unknown_ends), (vec![], 1), "once");
    }
}

/// ```text
/// recording   ────┐  ┌────
/// sends        0 1      -         others may have been missed
/// ```
#[test]
fn sends_after_a_pause_have_no_sequence_number() {
    let mut world = World::new();
    world.in_flight.mask_changed_ns = i64::MIN;
    let func = world.callbacks.strings.intern(b"Send");
    let send = P2p { comm_hash: 0, count: 5, peer: 1, func, datatype: 0, channels: 1 };
    let (comm, event) = (world.comm, Event::P2p(send));
    for handle in [50, 51] {
        world.take(10, handle, What::Start { comm, parent: 0, step: -1, alone: true, event });
    }
    world.mask_changes(i64::MAX / MS);
    world.take(20, 52, What::Start { comm, parent: 0, step: -1, alone: true, event });
    world.in_flight.publish(20 * MS, 0, false);
    let seqs: Vec<_> = world.in_flight.rows.collectives.iter().map(|row| row.seq).collect();
    assert_eq!(seqs, [Some(0), Some(1), None]);
}

/// ```text
/// graph    captured │ replay   replay
///                   │   E        E        its own time, not that of the capture
/// ```
#[test]
fn a_replayed_operation_has_the_time_of_its_replay() {
    let mut world = World::new();
    let func = world.callbacks.strings.intern(b"AllReduce");
    let (comm, api) = (world.comm, Api { func, datatype: 0, count: 5, root: 0, captured: true });
    let call = What::Start { comm, parent: 0, step: -1, alone: true, event: Event::CollApi(api) };
    world.take(1, 30, call);
    let coll = Coll { comm_hash: 0, seq: 3, count: 5, root: 0, func, datatype: 0, algo: 0, proto: 0, channels: 1 };
    // The mask has changed since the capture.
    world.take(5000, OPERATION, What::Start { comm, parent: 30, step: -1, alone: false, event: Event::Coll(coll) });
    world.in_flight.publish(5001 * MS, 4001 * MS, false);
    let rows = std::mem::take(&mut world.in_flight.rows.collectives);
    let times: Vec<_> = rows.iter().map(|row| (row.enqueue_ns, &*row.timing_source)).collect();
    assert_eq!(times, [(Some(5000 * MS), "enqueue")]);
}

/// ```text
/// recording   ──┐ ┌──────────
/// all-reduce        E ├─ ─ ─      hangs
/// ```
#[test]
fn an_operation_without_an_end_after_a_pause_is_reported_in_flight() {
    let mut world = World::new();
    world.mask_changes(5);
    world.begin(10, false);
    assert_eq!(world.rows(1500, false), row("enqueued", "enqueue"));
    assert_eq!(world.rows(2500, false), vec![], "reported once");
    assert_eq!((world.rows(60_000, true), world.in_flight.unknown_ends), (row("enqueued", "enqueue"), 0));
}

/// ```text
/// group  [B]  [A]  [B B]        B: broadcast, A: all-reduce, whose operation NCCL reports after the group
/// ```
#[test]
fn a_broadcast_of_which_nccl_reports_the_call_only_becomes_a_row() {
    for version in [6, 7] {
        let mut world = World::of_version(version);
        let [broadcast, reduce] = [&b"Broadcast"[..], b"AllReduce"].map(|func| world.callbacks.strings.intern(func));
        let mut handle = 100;
        let mut group = |world: &mut World, at_ms, funcs: &[(StringId, i32)]| {
            let (comm, group) = (world.comm, handle);
            let launch = Launch { row: group as i64, thread_id: 5 };
            let start = |parent, event| What::Start { comm, parent, step: -1, alone: false, event };
            world.take(at_ms, group, start(0, Event::GroupApi(launch)));
            for (func, root) in funcs {
                handle += 1;
                let api = Api { func: *func, datatype: 0, count: 16, root: *root, captured: false };
                world.take(at_ms + 1, handle, start(group, Event::CollApi(api)));
                world.take(at_ms + 1, handle, What::Stop);
            }
            world.take(at_ms + 2, group, What::Stop);
            handle += 1;
        };
        group(&mut world, 10, &[(broadcast, 1)]);
        group(&mut world, 20, &[(reduce, 0)]);
        group(&mut world, 30, &[(broadcast, 1), (broadcast, 1)]);
        let row =
            |row: &trace::CollectiveRow| (row.op.to_string(), row.seq, row.root, row.event_id, row.state.to_string());
        world.in_flight.publish(40 * MS, -960 * MS, false);
        let rows: Vec<_> = world.in_flight.rows.collectives.drain(..).map(|found| row(&found)).collect();
        let expected = [(0, 1, 100), (1, 1, 104), (2, 1, 104)].map(|(seq, root, event)| {
            ("broadcast".to_owned(), Some(seq), Some(root), Some(event), "unreported".to_owned())
        });
        assert_eq!(rows, expected, "v{version}");
        let launches: Vec<_> = world.in_flight.rows.launches.drain(..).map(|l| (l.row, l.at_ns, l.end_ns)).collect();
        assert_eq!(launches, [(100, 10 * MS, Some(12 * MS)), (104, 30 * MS, Some(32 * MS))]);
    }
}

/// ```text
/// detail   channels │ coll
/// call       C      │               captured into a graph
/// replay            │  E ├──┤       NCCL reports its channels, and they are refused
/// ```
#[test]
fn a_replay_without_the_channels_of_its_capture_does_not_look_hung() {
    let mut world = World::new();
    let func = world.callbacks.strings.intern(b"AllReduce");
    let (comm, api) = (world.comm, Api { func, datatype: 0, count: 5, root: 0, captured: true });
    world.take(1, 30, What::Start { comm, parent: 0, step: -1, alone: false, event: Event::CollApi(api) });
    let coll = Coll { comm_hash: 0, seq: 3, count: 5, root: 0, func, datatype: 0, algo: 0, proto: 0, channels: 1 };
    world.take(70, OPERATION, What::Start { comm, parent: 30, step: -1, alone: true, event: Event::Coll(coll) });
    world.take(70, OPERATION, What::Stop);
    assert_eq!(world.rows(5_000, false), row("unreported", "enqueue"));
}
