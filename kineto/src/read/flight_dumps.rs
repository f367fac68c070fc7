//! The dumps of a job's Flight Recorders: which file is the dump of which rank.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use trace::OmissionRow;
use trace::place;

use crate::Error;
use crate::bytes::memory::{MemoryShare, Room};
use crate::meaning::flight_dump::{FlightDump, NO_ENTRIES, RankLists};
use crate::read::dump_begin::{BEGIN_BYTES, has_keys, is_short, may_be_dump, may_begin};
use crate::read::dumps::{rank_of_dump, read_rest};
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
/// is needed of it, so that memory holds the ring of one dump for each thread; these take at most `max_memory_bytes` together.
///
/// # Errors
/// [`Error::Io`]; [`Error::NotATrace`] if no dump can be read.
pub fn flight_dumps<T: Send>(
    paths: &[PathBuf],
    max_memory_bytes: u64,
    keep: impl Fn(i32, FlightDump) -> T + Sync,
) -> Result<FlightDumps<T>, Error> {
    let Found { candidates, mut others, mut omissions, spool: _spool, .. } = find(paths)?;
    let lists = RankLists::default();
    let memory = MemoryShare::among(max_memory_bytes, candidates.len());
    let look = |candidate: &Candidate| look(candidate, &lists, memory.room_of_file("dump", 0), &keep);
    let looked: Vec<Looked<T>> = candidates.par_iter().map(look).collect();
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

fn look<T>(candidate: &Candidate, lists: &RankLists, mut room: Room, keep: impl Fn(i32, FlightDump) -> T) -> Looked<T> {
    let rank = rank_of_dump(&candidate.name);
    match place::is_file(&candidate.path) {
        Ok(true) => {}
        Ok(false) => return Looked::Other,
        Err(error) => return Looked::Damaged(rank, error.to_string()),
    }
    let is_wanted =
        |begin: &[u8]| may_be_dump(&candidate.name, begin) || candidate.named && may_begin(begin) && is_short(begin);
    let bytes = match content(&candidate.path, is_wanted, &mut room) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Looked::Other,
        Err(why) => return Looked::Damaged(rank, why),
    };
    match (FlightDump::read(&bytes, lists, &mut room), rank) {
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

/// The bytes of a file, if `is_wanted` by its begin.
fn content(path: &Path, is_wanted: impl Fn(&[u8]) -> bool, room: &mut Room) -> Result<Option<Vec<u8>>, String> {
    let as_text = |error: std::io::Error| error.to_string();
    let mut file = place::open(path).map_err(as_text)?;
    let mut bytes = Vec::new();
    (&mut file).take(BEGIN_BYTES).read_to_end(&mut bytes).map_err(as_text)?;
    if !is_wanted(&bytes) {
        return Ok(None);
    }
    read_rest(file, &mut bytes, room)?;
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    const DUMP: &str = r#"{"version": "2.9", "entries": [{"collective_seq_id": 1, "time_created_ns": 5}]}"#;

    /// Ranks with their newest operations, and the omissions.
    fn found(files: &[(&str, &str)]) -> (String, Vec<String>) {
        found_within(files, u64::MAX)
    }

    fn found_within(files: &[(&str, &str)], max_memory_bytes: u64) -> (String, Vec<String>) {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let bytes: Vec<u8> = text.chars().map(|c| c as u8).collect();
            std::fs::write(dir.path().join(name), bytes).unwrap();
        }
        let newest = |_: i32, dump: FlightDump| dump.entries.first().and_then(|entry| entry.created_ns);
        match flight_dumps(&[dir.path().to_path_buf()], max_memory_bytes, newest) {
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

    /// Invariant (input): A dump of the Flight Recorder beyond the memory limit is a loss that names its file and the option, and the other
    /// dumps are used.
    #[test]
    fn dumps_beyond_the_memory_are_losses_of_their_ranks() {
        let lists = format!("\u{80}\u{2}X\u{9}\0\0\0pg_config0{}", "]".repeat(100_000));
        let text = format!(r#"{{"pg_config": {{}}, "entries": [{}]}}"#, vec!["[]"; 100_000].join(","));
        // One text, to which each of many entries refers.
        let copies = format!(
            "\u{80}\u{2}}}(X\u{7}\0\0\0entries](}}(X\u{e}\0\0\0profiling_nameX\0\u{20}\0\0{}uq\0{}eu.",
            "a".repeat(8192),
            "h\0".repeat(9000)
        );
        let files = [("_dump_0", DUMP), ("_dump_1", &*lists), ("_dump_2", &*text), ("_dump_3", &*copies)];
        let (ranks, omissions) = found_within(&files, 4 << 20);
        assert_eq!(ranks, "{0: Some(5)}");
        let why = "its values take more memory than a dump may take";
        for (rank, omission) in (1..).zip(&omissions) {
            let is_loss = omission.starts_with(&format!("lost Some({rank}) None dump: "));
            assert!(
                is_loss && omission.contains(why) && omission.ends_with("give more with --max-memory"),
                "{omission}"
            );
        }
        assert_eq!(omissions.len(), 3, "{omissions:?}");
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

    /// The rank of an omission, and why.
    type Omitted = (Option<i32>, String);

    /// What is kept of the dumps of a path: their times, and the omissions without the names of files.
    fn kept(path: &Path) -> (BTreeMap<i32, Option<i64>>, Vec<Omitted>) {
        let newest = |_: i32, dump: FlightDump| dump.entries.first().and_then(|entry| entry.created_ns);
        let found = flight_dumps(&[path.to_path_buf()], 1 << 30, newest).unwrap();
        (found.by_rank, found.omissions.iter().map(|omission| (omission.rank, omission.why.to_string())).collect())
    }

    /// The dump of [`DUMP`] with another time as a pickle.
    fn pickled(created_ns: i64) -> Vec<u8> {
        let mut bytes =
            b"\x80\x02}X\x07\0\0\0entries]}(X\x11\0\0\0collective_seq_idK\x01X\x0f\0\0\0time_created_ns\x8a\x08"
                .to_vec();
        bytes.extend(created_ns.to_le_bytes());
        bytes.extend(b"uas.");
        bytes
    }

    fn zip(file: &Path, members: &[(String, Vec<u8>)]) {
        let mut archive = zip::ZipWriter::new(File::create(file).unwrap());
        for (name, bytes) in members {
            archive.start_file(name.as_str(), zip::write::SimpleFileOptions::default()).unwrap();
            archive.write_all(bytes).unwrap();
        }
        archive.finish().unwrap();
    }

    fn tar(file: &Path, members: &[(String, Vec<u8>)]) {
        let gzip = flate2::write::GzEncoder::new(File::create(file).unwrap(), flate2::Compression::fast());
        let mut archive = tar::Builder::new(gzip);
        for (name, bytes) in members {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            archive.append_data(&mut header, name, bytes.as_slice()).unwrap();
        }
        archive.into_inner().unwrap().finish().unwrap();
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Invariant (hang): Dumps in an archive are read as those of a directory are, as pickles and as JSON, whole and cut.
        #[test]
        fn dumps_in_archives_are_those_of_a_directory(
            dumps in prop::collection::vec((any::<bool>(), 0_i64..1 << 40, prop::option::of(1_usize..40)), 1..6),
        ) {
            let file = |(rank, (is_pickle, at, cut)): (usize, &(bool, i64, Option<usize>))| {
                let json = DUMP.replace('5', &at.to_string());
                let mut bytes = if *is_pickle { pickled(*at) } else { json.into_bytes() };
                // The last rank is whole, so that some dump is read.
                bytes.truncate(cut.filter(|_| rank + 1 < dumps.len()).unwrap_or(bytes.len()));
                (format!("nccl_trace_rank_{rank}"), bytes)
            };
            let members: Vec<(String, Vec<u8>)> = dumps.iter().enumerate().map(file).collect();
            let directory = tempfile::tempdir().unwrap();
            members.iter().for_each(|(name, bytes)| std::fs::write(directory.path().join(name), bytes).unwrap());
            let archives = tempfile::tempdir().unwrap();
            let [zipped, tarred] = ["dumps.zip", "dumps.tgz"].map(|name| archives.path().join(name));
            zip(&zipped, &members);
            tar(&tarred, &members);
            let expected = kept(directory.path());
            prop_assert_eq!(kept(&zipped), expected.clone());
            prop_assert_eq!(kept(&tarred), expected);
        }
    }
}
