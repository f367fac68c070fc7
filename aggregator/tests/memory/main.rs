//! The law of the memory limit: whatever is read, memory stays near the limit, and what has no room is listed. The allocator counts, so
//! that no load of the machine changes the result. One test alone, because a second one would allocate meanwhile.

#![expect(clippy::unwrap_used, reason = "tests may, and their helpers too")]

mod ffi;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use ffi::peak_of;
use flate2::Compression;
use flate2::write::GzEncoder;
use formats::format::OpenOptions;
use formats::input::{Input, resolve};
use formats::run_source::RunSource;
use hang::dumps;
use model::Error;
use model::options::Options;
use model::source::Source;
use trace::{OmissionKind, OmissionRow};

const MB: usize = 1 << 20;
/// Every loss for want of memory names it.
const OPTION: &str = "--max-memory";
/// The memory that an analysis may take in addition to its input.
const BESIDE: usize = 64 * MB;
/// By so much is a limit smaller than the need.
const SMALLER: usize = 1000;

/// The omissions of an analysis, or of a judgement of dumps, within a limit.
fn omissions(paths: &[PathBuf], limit: Option<u64>) -> Result<Vec<OmissionRow>, Error> {
    let analyzed =
        |source: &dyn Source| Ok(pipeline::analyze(source, &Options::default(), &|_, _| ())?.tables.omissions);
    match resolve(paths.to_vec())? {
        Input::Run(run) => analyzed(&RunSource::open_within(&run, limit)?),
        Input::Files(files) => {
            match files.open(OpenOptions { max_memory_bytes: limit, ..OpenOptions::default() }) {
                Ok(source) => analyzed(&*source),
                Err(error) => match dumps::read(paths, limit) {
                    Ok((_, omissions)) => Ok(omissions),
                    Err(of_dumps) if of_dumps.to_string().contains(OPTION) => Err(of_dumps),
                    // They are no dumps either.
                    Err(_) => Err(error),
                },
            }
        }
    }
}

/// What breaks the law for an input and a limit.
fn broken(name: &str, path: &Path, limit: usize) -> Option<String> {
    let (found, peak) = peak_of(|| omissions(&[path.into()], Some(limit as u64)));
    let said = match &found {
        Err(error) => error.to_string(),
        Ok(omissions) => {
            let lost = omissions.iter().filter(|omission| omission.kind == OmissionKind::Lost);
            lost.map(|omission| omission.why.to_string()).collect::<Vec<_>>().join("; ")
        }
    };
    println!("{name}: limit {limit}, peak {peak}: {said:.200}");
    if found.is_ok() && !said.contains(OPTION) {
        return Some(format!("{name}: nothing names the option within {limit} bytes: {said}"));
    }
    (peak > limit + BESIDE).then(|| format!("{name}: {peak} bytes within {limit}"))
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

/// Files that are small beside the memory that their values take.
fn drawn(place: &Path) {
    let write = |name: &str, content: &[u8]| {
        let path = place.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    };
    let pickle = |key: &[u8], lists: usize| {
        [b"\x80\x02X", &(key.len() as u32).to_le_bytes()[..], key, &vec![b']'; lists]].concat()
    };
    for rank in 0..2 {
        write(&format!("pickles/nccl_trace_rank_{rank}"), &pickle(b"pg_config", 8 * MB));
        let lists = "[],".repeat(3 * MB);
        write(
            &format!("json/nccl_trace_rank_{rank}.json"),
            format!(r#"{{"pg_config": {{}}, "entries": [{lists}0]}}"#).as_bytes(),
        );
    }
    write("snapshot/a.pickle", &pickle(b"segments", 8 * MB));
    write("xplane/a.xplane.pb", &b"\x0a\x00".repeat(8 * MB));
    let operations = r#""","#.repeat(8 * MB);
    let process = format!(r#"{{"strings": {{"buffer_records": [{{"operations": [{operations}""]}}]}}}}"#);
    write("rocprof/a.json.gz", &gzip(format!(r#"{{"rocprofiler-sdk-tool": [{process}]}}"#).as_bytes()));
    let event = |at: usize, name: &str| {
        format!(r#"{{"ph":"X","cat":"cpu_op","name":"{name}","pid":1,"tid":1,"ts":{at},"dur":1}},"#)
    };
    let events: String = (0..400_000).map(|at| event(at, "aten::mm")).collect();
    write("kineto/a.json.gz", &gzip(format!(r#"{{"traceEvents": [{events}{{}}]}}"#).as_bytes()));
    let names: String = (0..100).map(|at| event(at, &format!("{at}{}", "a".repeat(MB)))).collect();
    write("names/a.json.gz", &gzip(format!(r#"{{"traceEvents": [{names}{{}}]}}"#).as_bytes()));
}

/// Invariant (input): Within a limit of memory a thousand times too small, an analysis of any format ends with a listed loss or an error,
/// and at most 64 MB beyond the limit are allocated.
#[test]
fn memory_stays_near_its_limit_in_every_format() {
    let inputs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/inputs");
    let mut folders: Vec<PathBuf> = fs::read_dir(inputs).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    let mut failed = Vec::new();
    for path in folders.iter().filter(|path| path.is_dir()) {
        let name = path.file_name().unwrap().to_string_lossy();
        let (found, need) = peak_of(|| omissions(std::slice::from_ref(path), None));
        found.unwrap();
        failed.extend(broken(&name, path, need / SMALLER));
    }
    let place = tempfile::tempdir().unwrap();
    drawn(place.path());
    for name in ["pickles", "json", "snapshot", "xplane", "rocprof", "kineto", "names"] {
        // The second limit has room for the file, and not for its values.
        failed.extend([MB, 40 * MB].into_iter().filter_map(|limit| broken(name, &place.path().join(name), limit)));
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
