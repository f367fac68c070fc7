//! Rows of the host's threads: calls of CUDA and MPI, and ranges of NVTX.

use rustc_hash::FxHashSet;
use trace::Text;

use crate::nsys::database::Cells;
use crate::nsys::mpi::{MpiCall, Operation};
use crate::nsys::nccl::{Call, CallKind};
use crate::nsys::rows::Loader;
use crate::nsys::tables::{MPI, MPI_COLLECTIVES, NVTX, OVERHEAD};
use crate::nsys::wanted::THREAD_BITS;
use crate::rows::Added;
use model::Kind;

/// The types of rows of `NVTX_EVENTS`: of NVTX, and of a text file with the same.
const NESTED_RANGES: [i64; 2] = [59, 70];
const LOOSE_RANGES: [i64; 2] = [60, 71];
const MARKS: [i64; 2] = [34, 65];

/// The classes of rows of `CUPTI_ACTIVITY_KIND_RUNTIME`.
const OF_DRIVER: [i64; 2] = [1, 13];
const BACKTRACE: i64 = 67;

/// The columns that all tables of threads have.
const COMMON: [&str; 3] = ["start", "end", "globalTid"];

fn common(cells: &Cells<'_>) -> Added {
    Added {
        start: cells.integer(0),
        end: cells.integer(1),
        thread: cells.integer(2).map(|tid| tid & THREAD_BITS),
        ..Added::default()
    }
}

impl Loader<'_> {
    /// Reads what the threads of the process did.
    pub(super) fn host(&mut self) {
        self.calls_of_cuda();
        NVTX.into_iter().for_each(|table| self.ranges(table));
        self.calls_of_mpi();
        let overhead = [&COMMON[..], &["nameId"]].concat();
        for table in OVERHEAD {
            self.table(table, "globalTid", &overhead, |own, cells| {
                let name = own.name(cells.integer(3), "overhead");
                own.add(Kind::Overhead, &name, common(cells));
            });
        }
    }

    fn calls_of_cuda(&mut self) {
        let calls = [&COMMON[..], &["correlationId", "nameId", "eventClass"]].concat();
        // A call with a backtrace may have a second row, which counts if it is the only one.
        let mut seconds: Vec<(Text, Added)> = Vec::new();
        let mut firsts: FxHashSet<i64> = FxHashSet::default();
        self.table("CUPTI_ACTIVITY_KIND_RUNTIME", "globalTid", &calls, |own, cells| {
            let class = cells.integer(5);
            let row = Added { correlation: cells.integer(3), ..common(cells) };
            let name = own.name(cells.integer(4), "unknown call");
            if class == Some(BACKTRACE) {
                seconds.push((name, row));
                return;
            }
            let kind = if class.is_some_and(|class| OF_DRIVER.contains(&class)) { Kind::Driver } else { Kind::Runtime };
            own.add(kind, without_version(&name), row);
        });
        if seconds.is_empty() {
            return;
        }
        firsts.extend(
            self.rows
                .raw
                .events
                .correlation
                .iter()
                .zip(&self.rows.raw.events.kind)
                .filter_map(|(id, kind)| matches!(kind, Kind::Runtime | Kind::Driver).then_some(*id)),
        );
        for (name, row) in seconds {
            if row.correlation.is_some_and(|id| firsts.contains(&id)) {
                self.counts.twins += 1;
            } else {
                self.add(Kind::Runtime, without_version(&name), row);
            }
        }
    }

    fn calls_of_mpi(&mut self) {
        let calls = [&COMMON[..], &["textId", "commHandle", "rootRank", "size", "recvSize"]].concat();
        for table in MPI {
            self.table(table, "globalTid", &calls, |own, cells| {
                let name = own.name(cells.integer(3), "MPI");
                let id = own.add(Kind::UserAnnotation, &name, common(cells));
                let operation = Operation::of(&name).filter(|_| table == MPI_COLLECTIVES);
                if let (Some(id), Some(operation)) = (id, operation) {
                    own.mpi_calls.push(MpiCall {
                        id,
                        operation,
                        comm: cells.integer(4),
                        root: cells.integer(5).and_then(|root| root.try_into().ok()),
                        sent_bytes: cells.integer(6),
                        received_bytes: cells.integer(7),
                    });
                }
            });
        }
    }

    fn ranges(&mut self, table: &str) {
        let ranges = [&COMMON[..], &["text", "textId", "eventType", "binaryData"]].concat();
        self.table(table, "globalTid", &ranges, |own, cells| {
            let kind = cells.integer(5);
            let is = |kinds: &[i64]| kind.is_some_and(|kind| kinds.contains(&kind));
            if !is(&NESTED_RANGES) && !is(&LOOSE_RANGES) {
                let count = if is(&MARKS) { &mut own.counts.marks } else { &mut own.counts.nvtx_names };
                *count += 1;
                return;
            }
            if cells.integer(1).is_none() {
                own.counts.open_ranges += 1;
                return;
            }
            let own_text = cells.text(3).map(|text| Text::from(trace::shortened(&text)));
            let text = own_text.or_else(|| own.string(cells.integer(4))).unwrap_or_default();
            let (kind, name) = operator(&text).map_or((Kind::UserAnnotation, &*text), |name| (Kind::CpuOp, name));
            let id = own.add(kind, name, common(cells));
            own.loose.extend(id.filter(|_| is(&LOOSE_RANGES)));
            if let (Some(id), Some(kind)) = (id, CallKind::of(&text)) {
                let bytes = cells.bytes(6);
                let payload = bytes.as_ref().and_then(|bytes| own.schemas.decode(bytes));
                own.counts.unread_payloads += i64::from(payload.is_none() && !cells.is_null(6));
                own.calls.push(Call { id, kind, payload: payload.unwrap_or_default() });
            }
        });
    }
}

/// The operator in a range by `emit_nvtx`: `aten::mm, seq = 3, op_id = 7, sizes = […]`.
fn operator(text: &str) -> Option<&str> {
    let at = [", seq = ", ", op_id = "].iter().filter_map(|mark| text.find(mark)).min()?;
    text[at..].contains("op_id = ").then(|| &text[..at])
}

/// A call without the version of its interface: `cudaLaunchKernel_v7000`.
fn without_version(name: &str) -> &str {
    match name.rsplit_once("_v") {
        Some((plain, version)) if version.len() >= 4 && version.bytes().all(|byte| byte.is_ascii_digit()) => plain,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_ranges_and_calls_are_understood() {
        assert_eq!(operator("aten::to, op_id = 317177"), Some("aten::to"));
        assert_eq!(operator("aten::mm, seq = 3, op_id = 7, sizes = [[4, 3]]"), Some("aten::mm"));
        assert_eq!(operator("step, seq = 3"), None);
        assert_eq!(without_version("cudaLaunchKernel_v7000"), "cudaLaunchKernel");
        assert_eq!(without_version("cuMemAlloc_v2"), "cuMemAlloc_v2");
    }
}
