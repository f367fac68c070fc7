//! Schemas of several releases, and what an export says of its ranks, its clock and its communicators.

use model::Kind;
use model::source::Source;

use crate::export::{ONE, OTHER, database, export, name, omitted, opened, rows, small, statements};

/// The table of ranges has had two names.
#[test]
fn ranges_are_read_under_both_names_of_their_table() {
    let directory = tempfile::tempdir().unwrap();
    let renamed: Vec<String> = statements().iter().map(|sql| sql.replace("NVTX_EVENTS", "NVTX_EVENTS_V2")).collect();
    let later = database(directory.path(), "later.sqlite", &renamed.iter().map(String::as_str).collect::<Vec<_>>());
    let [one, two] = [export(directory.path(), "report.sqlite"), later].map(|path| opened(&[path]).load(0).unwrap());
    assert_eq!((&one.events, &one.names, omitted(&one)), (&two.events, &two.names, omitted(&two)));
}

/// Invariant (formats): Nsight Systems: every process is a rank, and its launches stay within it.
#[test]
fn every_process_is_a_rank_with_its_own_launches() {
    let directory = tempfile::tempdir().unwrap();
    let source = opened(&[export(directory.path(), "report.sqlite")]);
    assert_eq!((source.ranks(), source.info().world_size), (vec![0, 1], Some(2)));
    let one = source.load(0).unwrap();
    let found: Vec<_> =
        (0..one.events.len()).map(|row| (one.events.kind[row], name(&one, row), one.events.ts_ns[row])).collect();
    assert_eq!(
        found,
        [
            (Kind::UserAnnotation, "ProfilerStep#3", 5_005),
            (Kind::CpuOp, "aten::mm", 5_010),
            (Kind::UserAnnotation, "loose", 5_015),
            (Kind::Runtime, "cudaLaunchKernel", 5_020),
            (Kind::Runtime, "cudaLaunchKernel", 5_031),
            (Kind::Kernel, "gemm", 5_100),
        ]
    );
    assert_eq!((one.events.parent[3], one.events.parent[1], one.events.step[5]), (1, 0, 3));
    assert_eq!((one.kernel_use[0].blocks(), &*one.outline.info.clock_domain), (Some(8), "node-a/steady"));
    assert_eq!((one.outline.steps[0].step, one.outline.info.pid), (3, 0x46));
    assert_eq!(
        omitted(&one),
        [
            ("lost", "rows of no process", Some(2)),
            ("left_out", "rows of processes without a device", Some(1)),
            ("left_out", "ranges", Some(1)),
            ("left_out", "marks", Some(1)),
            ("note", "rows of NVTX", Some(1)),
            ("note", "calls of CUDA", Some(1)),
        ]
    );

    let other = source.load(1).unwrap();
    assert_eq!((rows(&other, Kind::Kernel), other.kernel_use[0].blocks()), (2, None), "two have no possible times");
    assert_eq!(omitted(&other), [("lost", "events", Some(2))]);
    let collective = &other.outline.collectives[0];
    assert_eq!((&*collective.op, collective.start_ns(), collective.end_ns()), ("allreduce", Some(5_300), Some(5_400)));
    assert_eq!((collective.algo.as_deref(), collective.proto.as_deref()), (Some("RING"), Some("LL")));
}

/// Invariant (formats): Nsight Systems: no environment variable of the program is kept.
#[test]
fn nothing_of_the_environment_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let source = opened(&[export(directory.path(), "report.sqlite")]);
    let kept = format!("{source:?} {:?} {:?} {:?}", source.info(), source.load(0).unwrap(), source.problems());
    assert!(!kept.contains("hunter2") && !kept.contains("API_KEY") && !kept.contains("/root"), "{kept}");
}

/// Schema 2.9 has other names for the tables about the export, all tables are there, and most are empty.
#[test]
fn old_schemas_with_empty_tables_are_read() {
    let directory = tempfile::tempdir().unwrap();
    let more = format!(
        "CREATE TABLE EXPORT_META_DATA (name TEXT, value TEXT);
         INSERT INTO EXPORT_META_DATA VALUES ('EXPORT_SCHEMA_VERSION', '2.9.1'), ('EXPORT_LAZY', 'false');
         CREATE TABLE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION (start INTEGER, end INTEGER, globalPid INTEGER, syncType INTEGER);
         CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, globalPid INTEGER, bytes INTEGER, copyKind INTEGER);
         INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (1, 2, {ONE}, 64, 1);
         CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
         INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1687813257637297504, '', '');
         CREATE TABLE SCHED_EVENTS (start INTEGER, cpu INTEGER); INSERT INTO SCHED_EVENTS VALUES (1, 2), (3, 4);
         CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, uuid TEXT, smCount INTEGER, clockRate INTEGER);
         INSERT INTO TARGET_INFO_GPU VALUES (0, 'A100', 'u-1', 108, 1410000000);"
    );
    let path = small(directory.path(), "rank3.sqlite", &more);
    let source = opened(&[path]);
    assert_eq!(source.ranks(), [3], "by the name of the file");
    let problems = source.problems();
    assert_eq!((problems.len(), problems[0].amount), (1, Some(2)), "{problems:?}");
    assert!(problems[0].why.ends_with("SCHED_EVENTS 2"), "{problems:?}");
    let data = source.load(3).unwrap();
    assert_eq!((rows(&data, Kind::GpuMemcpy), data.events.bytes[0], name(&data, 0)), (1, 64, "Memcpy HtoD"));
    assert_eq!(data.outline.info.clock_domain, "/nsys/1687813257637297504", "each session has its own clock");
    assert_eq!(data.events.ts_ns[0], 1_687_813_257_637_297_505);
    let device = &data.devices[0];
    assert_eq!(
        (device.name.as_deref(), device.uuid.as_deref(), device.clock_khz),
        (Some("A100"), Some("u-1"), Some(1_410_000))
    );
    assert_eq!(omitted(&data), []);
}

/// A lazy export has only tables with rows. One with nothing but kernels is enough; one with nothing is an error.
#[test]
fn lazy_exports_may_lack_any_table() {
    let directory = tempfile::tempdir().unwrap();
    let sql = "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (end INTEGER, start INTEGER); INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (9, 4);";
    let source = opened(&[database(directory.path(), "a", &[sql])]);
    let data = source.load(0).unwrap();
    assert_eq!((data.events.ts_ns[0], data.events.dur_ns[0], name(&data, 0)), (4, 5, "unknown kernel"));
    assert_eq!(omitted(&data), [("lost", "names of rows", Some(1))]);
    let error = |sql: &str, file: &str| {
        formats::nsys::NsysSource::open(&[database(directory.path(), file, &[sql])]).unwrap_err().to_string()
    };
    let empty = error("CREATE TABLE StringIds (id, value); CREATE TABLE NVTX_EVENTS (start, end)", "b");
    assert!(empty.ends_with("it has no rows of a process: no kernels, copies, calls or ranges"), "{empty}");
    let other = error("CREATE TABLE t (a)", "c");
    assert!(other.ends_with("it has none of the tables of one"), "{other}");
}

#[test]
fn shifts_are_undone_and_filters_are_said() {
    let directory = tempfile::tempdir().unwrap();
    let about = |name: &str, about: &str| {
        let more = format!(
            "CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT); INSERT INTO META_DATA_EXPORT VALUES {about};
             CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, systemClockNs INTEGER);
             INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (60, 5000);
             CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT); INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('Hostname', 'h');"
        );
        let source = opened(&[small(directory.path(), name, &more)]);
        let data = source.load(0).unwrap();
        let whats: Vec<String> = source.problems().iter().map(|problem| problem.what.to_string()).collect();
        (data.events.ts_ns[0], data.outline.info.clock_domain, whats.join(", "))
    };
    let steady = || "h/steady".to_string();
    assert_eq!(about("a", "('EXPORT_PARAM_TIME_SHIFT', '30')"), (5_070, steady(), String::new()));
    assert_eq!(about("b", "('EXPORT_PARAM_TIME_NORMALIZE', 'true')"), (5_040, steady(), String::new()));
    let (ts_ns, domain, what) = about("c", "('EXPORT_CONFIG_TIME_SHIFT', 'a day')");
    assert!(ts_ns == 100 && domain.starts_with("nsys//") && what == "clock", "{ts_ns} {domain} {what}");
    let (_, _, what) = about("d", "('EXPORT_PARAM_TIMES_TO_EXPORT', '1s/2s'), ('EXPORT_SCHEMA_VERSION', '4.1.0')");
    assert_eq!(what, "schema of the export, rows outside the export's filter");
}

#[test]
fn ranks_are_stated_by_launchers_mpi_and_names() {
    let directory = tempfile::tempdir().unwrap();
    let capture = |variables: &str| {
        format!(
            "CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT); INSERT INTO META_DATA_CAPTURE VALUES {variables};"
        )
    };
    let ranks = |name: &str, more: &str| {
        let source = opened(&[small(directory.path(), name, more)]);
        (source.ranks(), source.info().world_size)
    };
    let variable = |text: &str| format!("('PROCESS_0:ENVIRONMENT_VARIABLE', '{text}')");
    let torch = capture(&[variable("RANK=\"5\""), variable("WORLD_SIZE=\"8\""), variable("SLURM_PROCID=1")].join(","));
    assert_eq!(ranks("a", &torch), (vec![5], Some(8)));
    assert_eq!(ranks("b", &capture(&variable("SLURM_PROCID=1"))), (vec![1], None));
    assert_eq!(ranks("rank_7.sqlite", ""), (vec![7], None));
    let mpi = format!(
        "CREATE TABLE MPI_RANKS (globalTid INTEGER, rank INTEGER); INSERT INTO MPI_RANKS VALUES ({ONE} + 3, 4);"
    );
    assert_eq!(ranks("c", &mpi), (vec![4], None));
    let range = format!("INSERT INTO NVTX_EVENTS VALUES (1, NULL, 39, 'MPI Rank 2', {ONE} + 71, NULL, 0, NULL);");
    assert_eq!(ranks("d", &range), (vec![2], None));
    let impossible = capture(&variable("RANK=-3"));
    assert_eq!(ranks("e", &impossible), (vec![0], None));

    let both: Vec<_> = ["x1", "x2"].map(|name| small(directory.path(), name, &torch)).into();
    let error = formats::nsys::NsysSource::open(&both).unwrap_err().to_string();
    assert!(error.contains("x2") && error.contains("x1; give one of them"), "{error}");
    let unknown: Vec<_> = ["y1", "y2"].map(|name| small(directory.path(), name, "")).into();
    let source = opened(&unknown);
    assert_eq!((source.ranks(), &*source.problems()[0].what), (vec![0, 1], "ranks of processes"));
}

/// A payload of NCCL, as in `binaryData`.
fn payload(schema: u32, fields: &[u8]) -> String {
    let size = fields.len() as u64;
    let mut bytes: Vec<u8> = [1_u32, 0, schema, 0].iter().flat_map(|part| part.to_le_bytes()).collect();
    bytes.extend(size.to_le_bytes());
    bytes.extend((size + 32).to_le_bytes());
    bytes.extend(fields);
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn payloads_say_communicator_rank_and_size() {
    let directory = tempfile::tempdir().unwrap();
    let comm = 0xfeed_beef_0000_0001_u64;
    let init = [&comm.to_le_bytes()[..], &2_u32.to_le_bytes(), &1_u32.to_le_bytes()].concat();
    let call = [&comm.to_le_bytes()[..], &4096_u64.to_le_bytes()].concat();
    let more = format!(
        "CREATE TABLE NVTX_PAYLOAD_SCHEMA_ENTRIES (domainId INTEGER, schemaId INTEGER, idx INTEGER, type INTEGER, name TEXT, offset INTEGER);
         INSERT INTO NVTX_PAYLOAD_SCHEMA_ENTRIES VALUES (1, 18, 0, 18, 'NCCL communicator ID', NULL), (1, 18, 1, 5, 'No. of ranks', 8),
             (1, 18, 2, 5, 'Rank', 12), (1, 23, 0, 18, 'NCCL communicator ID', NULL), (1, 23, 1, 22, 'Message size [bytes]', 8);
         INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (60, 70, 0, {ONE} + 71, 6, 3), (80, 85, 0, {ONE} + 71, 8, 3);
         INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (500, 600, 0, 9, 8, {ONE}, 7, 1, 1, 1, '');
         INSERT INTO NVTX_EVENTS VALUES (10, 20, 59, NULL, {ONE} + 71, 5, 1, '{}'), (50, 75, 59, NULL, {ONE} + 71, 4, 1, x'{}'),
             (76, 77, 59, NULL, {ONE} + 71, 8, 1, NULL), (77, 78, 59, NULL, {ONE} + 71, 10, 1, '{}'),
             (78, 79, 59, NULL, {ONE} + 71, 10, 1, '{}'), (78, 79, 59, NULL, {ONE} + 71, 11, 1, '{}'),
             (78, 79, 59, NULL, {ONE} + 71, 11, 1, '{}'), (79, 90, 59, NULL, {ONE} + 71, 9, 1, NULL),
             (95, 96, 59, NULL, {ONE} + 71, 4, 1, 'no digits');",
        payload(18, &init),
        payload(23, &call),
        payload(23, &call),
        payload(23, &call),
        payload(23, &call),
        payload(23, &call),
    );
    let source = opened(&[small(directory.path(), "a", &more)]);
    assert_eq!((source.ranks(), source.info().world_size), (vec![1], Some(2)), "by the communicator of NCCL");
    let data = source.load(1).unwrap();
    let found: Vec<_> = data.outline.collectives.iter().map(|c| (c.comm_id, c.comm_size, &*c.op, c.bytes)).collect();
    let id = comm.cast_signed();
    assert_eq!(found, [(id, Some(2), "allreduce", Some(4096)), (id, Some(2), "alltoall", Some(8192))]);
    assert_eq!((data.outline.comms[0].comm_id, data.outline.comms[0].comm_rank), (id, Some(1)));
    assert_eq!(omitted(&data), [("lost", "payloads of NCCL's calls", Some(1))]);
}

#[test]
fn rows_that_name_no_process_are_nobodys_in_a_file_of_several() {
    let directory = tempfile::tempdir().unwrap();
    let more = format!(
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 2, 1, 7, 5, {OTHER}, 1, 1, 1, 1, '');
         CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INTEGER, end INTEGER); INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES (1, 2);"
    );
    let source = opened(&[small(directory.path(), "a", &more)]);
    let (one, other) = (source.load(0).unwrap(), source.load(1).unwrap());
    assert_eq!((rows(&one, Kind::GpuMemset), rows(&other, Kind::GpuMemset)), (0, 0));
    assert_eq!(omitted(&one), [("lost", "rows of no process", Some(1))]);
}
