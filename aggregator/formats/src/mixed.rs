//! Jobs of other formats than torch.profiler's, alone, together, or beside traces of torch.profiler of other ranks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use tempfile::TempDir;
use trace::OmissionRow;

use crate::format::{Beside, OpenOptions};
use crate::kineto::KinetoSource;
use crate::registry::FORMATS;
use model::Error;
use model::source::{MissingRanks, RankFile, Source, SourceInfo};
use model::units;
use model::{RankData, RankOutline};
use trace::rank::Details;

/// A job whose ranks were recorded by other tools than torch.profiler, or some by these and others by torch.profiler.
pub(crate) struct MixedSource {
    /// The ranks of each format; one or several.
    parts: Vec<Box<dyn Source>>,
    remarks: Vec<OmissionRow>,
    /// Removed with the source.
    _directory: Option<TempDir>,
}

impl MixedSource {
    /// Opens traces and the files of each format of [`FORMATS`], by its name. `remarks` are about files beside them.
    ///
    /// # Errors
    /// Those of the sources; [`Error::NoInput`] if two formats have one rank, or if there is no file.
    pub(crate) fn open(
        traces: &[PathBuf],
        others: &BTreeMap<&'static str, Vec<PathBuf>>,
        mut remarks: Vec<OmissionRow>,
        options: OpenOptions,
    ) -> Result<Self, Error> {
        let mut parts: Vec<Box<dyn Source>> = Vec::new();
        if !traces.is_empty() {
            let of_torch = KinetoSource::open_among_others(traces, options)?;
            // The files beside those of other formats may hold no trace.
            if of_torch.ranks().is_empty() {
                remarks.extend(of_torch.problems());
            } else {
                parts.push(Box::new(of_torch));
            }
        }
        for format in FORMATS {
            let Some(files) = others.get(format.name).filter(|files| !files.is_empty()) else { continue };
            let taken = ranks(&parts);
            let part = (format.open)(files, &Beside { options, taken: &taken })?;
            refuse_doubles(&*part, &taken)?;
            parts.push(part);
        }
        if parts.is_empty() {
            let path = traces.first().cloned().unwrap_or_default();
            return Err(Error::NoInput { path, why: "there are no files of ranks".into() });
        }
        remarks.extend(said_of_formats(&parts));
        let mut source = Self { parts, remarks, _directory: None };
        source.remarks.extend(source.missing());
        Ok(source)
    }

    /// Keeps a directory with files of the source as long as the source.
    pub(crate) fn with_directory(self, directory: Option<TempDir>) -> Self {
        Self { _directory: directory, ..self }
    }

    /// The ranks of the job that no file has.
    fn missing(&self) -> Option<OmissionRow> {
        let world_size = self.info().world_size?;
        let MissingRanks { listed, count } = MissingRanks::of(world_size, &self.ranks());
        let more = if count > listed.len() as i64 { ", …" } else { "" };
        let why = format!("no file has {}{more} of {world_size}", units::ranks_named(&listed));
        let only = listed.first().copied().filter(|_| count == 1);
        (count > 0).then(|| OmissionRow::left_out("ranks", why).rank(only).amount(count))
    }

    /// The source of a rank. Of a rank that none has, the last one says so.
    pub(crate) fn of(&self, rank: i32) -> Result<&dyn Source, Error> {
        let mut sources = self.parts.iter().map(|part| &**part);
        let own = sources.clone().find(|source| source.ranks().binary_search(&rank).is_ok());
        own.or_else(|| sources.next_back())
            .ok_or_else(|| Error::NoRank { path: PathBuf::new(), why: format!("there is no file of rank {rank}") })
    }

    /// The formats name communicators differently, so the one of all ranks gets one name. With several, those of one format match no
    /// other.
    pub(crate) fn join(&self, outline: &mut RankOutline) -> Option<OmissionRow> {
        if self.parts.len() < 2 {
            return None;
        }
        let world_size = self.info().world_size;
        let comms: BTreeSet<i64> = outline.collectives.iter().map(|collective| collective.comm_id).collect();
        let is_world = outline.collectives.iter().all(|c| c.comm_size.is_none() || c.comm_size == world_size);
        if comms.is_empty() {
            return None;
        }
        if comms.len() > 1 || !is_world {
            let why = "the formats name communicators differently; the collectives of this rank are matched with ranks of its format only";
            return Some(OmissionRow::left_out("matching of collectives", why).rank(outline.info.rank));
        }
        for collective in &mut outline.collectives {
            collective.comm_id = 0;
            collective.comm_name = None;
            collective.set_seq(None);
            collective.set_comms_id(None);
        }
        outline.comms.iter_mut().for_each(|comm| comm.comm_id = 0);
        None
    }
}

/// Refuses a rank that files of another format have too.
fn refuse_doubles(source: &dyn Source, taken: &BTreeSet<i32>) -> Result<(), Error> {
    let Some(rank) = source.ranks().into_iter().find(|rank| taken.contains(rank)) else { return Ok(()) };
    let file = source.files()?.into_iter().find(|file| file.rank == rank);
    let why = format!("rank {rank} is in it and in the files of another format; give one of them");
    Err(Error::NoInput { path: file.map(|file| file.path).unwrap_or_default(), why })
}

/// The ranks of some formats.
fn ranks(parts: &[Box<dyn Source>]) -> BTreeSet<i32> {
    parts.iter().flat_map(|part| part.ranks()).collect()
}

/// Which format has which ranks, and what each lacks.
fn said_of_formats(parts: &[Box<dyn Source>]) -> Vec<OmissionRow> {
    if parts.len() < 2 {
        return Vec::new();
    }
    let sources = || parts.iter();
    let recorded = sources().map(|source| (source.info().tool, units::ranks_named(&source.ranks())));
    let recorded: Vec<String> = recorded
        .enumerate()
        .map(|(at, (tool, ranks))| format!("{tool} {}{ranks}", if at == 0 { "recorded " } else { "" }))
        .collect();
    let mut said = vec![OmissionRow::note("formats", recorded.join(", "))];
    for source in sources().filter(|source| !source.lacks().is_empty()) {
        let ranks = source.ranks();
        let why = format!("{} does not record them; missing of {}", source.info().tool, units::ranks_named(&ranks));
        said.push(OmissionRow::left_out(source.lacks().join(", "), why).amount(ranks.len() as i64));
    }
    said
}

impl Source for MixedSource {
    fn info(&self) -> SourceInfo {
        let infos = || self.parts.iter().map(|part| part.info());
        let tools: Vec<String> = infos().map(|info| info.tool).collect();
        let tool = match &tools[..] {
            [others @ .., last] if !others.is_empty() => format!("{} and {last}", others.join(", ")),
            _ => tools.concat(),
        };
        SourceInfo {
            tool,
            world_size: infos().filter_map(|info| info.world_size).max(),
            created_utc_ns: infos().filter_map(|info| info.created_utc_ns).min(),
            ..infos().next().unwrap_or_default()
        }
    }

    fn ranks(&self) -> Vec<i32> {
        ranks(&self.parts).into_iter().collect()
    }

    fn files(&self) -> Result<Vec<RankFile>, Error> {
        let files: Result<Vec<_>, _> = self.parts.iter().map(|part| part.files()).collect();
        let mut files = files?.concat();
        files.sort_by(|a, b| (a.rank, &a.path).cmp(&(b.rank, &b.path)));
        Ok(files)
    }

    fn problems(&self) -> Vec<OmissionRow> {
        let problems = self.parts.iter().flat_map(|part| part.problems());
        self.remarks.iter().cloned().chain(problems).collect()
    }

    fn load(&self, rank: i32) -> Result<RankData, Error> {
        Ok(self.load_detailed(rank)?.0)
    }

    fn outline(&self, rank: i32) -> Result<RankOutline, Error> {
        let mut outline = self.of(rank)?.outline(rank)?;
        // The load of the rank lists the remark.
        self.join(&mut outline);
        Ok(outline)
    }

    fn load_detailed(&self, rank: i32) -> Result<(RankData, Details), Error> {
        let (mut data, details) = self.of(rank)?.load_detailed(rank)?;
        data.omissions.extend(self.join(&mut data.outline));
        Ok((data, details))
    }

    fn lacks(&self) -> &'static [&'static str] {
        self.parts.iter().map(|part| part.lacks()).max_by_key(|lacks| lacks.len()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::job_files::JobFiles;

    /// Files that are no traces beside recordings of another tool.
    #[test]
    fn other_files_beside_recordings_are_no_ranks() {
        let inputs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/inputs/nsys_sqlite/job.sqlite");
        let directory = tempfile::tempdir().unwrap();
        std::fs::copy(inputs, directory.path().join("job.sqlite")).unwrap();
        let opened = || JobFiles::find(&[directory.path().into()]).unwrap().open(OpenOptions::default()).unwrap();
        let alone = opened();
        std::fs::write(directory.path().join("metrics.json"), r#"[{"loss": 0.5}]"#).unwrap();
        std::fs::write(directory.path().join("config.json"), "{}").unwrap();
        let beside = opened();
        assert_eq!((beside.ranks(), beside.info().tool), (alone.ranks(), alone.info().tool));
        let others = beside.problems().into_iter().find(|problem| &*problem.what == "files without traces").unwrap();
        assert_eq!(&*others.why, "config.json, metrics.json");
    }
}
