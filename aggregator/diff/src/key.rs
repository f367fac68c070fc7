//! The keys of the series that are compared, and the series of one rank.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use trace::Text;

use crate::rank_kernels::RankKernels;
use crate::series::Series;

/// The kinds of series, in the order in which a reader looks for a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// A part of the step: its wall time, compute, communication or idle time.
    Step,
    /// A part of the account of lost time, or what a rank costs by it.
    Account,
    /// A phase: a host range that the program named.
    Range,
    /// An operator on the host.
    Operator,
    /// A kernel, copy or fill on a device.
    Kernel,
    /// Collectives of one operation and size.
    Collective,
    /// A gradient bucket.
    Bucket,
    /// Device work of one kind: products, reductions, communication, …
    Category,
    /// Work of a module of the model, with the modules inside it.
    Module,
    /// Work of one Python function of the user.
    Source,
}

impl Group {
    /// Whether the group sums the work of many names. Such rows are compared where names do not match.
    pub fn is_cut(self) -> bool {
        matches!(self, Self::Category | Self::Module | Self::Source)
    }

    /// The word in JSON.
    pub fn word(self) -> &'static str {
        match self {
            Self::Step => "step",
            Self::Account => "account",
            Self::Range => "range",
            Self::Operator => "operator",
            Self::Kernel => "kernel",
            Self::Collective => "collective",
            Self::Bucket => "bucket",
            Self::Category => "category",
            Self::Module => "module",
            Self::Source => "source",
        }
    }
}

/// The name of the step's length among the parts of the step.
pub(crate) const WALL: &str = "wall";
/// The name of the cost of a rank.
pub(crate) const COST: &str = "cost";

/// The measured quantity, summed over a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// Total time.
    Total,
    /// Time without the rows inside it on the same thread.
    SelfTime,
    /// From enqueueing to the start.
    Queue,
    /// Time waiting for the last rank.
    Wait,
    /// From the last arrival to the end.
    Transfer,
    /// From the first arrival to the last.
    Skew,
    /// Time that no compute overlaps.
    Exposed,
    /// Time of devices in the work that the module or function launched.
    Device,
}

impl Measure {
    /// The word in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Total => "total",
            Self::SelfTime => "self",
            Self::Queue => "queue",
            Self::Wait => "wait",
            Self::Transfer => "transfer",
            Self::Skew => "skew",
            Self::Exposed => "exposed",
            Self::Device => "device",
        }
    }
}

/// The identity of a series. Equal keys of two runs are compared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Key {
    /// Kind of the series.
    pub group: Group,
    /// `wall`, `compute`, …; the name of a range, operator or kernel; an operation; a bucket's number; a category; the
    /// path of a module; or a Python function.
    pub name: Text,
    /// Shapes of an operator's inputs, blocks of a kernel, bytes of a collective or bucket; `None` if unknown.
    pub shape: Option<Text>,
    /// The measured quantity.
    pub measure: Measure,
    /// Whether the operator or kernel communicates, or waits for communication.
    #[serde(skip)]
    pub communicates: bool,
}

impl Key {
    /// A key without a shape.
    pub fn new(group: Group, name: &str, measure: Measure) -> Self {
        Self { group, name: name.into(), shape: None, measure, communicates: false }
    }

    /// The length of the step.
    pub(crate) fn step() -> Self {
        Self::new(Group::Step, WALL, Measure::Total)
    }

    /// Whether this is the length of the step.
    pub(crate) fn is_step(&self) -> bool {
        self.group == Group::Step && &*self.name == WALL
    }

    /// The cost of a rank by the account of lost time.
    pub(crate) fn cost() -> Self {
        Self::new(Group::Account, COST, Measure::Total)
    }

    /// Whether this is the cost of a rank.
    pub(crate) fn is_rank_cost(&self) -> bool {
        self.group == Group::Account && &*self.name == COST
    }

    /// Whether this is time that a rank spends on its own work, not waiting for others. Such a series can be the reason
    /// of a slowdown and not only its effect.
    pub fn is_own_work(&self) -> bool {
        match self.group {
            Group::Range => true,
            Group::Operator | Group::Kernel => !self.communicates,
            Group::Step | Group::Account | Group::Collective | Group::Bucket => false,
            // The rows that these sum are costs already.
            Group::Category | Group::Module | Group::Source => false,
        }
    }

    /// Whether this is the step or something that lengthens it. Waits and parts of the step are not: they shift among
    /// each other and among ranks while the step stays the same.
    pub fn is_cost(&self) -> bool {
        self.is_own_work() || self.measure == Measure::Transfer || self.is_step() || self.is_rank_cost()
    }
}

/// The series of one rank: a value for each key and step. NaN: unknown.
#[derive(Clone, Debug, Default)]
pub struct RankProfile {
    pub(crate) rank: i32,
    /// Active steps, ascending.
    pub(crate) steps: Vec<i32>,
    pub series: BTreeMap<Key, Series>,
    /// Kernels in each of `steps`.
    pub(crate) kernels: RankKernels,
    /// Rows per step of each range, operator and kernel, with all shapes.
    pub(crate) calls: BTreeMap<(Group, Text), f64>,
    /// Where its time goes, if the verdict names it as a cause.
    pub(crate) cause: Option<String>,
    /// Its cost by the account, and the standard error of the cost.
    pub(crate) cost_ns: (f64, f64),
    /// Hashes of the shapes of the operators that launched a kernel, where they are recorded.
    pub(crate) inputs: BTreeMap<Key, BTreeSet<u64>>,
}

impl RankProfile {
    pub(crate) fn add(&mut self, key: Key, step: i32, value_ns: Option<i64>) {
        let Ok(at) = self.steps.binary_search(&step) else { return };
        self.series.entry(key).or_default().add(at, value_ns.map_or(f64::NAN, |ns| ns as f64));
    }
}
