//! Real exports, counted once more by SQL: rows by kind, launches by process, and overlap.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use model::communication::Counted;
use model::options::Options;
use model::source::Source;
use model::{Kind, NONE, RankData};
use pipeline::analyze;
use rusqlite::{Connection, OpenFlags};

use crate::export::opened;

pub(crate) fn files() -> Vec<PathBuf> {
    let folder = fixtures::data::real_traces().join("nsys");
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = entries.filter(|path| path.extension().is_some_and(|end| end == "sqlite")).collect();
    files.sort();
    files
}

/// Counts by SQL, of one process.
struct Counter {
    connection: Connection,
    pid: i64,
}

impl Counter {
    fn of(path: &Path, pid: i64) -> Self {
        let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
        Self { connection, pid }
    }

    fn has(&self, table: &str) -> bool {
        let query = format!("SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = '{table}'");
        self.connection.query_row(&query, [], |row| row.get::<_, i64>(0)).unwrap() > 0
    }

    /// Rows of the process with both times.
    fn count(&self, table: &str, own: &str, condition: &str) -> usize {
        if !self.has(table) {
            return 0;
        }
        let query = format!(
            "SELECT count(*) FROM {table} t WHERE {own} >> 24 & 0xffffff = {} AND start IS NOT NULL AND end IS NOT NULL AND {condition}",
            self.pid
        );
        self.connection.query_row(&query, [], |row| row.get::<_, i64>(0)).unwrap() as usize
    }

    /// Intervals of kernels on each device, by whether their name has `nccl`.
    fn kernels(&self) -> BTreeMap<(i64, bool), Vec<(i64, i64)>> {
        if !self.has("CUPTI_ACTIVITY_KIND_KERNEL") {
            return BTreeMap::new();
        }
        let query = format!(
            "SELECT k.start, k.end, k.deviceId, lower(s.value) LIKE '%nccl%' FROM CUPTI_ACTIVITY_KIND_KERNEL k
             LEFT JOIN StringIds s ON s.id = k.demangledName WHERE k.globalPid >> 24 & 0xffffff = {}",
            self.pid
        );
        let mut statement = self.connection.prepare(&query).unwrap();
        let mut rows = statement.query([]).unwrap();
        let mut found: BTreeMap<(i64, bool), Vec<(i64, i64)>> = BTreeMap::new();
        while let Some(row) = rows.next().unwrap() {
            let is_comm = row.get::<_, Option<bool>>(3).unwrap().unwrap_or(false);
            let at = (row.get(2).unwrap(), is_comm);
            found.entry(at).or_default().push((row.get(0).unwrap(), row.get(1).unwrap()));
        }
        found
    }
}

fn union(mut intervals: Vec<(i64, i64)>) -> Vec<(i64, i64)> {
    intervals.sort_unstable();
    let mut out: Vec<(i64, i64)> = Vec::new();
    for (start, end) in intervals {
        match out.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => out.push((start, end)),
        }
    }
    out
}

fn length(intervals: &[(i64, i64)]) -> i64 {
    intervals.iter().map(|(start, end)| end - start).sum()
}

/// Invariant (formats): Nsight Systems: the rows of each kind are those that SQL counts.
#[test]
#[ignore = "reads real traces"]
fn rows_by_kind_are_those_that_sql_counts() {
    for path in files() {
        let source = opened(std::slice::from_ref(&path));
        let shown = path.display();
        for rank in source.ranks() {
            let data = source.load(rank).unwrap();
            let sql = Counter::of(&path, data.outline.info.pid);
            assert!(data.omissions.iter().all(|omission| &*omission.kind != "lost"), "{shown}: {:?}", data.omissions);
            let found = |kinds: &[Kind]| data.events.kind.iter().filter(|kind| kinds.contains(kind)).count();
            let device = |kind: &str| sql.count(&format!("CUPTI_ACTIVITY_KIND_{kind}"), "globalPid", "1");
            assert_eq!(found(&[Kind::Kernel]), device("KERNEL") + device("GRAPH_TRACE"), "{shown}");
            assert_eq!(found(&[Kind::GpuMemcpy]), device("MEMCPY"), "{shown}");
            assert_eq!(found(&[Kind::GpuMemset]), device("MEMSET"), "{shown}");
            assert_eq!(found(&[Kind::Sync]), device("SYNCHRONIZATION"), "{shown}");
            let calls = |condition: &str| sql.count("CUPTI_ACTIVITY_KIND_RUNTIME", "globalTid", condition);
            let twins = "t.eventClass = 67 AND EXISTS (SELECT 1 FROM CUPTI_ACTIVITY_KIND_RUNTIME u WHERE u.correlationId = \
                         t.correlationId AND u.globalTid >> 24 = t.globalTid >> 24 AND u.eventClass <> 67)";
            assert_eq!(found(&[Kind::Driver]), calls("eventClass IN (1, 13)"), "{shown}");
            assert_eq!(found(&[Kind::Runtime, Kind::Driver]) + calls(twins), calls("1"), "{shown}");
            let ranges = |condition: &str| {
                sql.count("NVTX_EVENTS", "globalTid", &format!("eventType IN (59, 60, 70, 71) AND {condition}"))
            };
            let mpi = ["COLLECTIVES", "P2P", "START_WAIT", "OTHER"];
            let mpi: usize = mpi.iter().map(|kind| sql.count(&format!("MPI_{kind}_EVENTS"), "globalTid", "1")).sum();
            assert_eq!(found(&[Kind::CpuOp]), ranges("text LIKE '%, op_id = %'"), "{shown}");
            assert_eq!(found(&[Kind::CpuOp, Kind::UserAnnotation]), ranges("1") + mpi, "{shown}");
            let overhead = ["PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_OVERHEAD"];
            let overhead: usize = overhead.iter().map(|table| sql.count(table, "globalTid", "1")).sum();
            assert_eq!(found(&[Kind::Overhead]), overhead, "{shown}");
            assert_eq!(joined(&data), launched(&sql), "{shown}: kernels with a launch in their process");
        }
    }
}

/// Kernels whose launch is known.
fn joined(data: &RankData) -> usize {
    let launches = trace::rank::Launches::collect(&data.events);
    let is_launched = |row: &usize| {
        data.events.kind[*row] == Kind::Kernel
            && data.events.correlation[*row] != NONE
            && launches.of(data.events.correlation[*row]).is_some()
    };
    (0..data.events.len()).filter(is_launched).count()
}

fn launched(sql: &Counter) -> usize {
    let condition = "EXISTS (SELECT 1 FROM CUPTI_ACTIVITY_KIND_RUNTIME r WHERE r.correlationId = t.correlationId
        AND r.globalTid & ~0xffffff = t.globalPid)";
    sql.count("CUPTI_ACTIVITY_KIND_KERNEL", "globalPid", condition)
}

#[test]
#[ignore = "reads real traces"]
fn compute_communication_and_overlap_are_those_of_a_sweep() {
    for path in files() {
        let source = opened(std::slice::from_ref(&path));
        let mut options = Options::default();
        options.communication.counted = Some(Counted::Hta);
        let tables = analyze(&source, &options, &|_, _| ()).unwrap().tables;
        for rank in source.ranks() {
            let sql = Counter::of(&path, source.load(rank).unwrap().outline.info.pid);
            if sql.count("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "globalPid", "1") > 0 {
                continue;
            }
            let kernels = sql.kernels();
            let devices: std::collections::BTreeSet<i64> = kernels.keys().map(|(device, _)| *device).collect();
            for device in devices {
                let of = |is_comm| union(kernels.get(&(device, is_comm)).cloned().unwrap_or_default());
                let (compute, comm) = (of(false), of(true));
                let both = length(&union([&compute[..], &comm].concat()));
                let overlap = length(&compute) + length(&comm) - both;
                let row = tables
                    .step_breakdown
                    .iter()
                    .find(|row| (row.rank, row.device_id, row.step) == (rank, Some(device), None))
                    .unwrap();
                let found = (row.compute_ns, row.comm_total_ns, row.overlap_ns);
                assert_eq!(found, (length(&compute) - overlap, length(&comm), overlap), "{} {rank}", path.display());
            }
        }
    }
}

/// The numbers of the two exports that the project knows.
#[test]
#[ignore = "reads real traces"]
fn known_exports_give_known_numbers() {
    for (file, kinds) in [
        ("mfu_2gpu_before.sqlite", [4010, 1020, 269, 6392, 1074, 366, 6, 19118]),
        ("saxpy_mpi_perlmutter.sqlite", [5, 15, 0, 56, 1, 0, 16, 22]),
    ] {
        let Some(path) = files().into_iter().find(|path| path.ends_with(file)) else { continue };
        let source = opened(&[path]);
        let data: Vec<RankData> = source.ranks().iter().map(|rank| source.load(*rank).unwrap()).collect();
        let count = |kinds: &[Kind]| -> usize {
            data.iter().flat_map(|data| &data.events.kind).filter(|kind| kinds.contains(kind)).count()
        };
        let found =
            [Kind::Kernel, Kind::GpuMemcpy, Kind::GpuMemset, Kind::Runtime, Kind::Driver, Kind::Sync, Kind::Overhead];
        let mut found: Vec<usize> = found.iter().map(|kind| count(&[*kind])).collect();
        found.push(count(&[Kind::CpuOp, Kind::UserAnnotation]));
        assert_eq!(found, kinds, "{file}");
    }
}
