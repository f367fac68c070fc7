//! Operations around the moment at which NCCL is asked for something else.

use std::sync::Arc;

use super::core::{CommInfo, Core, Limits};
use super::model::Model;
use super::record::{Api, Coll, Event, P2p, Record, What};
use crate::Clock;
use crate::state::Shared;

const MS: i64 = 1_000_000;
const OPERATION: u64 = 40;
const CHANNEL: u64 = 41;

/// A communicator, with everything in flight.
struct World {
    core: Core,
    comm: u64,
    model: Model,
}

impl World {
    fn new() -> Self {
        let core = Core::new(Arc::new(Shared::new(Clock::system(), true)), Limits { handles: 8, comms: 2 });
        let comm = core.open_comm(CommInfo { hash: 7, ..CommInfo::default() });
        let mut model = Model::new(0);
        model.refresh_comms(&core);
        Self { core, comm, model }
    }

    fn take(&mut self, at_ms: i64, handle: u64, what: What) {
        self.model.take(&self.core, Record { at_ns: at_ms * MS, handle, what });
    }

    /// An all-reduce on one channel; `alone` if its channel was not asked for.
    fn begin(&mut self, at_ms: i64, alone: bool) {
        let func = self.core.words.intern(b"AllReduce");
        let datatype = self.core.words.intern(b"ncclFloat32");
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

    /// State and source of the times of each row that is made now, a second being what is told of as old.
    fn rows(&mut self, now_ms: i64, last: bool) -> Vec<(String, String)> {
        self.model.publish(now_ms * MS, (now_ms - 1000) * MS, last);
        let rows = std::mem::take(&mut self.model.rows.collectives);
        rows.into_iter().map(|row| (row.state.to_string(), row.timing_source.to_string())).collect()
    }

    fn asked_for_something_else(&mut self, at_ms: i64) {
        self.model.untold_until_ns = at_ms * MS;
    }
}

fn row(state: &str, source: &str) -> Vec<(String, String)> {
    vec![(state.into(), source.into())]
}

/// ```text
/// detail   coll │ channels
/// all-reduce  E │            looked at here
/// ```
#[test]
fn what_was_asked_for_when_an_operation_came_counts_not_when_it_is_looked_at() {
    let mut world = World::new();
    world.begin(10, true);
    world.asked_for_something_else(11);
    assert_eq!(world.rows(30, false), row("enqueued", "enqueue"));
    assert_eq!((world.rows(60_000, true), world.model.untold), (vec![], 0));
}

/// ```text
/// recording   ────┐     ┌──      faster than anybody looks
/// all-reduce    E · ├──┤
/// ```
#[test]
fn an_operation_that_ends_after_a_pause_is_whole() {
    let mut world = World::new();
    world.begin(10, false);
    world.asked_for_something_else(12);
    assert_eq!(world.rows(1500, false), vec![], "it may end yet");
    world.channel_runs(1600, 1700);
    assert_eq!(world.rows(2500, false), row("done", "host"));
    assert_eq!((world.rows(60_000, true), world.model.untold), (vec![], 0));
}

/// ```text
/// recording   ───┐   ┌──────
/// all-reduce   E ·  ·  ·  ·      no end: NCCL was not asked to tell it
/// ```
#[test]
fn an_operation_whose_end_is_not_told_is_counted_and_seems_not_to_hang() {
    for (now_ms, last) in [(20_000, false), (200, true)] {
        let mut world = World::new();
        world.begin(10, false);
        world.asked_for_something_else(12);
        assert_eq!(world.rows(150, false), vec![]);
        assert_eq!((world.rows(now_ms, last), world.model.untold), (vec![], 1));
        assert_eq!((world.rows(60_000, true), world.model.untold), (vec![], 1), "once");
    }
}

/// ```text
/// recording   ────┐  ┌────
/// sends        0 1      -         others may have come in between
/// ```
#[test]
fn sends_after_a_pause_have_no_number() {
    let mut world = World::new();
    world.model.untold_until_ns = i64::MIN;
    let func = world.core.words.intern(b"Send");
    let send = P2p { comm_hash: 0, count: 5, peer: 1, func, datatype: 0, channels: 1 };
    let (comm, event) = (world.comm, Event::P2p(send));
    for handle in [50, 51] {
        world.take(10, handle, What::Start { comm, parent: 0, step: -1, alone: true, event });
    }
    world.asked_for_something_else(i64::MAX / MS);
    world.take(20, 52, What::Start { comm, parent: 0, step: -1, alone: true, event });
    world.model.publish(20 * MS, 0, false);
    let seqs: Vec<_> = world.model.rows.collectives.iter().map(|row| row.seq).collect();
    assert_eq!(seqs, [Some(0), Some(1), None]);
}

/// ```text
/// graph    captured │ replay   replay
///                   │   E        E        its own time, not that of the capture
/// ```
#[test]
fn a_replayed_operation_was_not_enqueued_when_it_was_captured() {
    let mut world = World::new();
    let func = world.core.words.intern(b"AllReduce");
    let (comm, api) = (world.comm, Api { func, datatype: 0, count: 5, captured: true });
    let call = What::Start { comm, parent: 0, step: -1, alone: true, event: Event::CollApi(api) };
    world.take(1, 30, call);
    let coll = Coll { comm_hash: 0, seq: 3, count: 5, root: 0, func, datatype: 0, algo: 0, proto: 0, channels: 1 };
    // Asked for more since, which a captured operation does not know.
    world.take(5000, OPERATION, What::Start { comm, parent: 30, step: -1, alone: false, event: Event::Coll(coll) });
    world.model.publish(5001 * MS, 4001 * MS, false);
    let rows = std::mem::take(&mut world.model.rows.collectives);
    let told: Vec<_> = rows.iter().map(|row| (row.enqueue_ns, &*row.timing_source)).collect();
    assert_eq!(told, [(Some(5000 * MS), "enqueue")]);
}

/// ```text
/// recording   ──┐ ┌──────────
/// all-reduce        E ├─ ─ ─      hangs
/// ```
#[test]
fn an_operation_after_the_pause_that_does_not_end_hangs() {
    let mut world = World::new();
    world.asked_for_something_else(5);
    world.begin(10, false);
    assert_eq!(world.rows(1500, false), row("enqueued", "enqueue"));
    assert_eq!(world.rows(2500, false), vec![], "told once");
    assert_eq!((world.rows(60_000, true), world.model.untold), (row("enqueued", "enqueue"), 0));
}
