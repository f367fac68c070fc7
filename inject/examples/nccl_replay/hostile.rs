//! What NCCL, or a program around it, does wrong, or could.

use crate::abi::{Descriptor, kind};
use crate::ffi::{Comm, End, Plugin, close_descriptors, in_fork};
use crate::gpu_ns;
use crate::sequence::{World, hash, sequence};

/// Runs every case and names those that were survived.
pub(crate) fn hostile(plugin: &Plugin, version: u8) -> Vec<&'static str> {
    let mut survived = vec!["garbage in the padding"];
    let world = World::new(plugin, version, 1, 0, 2);
    let start = |d: &Descriptor| plugin.start(world.context, d.bytes());

    // But those with strings: NCCL's are valid in the member that the type selects.
    let strings = kind::COLL | kind::P2P | kind::COLL_API | kind::P2P_API | kind::CE_COLL | kind::KERNEL_PHASE;
    for kind in (0..17).map(|bit| 1 << bit).filter(|kind| kind & strings == 0).chain([0, 3, u64::MAX]) {
        let handle = start(&Descriptor::new(version, kind, 0));
        plugin.stop(handle);
    }
    survived.push("every type with a garbage union, and types that do not exist");

    assert_eq!(start(&Descriptor::new(version, kind::PROXY_CTRL, 0)), 0, "not asked for");
    let orphan = start(&Descriptor::kernel_ch(version, 0, 1, gpu_ns()));
    plugin.record_state(orphan, 22, Some(gpu_ns()));
    plugin.stop(orphan);
    plugin.stop(start(&Descriptor::proxy_step(version, 0, 1)));
    survived.push("NULL parent");

    let foreign = start(&Descriptor::proxy_op(version, 0x7f00_dead_beef, 1, 0, false));
    plugin.stop(foreign);
    survived.push("parent of another process (PXN)");

    let channel = start(&Descriptor::kernel_ch(version, usize::MAX, 1, u64::MAX));
    plugin.stop(channel);
    plugin.stop(channel);
    survived.push("stop twice");
    plugin.record_state(channel, 22, Some(0));
    plugin.record_state(channel, 22, None);
    survived.push("state after stop");

    for handle in [0, 1, usize::MAX, 0x7fff_ffff_f000, channel ^ 1] {
        plugin.record_state(handle, 9, Some(1));
        plugin.stop(handle);
        plugin.finalize(handle);
    }
    for context in [0, 1, usize::MAX, channel] {
        assert_eq!(plugin.start(context, Descriptor::new(version, kind::KERNEL_CH, 0).bytes()), 0);
    }
    assert_eq!(plugin.start_null(world.context), 0);
    survived.push("handles, contexts and descriptors that are none");
    for state in [-1, 0, 7, 13, 25, 99, i32::MIN] {
        let handle = start(&Descriptor::new(version, kind::PROXY_OP, 0));
        plugin.record_state(handle, state, None);
        plugin.stop(handle);
    }
    survived.push("states that do not exist");

    assert!(is_asked_while_others_come(plugin), "a communicator that comes or goes takes nothing from the others");
    survived.push("communicators that come and go while one is at work");

    let in_flight = start(&Descriptor::kernel_ch(version, 0, 2, gpu_ns()));
    plugin.finalize(world.context);
    plugin.finalize(world.context);
    survived.push("finalize with operations in flight, and twice");
    assert_eq!(plugin.start(world.context, Descriptor::kernel_ch(version, 0, 2, gpu_ns()).bytes()), 0);
    plugin.stop(in_flight);
    survived.push("events after finalize");

    let many: Vec<usize> = (10..3000).map(|n| plugin.init(&comm(n))).collect();
    many.iter().filter(|context| **context != 0).for_each(|context| plugin.finalize(*context));
    survived.push("thousands of communicators");
    survived
}

/// Whether the plugin asks for something all the while that communicators come and go beside an open one: NCCL has one
/// mask for all of them.
fn is_asked_while_others_come(plugin: &Plugin) -> bool {
    std::thread::scope(|threads| {
        let others = threads.spawn(|| (5000..5200).for_each(|number| plugin.finalize(plugin.init(&comm(number)))));
        let mut asked = true;
        while !others.is_finished() {
            asked &= crate::ffi::mask() != 0;
        }
        asked
    })
}

fn comm(number: u64) -> Comm<'static> {
    Comm { name: "", hash: hash(number), nodes: 1, ranks: 2, rank: 0 }
}

/// Opens events and never ends them, until none is taken. Returns `(asked for, taken)`.
pub(crate) fn exhaust(plugin: &Plugin, version: u8) -> (u64, u64) {
    let world = World::new(plugin, version, 1, 0, 2);
    let (mut asked, mut taken) = (0, 0);
    for _ in 0..40_000 {
        asked += 1;
        taken += u64::from(plugin.start(world.context, Descriptor::kernel_ch(version, 0, 0, gpu_ns()).bytes()) != 0);
    }
    (asked, taken)
}

/// Channels from four threads as fast as they can. Returns `(events, refused)`.
pub(crate) fn flood(plugin: &Plugin, version: u8, events: u64) -> (u64, u64) {
    const THREADS: u64 = 4;
    let world = World::new(plugin, version, 1, 0, 2);
    let each = || {
        let mut refused = 0;
        for _ in 0..events / THREADS {
            let stamp = gpu_ns();
            let handle = plugin.start(world.context, Descriptor::kernel_ch(version, 0, 0, stamp).bytes());
            refused += u64::from(handle == 0);
            plugin.record_state(handle, 22, Some(stamp + 1));
            plugin.stop(handle);
        }
        refused
    };
    let refused = std::thread::scope(|threads| {
        let running: Vec<_> = (0..THREADS).map(|_| threads.spawn(each)).collect();
        running.into_iter().map(|thread| thread.join().unwrap_or(0)).sum()
    });
    plugin.finalize(world.context);
    (events / THREADS * THREADS, refused)
}

/// Forks that end in every way with the plugin in them, a program that is executed, and descriptors that are closed.
pub(crate) fn processes(plugin: &Plugin, version: u8) -> Vec<&'static str> {
    let mut survived = Vec::new();
    let world = World::new(plugin, version, 1, 0, 2);
    let handle = plugin.start(world.context, Descriptor::kernel_ch(version, 0, 0, gpu_ns()).bytes());
    for (end, expected, name) in [
        (End::Exit, 7 << 8, "fork, exit"),
        (End::AtOnce, 7 << 8, "fork, _exit"),
        // SIGABRT, with or without a core.
        (End::Signal, 6, "fork, killed by a signal"),
    ] {
        let status = in_fork(end, || {
            plugin.stop(handle);
            let context = plugin.init(&comm(77));
            assert_eq!(context, 0, "a fork is not recorded");
            assert_eq!(plugin.start(world.context, Descriptor::new(version, kind::COLL, 0).bytes()), 0);
            plugin.finalize(world.context);
        });
        assert_eq!(status & !0x80, expected, "{name}");
        survived.push(name);
    }
    // Closed under the worker, which writes a part every two seconds.
    close_descriptors();
    survived.push("all descriptors closed");
    plugin.stop(handle);
    plugin.finalize(world.context);
    let operations = sequence(plugin, version, 0, 2, 50);
    println!("operations={operations}");
    survived
}
