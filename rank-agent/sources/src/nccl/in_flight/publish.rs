//! Rows of operations in flight.

use recorder::CollectiveState;
use rustc_hash::FxHashSet;

use super::{InFlight, PATIENCE_NS};
use crate::nccl::operation::{Operation, Proxy};
use crate::nccl::rows::{channel_rows, collective_row, comm_row, crossings, proxy_row};

impl InFlight {
    /// Makes rows of finished operations and of those in flight since before `old_ns`; at the `last` call, of all. An
    /// operation that began before the last change of the event mask and does not end is counted and gets no row, because
    /// it may have ended.
    pub(in crate::nccl) fn publish(&mut self, now_ns: i64, old_ns: i64, last: bool) {
        let open = self.open_batches(now_ns);
        let mut over = Vec::new();
        for (handle, op) in &mut self.ops {
            let comm = self.comms.entry(op.comm).or_default();
            let gone = comm.info.destroyed_ns.is_some();
            let ends = gone || last;
            // No more events arrive for an operation whose communicator or process ends.
            let mut state = op.state(if ends { i64::MAX } else { now_ns });
            let awaits_proxies = self.awaits_proxies && !ends && !op.is_quiet(now_ns);
            if state != CollectiveState::Done && (op.only_enqueued && !awaits_proxies || comm.confuses_stamps && ends) {
                state = CollectiveState::Unreported;
            }
            let finished = matches!(state, CollectiveState::Done | CollectiveState::Unreported);
            let is_old = op.enqueue_ns.max(op.last_ns) <= old_ns;
            let may_be_fused = op.batch.is_some_and(|batch| open.contains(&batch)) && !is_old;
            if !finished && op.enqueue_ns <= self.mask_changed_ns {
                if ends || now_ns.saturating_sub(self.mask_changed_ns) >= PATIENCE_NS {
                    self.unknown_ends += 1;
                    over.push(*handle);
                }
            } else if ends || finished && !may_be_fused {
                self.rows.collectives.push(collective_row(self.rank, op, &comm.clock, state));
                self.rows.channels.extend(channel_rows(self.rank, op, &comm.clock));
                self.crossings += crossings(op, &comm.clock);
                let named = Some((op.seq, &op.op));
                self.rows.proxies.extend(op.proxies.iter().map(|p| proxy_row(self.rank, op.comm_id, named, p)));
                over.push(*handle);
            } else if is_old && !comm.confuses_stamps && op.reported != Some(state) {
                op.reported = Some(state);
                self.rows.collectives.push(collective_row(self.rank, op, &comm.clock, state));
            }
        }
        for handle in &over {
            self.ops.remove(handle);
        }
        if !over.is_empty() {
            self.order.retain(|handle| self.ops.contains_key(handle));
        }
        if last {
            self.publish_strays();
        }
        self.publish_comms();
    }

    /// The launches with an operation that has not ended: it may share the times of the others.
    fn open_batches(&self, now_ns: i64) -> FxHashSet<u64> {
        let is_open = |op: &&Operation| op.state(now_ns) != CollectiveState::Done && !op.only_enqueued;
        self.ops.values().filter(is_open).filter_map(|op| op.batch).collect()
    }

    fn publish_strays(&mut self) {
        let mut strays: Vec<(u64, (i64, Proxy))> = self.strays.drain().collect();
        strays.sort_unstable_by_key(|(handle, _)| *handle);
        for (_, (comm, proxy)) in strays {
            if proxy.start_ns <= self.mask_changed_ns {
                self.unknown_ends += 1;
            } else {
                self.rows.proxies.push(proxy_row(self.rank, comm, None, &proxy));
            }
        }
    }

    fn publish_comms(&mut self) {
        for comm in self.comms.values_mut().filter(|comm| comm.info.hash != 0) {
            let gone = comm.info.destroyed_ns.is_some();
            if !comm.written.0 || (gone && !comm.written.1) {
                comm.written = (true, gone);
                self.rows.comms.push(comm_row(self.rank, &comm.info));
            }
        }
        self.comms.retain(|_, comm| comm.info.destroyed_ns.is_none());
    }
}
