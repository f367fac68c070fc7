//! Which files are traces, and which rank each of them has.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use trace::rank::MAX_RANKS;
use trace::{OmissionRow, Text};

use crate::Error;
use crate::bytes::input::Input;
use crate::bytes::json::Cursor;
use crate::bytes::value::Value;
use crate::columns::header::{
    Header, HeaderParser, HeaderStep, rank_from_distributed_info, world_size_from_distributed_info,
};
use crate::columns::stream::MAX_VALUE_BYTES;
/// Bytes that are read at a time while looking for the header of a file.
const PROBE_BYTES: usize = 64 << 10;
/// The end of a file in which `distributedInfo` is looked for.
const TAIL_BYTES: usize = 256 << 10;

/// The source of a rank's number, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RankSource {
    /// `distributedInfo` in the file.
    DistributedInfo,
    /// The file's name.
    FileName,
    /// The order of the files' names.
    Order,
}

impl RankSource {
    pub(crate) fn remark(self, rank: i32) -> String {
        match self {
            Self::DistributedInfo => format!("rank {rank} by distributedInfo"),
            Self::FileName => format!("rank {rank} by the file's name: the trace does not name its rank"),
            Self::Order => {
                format!("rank {rank} by the order of the files: neither the trace nor the file's name has its rank")
            }
        }
    }
}

/// A trace of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceFile {
    /// The file.
    pub path: PathBuf,
    /// Its rank.
    pub rank: i32,
    /// The source of that number.
    pub rank_source: RankSource,
    /// Ranks in its job, if the file has their number.
    pub world_size: Option<i32>,
    /// Its size on disk.
    pub size_bytes: u64,
}

/// The traces of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// One file for each rank, sorted by rank.
    pub files: Vec<TraceFile>,
    /// Ranks in the job: `world_size` in the files, else the highest rank plus one.
    pub world_size: i32,
    /// Files that are left out, and ranks without a file.
    pub omissions: Vec<OmissionRow>,
}

/// Finds the traces in `paths`: files, and the files directly inside directories. Each file that is left out is listed
/// with the reason.
///
/// # Errors
/// [`Error::Io`]; [`Error::UnreadFormat`] and [`Error::NotATrace`] for a file that was named itself;
/// [`Error::NotATrace`] if nothing is left.
pub fn plan(paths: &[PathBuf]) -> Result<Plan, Error> {
    let mut plan = Plan::default();
    let mut candidates = Vec::new();
    for path in paths {
        list(path, &mut candidates, &mut plan.omissions)?;
    }
    candidates.sort();
    candidates.dedup_by(|a, b| a.path == b.path);
    let alone = candidates.len() == 1;
    let probed: Vec<Result<Probe, Error>> = candidates.par_iter().map(|c| probe(&c.path, !alone)).collect();
    let mut probes = Vec::new();
    for (candidate, probed) in candidates.iter().zip(probed) {
        match probed {
            Ok(probe) => {
                for key in &probe.refused {
                    let why = format!(
                        "its value in distributedInfo is impossible (a job has at most {MAX_RANKS} ranks); not used"
                    );
                    plan.omit(Some(&candidate.path), None, key, None, &why);
                }
                probes.push(probe);
            }
            Err(error) if candidate.named => return Err(error),
            Err(error) => plan.omit(Some(&candidate.path), None, "file", None, &error.reason()),
        }
    }
    plan.drop_other_jobs(&mut probes);
    plan.number(probes);
    if plan.files.is_empty() {
        let path = paths.first().cloned().unwrap_or_default();
        let seen: Vec<String> = plan.omissions.iter().take(3).map(|o| o.why.to_string()).collect();
        let seen = if seen.is_empty() { "it is empty".to_string() } else { seen.join("; ") };
        return Err(Error::NotATrace { path, why: format!("no trace of torch.profiler here: {seen}") });
    }
    Ok(plan)
}

/// A file that may be a trace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    path: PathBuf,
    /// The caller named the file itself, not its directory.
    named: bool,
}

fn list(path: &Path, out: &mut Vec<Candidate>, omissions: &mut Vec<OmissionRow>) -> Result<(), Error> {
    let io = |source| Error::Io { path: path.into(), source };
    if !fs::metadata(path).map_err(io)?.is_dir() {
        out.push(Candidate { path: path.into(), named: true });
        return Ok(());
    }
    for entry in fs::read_dir(path).map_err(io)? {
        let inner = entry.map_err(io)?.path();
        let hidden = inner.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        if hidden {
            continue;
        }
        if inner.is_dir() {
            let why = "a directory inside is not searched; name it if it holds traces of this job";
            omissions.push(omission(Some(file_name(&inner)), None, "directory", None, why));
        } else {
            out.push(Candidate { path: inner, named: false });
        }
    }
    Ok(())
}

/// The parts of a file's header that decide its rank and job.
#[derive(Clone, Debug)]
struct Probe {
    path: PathBuf,
    size_bytes: u64,
    rank: Option<i32>,
    world_size: Option<i32>,
    /// Keys of `rank` and `world_size` whose values are impossible.
    refused: Vec<&'static str>,
    /// The file's name has the process id of its first events. So torch chose the name, which begins with the host and
    /// not with a rank.
    is_named_by_torch: bool,
}

/// Reads the header of a file up to its events. With `search_tail`, the end of the file is searched too if the header
/// has no rank.
fn probe(path: &Path, search_tail: bool) -> Result<Probe, Error> {
    let io = |source| Error::Io { path: path.into(), source };
    let size_bytes = fs::metadata(path).map_err(io)?.len();
    let mut input = Input::open(path).map_err(io)?;
    let mut parser = HeaderParser::new();
    let mut bytes = Vec::new();
    let mut done_bytes = 0;
    let not_a_trace = |why: String| Err(Error::not_a_trace(path, &why));
    loop {
        match parser.step(&bytes) {
            HeaderStep::Events(at) => {
                bytes.drain(..at);
                break;
            }
            HeaderStep::Done(_) => return not_a_trace("it is JSON, but has no traceEvents".into()),
            HeaderStep::Wrong(fault) => {
                if let Some((format, instead)) = known_format(path, &bytes) {
                    return Err(Error::UnreadFormat { path: path.into(), format, instead });
                }
                return not_a_trace(format!("byte {}: {}", done_bytes + fault.at, fault.what.describe()));
            }
            HeaderStep::More(safe) => {
                bytes.drain(..safe);
                done_bytes += safe;
                let before = bytes.len();
                // The block doubles each time, so that a long value is not parsed from its start too often.
                bytes.resize(before + PROBE_BYTES.max(before), 0);
                let got = input.fill(&mut bytes[before..]);
                bytes.truncate(before + got);
                if got == 0 {
                    let why = input.failure.take();
                    let empty = if input.read_bytes == 0 { "it is empty" } else { "it ends before its events" };
                    return not_a_trace(why.unwrap_or_else(|| empty.into()));
                }
                if bytes.len() > 2 * MAX_VALUE_BYTES {
                    return not_a_trace(format!("a value is longer than {MAX_VALUE_BYTES} bytes"));
                }
            }
        }
    }
    let is_named_by_torch = torch_name(path).is_some_and(|(_, pid)| mentions_process(&bytes, pid));
    if parser.header.distributed.is_none() && search_tail {
        parser.header.distributed = info_behind_events(bytes, &mut input);
    }
    let Header { distributed, .. } = parser.header;
    let too_large = |key: &&str| {
        let value = distributed.as_ref().and_then(|info| info.get(key)).and_then(Value::integer);
        // Ranks count from zero.
        value.is_some_and(|n| n > i64::from(MAX_RANKS) - i64::from(*key == "rank"))
    };
    Ok(Probe {
        path: path.into(),
        size_bytes,
        rank: rank_from_distributed_info(distributed.as_ref()),
        world_size: world_size_from_distributed_info(distributed.as_ref()),
        refused: ["rank", "world_size"].into_iter().filter(too_large).collect(),
        is_named_by_torch,
    })
}

/// Whether an event in `bytes` belongs to a process. Devices are written as processes too, so a small number proves
/// nothing.
fn mentions_process(bytes: &[u8], pid: &str) -> bool {
    const KEY: &[u8] = b"\"pid\"";
    if pid.parse().is_ok_and(|number: u32| number < 64) {
        return false;
    }
    memchr::memmem::find_iter(bytes, KEY).any(|at| {
        let value = bytes[at + KEY.len()..].trim_ascii_start();
        let value = value.strip_prefix(b":").map(<[u8]>::trim_ascii_start).unwrap_or_default();
        let value = value.strip_prefix(b"\"").unwrap_or(value);
        value.strip_prefix(pid.as_bytes()).and_then(<[u8]>::first).is_some_and(|next| !next.is_ascii_digit())
    })
}

/// The `distributedInfo` in the last bytes of a stream, where on-demand traces write it. `last` was read before.
fn info_behind_events(mut last: Vec<u8>, input: &mut Input) -> Option<Value> {
    const KEY: &[u8] = b"\"distributedInfo\"";
    let mut block = vec![0; 1 << 20];
    loop {
        let got = input.fill(&mut block);
        let keep = last.len().saturating_sub(TAIL_BYTES);
        last.drain(..keep);
        last.extend_from_slice(&block[..got]);
        if got < block.len() {
            break;
        }
    }
    let at = memchr::memmem::rfind(&last, KEY)?;
    let mut cursor = Cursor::new(&last, at + KEY.len());
    cursor.need(b':', "a colon").ok()?;
    cursor.space();
    Value::read(&mut cursor).ok().filter(|value| value.get("rank").is_some())
}

/// Other formats of traces, and the way to use them.
fn known_format(path: &Path, bytes: &[u8]) -> Option<(&'static str, &'static str)> {
    let name = path.to_string_lossy().to_ascii_lowercase();
    let ends = |suffix: &str| name.ends_with(suffix);
    if bytes.starts_with(b"SQLite format 3\0") || ends(".sqlite") {
        return Some(("an Nsight Systems SQLite export", "record with torch.profiler, or with rank-agent exec"));
    }
    if ends(".nsys-rep") || ends(".qdrep") {
        return Some(("an Nsight Systems report", "record with torch.profiler, or with rank-agent exec"));
    }
    if ends(".xplane.pb") {
        return Some(("an XPlane trace", "export it as Chrome JSON from XProf, or record with torch.profiler"));
    }
    if ends(".pftrace") || ends(".perfetto-trace") {
        return Some(("a Perfetto trace", "have torch.profiler export Chrome JSON (export_chrome_trace)"));
    }
    if bytes.starts_with(b"PAR1") {
        return Some(("a Parquet file", "name the directory of its run, the one with run.json"));
    }
    None
}

impl Plan {
    fn omit(&mut self, path: Option<&Path>, rank: Option<i32>, what: &str, amount: Option<i64>, why: &str) {
        self.omissions.push(omission(path.map(file_name), rank, what, amount, why));
    }

    /// Leaves out the files of other jobs: those whose world size differs from that of most files.
    fn drop_other_jobs(&mut self, probes: &mut Vec<Probe>) {
        let mut sizes: BTreeMap<i32, usize> = BTreeMap::new();
        for size in probes.iter().filter_map(|p| p.world_size) {
            *sizes.entry(size).or_default() += 1;
        }
        let Some(world) = sizes.iter().max_by_key(|(size, files)| (**files, **size)).map(|(size, _)| *size) else {
            return;
        };
        let (keep, other): (Vec<Probe>, Vec<Probe>) =
            probes.drain(..).partition(|p| p.world_size.is_none_or(|size| size == world));
        for probe in other {
            let size = probe.world_size.unwrap_or_default();
            let why =
                format!("its world_size is {size}, that of most files here is {world}: it belongs to another job");
            self.omit(Some(&probe.path), probe.rank, "file", None, &why);
        }
        self.world_size = world;
        *probes = keep;
    }

    /// Gives every file its rank. Of two files of one rank, the better is kept: by the source of its rank, then by
    /// size.
    fn number(&mut self, probes: Vec<Probe>) {
        let by_name = ranks_from_names(&probes, self.world_size);
        let mut files: Vec<TraceFile> = Vec::new();
        let mut unknown = Vec::new();
        for (probe, by_name) in probes.into_iter().zip(by_name) {
            let (rank, rank_source) = match (probe.rank, by_name) {
                (Some(rank), _) => (rank, RankSource::DistributedInfo),
                (None, Some(rank)) => (rank, RankSource::FileName),
                (None, None) => {
                    unknown.push(probe);
                    continue;
                }
            };
            let Probe { path, size_bytes, world_size, .. } = probe;
            self.admit(TraceFile { path, rank, rank_source, world_size, size_bytes }, &mut files);
        }
        let known: BTreeSet<i32> = files.iter().map(|f| f.rank).collect();
        let free = (0..).filter(|rank| !known.contains(rank));
        for (Probe { path, size_bytes, world_size, .. }, rank) in unknown.into_iter().zip(free) {
            files.push(TraceFile { path, rank, rank_source: RankSource::Order, world_size, size_bytes });
        }
        files.sort_by_key(|f| f.rank);
        let highest = files.last().map_or(0, |f| f.rank.saturating_add(1));
        self.world_size = self.world_size.max(highest);
        self.files = files;
        self.report_missing_ranks();
    }

    fn admit(&mut self, file: TraceFile, files: &mut Vec<TraceFile>) {
        let Some(at) = files.iter().position(|other| other.rank == file.rank) else {
            files.push(file);
            return;
        };
        let better = (file.rank_source < files[at].rank_source)
            || (file.rank_source == files[at].rank_source && file.size_bytes > files[at].size_bytes);
        let loser = if better { std::mem::replace(&mut files[at], file) } else { file };
        let kept = &files[at];
        let why = format!(
            "{} has rank {} too and is kept (it is larger, or names its rank itself); analyze this file by itself",
            file_name(&kept.path),
            kept.rank
        );
        self.omit(Some(&loser.path), Some(loser.rank), "file", None, &why);
    }

    fn report_missing_ranks(&mut self) {
        let present: BTreeSet<i32> = self.files.iter().map(|f| f.rank).collect();
        // Every rank that is present is below the world size.
        let missing = self.world_size as usize - present.len();
        if missing == 0 {
            return;
        }
        let first: Vec<i32> = (0..self.world_size).filter(|rank| !present.contains(rank)).take(8).collect();
        let mut shown: Vec<String> = first.iter().map(i32::to_string).collect();
        if missing > shown.len() {
            shown.push("…".into());
        }
        let why = format!("no file of rank {} was found (world_size {})", shown.join(", "), self.world_size);
        let only = first.first().copied().filter(|_| missing == 1);
        self.omit(None, only, "ranks", Some(missing as i64), &why);
    }
}

/// The last part of a path, for messages.
pub fn file_name(path: &Path) -> Text {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into()
}

fn omission(file: Option<Text>, rank: Option<i32>, what: &str, amount: Option<i64>, why: &str) -> OmissionRow {
    OmissionRow::new(what, why).rank(rank).file(file).amount(amount)
}

/// The ranks in the names of files. A number that belongs to a host or a time is not a rank.
fn ranks_from_names(probes: &[Probe], world_size: i32) -> Vec<Option<i32>> {
    let below = if world_size > 0 { world_size } else { MAX_RANKS };
    let numbered_host = |probe: &Probe| torch_name(&probe.path).is_some_and(|(host, _)| rank_of_text(host).is_some());
    // If several processes share one numbered host, the number is the host's, also in the names of the other hosts.
    let mut processes: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for probe in probes.iter().filter(|probe| probe.rank.is_none() && numbered_host(probe)) {
        if let Some((host, pid)) = torch_name(&probe.path) {
            processes.entry(host).or_default().insert(pid);
        }
    }
    let are_hosts = processes.values().any(|pids| pids.len() > 1);
    let rank = |probe: &Probe| {
        let names_host = probe.is_named_by_torch || are_hosts && numbered_host(probe);
        rank_from_name(&probe.path).filter(|rank| !names_host && *rank < below)
    };
    probes.iter().map(rank).collect()
}

/// The number after `rank` or `worker` in a file's name: `rank-3.….json`, `worker0_step_12.…`,
/// `trace_rank_07.json.gz`.
fn rank_from_name(path: &Path) -> Option<i32> {
    rank_of_text(&path.file_name()?.to_string_lossy())
}

fn rank_of_text(text: &str) -> Option<i32> {
    let text = text.to_ascii_lowercase();
    ["rank", "worker"].iter().find_map(|word| {
        let after = text.match_indices(word).map(|(at, _)| &text[at + word.len()..]);
        after
            .filter_map(|rest| {
                let rest = rest.strip_prefix(['-', '_', '.', '=']).unwrap_or(rest);
                let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
                rest[..end].parse().ok()
            })
            .next()
    })
}

/// Host and process in a name by torch's `tensorboard_trace_handler`: `<host>_<pid>.<time>.pt.trace.json`. Names that
/// users choose may look the same.
fn torch_name(path: &Path) -> Option<(&str, &str)> {
    let name = path.file_name()?.to_str()?;
    let stem = name.strip_suffix(".gz").unwrap_or(name).strip_suffix(".pt.trace.json")?;
    let (stem, time) = stem.rsplit_once('.')?;
    let (host, pid) = stem.rsplit_once('_')?;
    let is_number = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    (time.len() >= 12 && is_number(time) && !pid.is_empty() && is_number(pid) && !host.is_empty())
        .then_some((host, pid))
}

/// The host in a name by torch. The process id in the name must be that of the trace.
pub(crate) fn host_from_name(path: &Path, pid: i64) -> Option<String> {
    let (host, named) = torch_name(path)?;
    (named.parse() == Ok(pid)).then(|| host.to_string())
}
