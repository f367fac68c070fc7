//! The dumps of a job's Flight Recorders: which file is the dump of which rank.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use trace::place;
use trace::{OmissionRow, Text};

use crate::Error;
use crate::meaning::flight_dump::{FlightDump, NO_ENTRIES, RankLists};
use crate::read::dumps::{BEGIN_BYTES, MAX_BYTES, has_keys, rank_of_dump};
use crate::read::find::{Candidate, Found, find};
use crate::read::trace_file::listed;

/// What was kept of the dumps of a job.
#[derive(Clone, Debug)]
pub struct FlightDumps<T> {
    /// By rank.
    pub by_rank: BTreeMap<i32, T>,
    /// Dumps that cannot be read, and other files.
    pub omissions: Vec<OmissionRow>,
}

/// A file.
enum Looked<T> {
    Dump {
        rank: i32,
        /// The newest operation, and whether the form has the lines of the program: of several dumps of a rank, the greatest is used.
        order: (Option<i64>, bool),
        kept: T,
    },
    /// A dump that cannot be read, and why.
    Damaged(Option<i32>, String),
    Other,
}

/// Finds the dumps in `paths` (files, directories and those inside, archives), and reads them in parallel. `keep` reduces each to what
/// is needed of it, so that memory holds the ring of one dump for each thread.
///
/// # Errors
/// [`Error::Io`]; [`Error::NotATrace`] if no dump can be read.
pub fn flight_dumps<T: Send>(
    paths: &[PathBuf],
    keep: impl Fn(i32, FlightDump) -> T + Sync,
) -> Result<FlightDumps<T>, Error> {
    let Found { candidates, mut others, mut omissions, spool: _spool, .. } = find(paths)?;
    let lists = RankLists::default();
    let looked: Vec<Looked<T>> = candidates.par_iter().map(|candidate| look(candidate, &lists, &keep)).collect();
    let mut best: BTreeMap<i32, ((Option<i64>, bool), T)> = BTreeMap::new();
    let (mut second, mut damaged) = (0_i64, Vec::new());
    for (candidate, looked) in candidates.iter().zip(looked) {
        match looked {
            Looked::Dump { rank, order, kept } => {
                let before = best.get(&rank).map(|(order, _)| *order);
                second += i64::from(before.is_some());
                if before.is_none_or(|before| before < order) {
                    best.insert(rank, (order, kept));
                }
            }
            Looked::Damaged(rank, why) => {
                damaged.push(OmissionRow::lost("dump", why).rank(rank).file(candidate.name.clone()));
            }
            Looked::Other => others.push(candidate.name.clone()),
        }
    }
    omissions.extend(damaged);
    if second > 0 {
        let why = "their ranks have another dump, which is newer or says more";
        omissions.push(OmissionRow::note("dumps that are not used", why).amount(second));
    }
    if !others.is_empty() {
        others.sort();
        let why = listed(&others);
        omissions.push(OmissionRow::left_out("files without dumps", why).amount(others.len() as i64));
    }
    if best.is_empty() {
        return Err(none(paths, &omissions));
    }
    Ok(FlightDumps { by_rank: best.into_iter().map(|(rank, (_, kept))| (rank, kept)).collect(), omissions })
}

fn none(paths: &[PathBuf], omissions: &[OmissionRow]) -> Error {
    let described = |omission: &OmissionRow| match &omission.file {
        Some(file) => format!("{file}: {}", omission.why),
        None => omission.why.to_string(),
    };
    let seen: Vec<String> = omissions.iter().take(3).map(described).collect();
    let seen = if seen.is_empty() { "the directory is empty".into() } else { format!("found: {}", seen.join("; ")) };
    let path = paths.first().cloned().unwrap_or_default();
    Error::NotATrace { path, why: format!("no dump of the Flight Recorder can be read here; {seen}") }
}

fn look<T>(candidate: &Candidate, lists: &RankLists, keep: impl Fn(i32, FlightDump) -> T) -> Looked<T> {
    let rank = rank_of_dump(&candidate.name);
    match place::is_file(&candidate.path) {
        Ok(true) => {}
        Ok(false) => return Looked::Other,
        Err(error) => return Looked::Damaged(rank, error.to_string()),
    }
    let bytes = match content(&candidate.path, |begin| may_be_dump(candidate, begin)) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Looked::Other,
        Err(why) => return Looked::Damaged(rank, why),
    };
    match (FlightDump::read(&bytes, lists), rank) {
        (Err(why), _) if why == NO_ENTRIES && !has_keys(&bytes) => Looked::Other,
        (Err(why), rank) => Looked::Damaged(rank, why),
        (Ok(_), None) => Looked::Damaged(None, "its name has no rank; rename it as nccl_trace_rank_3".into()),
        (Ok(dump), Some(rank)) => {
            let newest = dump.entries.iter().filter_map(|entry| entry.created_ns).max();
            let order = (newest, dump.entries.iter().any(|entry| entry.frame.is_some()));
            Looked::Dump { rank, order, kept: keep(rank, dump) }
        }
    }
}

/// Whether a file that begins so is read as a dump: it has the keys of one; or its first bytes and its name allow one, as those of a
/// dump that was cut do.
fn may_be_dump(candidate: &Candidate, begin: &[u8]) -> bool {
    let may_begin = matches!(begin.first(), None | Some(0x80 | b'{'));
    let name: &Text = &candidate.name;
    let is_named = candidate.named || ["dump", "trace_rank_", "fr_"].iter().any(|part| name.contains(part));
    let is_short = (begin.len() as u64) < BEGIN_BYTES && memchr::memmem::find(begin, b"traceEvents").is_none();
    may_begin && (has_keys(begin) || is_named && is_short)
}

/// The bytes of a file, if `is_wanted` by its begin.
fn content(path: &Path, is_wanted: impl Fn(&[u8]) -> bool) -> Result<Option<Vec<u8>>, String> {
    let as_text = |error: std::io::Error| error.to_string();
    let mut file = place::open(path).map_err(as_text)?;
    let size = file.size_bytes().map_err(as_text)?;
    let mut bytes = Vec::with_capacity(usize::try_from(size.min(MAX_BYTES)).unwrap_or(0));
    (&mut file).take(BEGIN_BYTES).read_to_end(&mut bytes).map_err(as_text)?;
    if !is_wanted(&bytes) {
        return Ok(None);
    }
    if size > MAX_BYTES {
        return Err(format!("it has {size} bytes; at most {MAX_BYTES} are read"));
    }
    file.take(MAX_BYTES).read_to_end(&mut bytes).map_err(as_text)?;
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DUMP: &str = r#"{"version": "2.9", "entries": [{"collective_seq_id": 1, "time_created_ns": 5}]}"#;

    /// Ranks with their newest operations, and the omissions.
    fn found(files: &[(&str, &str)]) -> (String, Vec<String>) {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let bytes: Vec<u8> = text.chars().map(|c| c as u8).collect();
            std::fs::write(dir.path().join(name), bytes).unwrap();
        }
        let newest = |_: i32, dump: FlightDump| dump.entries.first().and_then(|entry| entry.created_ns);
        match flight_dumps(&[dir.path().to_path_buf()], newest) {
            Ok(found) => {
                let shown = |o: &OmissionRow| format!("{} {:?} {:?} {}: {}", &*o.kind, o.rank, o.amount, o.what, o.why);
                (format!("{:?}", found.by_rank), found.omissions.iter().map(shown).collect())
            }
            Err(error) => (error.to_string().replace(&dir.path().display().to_string(), "DIR"), Vec::new()),
        }
    }

    #[test]
    fn a_dump_that_is_cut_is_a_loss_of_its_rank() {
        let cut = &DUMP[..60];
        let (ranks, omissions) = found(&[("_dump_0", DUMP), ("_dump_1", cut), ("_dump_2", ""), ("truth.json", "{}")]);
        assert_eq!(ranks, "{0: Some(5)}");
        assert_eq!(
            omissions,
            [
                "lost Some(1) None dump: it is no JSON: byte 60: the file ends inside a value",
                "lost Some(2) None dump: it is no JSON: byte 0: the file ends inside a value",
                "left_out None Some(1) files without dumps: truth.json",
            ]
        );
    }

    #[test]
    fn of_several_dumps_of_a_rank_the_newest_is_used() {
        let newer = DUMP.replace('5', "6");
        let (ranks, omissions) = found(&[("_dump_3", DUMP), ("fr_rank_3.json", &newer)]);
        assert_eq!(ranks, "{3: Some(6)}");
        assert_eq!(omissions.len(), 1, "{omissions:?}");
    }

    #[test]
    fn without_a_dump_the_error_says_what_was_found() {
        let evil = "\u{80}\u{2}cos\nsystem\n.";
        assert_eq!(
            found(&[("_dump_0", evil)]).0,
            "DIR: no dump of the Flight Recorder can be read here; found: _dump_0: byte 2: instruction GLOBAL names or \
             calls Python code, which is never executed"
        );
        assert!(found(&[]).0.ends_with("the directory is empty"));
    }
}
