//! A claim: what one sentence of an answer says, as data.
//!
//! ```text
//!   subject          quantity   relation   value
//!   device 0 rank 1  Idle       Exceeds    12.0 ms   … of this part of a step, with these rows as evidence
//! ```
//!
//! A sentence is made beside its claim, from the same numbers. Rules that hold for every answer are tested on claims:
//! [`exclusions`] says which two claims no answer may have, and which of two claims that explain the same time is shown.

pub mod exclusions;

use serde::Serialize;

use crate::stats::LEAST_KNOWN;

/// A claim, from which one sentence is made.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Claim {
    /// The id of the finding that makes it, or `verdict`, or `omissions`.
    pub by: &'static str,
    /// The ranks and devices that it is about; the whole job if there are none.
    pub places: Vec<Place>,
    /// The kernel, range, call or operation that it names.
    pub name: Option<String>,
    pub quantity: Quantity,
    pub relation: Relation,
    /// The measured value; `None` if the claim has none, or it is unknown.
    pub value: Option<Value>,
    /// The 95 % interval of the value, in its unit, the lower end first.
    pub interval: Option<(f64, f64)>,
    /// The share of the rows that know the quantity, in percent.
    pub coverage_pct: f64,
    /// The time of a step that it explains.
    pub time: Option<Time>,
    /// Where the rows are that show it.
    pub evidence: Evidence,
    /// The action that it asks for.
    pub advice: Advice,
    /// The claim that is shown in its place, by its id; `None` if this one is shown.
    pub yields_to: Option<&'static str>,
}

/// A rank, or one of its devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Place {
    pub rank: i32,
    /// `None`: all devices of the rank, and its host.
    pub device_id: Option<i64>,
}

impl Place {
    /// Whether both have a device in common.
    pub fn meets(self, other: Self) -> bool {
        let either = |a: Option<i64>, b: Option<i64>| a.zip(b).is_none_or(|(a, b)| a == b);
        self.rank == other.rank && either(self.device_id, other.device_id)
    }
}

/// A measured quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// Whether the ranks need the same time.
    Balance,
    /// Work of a rank beyond that of the others, per step.
    OwnExcess,
    /// The time that a rank adds to each step.
    StepDelay,
    /// Time that ranks wait for others without computing.
    Wait,
    /// The order in which ranks arrive at collectives.
    Arrival,
    /// Communication that no compute hides.
    Exposed,
    /// All-gathers of FSDP that are called late.
    LateGathers,
    /// Time in which a device does nothing.
    Idle,
    /// Device time whose rows are missing.
    Unknown,
    /// Time in which a host is blocked by its device.
    HostWait,
    /// Time in which the host loads input.
    Input,
    /// Idle time in first calls of a process, which load libraries or choose algorithms.
    FirstCalls,
    /// Idle time in calls that take far longer than usual.
    HostStalls,
    /// Idle time in code of the host outside of operators and calls.
    HostCode,
    /// Launch calls against the kernels that they launch.
    LaunchTime,
    /// Launches that wait in a queue.
    QueueLength,
    /// Compute of a device beyond that of the others.
    Compute,
    /// A kernel on one device against the same kernel on others.
    KernelTime,
    /// Share of the warps that a kernel fills.
    Occupancy,
    /// Share of the multiprocessors that kernels fill.
    SmEfficiency,
    /// Work of a pipeline's stage against that of the others.
    StageWork,
    /// Idle time that a pipeline's schedule causes.
    Bubble,
    /// Lengths of steps.
    StepTime,
    /// Where a step begins and ends.
    StepMarks,
    /// Time of the profiler itself.
    Overhead,
    /// Memory of a device in use.
    Memory,
    /// Memory that grows from step to step.
    MemoryGrowth,
    /// Memory that the allocator holds and nobody uses.
    Fragmentation,
    /// Which kernels communicate.
    Communication,
    /// The error of clocks.
    ClockError,
    /// Collectives that did not end.
    Unfinished,
    /// Rows that were lost or left out.
    Rows,
    /// The part of the program that was recorded.
    Recorded,
}

/// How the value relates to what it is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Relation {
    /// It is as stated, such as balanced.
    Is,
    /// It exceeds a threshold, or the others by more than they usually differ.
    Exceeds,
    /// It is below a threshold.
    Below,
    /// It is within the usual variation.
    Within,
    /// There is none of it.
    Absent,
    /// It is not known.
    Unknown,
}

/// A value with its unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Value {
    Ns(i64),
    Bytes(f64),
    Pct(f64),
    Ratio(f64),
    Count(i64),
}

/// A part of a step. Two claims that explain the same part of a place's step explain the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Work of the device or, without one, of the host.
    Work,
    /// Communication that no compute hides, without waits.
    Transfer,
    /// Waits for other ranks.
    Wait,
    Idle,
    /// Time whose rows are missing.
    Unknown,
}

/// Time that a claim explains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Time {
    pub part: Part,
    /// Mean over the steps.
    pub ns_per_step: i64,
}

/// Rows that show a claim: those of `table` with each of these values that is given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Evidence {
    /// Empty if no table has them.
    pub table: &'static str,
    pub rank: Option<i32>,
    pub device_id: Option<i64>,
    pub step: Option<i32>,
    pub name: Option<String>,
}

/// What a claim asks the reader to do, as far as rules read it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Advice {
    /// Something that no rule reads.
    #[default]
    Other,
    /// Compare ranks, or mend the slow one. It needs two ranks.
    CompareRanks,
    /// Launch fewer and larger kernels, because the host sets the pace.
    LaunchFewer,
    /// Move calls that block the host out of the step.
    BlockLess,
    /// Record what is missing.
    RecordMore,
}

impl Claim {
    /// A claim about the whole job, with all rows known and without a value.
    pub fn new(quantity: Quantity, relation: Relation, table: &'static str) -> Self {
        Self {
            by: "",
            places: Vec::new(),
            name: None,
            quantity,
            relation,
            value: None,
            interval: None,
            coverage_pct: 100.0,
            time: None,
            evidence: Evidence { table, ..Evidence::default() },
            advice: Advice::Other,
            yields_to: None,
        }
    }

    /// About a place, whose rows are the evidence.
    #[must_use]
    pub fn of(mut self, rank: i32, device_id: Option<i64>) -> Self {
        self.places = vec![Place { rank, device_id }];
        (self.evidence.rank, self.evidence.device_id) = (Some(rank), device_id);
        self
    }

    /// About ranks.
    #[must_use]
    pub fn of_ranks(self, ranks: &[i32]) -> Self {
        let places = ranks.iter().map(|rank| Place { rank: *rank, device_id: None });
        Self { places: places.collect(), ..self }
    }

    /// About a kernel, range or call, which its rows name.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.name = Some(name.into());
        self.evidence.name = Some(name.into());
        self
    }

    #[must_use]
    pub fn value(self, value: Value) -> Self {
        Self { value: Some(value), ..self }
    }

    /// The 95 % interval of the value. Without both ends there is none.
    #[must_use]
    pub fn interval(self, low: Option<i64>, high: Option<i64>) -> Self {
        Self { interval: low.zip(high).map(|(low, high)| (low as f64, high as f64)), ..self }
    }

    #[must_use]
    pub fn coverage(self, pct: f64) -> Self {
        Self { coverage_pct: pct, ..self }
    }

    /// It explains this time of a step of its places.
    #[must_use]
    pub fn explains(self, part: Part, ns_per_step: i64) -> Self {
        Self { time: Some(Time { part, ns_per_step }), ..self }
    }

    #[must_use]
    pub fn advises(self, advice: Advice) -> Self {
        Self { advice, ..self }
    }

    /// A fault of the claim by itself, in words: a claim about a quantity that too few rows know may only say that it is unknown.
    pub fn fault(&self) -> Option<String> {
        let said = |what: &str| Some(format!("{what}: {self:?}"));
        let negative = |number: f64| number < 0.0;
        match (self.value, self.interval) {
            (_, Some((low, high))) if low.is_nan() || high.is_nan() || low > high => {
                said("the interval is inverted or no number")
            }
            (Some(Value::Ns(ns)), _) if ns < 0 => said("a length is negative"),
            (Some(Value::Ns(_)), Some((low, _))) if negative(low) && self.relation == Relation::Exceeds => {
                said("it exceeds, but the interval holds 0")
            }
            (Some(Value::Pct(pct)), _) if !(0.0..=100.0).contains(&pct) => said("a share is not in 0 to 100 %"),
            (Some(Value::Ratio(ratio)), _) if !ratio.is_finite() || negative(ratio) => said("no ratio"),
            _ if self.coverage_pct < 100.0 * LEAST_KNOWN && self.relation != Relation::Unknown => {
                said("too few rows know the quantity")
            }
            _ => None,
        }
    }
}
