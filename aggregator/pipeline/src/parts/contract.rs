//! The contract of `map` and `reduce`: the input, the options, and the files of a share.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use regex::Regex;
use serde::{Deserialize, Serialize};
use trace::{ContentFile, OmissionKind, OmissionRow, SCHEMA_VERSION, Word, worst_omission};

use crate::parts::division::Share;
use model::Error;
use model::communication::{Communication, Counted};
use model::limits::Limits;
use model::options::Options;
use model::places::Places;
use model::source::SourceInfo;
use model::thresholds::Thresholds;

/// The version of the parts' format.
const FORMAT_VERSION: u32 = 3;

/// Everything that the shares of one analysis have in common. It holds no time and no path, so that parts that were mapped
/// on different days and machines are the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Contract {
    /// Version of the parts' format.
    format_version: u32,
    /// Version of the tables.
    schema_version: u32,
    /// Version of this program: another one may map a rank to another part.
    rankscope: String,
    /// Number of shares.
    pub(crate) shares: u32,
    /// The input.
    pub(crate) input: InputIdentity,
    /// The options.
    options: StoredOptions,
}

/// The input of a map.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct InputIdentity {
    /// Id of the run; empty for traces.
    pub(crate) run_id: String,
    /// Tool that wrote the input.
    tool: String,
    /// Number of ranks in the job.
    world_size: Option<i32>,
    /// UTC at the start of the recording, in ns since 1970.
    created_utc_ns: Option<i64>,
    /// Command line of the job.
    command: Vec<String>,
    /// Choices that decide what of the input is read.
    pub(crate) choices: String,
    /// SHA-256 of the ranks and the sizes of their files, in hexadecimal digits.
    pub(crate) listing_sha256: String,
}

impl InputIdentity {
    /// The identity of an input.
    pub(crate) fn of(info: SourceInfo, choices: String, listing_sha256: String) -> Self {
        // Each share states its own files.
        let SourceInfo { path: _, run_id, tool, world_size, created_utc_ns, command, left_out_files: _ } = info;
        Self { run_id, tool, world_size, created_utc_ns, command, choices, listing_sha256 }
    }

    /// The properties of the input, whose parts lie in `path`.
    pub(crate) fn info(&self, path: &Path) -> SourceInfo {
        let Self { run_id, tool, world_size, created_utc_ns, command, .. } = self.clone();
        SourceInfo {
            path: path.into(),
            run_id,
            tool,
            world_size,
            created_utc_ns,
            command,
            left_out_files: BTreeSet::new(),
        }
    }
}

/// The options of an analysis as they are stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct StoredOptions {
    steps: Option<(i32, i32)>,
    range: Option<String>,
    ranks: Option<BTreeSet<i32>>,
    step_marker: Option<String>,
    clock: model::clock_choice::Choice,
    comm: Option<String>,
    comm_of_hta: bool,
    not_comm: Option<String>,
    sequences_of: Option<String>,
    thresholds: Thresholds,
    limits: Limits,
    places: Option<Places>,
}

impl StoredOptions {
    fn of(options: &Options) -> Result<Self, Error> {
        // Every field is named, so that none is forgotten.
        let Options {
            steps,
            from,
            to,
            range,
            ranks,
            step_marker,
            clock,
            communication: Communication { counted, not_counted },
            sequences_of,
            thresholds,
            limits,
            places,
        } = options;
        for (option, bound) in [("from", from), ("to", to)] {
            if let Some(bound) = bound {
                let why = "a time needs the clocks of all ranks before any rank is mapped; use --steps, or analyze \
                           without parts";
                return Err(Error::Option { option, value: bound.to_string(), why: why.into() });
            }
        }
        let text = |regex: &Option<Regex>| regex.as_ref().map(|regex| regex.as_str().to_string());
        Ok(Self {
            steps: steps.as_ref().map(|steps| (steps.start, steps.end)),
            range: text(range),
            ranks: ranks.clone(),
            step_marker: text(step_marker),
            clock: *clock,
            comm: match counted {
                Some(Counted::Matching(regex)) => Some(regex.as_str().to_string()),
                Some(Counted::Hta) | None => None,
            },
            comm_of_hta: matches!(counted, Some(Counted::Hta)),
            not_comm: text(not_counted),
            sequences_of: text(sequences_of),
            thresholds: *thresholds,
            limits: *limits,
            places: places.as_deref().cloned(),
        })
    }

    fn options(&self) -> Result<Options, regex::Error> {
        let regex = |text: &Option<String>| text.as_deref().map(Regex::new).transpose();
        let counted = match regex(&self.comm)? {
            Some(matching) => Some(Counted::Matching(matching)),
            None => self.comm_of_hta.then_some(Counted::Hta),
        };
        Ok(Options {
            steps: self.steps.map(|(start, end)| start..end),
            from: None,
            to: None,
            range: regex(&self.range)?,
            ranks: self.ranks.clone(),
            step_marker: regex(&self.step_marker)?,
            clock: self.clock,
            communication: Communication { counted, not_counted: regex(&self.not_comm)? },
            sequences_of: regex(&self.sequences_of)?,
            thresholds: self.thresholds,
            limits: self.limits,
            places: self.places.clone().map(Arc::new),
        })
    }
}

impl Contract {
    /// The contract of an analysis.
    ///
    /// # Errors
    /// [`Error::Option`] for `--from` and `--to`.
    pub(crate) fn new(input: InputIdentity, options: &Options, shares: u32) -> Result<Self, Error> {
        Ok(Self {
            format_version: FORMAT_VERSION,
            schema_version: SCHEMA_VERSION,
            rankscope: env!("CARGO_PKG_VERSION").into(),
            shares,
            input,
            options: StoredOptions::of(options)?,
        })
    }

    /// The options.
    ///
    /// # Errors
    /// A sentence, if an expression is none of this version.
    pub(crate) fn options(&self) -> Result<Options, String> {
        self.options.options().map_err(|error| error.to_string())
    }

    /// Why parts with this contract cannot be read by this version; `None` if they can.
    pub(crate) fn unreadable(&self) -> Option<String> {
        let ours = (FORMAT_VERSION, SCHEMA_VERSION, env!("CARGO_PKG_VERSION"));
        let theirs = (self.format_version, self.schema_version, self.rankscope.as_str());
        (ours != theirs).then(|| {
            format!(
                "rankscope {} wrote it (format {}, schema {}), and this is rankscope {} (format {}, schema {}); map and \
                 reduce with the same version",
                theirs.2, theirs.0, theirs.1, ours.2, ours.0, ours.1
            )
        })
    }

    /// The first difference to another contract, in words; `None` if they are equal.
    pub(crate) fn difference(&self, other: &Self) -> Option<String> {
        let fields = [
            ("another number of shares", self.shares != other.shares),
            ("another input", self.input != other.input),
            ("other options", self.options != other.options),
        ];
        fields.iter().find(|(_, differs)| *differs).map(|(field, _)| format!("it has {field}"))
    }
}

/// Some ranks of a share, mapped together, and the files with their parts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Chunk {
    /// The ranks that were mapped.
    pub ranks: Vec<i32>,
    /// The files, one for each table that has rows.
    pub files: Vec<ContentFile>,
    /// Worst kind of the omissions that are among the rows.
    worst_omission: Option<Word<OmissionKind>>,
}

impl Chunk {
    /// A chunk without files. `omissions` are those among its rows.
    pub(crate) fn new(ranks: Vec<i32>, omissions: &[OmissionRow]) -> Self {
        Self { ranks, files: Vec::new(), worst_omission: worst_omission(omissions).map(Word::from) }
    }
}

/// A mapped share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShareManifest {
    /// The contract, which is the same in all shares.
    pub(crate) contract: Contract,
    /// Number of the share, from 0.
    pub(crate) share: u32,
    /// SHA-256 of the content of the share's files of the input, in hexadecimal digits.
    pub(crate) content_sha256: String,
    /// The ranks of the share.
    pub ranks: Vec<i32>,
    /// Problems of the input, and ranks that could not be loaded.
    pub omissions: Vec<OmissionRow>,
    /// Files of the run's tables that are not read, by their paths in it.
    pub(crate) left_out_files: BTreeSet<String>,
    /// The parts.
    pub chunks: Vec<Chunk>,
}

impl ShareManifest {
    /// Whether rows of a rank were lost. The disk may have failed only once.
    pub(crate) fn lost_rows(&self) -> bool {
        let is_lost = |kind: &Word<OmissionKind>| kind.known().is_none_or(|kind| kind == OmissionKind::Lost);
        self.chunks.iter().filter_map(|chunk| chunk.worst_omission.as_ref()).any(is_lost)
    }

    /// The worst kind of what was lost or left out.
    pub fn worst_omission(&self) -> Option<OmissionKind> {
        // A word outside the vocabulary may mean a loss.
        let of_rows = self.chunks.iter().filter_map(|chunk| chunk.worst_omission.as_ref());
        let of_rows = of_rows.map(|kind| kind.known().unwrap_or(OmissionKind::Lost));
        of_rows.chain(worst_omission(&self.omissions)).min()
    }
}

/// `PARTS/share-00003-of-00008.json`.
pub(crate) fn manifest_path(parts: &Path, Share { index, of }: Share) -> PathBuf {
    parts.join(format!("share-{index:05}-of-{of:05}.json"))
}

/// The share in the name of a manifest; `None` if it is no manifest's.
pub(crate) fn share_in_name(name: &str) -> Option<Share> {
    let (index, of) = name.strip_prefix("share-")?.strip_suffix(".json")?.split_once("-of-")?;
    let share: Share = format!("{}/{}", index.parse::<u32>().ok()?, of.parse::<u32>().ok()?).parse().ok()?;
    (manifest_path(Path::new(""), share).to_str() == Some(name)).then_some(share)
}
