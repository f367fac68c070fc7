//! The result of an analysis: one plain value that every renderer prints.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
pub use trace::Tables;
use trace::{FindingRow, Level, LostPart, OmissionKind, Reason, StandsOn, Text, Word, worst_omission};

use crate::claim::Claim;
use crate::places;

/// The result of an analysis. Each table is sorted as its field states. Times of day are global ns.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Analysis {
    /// The input and its extent.
    pub facts: Facts,
    /// The rank that slows the job down, if any.
    pub verdict: Verdict,
    /// The claims that the sentences make: the verdict's first, then those of the findings in their order, then those that yield to
    /// others.
    pub claims: Vec<Claim>,
    /// All tables of the analysis.
    pub tables: Tables,
}

/// The input of an analysis and its extent.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Facts {
    /// Id of the run; empty for traces.
    pub run_id: String,
    /// Tool that wrote the input.
    pub tool: String,
    /// Number of ranks in the job; `None` if the input does not record it.
    pub world_size: Option<i32>,
    /// Ranks that were read, ascending.
    pub ranks: Vec<i32>,
    /// Ranks of the job that are not in the analysis.
    pub missing_ranks: Vec<i32>,
    /// Ranks that the user chose; `None`: all. Omitted from the JSON, which has the `selection`.
    #[serde(skip)]
    pub chosen_ranks: Option<Vec<i32>>,
    /// Host names.
    pub hosts: Vec<String>,
    /// Where each of `ranks` ran, in their order.
    pub identities: Vec<RankIdentity>,
    /// Active steps that at least one rank recorded.
    pub steps: Vec<i32>,
    /// Rows of `events` that were read.
    pub events: u64,
    /// Rows of `collectives` that were read.
    pub collectives: u64,
    /// Rows that the recorders stored.
    pub recorded: i64,
    /// Rows that the recorders lost.
    pub dropped: i64,
    /// The recorders' reasons for an empty recording. Omitted from the JSON if there are rows or no recorded reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nothing_because: Vec<String>,
    /// Periods in which recording was switched off while the program ran, as recorded. Omitted from the JSON if there
    /// are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub recording_was_off: Vec<String>,
    /// Ranks whose recording was cut, as by Ctrl-C, a kill or a crash. Omitted from the JSON if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub recording_was_cut: Vec<i32>,
    /// Whether the input has device rows.
    pub has_device_rows: bool,
    /// The selected part of the run, as on the command line; `None`: the whole run.
    pub selection: Option<String>,
    /// What the user counts as communication, as on the command line. Omitted from the JSON if the rules decide alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub communication: Option<String>,
    /// A sentence about the communication that only the names of kernels tell. Omitted from the JSON if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub communication_by_name: Option<String>,
    /// By how much a step would be shorter if each all-gather were called with the one before it, by replay. Omitted from the JSON
    /// if it is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub early_gathers_ns: Option<i64>,
    /// Files of the run's tables that were not read, by their paths in it: damaged ones, altered ones and those of other runs. Omitted
    /// from the JSON if there are none.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub left_out_files: BTreeSet<String>,
}

impl Facts {
    /// Whether the user chose ranks and all of these are there, so that the others are not missing but left out.
    pub fn has_chosen_ranks(&self) -> bool {
        let is_chosen = |rank: &i32| self.chosen_ranks.as_ref().is_none_or(|chosen| chosen.contains(rank));
        !self.missing_ranks.iter().any(is_chosen)
    }
}

/// Where a rank ran, and the file of its trace. An unknown part is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RankIdentity {
    /// Global rank.
    pub rank: i32,
    /// Host name.
    pub host: Option<String>,
    /// Process id.
    pub pid: Option<i64>,
    /// Number of the device that ran its work, as the process sees it; `None` also if there are several.
    pub device_id: Option<i64>,
    /// Model of that device.
    pub device_name: Option<String>,
    /// Universal id (UUID) of that device.
    pub device_uuid: Option<String>,
    /// Places in the job's parallelism, as the names of the rank's file or processes say them: `DP 0, TP 1`. Omitted from the JSON
    /// if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub roles: Option<String>,
    /// Racks, switches and other places by the file of `--places`: `{"rack": "r0"}`. Omitted from the JSON if empty.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub places: places::OfRank,
    /// File of the trace; for a run, its files of `events`.
    pub file: Option<String>,
}

impl RankIdentity {
    /// The known parts in words: `node-a`, `GPU 2 (GPU-8f3a…)`, `pid 21149`, and the file.
    pub fn words(&self) -> Vec<String> {
        let uuid = self.device_uuid.as_ref().map_or(String::new(), |uuid| format!(" ({uuid})"));
        let device = self.device_id.map(|id| format!("GPU {id}{uuid}"));
        let pid = self.pid.map(|pid| format!("pid {pid}"));
        [self.host.clone(), device, pid, self.file.clone()].into_iter().flatten().collect()
    }
}

/// The kinds of verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum VerdictKind {
    /// At least one rank slows the others down.
    Cause,
    /// A rank may slow the others down, but the evidence is not certain.
    Undecided,
    /// No rank stands out, and no part of the steps takes much but work.
    Balanced,
    /// No rank stands out, but much of the steps is lost because one rank or another is late.
    Jitter,
    /// No rank stands out, but much of the steps is lost to something else: transfers, dependencies, longer steps.
    Lost,
    /// The job hung: ranks are missing from a collective that others entered. These ranks are the causes.
    Hung,
    /// There is nothing to judge: one rank, no steps or no collectives.
    #[default]
    Nothing,
}

impl VerdictKind {
    /// Whether it says that no rank slows the others.
    pub fn acquits_all(self) -> bool {
        matches!(self, Self::Balanced | Self::Jitter | Self::Lost)
    }

    /// The word in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cause => "cause",
            Self::Undecided => "undecided",
            Self::Balanced => "balanced",
            Self::Jitter => "jitter",
            Self::Lost => "lost",
            Self::Hung => "hung",
            Self::Nothing => "nothing",
        }
    }
}

/// The verdict: the rank, its delay per step, the reason and the certainty. Without a cause, the numbers describe the
/// rank that stands out most.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Verdict {
    /// Kind of the verdict.
    pub kind: VerdictKind,
    /// All ranks that are causes, sorted by delay, largest first.
    pub causes: Vec<i32>,
    /// The slow part of the job: `rank`, `host`, `device_model` (all ranks of one, and no others), `communicator` or `several`;
    /// `None` without a cause.
    pub level: Option<Word<Level>>,
    /// All undecided ranks that were compared, sorted by delay, largest first.
    pub suspects: Vec<i32>,
    /// The rank that the following fields describe.
    pub rank: Option<i32>,
    /// Delay that this rank adds to a step, the mean over all steps if it is late in some only.
    pub step_delay_ns: Option<i64>,
    /// Lower end of the 95 % interval of that delay.
    pub step_delay_low_ns: Option<i64>,
    /// Upper end of the 95 % interval of that delay.
    pub step_delay_high_ns: Option<i64>,
    /// By how much a step would be shorter without all causes together; `None` if there are not several.
    pub together_delay_ns: Option<i64>,
    /// Lower end of the 95 % interval of that; `None` if the interval of a cause is unknown.
    pub together_delay_low_ns: Option<i64>,
    /// Upper end of the 95 % interval of that.
    pub together_delay_high_ns: Option<i64>,
    /// The condition of a cause that an undecided verdict does not meet.
    pub doubt: Option<String>,
    /// Whether the excess of the suspected rank is within the usual variation of ranks and steps, as far as the recorded
    /// steps show. False without a suspected rank.
    pub within_variation: bool,
    /// The rank's own work minus that of the other ranks, per step.
    pub own_excess_ns: Option<i64>,
    /// Lower end of the 95 % interval of the excess.
    pub own_excess_low_ns: Option<i64>,
    /// Upper end of the 95 % interval of the excess.
    pub own_excess_high_ns: Option<i64>,
    /// Reason for the excess.
    pub reason: Option<Word<Reason>>,
    /// The host range that contains the excess.
    pub evidence_range: Option<String>,
    /// Excess within that range, per step.
    pub evidence_excess_ns: Option<i64>,
    /// Basis of the verdict: `range` (the evidence range), `stretch` (all of the rank's own work), `steps` (the same in some
    /// of the steps) or `transfers` (the time from the last arrival at collectives until the rank leaves).
    pub stands_on: Option<Word<StandsOn>>,
    /// Distance of the basis from the other ranks, in standard errors. Without a suspect: the distance of all own work.
    pub z: Option<f64>,
    /// Share of the steps that show the excess.
    pub persistence: Option<f64>,
    /// Number of steps in which the rank is late, if it is late in some only.
    pub delayed_steps: Option<i32>,
    /// Number of steps from one of them to the next, if they have a period.
    pub period_steps: Option<i32>,
    /// The first step of that period.
    pub period_first_step: Option<i32>,
    /// Number of steps judged.
    pub steps: i32,
    /// Mean length of a step in the account of lost time; without an account, the median over all ranks.
    pub step_ns: Option<i64>,
    /// The longest time per step that a rank waits for others without computing, beyond the clocks' error; `None` if there is
    /// no such wait or a clock's error is unknown.
    pub exposed_wait_ns: Option<i64>,
    /// The whole verdict as one sentence.
    pub sentence: String,
    /// The verdict in a few words: `SLOW RANK 5`, `UNDECIDED: ranks 0 and 3`, `BALANCED`.
    pub title: String,
    /// What it costs and how certain that is. This and `location` are `None` without a suspected rank.
    pub cost: Option<String>,
    /// Where the time goes.
    pub location: Option<String>,
    /// What to do next; `None` if nothing follows.
    pub action: Option<String>,
    /// Id of the finding that says the same; `None` if no finding does. It is the first of its kind.
    #[serde(skip)]
    pub finding: Option<Text>,
    /// The part of the steps that a verdict of kind [`VerdictKind::Lost`] is about.
    #[serde(skip)]
    pub part: Option<LostPart>,
}

impl Analysis {
    /// The worst kind of what was lost or left out. The exit code reports this.
    pub fn worst_omission(&self) -> Option<OmissionKind> {
        worst_omission(&self.tables.omissions)
    }

    /// The verdict in a few words.
    pub fn title(&self) -> &str {
        if self.verdict.title.is_empty() { "NO VERDICT" } else { &self.verdict.title }
    }

    /// Where a rank ran; `None` for a rank that was not read.
    pub fn identity(&self, rank: i32) -> Option<&RankIdentity> {
        let all = &self.facts.identities;
        all.binary_search_by_key(&rank, |identity| identity.rank).ok().map(|at| &all[at])
    }

    /// The findings but the one that says what the verdict says.
    pub fn other_findings(&self) -> impl Iterator<Item = &FindingRow> {
        let findings = &self.tables.findings;
        let of_verdict = findings.iter().position(|finding| Some(&finding.id) == self.verdict.finding.as_ref());
        findings.iter().enumerate().filter(move |(at, _)| Some(*at) != of_verdict).map(|(_, finding)| finding)
    }

    /// Whether the headline is the first finding, or that there is none, because the ranks cannot be compared.
    pub fn headlines_finding(&self) -> bool {
        self.verdict.kind == VerdictKind::Nothing && self.facts.events > 0
    }
}
