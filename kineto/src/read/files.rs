//! Which file is the trace of which rank and window.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use trace::name_rules::roles::roles_in;
use trace::rank::MAX_RANKS;
use trace::{OmissionRow, Text};

use crate::bytes::memory::MemoryShare;
use crate::read::archive::Spool;
use crate::read::dumps::{FoundDump, attach};
use crate::read::find::{Candidate, Found, find};
use crate::read::formats::{RecognizeOther, is_trace_name};
use crate::read::jobs::{NEAR_NS, usual_world_size};
use crate::read::names::{Named, ranks_from_names, ranks_from_numbers, torch_name};
use crate::read::probe::{Probe, probe};
use crate::read::replicas::tell_apart;
use crate::read::survey::{arrange, refuse_other_jobs, survey};
use crate::read::trace_file::{RankSource, TraceFile, WindowChoice, listed};
use crate::{Error, OtherFormat};

/// The subject of the notes on where ranks come from.
const RANKS: &str = "ranks";
const BY_NUMBERS: &str = "taken from the files' names, which differ in one number; the traces do not state them";
const BY_ORDER: &str = "guessed from the order of the files' names: neither the traces nor the names state them";

/// The traces of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// One file for each rank and window, sorted by rank, then by window.
    pub files: Vec<TraceFile>,
    /// Ranks in the job: `world_size` in the files, else the highest rank plus one.
    pub world_size: i32,
    /// Files that are left out, and ranks without a file.
    pub omissions: Vec<OmissionRow>,
    /// The members of archives, which exist as long as the plan.
    spool: Spool,
}

/// Which files are wanted.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlanOptions {
    /// The windows.
    pub window: WindowChoice,
    /// Put files together that look like those of different jobs.
    pub force: bool,
    /// The memory that rows may take together while they are read; `None`: no limit. Every thread reads one rank at a time,
    /// and each rank may take an equal part. The rest of a larger trace becomes an omission.
    pub max_memory_bytes: Option<u64>,
    /// Recognizes files of other formats; `None`: they are damaged traces.
    pub other_format: Option<RecognizeOther>,
    /// Other readers read the files of other formats that can be read, which hold other ranks: neither those nor missing ranks are listed.
    pub others_are_read: bool,
}

/// Finds the traces in `paths`: files, directories and those inside, archives, and `-` for standard input. Each file
/// that is left out is listed with the reason.
///
/// # Errors
/// [`Error::Io`]; [`Error::UnreadFormat`] and [`Error::NotATrace`] for a file that was named itself;
/// [`Error::NotATrace`] if nothing is left and no other reader has files; [`Error::DifferentJobs`] and [`Error::NoWindow`] as `options` say.
pub fn plan(paths: &[PathBuf], options: PlanOptions) -> Result<Plan, Error> {
    let Found { candidates, others, omissions, spool, .. } = find(paths)?;
    let mut plan = Plan { omissions, spool, ..Plan::default() };
    let Probed { mut probes, mut others, dumps, unread } = plan.probe(&candidates, others, &options)?;
    if probes.is_empty() {
        others.extend(dumps.into_iter().map(|dump| dump.candidate.name));
        plan.list(others);
        if options.others_are_read {
            return Ok(plan);
        }
        if let Some(unread) = unread {
            return Err(unread);
        }
        let path = paths.first().cloned().unwrap_or_default();
        let seen: Vec<String> = plan.omissions.iter().take(3).map(described).collect();
        let seen =
            if seen.is_empty() { "the directory is empty".to_string() } else { format!("found: {}", seen.join("; ")) };
        return Err(Error::NotATrace { path, why: format!("no trace of torch.profiler here; {seen}") });
    }
    if options.force {
        plan.drop_other_jobs(&mut probes);
    }
    plan.world_size = usual_world_size(probes.iter().map(|probe| probe.world_size)).unwrap_or(0);
    let mut files = plan.number(&probes);
    others.extend(attach(dumps, &mut files).into_iter().map(|candidate| candidate.name));
    plan.list(others);
    share_memory(&mut files, options.max_memory_bytes);
    let is_double = files.windows(2).any(|pair| pair[0].rank == pair[1].rank);
    let sizes: BTreeSet<i32> = files.iter().filter_map(|file| file.world_size).collect();
    let surveys = if is_double || sizes.len() > 1 || is_spread(&probes) { survey(&files)? } else { Vec::new() };
    for (file, survey) in files.iter().zip(&surveys) {
        if let Some(why) = &survey.unread {
            let omission = OmissionRow::lost("steps that decide the window of the file", why.clone());
            plan.omissions.push(omission.rank(file.rank).file(file.name.clone()));
        }
    }
    if !options.force {
        refuse_other_jobs(paths, &files, &surveys)?;
    }
    if is_double {
        let highest = files.last().map_or(0, |f| f.rank.saturating_add(1));
        plan.omissions.extend(tell_apart(&mut files, &surveys, plan.world_size.max(highest)));
        files = arrange(files, &surveys, options.window, &mut plan.omissions)?;
    } else if let WindowChoice::Number(number) = options.window
        && number != 1
    {
        return Err(Error::NoWindow { number, windows: 1 });
    }
    let highest = files.last().map_or(0, |f| f.rank.saturating_add(1));
    let of_replicas = files.first().and_then(|file| file.replica).map_or(0, |replica| replica.world_size);
    plan.world_size = plan.world_size.max(highest).max(of_replicas);
    plan.files = files;
    if !options.others_are_read {
        plan.report_missing_ranks();
    }
    Ok(plan)
}

/// Whether some files begin so much later than others that they may be of other jobs.
fn is_spread(probes: &[Probe]) -> bool {
    let starts = || probes.iter().filter_map(|probe| probe.first_ns);
    match (starts().min(), starts().max()) {
        (Some(first), Some(last)) => last.saturating_sub(first) > NEAR_NS,
        _ => false,
    }
}

fn described(omission: &OmissionRow) -> String {
    match &omission.file {
        Some(file) => format!("{file}: {}", omission.why),
        None => omission.why.to_string(),
    }
}

impl Plan {
    /// Reads the headers of files. Those that are damaged are listed one by one.
    fn probe(&mut self, candidates: &[Candidate], others: Vec<Text>, options: &PlanOptions) -> Result<Probed, Error> {
        let alone = candidates.len() == 1;
        let probed: Vec<Result<Probe, Error>> =
            candidates.par_iter().map(|c| probe(c, !alone, options.other_format)).collect();
        let mut found = Probed { others, ..Probed::default() };
        for (candidate, probed) in candidates.iter().zip(probed) {
            match probed {
                Ok(probe) => {
                    for key in &probe.refused {
                        let why = format!(
                            "its value in distributedInfo is impossible (a job has at most {MAX_RANKS} ranks); not used"
                        );
                        self.omissions.push(OmissionRow::lost(*key, why).file(candidate.name.clone()));
                    }
                    found.probes.push(probe);
                }
                Err(Error::UnreadFormat { format: OtherFormat { is_read: true, .. }, .. })
                    if options.others_are_read => {}
                Err(error) => match FoundDump::of(candidate) {
                    Ok(Some(dump)) if !alone => found.dumps.push(dump),
                    Ok(_) => self.no_trace(candidate, error, &mut found)?,
                    Err(source) => {
                        let path = candidate.shown.clone();
                        self.no_trace(candidate, Error::Io { path, source }, &mut found)?;
                    }
                },
            }
        }
        Ok(found)
    }

    fn no_trace(&mut self, candidate: &Candidate, error: Error, found: &mut Probed) -> Result<(), Error> {
        let name = || candidate.name.clone();
        match error {
            error if candidate.named => return Err(error),
            error @ Error::UnreadFormat { .. } => {
                found.unread.get_or_insert(error);
                found.others.push(name());
            }
            Error::OtherJson { .. } => found.others.push(name()),
            Error::NotATrace { .. } if !is_trace_name(&candidate.name) => found.others.push(name()),
            error => self.omissions.push(OmissionRow::lost("file", error.reason()).file(name())),
        }
        Ok(())
    }

    /// Lists the files that are no traces.
    fn list(&mut self, mut others: Vec<Text>) {
        if !others.is_empty() {
            others.sort();
            let omission = OmissionRow::left_out("files without traces", listed(&others));
            self.omissions.push(omission.amount(others.len() as i64));
        }
    }

    /// Leaves out the files whose world size differs from that of most files.
    fn drop_other_jobs(&mut self, probes: &mut Vec<Probe>) {
        let Some(world) = usual_world_size(probes.iter().map(|p| p.world_size)) else { return };
        let (keep, other): (Vec<Probe>, Vec<Probe>) =
            probes.drain(..).partition(|p| p.world_size.is_none_or(|size| size == world));
        for probe in other {
            let size = probe.world_size.unwrap_or_default();
            let why =
                format!("its world_size is {size}, that of most files here is {world}: it belongs to another job");
            self.omissions.push(OmissionRow::left_out("file", why).rank(probe.rank).file(probe.candidate.name));
        }
        *probes = keep;
    }

    /// Gives every file its rank; sorted by rank. A rank has several files if there are several windows, or copies. A merged
    /// file is one file for each of its ranks.
    fn number(&mut self, probes: &[Probe]) -> Vec<TraceFile> {
        let (merged, probes): (Vec<&Probe>, Vec<&Probe>) = probes.iter().partition(|probe| probe.merged.is_some());
        let named = |probe: &Probe| Named {
            name: probe.candidate.name.clone(),
            rank: probe.rank,
            is_named_by_torch: probe.is_named_by_torch,
        };
        let named: Vec<Named> = probes.iter().copied().map(named).collect();
        let by_name = ranks_from_names(&named, self.world_size);
        let mut files: Vec<TraceFile> = Vec::new();
        let mut unknown = Vec::new();
        for (probe, by_name) in probes.iter().copied().zip(by_name) {
            match (probe.rank, by_name) {
                (Some(rank), _) => files.push(file_of(probe, rank, RankSource::DistributedInfo)),
                (None, Some(rank)) => files.push(file_of(probe, rank, RankSource::FileName)),
                (None, None) => unknown.push(probe),
            }
        }
        files.extend(self.number_by_order(&unknown, &files));
        for probe in merged {
            self.add_merged(probe, &mut files);
        }
        files.sort_by_key(|f| f.rank);
        files
    }

    /// Adds the ranks of a merged file, unless it was merged from files that are here.
    fn add_merged(&mut self, probe: &Probe, files: &mut Vec<TraceFile>) {
        let Some(merged) = &probe.merged else { return };
        let name = &probe.candidate.name;
        let of_one: BTreeSet<i32> =
            files.iter().filter(|file| file.processes.is_none()).map(|file| file.rank).collect();
        if merged.ranks.iter().all(|merged| of_one.contains(&merged.rank)) {
            let why = "it was merged from the traces of ranks that have files of their own here";
            self.omissions.push(OmissionRow::left_out("file", why).file(name.clone()));
            return;
        }
        self.omissions.extend(merged.remarks(name));
        let parts = merged.ranks.len() as u64;
        files.extend(merged.ranks.iter().map(|part| TraceFile {
            name: format!("{name} ({})", part.name).into(),
            roles: roles_in(&part.name.to_string()).map(Text::from),
            processes: Some(part.processes.clone()),
            size_bytes: probe.size_bytes / parts,
            ..file_of(probe, part.rank, RankSource::ProcessNames)
        }));
    }

    /// Gives ranks to the files that do not state theirs: the only number that differs in their names, or else their order. `known`
    /// are the files with a rank.
    fn number_by_order(&mut self, unknown: &[&Probe], known: &[TraceFile]) -> Vec<TraceFile> {
        let known: BTreeSet<i32> = known.iter().map(|f| f.rank).collect();
        let names: Vec<&str> = unknown.iter().map(|probe| &*probe.candidate.name).collect();
        if let Some(ranks) = ranks_from_numbers(&names).filter(|_| known.is_empty()) {
            self.omissions.push(OmissionRow::note(RANKS, BY_NUMBERS).amount(ranks.len() as i64));
            let file = |(probe, rank): (&&Probe, i32)| file_of(probe, rank, RankSource::FileName);
            return unknown.iter().zip(ranks).map(file).collect();
        }
        let mut free = (0..).filter(|rank| !known.contains(rank));
        // Files that torch named after one process are windows of one rank.
        let mut of_process: BTreeMap<(&str, &str), i32> = BTreeMap::new();
        let mut files = Vec::new();
        for probe in unknown {
            let process = torch_name(&probe.candidate.name).filter(|_| probe.is_named_by_torch);
            let seen = process.and_then(|process| of_process.get(&process).copied());
            let Some(rank) = seen.or_else(|| free.next()) else { break };
            if let Some(process) = process {
                of_process.insert(process, rank);
            }
            files.push(file_of(probe, rank, RankSource::Order));
        }
        let guessed: BTreeSet<i32> = files.iter().map(|file| file.rank).collect();
        // The only rank of a job is no guess.
        if !guessed.is_empty() && guessed.len() + known.len() > 1 {
            self.omissions.push(OmissionRow::note(RANKS, BY_ORDER).amount(guessed.len() as i64));
        }
        files
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
        self.omissions.push(OmissionRow::left_out("ranks", why).rank(only).amount(missing as i64));
    }
}

/// The files that were found, by what they are.
#[derive(Default)]
struct Probed {
    probes: Vec<Probe>,
    dumps: Vec<FoundDump>,
    /// Names of files that are no traces.
    others: Vec<Text>,
    /// The first error that names another format.
    unread: Option<Error>,
}

fn file_of(probe: &Probe, rank: i32, rank_source: RankSource) -> TraceFile {
    let Probe { candidate: Candidate { path, name, .. }, size_bytes, world_size, .. } = probe;
    TraceFile {
        path: path.clone(),
        name: name.clone(),
        rank,
        roles: roles_in(name).map(Text::from),
        rank_source,
        world_size: *world_size,
        size_bytes: *size_bytes,
        window: None,
        replica: None,
        memory: MemoryShare::default(),
        flight_recorder: None,
        processes: None,
    }
}

/// Gives the rows of each rank an equal part of the memory.
fn share_memory(files: &mut [TraceFile], max_memory_bytes: Option<u64>) {
    let Some(all_bytes) = max_memory_bytes else { return };
    let ranks: BTreeSet<i32> = files.iter().map(|file| file.rank).collect();
    let memory = MemoryShare::among(all_bytes, ranks.len());
    files.iter_mut().for_each(|file| file.memory = memory);
}

/// The last part of a path, for messages.
pub fn file_name(path: &Path) -> Text {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into()
}
