//! Dumps of torch's Flight Recorder beside traces: `nccl_trace_rank_3`, `comm_lib_trace_rank_3`, `_dump_3`, as pickle or JSON.

use std::io::{self, Read};
use std::path::Path;

use trace::place::{self, Opened};
use trace::rank::MAX_RANKS;

use crate::bytes::memory::Room;
use crate::meaning::flight_recorder::Dump;
use crate::read::dump_begin::{BEGIN_BYTES, has_keys};
use crate::read::find::Candidate;
use crate::read::names::rank_of_name;
use crate::read::trace_file::TraceFile;

/// The largest dump that is read. The recorder keeps 2000 entries of a few KB by default.
const MAX_BYTES: u64 = 1 << 30;

/// A dump, and its rank.
#[derive(Clone, Debug)]
pub(crate) struct FoundDump {
    pub(crate) rank: i32,
    pub(crate) candidate: Candidate,
}

impl FoundDump {
    /// `None` if a file is no dump, or if its name has no rank.
    ///
    /// # Errors
    /// Those of reading the file.
    pub(crate) fn of(candidate: &Candidate) -> io::Result<Option<Self>> {
        let Some(rank) = rank_of_dump(&candidate.name) else { return Ok(None) };
        // A pipe would be read only once, and might never end: it has no first bytes here.
        let begin = place::first_bytes(&candidate.path, BEGIN_BYTES)?;
        let is_dump = matches!(begin.first(), Some(0x80 | b'{')) && has_keys(&begin);
        Ok(is_dump.then(|| Self { rank, candidate: candidate.clone() }))
    }
}

/// Reads a dump. Its bytes and its values are taken of `room`.
///
/// # Errors
/// The reason why it cannot be read.
pub(crate) fn read(path: &Path, mut room: Room) -> Result<Dump, String> {
    let file = place::open(path).map_err(|error| error.to_string())?;
    let mut content = Vec::new();
    read_rest(file, &mut content, &mut room)?;
    Dump::read(&content, &mut room)
}

/// Reads the rest of a file behind its `content` so far. The size of the file is taken of `room`.
///
/// # Errors
/// The reason why it cannot be read.
pub(crate) fn read_rest(file: Opened, content: &mut Vec<u8>, room: &mut Room) -> Result<(), String> {
    let bytes = file.size_bytes().map_err(|error| error.to_string())?;
    if bytes > MAX_BYTES {
        return Err(format!("it has {bytes} bytes; at most {MAX_BYTES} are read"));
    }
    room.take(bytes as usize)?;
    content.reserve_exact((bytes as usize).saturating_sub(content.len()));
    file.take(bytes.saturating_sub(content.len() as u64)).read_to_end(content).map_err(|error| error.to_string())?;
    Ok(())
}

/// The rank in the name of a dump.
pub(crate) fn rank_of_dump(name: &str) -> Option<i32> {
    rank_of_name(name).or_else(|| number_at_end(name)).filter(|rank| *rank < MAX_RANKS)
}

/// The number in `_dump_12` and `dump_12.json`.
fn number_at_end(name: &str) -> Option<i32> {
    let stem = [".json", ".pickle", ".pkl"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
    let (_, number) = stem.rsplit_once('_')?;
    number.parse().ok().filter(|rank| *rank >= 0)
}

/// Gives each trace the dump of its rank: of its directory, or else the only one. Returns the dumps of no trace.
pub(crate) fn attach(dumps: Vec<FoundDump>, files: &mut [TraceFile]) -> Vec<Candidate> {
    let directory = |path: &Path| path.parent().map(Path::to_path_buf);
    let mut used = vec![false; dumps.len()];
    for file in files {
        let of_rank: Vec<usize> = (0..dumps.len()).filter(|at| dumps[*at].rank == file.rank).collect();
        let beside = |at: &&usize| directory(&dumps[**at].candidate.path) == directory(&file.path);
        let only = of_rank.first().filter(|_| of_rank.len() == 1);
        if let Some(at) = of_rank.iter().find(beside).or(only) {
            used[*at] = true;
            file.flight_recorder = Some(dumps[*at].candidate.path.clone());
        }
    }
    dumps.into_iter().zip(used).filter(|(_, used)| !used).map(|(dump, _)| dump.candidate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dumps_are_found_beside_the_traces_of_their_ranks() {
        let dir = tempfile::tempdir().unwrap();
        let trace =
            |rank: i32| format!(r#"{{"distributedInfo": {{"rank": {rank}, "world_size": 2}}, "traceEvents": []}}"#);
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        write("a.json", &trace(0));
        write("b.json", &trace(1));
        write("nccl_trace_rank_0", "\u{80}");
        std::fs::write(dir.path().join("nccl_trace_rank_0"), b"\x80\x04 pg_config").unwrap();
        write("_dump_1.json", r#"{"entries": [{"collective_seq_id": 1}]}"#);
        write("_dump_7", "{pg_config");
        write("rank_1.txt", "pg_config of nothing");
        let plan = crate::plan(&[dir.path().to_path_buf()], crate::PlanOptions::default()).unwrap();
        let name = |file: &TraceFile| file.flight_recorder.as_deref().map(crate::file_name);
        let named: Vec<_> = plan.files.iter().map(name).collect();
        assert_eq!(named, [Some("nccl_trace_rank_0".into()), Some("_dump_1.json".into())]);
        let others = plan.omissions.iter().find(|o| &*o.what == "files without traces").unwrap();
        assert_eq!(&*others.why, "_dump_7, rank_1.txt");
    }
}
