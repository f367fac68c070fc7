//! Collectives, from kernels of communication libraries and from the rows of host back ends.
//!
//! A kernel has the times of a collective. It is one by its name, by its own arguments, or because the operator of a
//! collective launched it. Its operation, size and group come from the best of these: its own arguments (torch ≥ 2.4);
//! the `record_param_comms` around its launch, found by correlation and nesting, by External id or by order; the
//! `nccl:…` and `c10d::…` ranges around the launch; records that were coalesced into it; its name alone (CUDA graphs,
//! all-reduces of servers).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use rustc_hash::FxHashMap;
use trace::name_rules::{
    hands_over_collective, is_communication_kernel, is_communication_kernel_in_traces, is_host_collective,
    is_known_compute,
};
use trace::rank::{Kind, Launches, NO_STEP, NONE, enclosing, mark_rows};
use trace::{CollectiveRow, Op, StepRow};

use crate::bytes::value::Value;
use crate::columns::rows::Rows;
use crate::meaning::comm_size::{Size, tensors};
use crate::meaning::context::{Context, ExternalIds, LooseRecords, RECORD, args_of, identity_of, name_of};
use crate::meaning::flight_recorder::{Dump, Likeness};
use crate::meaning::groups::{Group, Groups};
use crate::meaning::in_order::{Unlaunched, join_in_order};
use crate::meaning::names;
use crate::meaning::shares::Shares;
use crate::meaning::steps::step_at;
/// The collectives of a rank, in their [order](CollectiveRow::order).
#[derive(Debug, Default)]
pub(crate) struct Collectives {
    pub(crate) rows: Vec<CollectiveRow>,
    /// Kineto's `Comms Id` of each collective; empty if none has one.
    pub(crate) comms_ids: Vec<Option<u64>>,
    /// Collectives that are known only by their kernel's name.
    pub(crate) by_name_only: i64,
    /// Collectives whose process group the trace does not name.
    pub(crate) unnamed: i64,
}

/// A collective, before all columns of its row are known.
struct FoundCollective {
    row: CollectiveRow,
    event_row: usize,
    comms_id: Option<u64>,
    gradient: bool,
}

/// Finds the collectives of a rank, and marks their rows as communication.
pub(crate) fn find_collectives(
    rows: &mut Rows,
    launches: &Launches,
    groups: &mut Groups,
    steps: &[StepRow],
    (rank, dump): (i32, &Dump),
) -> Collectives {
    let mut finder = Finder { rows, launches, groups, rank, dump, only_stream: true, out: Collectives::default() };
    let mut found = finder.kernels();
    found.extend(finder.host_rows(steps));
    let mut out = finder.out;
    mark_rows(&mut rows.events, found.iter().map(|f| f.event_row));
    for f in &found {
        // The launch of such a kernel is unknown, so its step was too.
        let step = &mut rows.events.step[f.event_row];
        *step = if *step == NO_STEP { f.row.step.unwrap_or(NO_STEP) } else { *step };
    }
    found.sort_by_key(|f| (f.row.order(), f.event_row));
    settle_sendrecv(&mut found);
    number_buckets(&mut found, steps);
    if found.iter().any(|f| f.comms_id.is_some()) {
        out.comms_ids = found.iter().map(|f| f.comms_id).collect();
    }
    out.rows = found.into_iter().map(|f| f.row).collect();
    out
}

struct Finder<'a> {
    rows: &'a Rows,
    launches: &'a Launches,
    groups: &'a mut Groups,
    rank: i32,
    dump: &'a Dump,
    /// All communication kernels run on one stream.
    only_stream: bool,
    out: Collectives,
}

impl Finder<'_> {
    fn kernels(&mut self) -> Vec<FoundCollective> {
        let events = &self.rows.events;
        let index = ExternalIds::collect(self.rows);
        let candidates = self.candidates();
        let custom = self.custom(&candidates);
        let mut contexts: Vec<(usize, Context)> =
            candidates.into_iter().map(|row| (row, self.kernel_context(row, &index))).collect();
        self.drop_helpers(&mut contexts);
        let mut streams: Vec<(i64, i64)> =
            contexts.iter().map(|(row, _)| (events.device[*row], events.stream[*row])).collect();
        streams.sort_unstable();
        streams.dedup();
        self.only_stream = streams.len() <= 1;
        let coalesced = self.coalesced(&mut contexts);
        let mut found: Vec<FoundCollective> = contexts
            .into_iter()
            .zip(coalesced)
            .filter_map(|((row, context), sum)| self.kernel(row, &context, sum))
            .collect();
        // The groups of the others do not depend on the streams of these.
        streams.extend(custom.iter().map(|row| (events.device[*row], events.stream[*row])));
        streams.sort_unstable();
        streams.dedup();
        self.only_stream = streams.len() <= 1;
        found.extend(custom.into_iter().filter_map(|row| self.kernel(row, &Context::default(), None)));
        found
    }

    /// The kernels of servers that reduce among all ranks of a group. No row beside them says so: their names alone do.
    fn custom(&self, candidates: &[usize]) -> Vec<usize> {
        let Rows { events, names, .. } = self.rows;
        let mut reduces: Vec<Option<bool>> = vec![None; names.len()];
        let mut is_custom = |row: usize| {
            *reduces[events.name[row] as usize].get_or_insert_with(|| {
                let name = name_of(self.rows, row);
                is_communication_kernel(name) && names::operation(name) == Some("allreduce")
            })
        };
        let kernels = (0..events.len()).filter(|row| events.kind[*row] == Kind::Kernel);
        kernels.filter(|row| is_custom(*row) && candidates.binary_search(row).is_err()).collect()
    }

    /// The kernels that may be collectives: by their names, by their arguments, or by the operator that launched them.
    fn candidates(&self) -> Vec<usize> {
        let Rows { events, names, comm_args, .. } = self.rows;
        let by_name: Vec<bool> = names.iter().map(|name| is_communication_kernel_in_traces(name.as_bytes())).collect();
        let is_record: Vec<bool> = names.iter().map(|name| &**name == RECORD).collect();
        let has_records = is_record.contains(&true);
        let of_record = |row: usize| {
            let operator = self.operator_of_launch(row).filter(|_| has_records);
            operator.is_some_and(|operator| is_record[events.name[operator] as usize])
                && !is_known_compute(name_of(self.rows, row))
        };
        let is_kernel = |row: &usize| events.kind[*row] == Kind::Kernel;
        let counts = |row: &usize| by_name[events.name[*row] as usize] || of_record(*row);
        let mut rows: Vec<usize> = (0..events.len()).filter(|row| is_kernel(row) && counts(row)).collect();
        rows.extend(comm_args.keys().map(|row| *row as usize).filter(is_kernel));
        rows.sort_unstable();
        rows.dedup();
        rows
    }

    /// The operator that launched a kernel itself: ranges, such as `nccl:all_reduce`, may lie between them.
    fn operator_of_launch(&self, row: usize) -> Option<usize> {
        let events = &self.rows.events;
        let mut at = enclosing(events, self.launch_of(row)? as usize)?;
        while events.kind[at] == Kind::UserAnnotation {
            at = enclosing(events, at)?;
        }
        Some(at).filter(|at| events.kind[*at] == Kind::CpuOp)
    }

    /// The launch of a kernel. The correlation 0 stands for none.
    fn launch_of(&self, row: usize) -> Option<u32> {
        self.launches.of(self.rows.events.correlation[row]).filter(|_| self.rows.events.correlation[row] != 0)
    }

    /// Keeps one of the kernels of a record whose names do not say that they communicate: the longest, and none beside
    /// one that says so. The others check or copy its data.
    fn drop_helpers(&self, contexts: &mut Vec<(usize, Context)>) {
        let is_named = |row: usize| is_communication_kernel_in_traces(name_of(self.rows, row).as_bytes());
        let rank = |row: usize| (is_named(row), self.rows.events.dur_ns[row]);
        let mut best: FxHashMap<u32, usize> = FxHashMap::default();
        for (row, context) in &*contexts {
            if let Some(record) = context.record_row {
                let best = best.entry(record).or_insert(*row);
                *best = if rank(*row) > rank(*best) { *row } else { *best };
            }
        }
        contexts.retain(|(row, context)| {
            is_named(*row) || context.record_row.is_none_or(|record| best.get(&record) == Some(row))
        });
    }

    /// Gathers the metadata of a kernel and of the host rows around its launch.
    fn kernel_context(&self, row: usize, index: &ExternalIds) -> Context {
        let mut context = Context::default();
        let own = args_of(self.rows, row as u32).and_then(|args| context.take_record(args));
        match self.launch_of(row) {
            Some(launch) => context.explore(self.rows, self.rows.events.parent[launch as usize]),
            None => {
                if let Some(operator) = index.operator_of(self.rows, row) {
                    context.explore(self.rows, operator);
                }
            }
        }
        // Arguments without an operation still tell the group.
        if context.record.is_none() {
            context.record = own.filter(|args| args.get("Process Group Name").is_some() && args.get("Seq").is_some());
        }
        context
    }

    /// The summed sizes of the loose records before a launch, for kernels whose launch has no record around it. Then kernels
    /// without a launch take the records that are left.
    fn coalesced(&self, contexts: &mut [(usize, Context)]) -> Vec<Option<Size>> {
        let mut joined: Vec<u32> = contexts.iter().filter_map(|(_, context)| context.record_row).collect();
        let loose = LooseRecords::collect(self.rows, &joined);
        let events = &self.rows.events;
        let mut order: Vec<(i64, usize, u32)> = contexts
            .iter()
            .enumerate()
            .filter_map(|(i, (row, _))| Some((i, self.launch_of(*row)?)))
            .map(|(i, launch)| (events.ts_ns[launch as usize], i, launch))
            .collect();
        order.sort_unstable();
        let mut last: FxHashMap<i64, i64> = FxHashMap::default();
        let mut sums = vec![None; contexts.len()];
        for (launch_ns, i, launch) in order {
            let thread = events.thread[launch as usize];
            let since_ns = last.insert(thread, launch_ns).unwrap_or(i64::MIN);
            let (row, context) = &mut contexts[i];
            let op = context.op.or_else(|| names::operation(name_of(self.rows, *row)));
            let Some(op) = op.filter(|_| context.record.is_none()) else { continue };
            for record in loose.of_launch(op, thread, since_ns, launch_ns) {
                let Some(args) = args_of(self.rows, record) else { continue };
                let size = Size::from_record(&args, op).unwrap_or_default();
                sums[i] = Some(sums[i].map_or(size, |sum: Size| sum.plus(size)));
                context.ready_ns.get_or_insert(events.ts_ns[record as usize]);
                context.take_record(args);
                joined.push(record);
            }
        }
        self.join_unlaunched(contexts, joined);
        sums
    }

    /// Gives kernels of the correlation 0 their records: by the group and number that both name, else by their order among
    /// the records that have no kernel.
    fn join_unlaunched(&self, contexts: &mut [(usize, Context)], mut joined: Vec<u32>) {
        let events = &self.rows.events;
        let is_open = |(row, context): &(usize, Context)| {
            matches!(events.correlation[*row], 0 | NONE) && context.ready_ns.is_none()
        };
        if !contexts.iter().any(is_open) {
            return;
        }
        let named = LooseRecords::collect(self.rows, &joined).by_identity(self.rows);
        for (_, context) in contexts.iter_mut().filter(|entry| is_open(entry)) {
            let record = context.record.as_ref().and_then(identity_of).and_then(|identity| named.get(&identity));
            if let Some(record) = record {
                context.explore(self.rows, *record);
                joined.push(*record);
            }
        }
        let mut streams: BTreeMap<(i64, i64), Vec<Unlaunched>> = BTreeMap::new();
        for (at, (row, context)) in contexts.iter().enumerate().filter(|(_, entry)| is_open(entry)) {
            let op = context.op.or_else(|| names::operation(name_of(self.rows, *row)));
            let stream = streams.entry((events.device[*row], events.stream[*row])).or_default();
            stream.push(Unlaunched { at, end_ns: events.end_ns(*row), op });
        }
        let streams: Vec<Vec<Unlaunched>> = streams.into_values().collect();
        let groups = LooseRecords::collect(self.rows, &joined).by_group(self.rows);
        for (at, record) in join_in_order(&streams, groups) {
            contexts[at].1.explore(self.rows, record);
        }
    }

    /// The row of a kernel's collective; `None` if the kernel carries out no collective.
    fn kernel(&mut self, row: usize, context: &Context, sum: Option<Size>) -> Option<FoundCollective> {
        let events = &self.rows.events;
        let name = name_of(self.rows, row);
        let op = context.op.or_else(|| names::operation(name))?;
        self.out.by_name_only += i64::from(!context.is_explained());
        let stream = Some(events.stream[row]).filter(|s| *s != NONE);
        let group = self.group(context, stream);
        let size = sum.unwrap_or_else(|| size_of(context, op, &group, Some(name)));
        let launch = self.launch_of(row);
        let step = match (events.step[row], context.record_row) {
            (NO_STEP, Some(record)) => events.step[record as usize],
            (step, _) => step,
        };
        let (algo, proto) = names::algorithm(name);
        let mut found = self.found(row, context, &group, op, size);
        found.row = CollectiveRow {
            step: Some(step).filter(|step| *step != NO_STEP),
            ready_ns: context.ready_ns,
            enqueue_ns: launch.map(|launch| events.ts_ns[launch as usize]),
            stream_id: stream,
            device_id: Some(events.device[row]).filter(|d| *d != NONE),
            algo: algo.map(Into::into),
            proto: proto.map(Into::into),
            timing_source: "cupti".into(),
            ..found.row
        };
        Some(found)
    }

    /// Collectives of gloo, MPI and UCC, whose own rows have their times.
    fn host_rows(&mut self, steps: &[StepRow]) -> Vec<FoundCollective> {
        let events = &self.rows.events;
        let op_of = |name: &trace::Text| if is_host_collective(name) { names::operation(name) } else { None };
        let ops: Vec<Option<&'static str>> = self.rows.names.iter().map(op_of).collect();
        let op_at = |row: usize| {
            let host = matches!(events.kind[row], Kind::CpuOp | Kind::UserAnnotation);
            ops[events.name[row] as usize].filter(|_| host).map(|op| (row, op))
        };
        let own: Vec<(usize, &'static str)> = (0..events.len()).filter_map(op_at).collect();
        let elements = |row: usize| args_of(self.rows, row as u32).as_ref().and_then(tensors).map(|(count, _)| count);
        let alike: Vec<(Likeness, i64)> =
            own.iter().map(|(row, op)| ((*op, elements(*row)), events.ts_ns[*row])).collect();
        let entries = self.dump.entries_of(&alike);
        let mut calls = Calls::collect(self.rows);
        let mut all = Vec::new();
        for ((row, op), entry) in own.into_iter().zip(entries) {
            let (context, call) = self.host_context(row, op, &mut calls);
            let peer = call.filter(|_| context.record.is_none()).and_then(|call| self.peer(call, op));
            let group = match (&peer, entry.filter(|_| context.record.is_none())) {
                (Some((group, _)), _) => Arc::clone(group),
                (None, Some(entry)) => self.groups.of_dump(&entry.group),
                (None, None) => self.group(&context, None),
            };
            let size = size_of(&context, op, &group, None);
            let mut found = self.found(row, &context, &group, op, size);
            // A collective belongs to the step that called it, even if it begins later.
            let step = match call {
                Some(call) => events.step[call as usize],
                None if steps.is_empty() => NO_STEP,
                None => events.step[row],
            };
            found.row = CollectiveRow {
                step: Some(step).filter(|step| *step != NO_STEP),
                seq: found.row.seq.or_else(|| entry.map(|entry| entry.seq)),
                peer: found.row.peer.or(peer.map(|(_, rank)| rank)),
                ready_ns: context.ready_ns,
                enqueue_ns: context.ready_ns,
                timing_source: "host".into(),
                ..found.row
            };
            all.push(found);
        }
        all
    }

    /// The group of a send or receive, and the rank at its other side, by the arguments of its call: tensors, group, number of
    /// the other side in the group, tag.
    fn peer(&mut self, call: u32, op: &str) -> Option<(Arc<Group>, i32)> {
        const NUMBER: usize = 2;
        let args = args_of(self.rows, call).filter(|_| matches!(op, "send" | "recv"))?;
        let number = args.get("Concrete Inputs")?.items().get(NUMBER)?;
        let number = number.integer().or_else(|| number.text()?.parse().ok())?;
        self.groups.of_peer(self.rank, number)
    }

    fn host_context(&self, row: usize, op: &'static str, calls: &mut Calls) -> (Context, Option<u32>) {
        let events = &self.rows.events;
        let mut context = Context { op: Some(op), ..Context::default() };
        if let Some(args) = args_of(self.rows, row as u32) {
            context.shapes = tensors(&args).is_some().then(|| args.clone());
            context.take_record(args);
        }
        context.explore(self.rows, events.parent[row]);
        let elements = context.shapes.as_ref().and_then(tensors).map(|(count, _)| count);
        let call = calls.take(op, elements, events.ts_ns[row]);
        if let Some(call) = call {
            context.explore(self.rows, call);
        }
        (context, call)
    }

    fn group(&mut self, context: &Context, stream: Option<i64>) -> Arc<Group> {
        if let Some(group) = context.record.as_ref().and_then(|args| self.groups.named(args)) {
            return group;
        }
        self.out.unnamed += 1;
        self.groups.unnamed(stream, stream.is_none() || self.only_stream)
    }

    /// The columns that do not depend on the source of the times.
    fn found(&self, row: usize, context: &Context, group: &Group, op: &'static str, size: Size) -> FoundCollective {
        let events = &self.rows.events;
        let args = context.record.as_ref();
        let integer = |key: &str| args.and_then(|args| args.get(key)).and_then(Value::integer);
        let rank_arg = |key: &str| {
            integer(key).and_then(|r| i32::try_from(r).ok()).filter(|r| *r >= 0).and_then(|r| self.groups.in_job(r))
        };
        let peer = match op {
            "send" => rank_arg("Dst Rank"),
            "recv" => rank_arg("Src Rank"),
            _ => None,
        };
        let shares = args.filter(|_| op == "alltoall");
        let shares = shares.and_then(|args| Shares::from_record(args, group.size, size.bytes));
        let (sent_bytes, received_bytes) = shares.map(|shares| (shares.sent, shares.received)).unzip();
        let row_of = CollectiveRow {
            rank: self.rank,
            comm_id: group.comm_id,
            comm_name: group.name.clone(),
            comm_size: group.size,
            seq: integer("Seq").filter(|seq| *seq >= 0),
            op: op.into(),
            dtype: size.dtype.map(Into::into),
            count: size.count,
            bytes: size.bytes,
            sent_bytes,
            received_bytes,
            peer,
            start_ns: Some(events.ts_ns[row]),
            end_ns: Some(events.end_ns(row)),
            state: "done".into(),
            event_id: Some(events.id[row]),
            ..CollectiveRow::default()
        };
        let comms_id = integer("Comms Id").map(|id| id as u64);
        FoundCollective { row: row_of, event_row: row, comms_id, gradient: context.gradient && op == "allreduce" }
    }
}

fn size_of(context: &Context, op: &str, group: &Group, kernel: Option<&str>) -> Size {
    let recorded = context.record.as_ref().and_then(|record| Size::from_record(record, op));
    recorded.or_else(|| context.shapes.as_ref().and_then(|args| Size::from_shapes(args, op, group.size))).unwrap_or(
        Size {
            dtype: kernel.filter(|_| op != "sendrecv" && op != "alltoall").and_then(names::kernel_dtype),
            ..Size::default()
        },
    )
}

/// Calls that handed a collective to a back end, which runs it on a thread of its own.
#[derive(Default)]
struct Calls {
    /// All calls, sorted by start.
    calls: Vec<Call>,
    /// The positions of the calls of each operation.
    by_op: BTreeMap<&'static str, VecDeque<usize>>,
    /// The positions of the calls of each operation and size; `None` is an unknown size.
    by_size: BTreeMap<(&'static str, Option<i64>), VecDeque<usize>>,
}

struct Call {
    row: u32,
    ts_ns: i64,
    is_taken: bool,
}

impl Calls {
    fn collect(rows: &Rows) -> Self {
        let mut found = Self::default();
        for row in rows.comm_args.keys() {
            let at = *row as usize;
            let name = name_of(rows, at);
            if rows.events.kind[at] != Kind::CpuOp || !hands_over_collective(name) {
                continue;
            }
            let Some(op) = names::operation(name) else { continue };
            let elements = args_of(rows, *row).as_ref().and_then(tensors).map(|(count, _)| count);
            found.add(op, elements, Call { row: *row, ts_ns: rows.events.ts_ns[at], is_taken: false });
        }
        found
    }

    fn add(&mut self, op: &'static str, elements: Option<i64>, call: Call) {
        let at = self.calls.len();
        self.calls.push(call);
        self.by_op.entry(op).or_default().push_back(at);
        self.by_size.entry((op, elements)).or_default().push_back(at);
    }

    /// Takes the first remaining call of this operation and size that began before `start_ns`. An unknown size fits any
    /// other. Back ends run collectives in the order of their calls.
    fn take(&mut self, op: &'static str, elements: Option<i64>, start_ns: i64) -> Option<u32> {
        let Self { calls, by_op, by_size } = self;
        // Each call is in two lists. One that was taken from the other list is removed when it comes to the front.
        let first = |list: Option<&mut VecDeque<usize>>| {
            let list = list?;
            while list.front().is_some_and(|at| calls[*at].is_taken) {
                list.pop_front();
            }
            list.front().copied().filter(|at| calls[*at].ts_ns <= start_ns)
        };
        let at = match elements {
            Some(_) => {
                let unknown = first(by_size.get_mut(&(op, None)));
                unknown.into_iter().chain(first(by_size.get_mut(&(op, elements)))).min()
            }
            None => first(by_op.get_mut(op)),
        }?;
        let call = &mut calls[at];
        call.is_taken = true;
        Some(call.row)
    }
}

/// Names point-to-point kernels without metadata an all-to-all, if all others on their stream are all-to-alls.
fn settle_sendrecv(found: &mut [FoundCollective]) {
    let mut known: FxHashMap<(Option<i64>, Option<i64>), Option<Op>> = FxHashMap::default();
    for f in found.iter() {
        let op = match f.row.op.known() {
            Some(Op::AllToAll) => Op::AllToAll,
            Some(Op::Send | Op::Recv) => Op::SendRecv,
            _ => continue,
        };
        let entry = known.entry((f.row.device_id, f.row.stream_id)).or_insert(Some(op));
        *entry = entry.filter(|other| *other == op);
    }
    for f in found.iter_mut().filter(|f| f.row.op == Op::SendRecv) {
        if known.get(&(f.row.device_id, f.row.stream_id)) == Some(&Some(Op::AllToAll)) {
            f.row.op = Op::AllToAll.into();
        }
    }
}

/// Numbers the gradient all-reduces of each step by the time of their call, because DDP launches its buckets in order.
fn number_buckets(found: &mut [FoundCollective], steps: &[StepRow]) {
    let called_ns = |row: &CollectiveRow| row.ready_ns.or(row.enqueue_ns).or(row.start_ns);
    let mut order: Vec<usize> = (0..found.len()).filter(|i| found[*i].gradient).collect();
    order.sort_by_key(|i| (called_ns(&found[*i].row), found[*i].row.start_ns));
    let mut next: FxHashMap<(i32, i64), i32> = FxHashMap::default();
    for i in order {
        let row = &mut found[i].row;
        let step = if steps.is_empty() { 0 } else { called_ns(row).map_or(-1, |ts_ns| step_at(steps, ts_ns)) };
        if step < 0 {
            continue;
        }
        let bucket = next.entry((step, row.comm_id)).or_default();
        row.bucket = Some(*bucket);
        *bucket += 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Calls of one operation: one row each, with its size, at ascending times.
    fn calls(all: &[(Option<i64>, i64)]) -> Calls {
        let mut calls = Calls::default();
        for (row, (elements, ts_ns)) in (0..).zip(all) {
            calls.add("allreduce", *elements, Call { row, ts_ns: *ts_ns, is_taken: false });
        }
        calls
    }

    proptest! {
        #[test]
        fn the_first_call_that_fits_is_taken(
            steps in prop::collection::vec((prop::option::of(0..3_i64), 0..3_i64), 0..12),
            takes in prop::collection::vec((prop::option::of(0..4_i64), 0..20_i64), 0..16),
        ) {
            let mut ts_ns = 0;
            let later = |(elements, after_ns)| { ts_ns += after_ns; (elements, ts_ns) };
            let all: Vec<(Option<i64>, i64)> = steps.into_iter().map(later).collect();
            let mut found = calls(&all);
            let mut remaining: Vec<usize> = (0..all.len()).collect();
            for (elements, start_ns) in takes {
                let fits = |row: &usize| {
                    let (own, ts_ns) = all[*row];
                    ts_ns <= start_ns && (own == elements || own.is_none() || elements.is_none())
                };
                let expected = remaining.iter().position(fits).map(|at| remaining.remove(at) as u32);
                prop_assert_eq!(found.take("allreduce", elements, start_ns), expected);
            }
            prop_assert_eq!(found.take("barrier", None, i64::MAX), None);
        }
    }

    /// A search of every size for each call would look at 10¹¹ sizes.
    #[test]
    fn calls_of_many_sizes_take_little_time() {
        const CALLS: u32 = 400_000;
        let mut all = calls(&(0..i64::from(CALLS)).map(|n| (Some(n), n)).collect::<Vec<_>>());
        assert!((0..CALLS).all(|row| all.take("allreduce", None, i64::MAX) == Some(row)));
        assert_eq!(all.take("allreduce", None, i64::MAX), None);
    }
}
