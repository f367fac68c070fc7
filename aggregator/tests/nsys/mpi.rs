//! Collectives of MPI, and hardware metrics. The tables have the columns of NVIDIA's documentation.

use aggregator::render::perfetto as export;
use model::options::Options;
use model::source::Source;
use pipeline::analyze;
use trace::rank::{Metric, MetricSample};

use crate::export::{ONE, OTHER, database, omitted, opened, small};

/// Two processes, ranks 0 and 1, that call MPI at these times, which are given with the names and handles of each.
fn calls(of_one: &[(i64, i64, &str, i64)], of_other: &[(i64, i64, &str, i64)]) -> String {
    let mut sql = format!(
        "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
         CREATE TABLE MPI_RANKS (globalTid INTEGER, rank INTEGER); INSERT INTO MPI_RANKS VALUES ({ONE} + 1, 0), ({OTHER} + 1, 1);
         CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, systemClockNs INTEGER);
         INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1000000, 5000);
         CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT); INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('Hostname', 'h');
         CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT);
         INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:ENVIRONMENT_VARIABLE', 'WORLD_SIZE=2');
         CREATE TABLE MPI_COLLECTIVES_EVENTS (start INTEGER, end INTEGER, globalTid INTEGER, textId INTEGER, commHandle INTEGER,
            rootRank INTEGER, size INTEGER, recvSize INTEGER, requestHandle INTEGER);"
    );
    let all = of_one.iter().map(|call| (ONE, call)).chain(of_other.iter().map(|call| (OTHER, call)));
    for (at, (process, (start, end, function, handle))) in all.enumerate() {
        sql += &format!(
            "INSERT INTO StringIds VALUES ({at}, '{function}');
             INSERT INTO MPI_COLLECTIVES_EVENTS VALUES ({start}, {end}, {process} + 1, {at}, {handle}, NULL, 64, 64, NULL);"
        );
    }
    sql
}

/// Handles 7 and 8 of rank 0 are 8 and 9 of rank 1, and handle 8 of rank 0 is used again for a communicator of rank 0 alone.
const COMMUNICATORS: &str = "CREATE TABLE MPI_COMMUNICATORS (rank INTEGER, timestamp INTEGER, commHandle INTEGER,
    parentHandle INTEGER, localRank INTEGER, size INTEGER, groupRoot INTEGER, groupRootUid INTEGER, members TEXT);
    INSERT INTO MPI_COMMUNICATORS VALUES (0, 0, 7, NULL, 0, 2, 0, 1, ''), (0, 1, 8, 7, 0, 2, 0, 2, ''),
        (0, 500, 8, 7, 0, 1, 0, 3, ''), (1, 0, 8, NULL, 1, 2, 0, 1, ''), (1, 1, 9, 8, 1, 2, 0, 2, '');";

/// ```text
///  rank 0   [ A 10–40 ]   [ B 100–140 ]   [ C 600–610 ]
///  rank 1      [20–41 ]      [ 110–141]
/// ```
#[test]
fn ranks_meet_in_the_communicators_that_the_export_describes() {
    let directory = tempfile::tempdir().unwrap();
    let one = [(10, 40, "MPI_Allreduce", 7), (100, 140, "MPI_Barrier", 8), (600, 610, "MPI_Allreduce", 8)];
    let other = [(20, 41, "MPI_Allreduce", 8), (110, 141, "MPI_Barrier", 9)];
    let path = database(directory.path(), "mpi.sqlite", &[&calls(&one, &other), COMMUNICATORS]);
    let source = opened(&[path]);
    assert_eq!((source.ranks(), source.info().world_size), (vec![0, 1], Some(2)));
    let data = source.load(1).unwrap();
    let rows: Vec<_> =
        data.outline.collectives.iter().map(|row| (&*row.op, row.start_ns(), row.end_ns(), row.bytes)).collect();
    assert_eq!(rows, [("allreduce", Some(5_020), Some(5_041), Some(64)), ("barrier", Some(5_110), Some(5_141), None)]);
    assert_eq!(omitted(&data), []);
    let analysis = analyze(&source, &Options::default(), &|_, _| ()).unwrap();
    let instances = &analysis.tables.collective_instances;
    let found: Vec<_> =
        instances.iter().map(|row| (&*row.op, row.ranks_seen, row.ranks_expected, row.skew_ns)).collect();
    assert_eq!(found, [("allreduce", 2, Some(2), 10), ("barrier", 2, Some(2), 10)]);
    let comms: Vec<i64> = source.load(0).unwrap().outline.collectives.iter().map(|row| row.comm_id).collect();
    assert_eq!(comms[..2], [instances[0].comm_id, instances[1].comm_id]);
    assert_ne!(comms[2], comms[1], "the handle is of another communicator by then");
}

#[test]
fn without_a_description_the_only_communicator_is_that_of_all_ranks() {
    let directory = tempfile::tempdir().unwrap();
    let one = [(10, 40, "MPI_Bcast", 7), (50, 51, "MPI_Iallreduce", 7), (60, 70, "MPI_Scan", 7)];
    let other = [(20, 41, "MPI_Bcast", 1234), (52, 53, "MPI_Iallreduce", 1234)];
    let source = opened(&[database(directory.path(), "mpi.sqlite", &[&calls(&one, &other)])]);
    let data = source.load(0).unwrap();
    let rows: Vec<_> = data
        .outline
        .collectives
        .iter()
        .map(|row| (&*row.op, row.enqueue_ns(), row.start_ns(), row.comm_size))
        .collect();
    let expected = [("broadcast", Some(5_010), Some(5_010), Some(2)), ("allreduce", Some(5_050), None, Some(2))];
    assert_eq!(rows, expected, "the end of the second is unknown, and a scan is none");
    assert_eq!(omitted(&data), [("note", "communicator of MPI", None)]);
    let analysis = analyze(&source, &Options::default(), &|_, _| ()).unwrap();
    assert_eq!(analysis.tables.collective_instances.len(), 1);
    let untimed = analysis.tables.omissions.iter().filter(|row| &*row.what == "collectives without times");
    assert_eq!(untimed.map(|row| row.amount).collect::<Vec<_>>(), [Some(1), Some(1)]);

    let several = [(10, 40, "MPI_Bcast", 7), (50, 60, "MPI_Bcast", 8)];
    let source = opened(&[database(directory.path(), "several.sqlite", &[&calls(&several, &other)])]);
    let data = source.load(0).unwrap();
    assert_eq!((data.outline.collectives.len(), data.events.len()), (0, 2));
    assert_eq!(omitted(&data), [("left_out", "collectives of MPI", Some(2))]);
}

/// The process sees the host's device 3 as its device 0. Device 5 is of no process.
#[test]
fn samples_of_hardware_metrics_are_those_of_the_devices_of_a_process() {
    let directory = tempfile::tempdir().unwrap();
    let more = "CREATE TABLE TARGET_INFO_GPU_METRICS (typeId INTEGER, sourceId INTEGER, typeName TEXT, metricId INTEGER, metricName TEXT);
        INSERT INTO TARGET_INFO_GPU_METRICS VALUES (0x1003, 1, 'GA100', 4, 'SMs Active [Throughput %]'),
            (0x1005, 1, 'GA100', 4, 'SMs Active [Throughput %]');
        CREATE TABLE GPU_METRICS (timestamp INTEGER, typeId INTEGER, metricId INTEGER, value INTEGER);
        INSERT INTO GPU_METRICS VALUES (300, 0x1003, 4, 90), (100, 0x1003, 4, 50), (100, 0x1005, 4, 7), (100, 0x1003, 9, 7),
            (NULL, 0x1003, 4, 7);";
    let numbers = "CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INTEGER, cudaId INTEGER, pid INTEGER, uuid TEXT);
        INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (3, 0, 0x46, 'u-3');";
    let source = opened(&[small(directory.path(), "metrics.sqlite", &format!("{more}{numbers}"))]);
    let data = source.load(0).unwrap();
    assert_eq!(data.metrics, [Metric { device_id: 0, name: "SMs Active [Throughput %]".into() }]);
    let sample = |ts_ns, value| MetricSample { ts_ns, metric: 0, value };
    assert_eq!(data.metric_samples, [sample(100, 50), sample(300, 90)]);
    let what = "samples of GPU metrics";
    assert_eq!(
        omitted(&data)[omitted(&data).len() - 3..],
        [("lost", what, Some(1)), ("lost", what, Some(1)), ("left_out", what, Some(1))]
    );
    assert_eq!(source.problems(), [], "the tables are known");
    let rows = analyze(&source, &Options::default(), &|_, _| ()).unwrap().tables.gpu_metrics;
    assert_eq!((rows[0].step, rows[0].samples, rows[0].mean_value, rows[0].max_value), (None, 2, 70.0, 90));

    let mut drawn = Vec::new();
    export(&source, &Options::default(), &mut drawn, &|_, _| ()).unwrap();
    let name = b"device 0 SMs Active [Throughput %]";
    assert!(drawn.windows(name.len()).any(|bytes| bytes == name), "the samples are a counter");

    // Without the numbers, those of the process count as the host's. It has no device 3.
    let source = opened(&[small(directory.path(), "unnumbered.sqlite", more)]);
    let data = source.load(0).unwrap();
    assert_eq!((data.metric_samples.len(), omitted(&data)[0]), (0, ("lost", what, Some(1))), "{:?}", data.omissions);
}
