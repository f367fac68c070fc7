//! Snapshots of torch's caching allocator: the numbers of `data/snapshot/make.py`, and files that are no snapshots.

#![expect(clippy::unwrap_used, reason = "tests may, and their helpers too")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use formats::snapshot::SnapshotSource;
use model::analysis::Analysis;
use model::options::Options;
use model::source::Source;
use pipeline::analyze;

fn data() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/snapshot")
}

fn analyzed(paths: &[PathBuf]) -> Analysis {
    analyze(&SnapshotSource::open(paths).unwrap(), &Options::default(), &|_, _| ()).unwrap()
}

#[derive(serde::Deserialize)]
struct Expected {
    device_id: i64,
    peak_bytes: i64,
    reserved_bytes: i64,
}

#[test]
fn peaks_are_those_of_the_allocator() {
    let expected: BTreeMap<String, Vec<Expected>> =
        serde_json::from_slice(&std::fs::read(data().join("expected.json")).unwrap()).unwrap();
    assert_eq!(expected.len(), 3);
    for (name, devices) in expected {
        let analysis = analyzed(&[data().join(&name)]);
        let peaks = &analysis.tables.memory_peaks;
        assert_eq!(peaks.len(), devices.len(), "{name}");
        for (peak, wanted) in peaks.iter().zip(devices) {
            let found = (peak.device_id, peak.peak_bytes, peak.reserved_bytes);
            assert_eq!(found, (Some(wanted.device_id), wanted.peak_bytes, Some(wanted.reserved_bytes)), "{name}");
            assert_eq!(peak.fragmentation_bytes, Some(wanted.reserved_bytes - wanted.peak_bytes), "{name}");
            let of_device = analysis.tables.memory_at_peak.iter().filter(|row| row.device_id == peak.device_id);
            assert_eq!(of_device.map(|row| row.bytes).sum::<i64>(), peak.peak_bytes, "{name}");
        }
        let is_lower_bound = name.starts_with("without");
        assert_eq!(!analysis.tables.omissions.is_empty(), is_lower_bound, "{:?}", analysis.tables.omissions);
    }
}

#[test]
fn the_blocks_at_the_peak_have_their_stacks() {
    let analysis = analyzed(&[data().join("rank3.pickle")]);
    assert_eq!(analysis.facts.ranks, [3]);
    let rows = &analysis.tables.memory_at_peak;
    let forward = rows.iter().find(|row| row.operator.as_deref() == Some("/jobs/user/train.py(31): forward")).unwrap();
    assert_eq!(
        forward.stack.as_deref(),
        Some(
            "/jobs/user/train.py(90): <module>;/jobs/user/train.py(31): forward;\
             /usr/lib/python3/site-packages/torch/nn/functional.py(2300): linear"
        )
    );
    assert_eq!(forward.bytes, 2 * 1024 * 1024 + 2048, "2 MiB and 2000 bytes in blocks of 512");
}

fn why(bytes: &[u8]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rank0.pickle");
    std::fs::write(&path, bytes).unwrap();
    let error = SnapshotSource::open(std::slice::from_ref(&path)).unwrap().load(0).unwrap_err().to_string();
    error.strip_prefix(&format!("{}: ", path.display())).unwrap().to_string()
}

#[test]
fn what_is_no_snapshot_is_an_error_with_its_place() {
    assert_eq!(
        why(b"\x80\x02cos\nsystem\nX\x02\0\0\0ls\x85R."),
        "it cannot be read: byte 2: instruction GLOBAL names or calls Python code, which is never executed"
    );
    assert_eq!(
        why(b"\x80\x04N."),
        "this pickle is a None without `segments`, so it is not a snapshot of torch's allocator"
    );
    let whole = std::fs::read(data().join("rank0.pickle")).unwrap();
    assert!(why(&whole[..whole.len() - 1]).contains("the pickle ends here"));
}

/// A list with 10 000 references to one list with 10 000 references.
#[test]
fn a_snapshot_that_refers_to_one_list_too_often_is_refused() {
    let mut bytes = b"\x80\x02}(X\x08\0\0\0segments](".to_vec();
    bytes.extend(b"}(X\x06\0\0\0blocks](}q\0".iter());
    bytes.extend(b"h\0".repeat(9_999));
    bytes.extend(b"euq\x01");
    bytes.extend(b"h\x01".repeat(9_999));
    bytes.extend(b"eu.");
    assert_eq!(why(&bytes), "it has more than 5005 blocks and entries, the most for a pickle of its size");
}

#[test]
fn ranks_come_from_names() {
    let open = |names: &[&str]| {
        let paths: Vec<PathBuf> = names.iter().map(|name| Path::new("logs").join(name)).collect();
        SnapshotSource::open(&paths).map(|source| source.ranks()).map_err(|error| error.to_string())
    };
    assert_eq!(open(&["snapshot.pickle"]), Ok(vec![0]));
    assert_eq!(open(&["rank_1/oom.pickle", "rank_0/oom.pickle"]), Ok(vec![0, 1]));
    assert!(open(&["a.pickle", "b.pickle"]).unwrap_err().contains("its name has no rank"));
    assert!(open(&["rank1.pickle", "a/rank1.pickle"]).unwrap_err().contains("it is of rank 1, and so is"));
}

/// The instruction that pushes the stored value.
const SHARED: &[u8] = b"h\0";

/// A snapshot in Python's pickle format, whose entries share a value that was stored before.
struct Pickled(Vec<u8>);

impl Pickled {
    fn text(&mut self, text: &str) {
        self.0.extend([&b"X"[..], &(text.len() as u32).to_le_bytes(), text.as_bytes()].concat());
    }

    fn number(&mut self, number: i32) {
        self.0.extend([&b"J"[..], &number.to_le_bytes()].concat());
    }

    fn pair(&mut self, key: &str, text: &str) {
        self.text(key);
        self.text(text);
    }

    /// `{"segments": [], "device_traces": [[entry, entry, …]]}` with one entry for each of `rows`. `shared` pushes a value,
    /// which entries push again by [`SHARED`].
    fn history(rows: usize, shared: impl FnOnce(&mut Self), entry: impl Fn(&mut Self)) -> Vec<u8> {
        let mut pickled = Self(b"\x80\x02".to_vec());
        shared(&mut pickled);
        pickled.0.extend(b"q\x000}(");
        pickled.text("segments");
        pickled.0.extend(b"]");
        pickled.text("device_traces");
        pickled.0.extend(b"](](");
        (0..rows).for_each(|_| entry(&mut pickled));
        pickled.0.extend(b"eeu.");
        pickled.0
    }

    fn load(bytes: &[u8]) -> Result<usize, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rank0.pickle");
        std::fs::write(&path, bytes).unwrap();
        let loaded = SnapshotSource::open(&[path]).unwrap().load(0);
        loaded.map(|data| data.memory.len()).map_err(|error| error.to_string())
    }
}

/// A search of all pairs for each field would compare 10¹¹ keys.
#[test]
fn a_long_dict_that_many_entries_share_costs_little_time() {
    let dict = |pickled: &mut Pickled| {
        pickled.0.extend(b"}(");
        pickled.pair("action", "alloc");
        for pair in 0..300_000 {
            pickled.text(&format!("k{pair}"));
            pickled.number(pair);
        }
        pickled.text("size");
        pickled.number(512);
        pickled.0.extend(b"u");
    };
    let bytes = Pickled::history(100_000, dict, |pickled| pickled.0.extend(SHARED));
    assert_eq!(Pickled::load(&bytes), Ok(100_000));
}

/// To copy the path for each frame would copy 10¹¹ bytes.
#[test]
fn a_long_path_that_many_frames_share_costs_little_time() {
    let long = "/".repeat(1 << 20);
    let frame = |pickled: &mut Pickled| {
        pickled.0.extend(b"}(");
        pickled.pair("filename", &long);
        pickled.pair("name", "f");
        pickled.0.extend(b"u");
    };
    let bytes = Pickled::history(100_000, frame, |pickled| {
        pickled.0.extend(b"}(");
        pickled.pair("action", "alloc");
        pickled.text("frames");
        pickled.0.extend([b"](", SHARED, b"eu"].concat());
    });
    assert_eq!(Pickled::load(&bytes), Ok(100_000));
}
