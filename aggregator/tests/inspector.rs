//! Dumps of NCCL's Inspector as ranks: written here as the plugin writes them, from the description in its README and source.

#![expect(clippy::unwrap_used, reason = "tests may, and their helpers too")]

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, ListArray, RecordBatch, StringArray, StructArray};
use arrow_schema::{DataType, Field};
use formats::inspector::InspectorSource;
use formats::job_files::JobFiles;
use model::analysis::Analysis;
use model::options::Options;
use model::source::Source;
use parquet::arrow::ArrowWriter;
use pipeline::analyze;
use serde_json::Value;

/// The first object of the plugin's README, with its values.
const OF_README: &str = r#"{
  "header": { "id": "0x7f8c496ae9f661", "rank": 2, "n_ranks": 8, "nnodes": 1 },
  "metadata": {
    "inspector_output_format_version": "v4.0",
    "git_rev": "",
    "rec_mechanism": "profiler_plugin",
    "dump_timestamp_us": 1748030377748202,
    "hostname": "example-hostname",
    "pid": 1639453
  },
  "coll_perf": {
    "coll": "AllReduce",
    "coll_sn": 1407,
    "coll_msg_size_bytes": 17179869184,
    "coll_exec_time_us": 61974,
    "coll_algobw_gbs": 277.210914,
    "coll_busbw_gbs": 485.119099
  }
}
"#;

/// Time of the first collective, in µs since 1970.
const BEGIN_US: i64 = 1_752_867_229_000_000;

/// A rank of a job of four, on the hosts `a` and `b`. In every round the ranks work for 4 ms, rank 2 for 6 ms, and all-reduce.
struct Rank(i32);

impl Rank {
    fn host(&self) -> &'static str {
        if self.0 < 2 { "a" } else { "b" }
    }

    /// The clock of host `b` is 3 ms ahead.
    fn clock_us(&self, us: i64) -> i64 {
        BEGIN_US + us + if self.0 < 2 { 0 } else { 3_000 }
    }

    fn object(&self, (id, name, rank, size): (&str, &str, i32, i32), perf: &str) -> String {
        format!(
            r#"{{"header":{{"id":"{id}","comm_name":"{name}","rank":{rank},"n_ranks":{size},"nnodes":2}},"metadata":{{"inspector_output_format_version":"v4.0","dump_timestamp_us":1,"hostname":"{}","pid":{}}},{perf}}}"#,
            self.host(),
            100 + self.0,
        ) + "\n"
    }

    fn all_reduce(&self, number: i64, verbose: bool) -> String {
        let late = number * 7_000 + 6_000;
        let own = if self.0 == 2 { late } else { late - 2_000 + i64::from(self.0) * 3 };
        let (enqueue, start, end) = (self.clock_us(own - 50), self.clock_us(own), self.clock_us(late + 1_000));
        let mut perf = format!(
            r#""coll_perf":{{"coll":"AllReduce","coll_sn":{number},"coll_msg_size_bytes":4194304,"coll_exec_time_us":{}"#,
            end - start
        );
        if verbose {
            write!(
                perf,
                r#","coll_timing_source":"kernel_gpu","event_trace_sn":{{"coll_start_sn":1,"kernel_events":[]}},"event_trace_ts":{{"coll_start_ts":{enqueue},"coll_stop_ts":{enqueue},"kernel_events":[{{"channel_id":0,"kernel_start_ts":{start},"kernel_stop_ts":{end},"kernel_record_ts":{end}}},{{"channel_id":1,"kernel_start_ts":{},"kernel_stop_ts":{}}}]}}"#,
                start + 2,
                end - 2
            )
            .unwrap();
        }
        self.object(("0xe62dedaa97644a", "unknown", self.0, 4), &(perf + "}"))
    }

    /// A send to the other rank of the host, in a communicator of both.
    fn send(&self, number: i64) -> String {
        let at = self.clock_us(number * 7_000 + 1_000);
        let perf = format!(
            r#""p2p_perf":{{"p2p":"Send","p2p_sn":{number},"p2p_peer":{},"p2p_msg_size_bytes":65536,"p2p_exec_time_us":9,"event_trace_ts":{{"p2p_start_ts":{at},"p2p_stop_ts":{at},"kernel_events":[{{"channel_id":0,"kernel_start_ts":{at},"kernel_stop_ts":{}}}]}}}}"#,
            1 - self.0 % 2,
            at + 9
        );
        let id = if self.0 < 2 { "0xa" } else { "0xb" };
        self.object((id, "pair", self.0 % 2, 2), &perf)
    }
}

fn job(directory: &Path, rounds: i64, verbose: bool) -> Vec<PathBuf> {
    let dump = |rank: i32| {
        let rank = Rank(rank);
        let mut text = String::new();
        for number in 0..rounds {
            text += &rank.all_reduce(number, verbose);
            if verbose && rank.0 % 2 == 0 {
                text += &rank.send(number);
            }
        }
        let file = directory.join(format!("{}-pid{}.log", rank.host(), 100 + rank.0));
        fs::write(&file, text).unwrap();
        file
    };
    // The order of the names is not that of the ranks.
    [3, 0, 2, 1].map(dump).into()
}

fn analysis(files: &[PathBuf]) -> Analysis {
    analyze(&InspectorSource::open(files).unwrap(), &Options::default(), &|_, _| ()).unwrap()
}

fn said(rows: &[trace::OmissionRow]) -> Vec<String> {
    rows.iter().map(|row| format!("{} {:?} {:?} {}: {}", &*row.kind, row.rank, row.amount, row.what, row.why)).collect()
}

#[test]
fn the_small_input_is_what_is_written_here() {
    let directory = tempfile::tempdir().unwrap();
    job(directory.path(), 6, true);
    fixtures::generated::check_folder("fixtures/inputs/inspector", directory.path());
}

#[test]
fn the_example_of_the_readme_is_a_collective_without_times() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("example-hostname-pid1639453.log");
    fs::write(&file, OF_README).unwrap();
    assert!(JobFiles::find(std::slice::from_ref(&file)).unwrap().traces().is_none(), "it is recognized");
    let source = InspectorSource::open(&[file]).unwrap();
    assert_eq!((source.ranks(), source.info().world_size), (vec![2], Some(8)));
    let data = source.load(2).unwrap();
    let [row] = data.outline.collectives.as_slice() else { panic!("{:?}", data.outline.collectives) };
    let identity = (row.comm_id, row.comm_size, row.seq(), row.op.as_ref(), row.bytes, row.start_ns());
    assert_eq!(identity, (0x7f_8c49_6ae9_f661, Some(8), Some(1407), "allreduce", Some(17_179_869_184), None));
    assert_eq!(
        said(&data.omissions),
        [
            "left_out Some(2) Some(1) times of collectives: the dump says only how long they took; record with NCCL_INSPECTOR_DUMP_VERBOSE=1"
        ]
    );
}

#[test]
fn the_late_rank_is_named_over_hosts_with_different_clocks() {
    let directory = tempfile::tempdir().unwrap();
    let files = job(directory.path(), 60, true);
    let analysis = analysis(&files);
    assert_eq!(analysis.facts.ranks, [0, 1, 2, 3]);
    assert_eq!(analysis.verdict.causes, [2], "{}", analysis.verdict.sentence);
    let reduced = analysis.tables.collective_instances.iter().filter(|row| row.op == trace::Op::AllReduce);
    let reduced: Vec<_> = reduced.collect();
    assert_eq!(reduced.len(), 60);
    assert!(reduced.iter().all(|row| row.complete && row.ranks_seen == 4 && row.bytes == Some(4_194_304)));
    // The others arrive 2 ms before rank 2, which the clocks of both hosts agree on to some µs.
    assert!(reduced.iter().all(|row| (row.skew_ns - 2_000_000).abs() < 100_000), "{reduced:?}");
    let comms = InspectorSource::open(&files).unwrap().load(3).unwrap().outline.comms;
    let comms: Vec<_> = comms.iter().map(|row| (row.name.as_deref().unwrap(), row.size, row.comm_rank)).collect();
    assert_eq!(comms, [("0xe62dedaa97644a", Some(4), Some(3))], "rank 3 sends nothing");
}

#[test]
fn without_times_nothing_is_said_of_waits() {
    let directory = tempfile::tempdir().unwrap();
    let analysis = analysis(&job(directory.path(), 8, false));
    assert!(analysis.verdict.causes.is_empty());
    let omissions = said(&analysis.tables.omissions);
    let untimed = omissions.iter().filter(|text| text.contains("times of collectives")).count();
    assert_eq!(untimed, 4, "{omissions:?}");
}

/// Invariant (formats): NCCL Inspector: a dump that is cut anywhere lists its loss.
#[test]
fn a_dump_that_is_cut_anywhere_lists_its_loss() {
    let directory = tempfile::tempdir().unwrap();
    let files = job(directory.path(), 3, true);
    let whole = fs::read(&files[2]).unwrap();
    // An object is whole without the end of its line.
    for cut in (0..whole.len()).step_by(97).filter(|cut| whole[*cut] != b'\n') {
        fs::write(&files[2], &whole[..cut]).unwrap();
        let source = InspectorSource::open(&files).unwrap();
        let lines = whole[..cut].iter().filter(|byte| **byte == b'\n').count();
        let at_border = whole[..cut].last().is_none_or(|byte| *byte == b'\n');
        assert_eq!(source.problems().iter().any(|row| &*row.what == "operations"), !at_border, "{cut}");
        let ranks = source.ranks();
        assert_eq!(ranks.contains(&2), lines > 0, "{cut}: {ranks:?}");
        if lines > 0 {
            assert_eq!(source.load(2).unwrap().outline.collectives.len(), lines, "{cut}");
        }
    }
}

fn numbers(objects: &[Value], name: &str) -> ArrayRef {
    Arc::new(objects.iter().map(|object| object[name].as_i64()).collect::<Int64Array>())
}

fn texts(objects: &[Value], name: &str) -> ArrayRef {
    Arc::new(objects.iter().map(|object| object[name].as_str().map(String::from)).collect::<StringArray>())
}

fn structs(columns: Vec<(&str, ArrayRef)>) -> StructArray {
    let field = |(name, array): (&str, ArrayRef)| (Arc::new(Field::new(name, array.data_type().clone(), true)), array);
    StructArray::from(columns.into_iter().map(field).collect::<Vec<_>>())
}

/// Writes the collectives of a dump as NCCL's example exporter does: the members of each object as columns.
fn exported(dump: &Path) -> PathBuf {
    let text = fs::read_to_string(dump).unwrap();
    let objects: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let part = |name: &str| objects.iter().map(|object| object[name].clone()).collect::<Vec<Value>>();
    let (header, metadata, perf) = (part("header"), part("metadata"), part("coll_perf"));
    let times: Vec<Value> = perf.iter().map(|perf| perf["event_trace_ts"].clone()).collect();
    let channels: Vec<Vec<Value>> =
        times.iter().map(|times| times["kernel_events"].as_array().cloned().unwrap_or_default()).collect();
    let of_channels = channels.concat();
    let channel = structs(["kernel_start_ts", "kernel_stop_ts"].map(|name| (name, numbers(&of_channels, name))).into());
    let mut ends = vec![0];
    channels.iter().for_each(|channels| ends.push(ends.last().unwrap() + channels.len() as i32));
    let item = Arc::new(Field::new("item", DataType::Struct(channel.fields().clone()), true));
    let events = ListArray::new(item, arrow_buffer::OffsetBuffer::new(ends.into()), Arc::new(channel), None);
    let times = structs(vec![("coll_start_ts", numbers(&times, "coll_start_ts")), ("kernel_events", Arc::new(events))]);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", texts(&header, "id")),
        ("rank", numbers(&header, "rank")),
        ("n_ranks", numbers(&header, "n_ranks")),
        ("coll", texts(&perf, "coll")),
        ("coll_sn", numbers(&perf, "coll_sn")),
        ("coll_msg_size_bytes", numbers(&perf, "coll_msg_size_bytes")),
        ("event_trace_ts", Arc::new(times)),
        ("hostname", texts(&metadata, "hostname")),
        ("pid", numbers(&metadata, "pid")),
    ];
    let columns = columns.into_iter().map(|(name, array)| (name, array, true));
    let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    let path = dump.with_extension("parquet");
    let mut writer = ArrowWriter::try_new(fs::File::create(&path).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    path
}

#[test]
fn what_the_exporter_makes_of_dumps_gives_the_same_collectives() {
    let directory = tempfile::tempdir().unwrap();
    let dumps: Vec<PathBuf> = job(directory.path(), 9, true)[..1].into();
    // Rank 3 sends nothing, and the exporter leaves out sends.
    let tables: Vec<PathBuf> = dumps.iter().map(|dump| exported(dump)).collect();
    let collectives = |files: &[PathBuf]| {
        let source = InspectorSource::open(files).unwrap();
        assert_eq!(said(&source.problems()), Vec::<String>::new());
        source.load(3).unwrap().outline.collectives
    };
    let found = collectives(&tables);
    assert!(found.len() == 9 && found.iter().all(|row| row.end_ns().is_some()), "{found:?}");
    assert_eq!(found, collectives(&dumps));
    let whole = fs::read(&tables[0]).unwrap();
    for cut in (0..whole.len()).step_by(61) {
        fs::write(&tables[0], &whole[..cut]).unwrap();
        assert!(InspectorSource::open(&tables).is_err(), "{cut}");
    }
}

#[test]
fn dumps_of_two_jobs_and_other_files_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let mut files = job(directory.path(), 2, true);
    let text = fs::read_to_string(&files[0]).unwrap().replace("\"pid\":103", "\"pid\":999");
    files.push(directory.path().join("other-pid999.log"));
    fs::write(&files[4], text).unwrap();
    let error = InspectorSource::open(&files).unwrap_err().to_string();
    assert!(error.contains("is of rank 3") && error.contains("one job"), "{error}");
    for other in ["", "{}", "{\"traceEvents\":[]}", "[{\"header\":1}]"] {
        fs::write(&files[4], other).unwrap();
        assert!(JobFiles::find(&files[4..]).unwrap().traces().is_some(), "{other}");
    }
    assert!(InspectorSource::open(&files[4..]).is_err());
}
