//! The metadata of a collective in the host's rows: the operators and ranges around its launch.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use trace::name_rules::{hands_over_collective, is_host_communication_in_traces};
use trace::rank::{Kind, NO_PARENT, NONE};

use crate::bytes::value::Value;
use crate::columns::rows::Rows;
use crate::meaning::names;
/// Most enclosing rows of a launch that are read. Deeper Python stacks are cut.
const MAX_ANCESTORS: usize = 512;
/// The autograd node that produces a parameter's gradient; DDP reduces from its hook.
const GRADIENT_NODE: &str = "AccumulateGrad";
/// The operator that carries the metadata.
pub(crate) const RECORD: &str = "record_param_comms";

/// The metadata of a collective, without its times.
#[derive(Debug, Default)]
pub(crate) struct Context {
    pub(crate) op: Option<&'static str>,
    /// Arguments that name the collective: the kernel's own, or those of `record_param_comms`.
    pub(crate) record: Option<Value>,
    /// The row of the innermost `record_param_comms` that names the collective.
    pub(crate) record_row: Option<u32>,
    /// Arguments of a range or operator that show shapes.
    pub(crate) shapes: Option<Value>,
    /// Start of the operator that hands the collective over.
    pub(crate) ready_ns: Option<i64>,
    /// A hook of autograd started the collective, so it reduces gradients.
    pub(crate) gradient: bool,
}

impl Context {
    /// Keeps arguments if they name a collective and none did so before, and gives others back.
    pub(crate) fn take_record(&mut self, args: Value) -> Option<Value> {
        if !names_collective(&args) || self.record.is_some() {
            return Some(args);
        }
        self.op = self.op.or_else(|| operation_of(&args));
        self.record = Some(args);
        None
    }

    /// Walks outwards from a host row and keeps the metadata of its ancestors. Inner rows come first and win.
    pub(crate) fn explore(&mut self, rows: &Rows, from: u32) {
        let mut row = from;
        for _ in 0..MAX_ANCESTORS {
            if row == NO_PARENT {
                return;
            }
            let at = row as usize;
            let name = name_of(rows, at);
            self.gradient |= name.contains(GRADIENT_NODE);
            if is_host_communication_in_traces(name.as_bytes()) {
                self.visit(rows, row, name);
            }
            row = rows.events.parent[at];
        }
    }

    fn visit(&mut self, rows: &Rows, row: u32, name: &str) {
        let args = args_of(rows, row);
        let begins = rows.events.ts_ns[row as usize];
        if name == RECORD {
            self.ready_ns.get_or_insert(begins);
            if let Some(args) = args.filter(names_collective) {
                self.record_row.get_or_insert(row);
                self.take_record(args);
            }
            return;
        }
        self.op = self.op.or_else(|| names::operation(name));
        if hands_over_collective(name) {
            self.ready_ns.get_or_insert(begins);
        }
        if self.shapes.is_none() {
            self.shapes = args.filter(|args| crate::meaning::comm_size::tensors(args).is_some());
        }
    }

    /// Whether any row but the kernel named the operation.
    pub(crate) fn is_explained(&self) -> bool {
        self.op.is_some()
    }
}

/// The operation that arguments name.
fn operation_of(args: &Value) -> Option<&'static str> {
    args.get("Collective name").and_then(Value::text).and_then(names::operation)
}

/// The group, number and operation that arguments name: one collective of a rank, if they name all three.
pub(crate) fn identity_of(args: &Value) -> Option<(String, i64, &'static str)> {
    let group = args.get("Process Group Name").and_then(Value::text)?;
    Some((group.into(), args.get("Seq").and_then(Value::integer)?, operation_of(args)?))
}

/// Whether arguments name a collective. Those of MTIA name it by its id.
fn names_collective(args: &Value) -> bool {
    operation_of(args).is_some() || args.get("Comms Id").is_some()
}

pub(crate) fn args_of(rows: &Rows, row: u32) -> Option<Value> {
    rows.comm_args.get(&row).and_then(|raw| Value::parse(raw))
}

pub(crate) fn name_of(rows: &Rows, row: usize) -> &str {
    &rows.names[rows.events.name[row] as usize]
}

/// Communication operators by External id.
pub(crate) struct ExternalIds {
    rows: FxHashMap<i64, u32>,
}

impl ExternalIds {
    pub(crate) fn collect(rows: &Rows) -> Self {
        let events = &rows.events;
        let mut ids = FxHashMap::default();
        for row in rows.comm_args.keys() {
            let host = matches!(events.kind[*row as usize], Kind::CpuOp | Kind::UserAnnotation);
            if host && events.external[*row as usize] != NONE {
                ids.entry(events.external[*row as usize]).or_insert(*row);
            }
        }
        Self { rows: ids }
    }

    /// The operator that a kernel's External id names. Older traces write the correlation id there, which may be the
    /// External id of an unrelated operator.
    pub(crate) fn operator_of(&self, rows: &Rows, kernel: usize) -> Option<u32> {
        let external = rows.events.external[kernel];
        if external == rows.events.correlation[kernel] { None } else { self.rows.get(&external).copied() }
    }
}

/// A `record_param_comms` without a kernel so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub(crate) row: u32,
    pub(crate) ts_ns: i64,
    pub(crate) op: &'static str,
}

impl Record {
    /// Whether a kernel of this operation may carry it out.
    pub(crate) fn may_be(&self, op: &str) -> bool {
        self.op == op || op == "sendrecv" && matches!(self.op, "send" | "recv" | "alltoall")
    }
}

/// The records of coalesced operations. torch writes them one by one; a single kernel at the end carries out all of
/// them.
///
/// ```text
/// record  ─ ─ ─
/// launch        ─
/// kernel           ────────
/// ```
pub(crate) struct LooseRecords {
    /// The records of each thread, sorted by start.
    threads: FxHashMap<i64, Vec<Record>>,
}

impl LooseRecords {
    /// All records but those already `joined`.
    pub(crate) fn collect(rows: &Rows, joined: &[u32]) -> Self {
        let joined: rustc_hash::FxHashSet<u32> = joined.iter().copied().collect();
        let mut threads: FxHashMap<i64, Vec<Record>> = FxHashMap::default();
        for row in rows.comm_args.keys().filter(|row| !joined.contains(row)) {
            let at = *row as usize;
            if rows.events.kind[at] != Kind::CpuOp || name_of(rows, at) != RECORD {
                continue;
            }
            if let Some(op) = args_of(rows, *row).as_ref().and_then(operation_of) {
                let record = Record { row: *row, ts_ns: rows.events.ts_ns[at], op };
                threads.entry(rows.events.thread[at]).or_default().push(record);
            }
        }
        Self { threads }
    }

    /// The records of `op` on a launch's thread that began before it and not before `since_ns`, the launch before it.
    pub(crate) fn of_launch(&self, op: &str, thread: i64, since_ns: i64, until_ns: i64) -> impl Iterator<Item = u32> {
        let records = self.threads.get(&thread).map(Vec::as_slice).unwrap_or_default();
        let from = records.partition_point(|record| record.ts_ns < since_ns);
        let fits = move |record: &&Record| record.may_be(op);
        records[from..].iter().take_while(move |record| record.ts_ns < until_ns).filter(fits).map(|record| record.row)
    }

    /// The records by what they name, without those that name the same.
    pub(crate) fn by_identity(&self, rows: &Rows) -> FxHashMap<(String, i64, &'static str), u32> {
        let mut found: FxHashMap<_, Option<u32>> = FxHashMap::default();
        for record in self.threads.values().flatten() {
            if let Some(identity) = args_of(rows, record.row).as_ref().and_then(identity_of) {
                found.entry(identity).and_modify(|row| *row = None).or_insert(Some(record.row));
            }
        }
        found.into_iter().filter_map(|(identity, row)| Some((identity, row?))).collect()
    }

    /// The records of each process group, sorted by start, without groups of one rank, which need no kernel.
    pub(crate) fn by_group(&self, rows: &Rows) -> Vec<Vec<Record>> {
        let mut groups: BTreeMap<Option<String>, Vec<Record>> = BTreeMap::new();
        for record in self.threads.values().flatten() {
            let args = args_of(rows, record.row);
            let get = |key: &str| args.as_ref().and_then(|args| args.get(key));
            if get("Group size").and_then(Value::integer) != Some(1) {
                let name = get("Process Group Name").and_then(Value::text).map(Into::into);
                groups.entry(name).or_default().push(*record);
            }
        }
        groups.values_mut().for_each(|records| records.sort_unstable_by_key(|record| (record.ts_ns, record.row)));
        groups.into_values().collect()
    }
}
