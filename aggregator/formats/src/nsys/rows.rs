//! The rows of one process: which table holds what.
//!
//! | table | kind |
//! |---|---|
//! | `CUPTI_ACTIVITY_KIND_KERNEL`, `…_GRAPH_TRACE` (a CUDA graph that was traced as a whole) | `kernel` |
//! | `…_MEMCPY`, `…_MEMSET` | `gpu_memcpy`, `gpu_memset` |
//! | `…_RUNTIME`, by `eventClass` | `cuda_runtime`, `cuda_driver` |
//! | `…_SYNCHRONIZATION` | `cuda_sync` |
//! | `NVTX_EVENTS`: ranges by PyTorch's `emit_nvtx` (`aten::mm, op_id = 7`), and others | `cpu_op`, `user_annotation` |
//! | `MPI_*_EVENTS` | `user_annotation`; collectives are in `mpi.rs` |
//! | `PROFILER_OVERHEAD`, `…_OVERHEAD` | `overhead` |
//!
//! Samples of stacks and calls of the operating system are not read, and their rows are counted. Hardware metrics are in `metrics.rs`.

use rustc_hash::FxHashMap;
use trace::{OmissionRow, Text};

use crate::nsys::database::{Cells, Database};
use crate::nsys::mpi::MpiCall;
use crate::nsys::nccl::{Call, Schemas};
use crate::nsys::processes::Process;
use crate::nsys::wanted::{THREAD_BITS, Wanted};
use crate::rows::{Added, Rows, counted, sides_of};
use model::{KernelUse, Kind};

/// Rows that were counted and not added.
#[derive(Default)]
pub(super) struct Counts {
    /// Without a name.
    nameless: i64,
    /// Of a process that is no rank, and of none: of the whole file.
    of_others: i64,
    of_nobody: i64,
    /// Of a table that does not say whose its rows are, in a file of several processes.
    unowned: i64,
    /// Kernels of graphs that are one row.
    graphs: i64,
    pub(super) open_ranges: i64,
    pub(super) marks: i64,
    pub(super) nvtx_names: i64,
    pub(super) twins: i64,
    pub(super) unread_payloads: i64,
}

/// Reads the tables of a process.
pub(super) struct Loader<'a> {
    pub(super) process: &'a Process,
    pub(super) database: &'a Database,
    strings: FxHashMap<i64, Text>,
    pub(super) rows: Rows,
    pub(super) omissions: Vec<OmissionRow>,
    pub(super) counts: Counts,
    /// Rows of ranges that begin and end anywhere, so that they enclose nothing.
    pub(super) loose: Vec<i64>,
    /// Calls of NCCL.
    pub(super) calls: Vec<Call>,
    /// Calls of collectives of MPI.
    pub(super) mpi_calls: Vec<MpiCall>,
    pub(super) schemas: Schemas,
}

impl<'a> Loader<'a> {
    pub(super) fn of(process: &'a Process, database: &'a Database, max_memory_bytes: u64) -> Self {
        let mut omissions = Vec::new();
        let mut strings = FxHashMap::default();
        let (mut room, mut left_out) = (max_memory_bytes / 4, 0);
        let cut = database.rows("StringIds", &["id", "value"], &["id", "value"], Wanted::All, |cells| {
            let (Some(id), Some(value)) = (cells.integer(0), cells.text(1)) else { return };
            let value = trace::shortened(&value);
            match room.checked_sub(value.len() as u64 + 64) {
                Some(less) => {
                    room = less;
                    strings.insert(id, Text::from(value));
                }
                None => left_out += 1,
            }
        });
        let mut lose = |what: &str, why: &str, amount: Option<i64>| {
            omissions.push(OmissionRow::lost(what, why).rank(process.rank).amount(amount));
        };
        if let Some(why) = cut {
            lose("rest of table StringIds, with names of rows", &why, None);
        }
        if left_out > 0 {
            lose(
                "names of rows",
                "they need more memory than a rank may take; give more with --max-memory",
                Some(left_out),
            );
        }
        let schemas = Schemas::read(database, &mut omissions);
        Self {
            process,
            database,
            strings,
            rows: Rows::within(max_memory_bytes),
            omissions,
            counts: Counts::default(),
            loose: Vec::new(),
            calls: Vec::new(),
            mpi_calls: Vec::new(),
            schemas,
        }
    }

    /// Reads the rows of the process in a table. `own` is the column that names the process, perhaps with the thread. The first process
    /// of a file also counts the rows of no rank.
    pub(super) fn table(
        &mut self,
        table: &str,
        own: &str,
        columns: &[&str],
        mut visit: impl FnMut(&mut Self, &Cells<'_>),
    ) {
        let (database, process) = (self.database, self.process);
        let cut = match process.global_pid.filter(|_| database.has_column(table, own)) {
            Some(pid) if process.is_first() => {
                let columns = [columns, &[own]].concat();
                let at = columns.len() - 1;
                database.rows(table, &columns, &[], Wanted::All, |cells| {
                    match cells.integer(at).map(|id| id & !THREAD_BITS) {
                        Some(id) if id == pid => visit(self, &cells),
                        Some(id) => {
                            self.counts.of_others += i64::from(process.of_file.binary_search(&id).is_err());
                        }
                        None => self.counts.of_nobody += 1,
                    }
                })
            }
            Some(pid) => {
                let runs = process.owners.runs(database, &process.of_file, table, own);
                let of_process = runs.as_ref().map(|runs| runs.get(&pid).map_or(&[][..], Vec::as_slice));
                let wanted = of_process.map_or(Wanted::OfProcess(own, pid), |runs| Wanted::InRuns(own, pid, runs));
                database.rows(table, columns, &[], wanted, |cells| visit(self, &cells))
            }
            None if process.of_file.len() > 1 && !process.is_first() => None,
            None if process.of_file.len() > 1 => {
                database.rows(table, &[], &[], Wanted::All, |_| self.counts.unowned += 1)
            }
            None => database.rows(table, columns, &[], Wanted::All, |cells| visit(self, &cells)),
        };
        if let Some(why) = cut {
            self.omissions.push(OmissionRow::lost(format!("rest of table {table}"), why).rank(process.rank));
        }
    }

    /// Adds a row; `None` if it has no possible times or no room.
    pub(super) fn add(&mut self, kind: Kind, name: &str, row: Added) -> Option<i64> {
        let offset = self.process.session.offset_ns();
        let moved = |time: Option<i64>| time.and_then(|time| time.checked_add(offset));
        self.rows.add(kind, name, Added { start: moved(row.start), end: moved(row.end), ..row })
    }

    /// The string of an id. A row without one is counted.
    pub(super) fn name(&mut self, id: Option<i64>, unknown: &'static str) -> Text {
        match id.and_then(|id| self.strings.get(&id)) {
            Some(name) => name.clone(),
            None => {
                self.counts.nameless += 1;
                unknown.into()
            }
        }
    }

    /// The string of an id that may be null.
    pub(super) fn string(&self, id: Option<i64>) -> Option<Text> {
        id.and_then(|id| self.strings.get(&id)).cloned()
    }

    /// Reads what the devices did.
    pub(super) fn devices(&mut self) {
        let sizes = ["gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "registersPerThread"];
        let memory = ["staticSharedMemory", "dynamicSharedMemory"];
        let kernels = [&COMMON[..], &["demangledName", "shortName"], &sizes, &memory].concat();
        self.table("CUPTI_ACTIVITY_KIND_KERNEL", "globalPid", &kernels, |own, cells| {
            let full = cells.integer(5).filter(|id| own.strings.contains_key(id));
            let name = own.name(full.or(cells.integer(6)), "unknown kernel");
            let id = own.add(Kind::Kernel, &name, common(cells));
            own.rows.raw.kernel_use.extend(id.map(|id| used(id, cells)));
        });
        let graphs = [&COMMON[..], &["graphId"]].concat();
        self.table("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "globalPid", &graphs, |own, cells| {
            let name = cells.integer(5).map_or_else(|| "CUDA graph".into(), |graph| format!("CUDA graph {graph}"));
            own.add(Kind::Kernel, &name, common(cells));
            own.counts.graphs += 1;
        });
        let copies = [&COMMON[..], &["bytes", "copyKind"]].concat();
        self.table("CUPTI_ACTIVITY_KIND_MEMCPY", "globalPid", &copies, |own, cells| {
            own.add(Kind::GpuMemcpy, copy_name(cells.integer(6)), Added { bytes: cells.integer(5), ..common(cells) });
        });
        let fills = [&COMMON[..], &["bytes"]].concat();
        self.table("CUPTI_ACTIVITY_KIND_MEMSET", "globalPid", &fills, |own, cells| {
            own.add(Kind::GpuMemset, "Memset (Device)", Added { bytes: cells.integer(5), ..common(cells) });
        });
        let synchronizations = [&COMMON[..], &["syncType"]].concat();
        self.table("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "globalPid", &synchronizations, |own, cells| {
            let name = match cells.integer(5) {
                Some(1) => "Event Sync",
                Some(2) => "Stream Wait Event",
                Some(3) => "Stream Sync",
                Some(4) => "Context Sync",
                _ => "Sync",
            };
            own.add(Kind::Sync, name, common(cells));
        });
    }

    /// Lists what was counted.
    pub(super) fn list_counts(&mut self) {
        let Counts { nameless, of_others, of_nobody, unowned, graphs, .. } = self.counts;
        let Counts { open_ranges, marks, nvtx_names, twins, unread_payloads, .. } = self.counts;
        let replaced = self.database.replaced.get();
        let lost = [
            ("names of rows", nameless, "the export has no string of their number"),
            ("rows of no process", of_nobody, "they do not say which process they are of"),
            ("rows of no process", unowned, "their table does not say which of the processes they are of"),
            ("texts", replaced, "they are no UTF-8; the bytes that are none are replaced"),
            ("payloads of NCCL's calls", unread_payloads, "their schema is unknown, or they are cut"),
        ];
        let left_out = [
            ("rows of processes without a device", of_others, "a process that uses no device is no rank"),
            (
                "kernels in CUDA graphs",
                graphs,
                "each graph was recorded as one row, and its communication counts as compute; record with \
                                                `--cuda-graph-trace=node`",
            ),
            ("ranges", open_ranges, "they had not ended when the recording did"),
            ("marks", marks, "marks have no length"),
        ];
        let notes = [
            ("rows of NVTX", nvtx_names, "they name threads, domains and categories"),
            ("calls of CUDA", twins, "they are recorded twice, for their backtraces; each counts once"),
        ];
        self.omissions.extend(counted(&self.rows.lost(), OmissionRow::lost));
        self.omissions.extend(counted(&lost, OmissionRow::lost));
        self.omissions.extend(counted(&left_out, OmissionRow::left_out));
        self.omissions.extend(counted(&notes, OmissionRow::note));
    }
}

/// The columns that all tables of devices have.
const COMMON: [&str; 5] = ["start", "end", "deviceId", "streamId", "correlationId"];

fn common(cells: &Cells<'_>) -> Added {
    Added {
        start: cells.integer(0),
        end: cells.integer(1),
        device: cells.integer(2),
        stream: cells.integer(3),
        correlation: cells.integer(4),
        ..Added::default()
    }
}

fn used(id: i64, cells: &Cells<'_>) -> KernelUse {
    let sides = |first: usize| [first, first + 1, first + 2].map(|at| cells.integer(at));
    let memory = cells.integer(14).zip(cells.integer(15)).and_then(|(a, b)| a.checked_add(b));
    KernelUse {
        grid: sides_of(sides(7)).unwrap_or_default(),
        block: sides_of(sides(10)).unwrap_or_default(),
        registers: cells.integer(13).and_then(|registers| registers.try_into().ok()),
        shared_mem_bytes: memory.and_then(|bytes| bytes.try_into().ok()),
        ..KernelUse::unknown(id)
    }
}

fn copy_name(kind: Option<i64>) -> &'static str {
    match kind {
        Some(1 | 11) => "Memcpy HtoD",
        Some(2 | 12) => "Memcpy DtoH",
        Some(8 | 13) => "Memcpy DtoD",
        Some(9) => "Memcpy HtoH",
        Some(10) => "Memcpy PtoP",
        Some(3) => "Memcpy HtoA",
        Some(4) => "Memcpy AtoH",
        Some(5) => "Memcpy AtoA",
        Some(6) => "Memcpy AtoD",
        Some(7) => "Memcpy DtoA",
        _ => "Memcpy",
    }
}
