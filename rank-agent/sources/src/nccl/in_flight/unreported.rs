//! Broadcasts for which NCCL reports only the call.
//!
//! ```text
//!  thread   [group of calls                            ]
//!             [broadcast]  [cuLaunchKernelEx]
//! ```
//!
//! NCCL 2.29 and later combine the broadcasts of a group. They tell the profiler of the call of a broadcast, and of nothing else
//! (`collTaskAppend` in enqueue.cc; `NCCL_ALLGATHERV_ENABLE=0` turns this off). Here the group of the calls stands for the launch. The
//! driver calls that launch the kernels lie inside the group, so the analysis finds the kernels.
//!
//! The device counts this work. NCCL 2.31 does not count it on the host. NCCL 2.29 and 2.30 do not count it if the broadcasts of a
//! communicator in one group have several roots (`ncclScheduleBcastTasksToPlan`). The device usually writes no stamps for it. Channels
//! of later operations would get the stamps of others, and NCCL's proxy thread would wait for a slot that is written 64 operations
//! later or, at the end of a communicator, never. So NCCL is asked for no channels from the first such call on. Calls that were
//! made before, in the same group or into a CUDA graph, keep theirs.

use std::collections::BTreeSet;

use super::{Call, InFlight, Origin};
use crate::nccl::callbacks::Callbacks;
use crate::nccl::operation::Launched;
use crate::nccl::record::CALLS_OF_BROADCASTS;

impl InFlight {
    /// Takes the call of a collective, which may be a broadcast.
    pub(super) fn call_of_broadcast(&mut self, callbacks: &Callbacks, handle: u64, call: Call) {
        let version = self.comms.entry(call.comm).or_default().info.version;
        if version < CALLS_OF_BROADCASTS || !callbacks.is_broadcast(call.api.func) {
            return;
        }
        match self.call_groups.get_mut(call.group) {
            Some(group) => group.broadcasts.push(handle),
            // The group was not recorded, so that its end will not be seen.
            None => self.missed_broadcasts = true,
        }
    }

    /// NCCL reports the operation of a call.
    pub(super) fn has_operation(&mut self, call: u64) {
        if let Some(known) = self.calls.get_mut(call) {
            known.has_operation = true;
            // A communicator that does not block reports it after the end of the group.
            self.withdrawn_broadcasts += u64::from(self.ops.remove(&call).is_some());
        }
    }

    /// Makes operations of the broadcasts of a group of calls that ends. Other handles have none.
    pub(super) fn group_ended(&mut self, callbacks: &Callbacks, group: u64, at_ns: i64) {
        let Some(found) = self.call_groups.get_mut(group) else { return };
        let launch = Launched { end_ns: Some(at_ns), ..found.launch };
        let handles = std::mem::take(&mut found.broadcasts);
        let calls: Vec<(u64, Call)> = handles
            .into_iter()
            .filter_map(|handle| Some((handle, *self.calls.get(handle)?)))
            .filter(|(_, call)| !call.has_operation)
            .collect();
        let comms: BTreeSet<u64> = calls.iter().map(|(_, call)| call.comm).collect();
        // Of several communicators, it is unknown which kernel is whose.
        let row = Some(launch.row).filter(|row| *row != 0 && comms.len() == 1);
        for (handle, call) in &calls {
            if !call.api.captured {
                self.unreported_broadcast(callbacks, *handle, *call, row);
            }
        }
        let has_row = row.is_some() && calls.iter().any(|(_, call)| !call.api.captured);
        self.rows.launches.extend(has_row.then_some(launch));
    }

    fn unreported_broadcast(&mut self, callbacks: &Callbacks, handle: u64, call: Call, row: Option<i64>) {
        let origin = Origin { comm: call.comm, parent: handle, step: call.step, alone: true };
        let mut op = self.new_operation(callbacks, origin, call.api.func, call.at_ns, 0);
        self.measure(callbacks, &mut op, handle, 0, 0);
        op.root = Some(call.api.root);
        let comm = self.comms.entry(call.comm).or_default();
        let is_counted = comm.info.created_ns > self.mask_changed_ns && !self.missed_broadcasts;
        op.seq = is_counted.then_some(comm.broadcasts);
        comm.broadcasts += 1;
        op.launch_row = row;
        op.batch = row.map(|row| row as u64);
        self.unreported_broadcasts += 1;
        self.insert(handle, op);
    }
}
