//! Exports of Nsight Systems, alone or with traces of torch.profiler of other ranks of the same job.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use kineto::PlanOptions;
use trace::OmissionRow;

use crate::Error;
use crate::base::units;
use crate::ingest::kineto::KinetoSource;
use crate::ingest::nsys::NsysSource;
use crate::ingest::source::{Source, SourceInfo};
use crate::model::{RankData, RankOutline};
use trace::rank::Details;

/// A job whose ranks were recorded by Nsight Systems, or some by it and others by torch.profiler.
#[derive(Clone, Debug)]
pub struct MixedSource {
    traces: Option<KinetoSource>,
    exports: NsysSource,
    remarks: Vec<OmissionRow>,
}

impl MixedSource {
    /// Opens exports, and traces beside them, if there are any. `remarks` are about files beside them.
    ///
    /// # Errors
    /// Those of [`NsysSource::open`] and [`KinetoSource::open`]; [`Error::NoInput`] if both formats have a trace of one rank.
    pub fn open(
        exports: &[PathBuf],
        traces: &[PathBuf],
        mut remarks: Vec<OmissionRow>,
        options: PlanOptions,
    ) -> Result<Self, Error> {
        let options = PlanOptions { exports_are_read: true, ..options };
        let traces = if traces.is_empty() { None } else { Some(KinetoSource::open_with(traces, options)?) };
        let taken: BTreeSet<i32> = traces.iter().flat_map(Source::ranks).collect();
        let exports = NsysSource::open_beside(exports, options.max_memory_bytes, &taken)?;
        if let Some((rank, file)) = exports.files().find(|(rank, _)| taken.contains(rank)) {
            let why = format!("rank {rank} is in it and in the traces of torch.profiler; give one of them");
            return Err(Error::NoInput { path: file.into(), why });
        }
        if let Some(traces) = &traces {
            let (ours, theirs) = (traces.ranks(), exports.ranks());
            let why = format!(
                "torch.profiler recorded {}, Nsight Systems {}",
                units::ranks_named(&ours),
                units::ranks_named(&theirs)
            );
            remarks.push(OmissionRow::note("formats", why));
            let why = format!("Nsight Systems does not record them; missing of {}", units::ranks_named(&theirs));
            let lacking = exports.lacks().join(", ");
            remarks.push(OmissionRow::left_out(lacking, why).amount(theirs.len() as i64));
        }
        let mut source = Self { traces, exports, remarks };
        source.remarks.extend(source.missing());
        Ok(source)
    }

    /// The ranks of the job that no file has.
    fn missing(&self) -> Option<OmissionRow> {
        let world_size = self.info().world_size?;
        let present = self.ranks();
        let missing: Vec<i32> = (0..world_size).filter(|rank| present.binary_search(rank).is_err()).collect();
        let why = format!("no file has {} of {world_size}", units::ranks_named(&missing));
        let only = missing.first().copied().filter(|_| missing.len() == 1);
        let omission = OmissionRow::left_out("ranks", why).rank(only).amount(missing.len() as i64);
        (!missing.is_empty()).then_some(omission)
    }

    /// The files of each rank.
    pub(crate) fn files(&self) -> Vec<(i32, &Path)> {
        let traces = self.traces.iter().flat_map(|traces| traces.files());
        let mut files: Vec<(i32, &Path)> = traces.map(|file| (file.rank, &*file.path)).collect();
        files.extend(self.exports.files());
        files.sort();
        files
    }

    /// The source of a rank.
    fn of(&self, rank: i32) -> &dyn Source {
        match &self.traces {
            Some(traces) if traces.ranks().binary_search(&rank).is_ok() => traces,
            _ => &self.exports,
        }
    }

    /// The formats name communicators differently, so the one of all ranks gets one name. With several, those of one format match no
    /// other.
    fn join(&self, outline: &mut RankOutline) -> Option<OmissionRow> {
        self.traces.as_ref()?;
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
            collective.row.comm_id = 0;
            collective.row.comm_name = None;
            collective.row.seq = None;
            collective.comms_id = None;
        }
        outline.comms.iter_mut().for_each(|comm| comm.comm_id = 0);
        None
    }
}

impl Source for MixedSource {
    fn info(&self) -> SourceInfo {
        let exports = self.exports.info();
        let Some(traces) = &self.traces else { return exports };
        let traces = traces.info();
        SourceInfo {
            tool: format!("{} and {}", traces.tool, exports.tool),
            world_size: traces.world_size.max(exports.world_size),
            created_utc_ns: exports.created_utc_ns,
            ..traces
        }
    }

    fn ranks(&self) -> Vec<i32> {
        let mut ranks: Vec<i32> = self.traces.iter().flat_map(Source::ranks).chain(self.exports.ranks()).collect();
        ranks.sort_unstable();
        ranks
    }

    fn problems(&self) -> Vec<OmissionRow> {
        let traces = self.traces.iter().flat_map(Source::problems);
        self.remarks.iter().cloned().chain(traces).chain(self.exports.problems()).collect()
    }

    fn load(&self, rank: i32) -> Result<RankData, Error> {
        Ok(self.load_detailed(rank)?.0)
    }

    fn outline(&self, rank: i32) -> Result<RankOutline, Error> {
        let mut outline = self.of(rank).outline(rank)?;
        // The load of the rank lists the remark.
        self.join(&mut outline);
        Ok(outline)
    }

    fn load_detailed(&self, rank: i32) -> Result<(RankData, Details), Error> {
        let (mut data, details) = self.of(rank).load_detailed(rank)?;
        data.omissions.extend(self.join(&mut data.outline));
        Ok((data, details))
    }

    fn lacks(&self) -> &'static [&'static str] {
        self.exports.lacks()
    }
}
