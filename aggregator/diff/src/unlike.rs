//! What differs between two sides, and which comparisons have no meaning because of it.

use std::collections::BTreeSet;

use serde::Serialize;
use trace::Text;

use crate::profile::{Group, Key, RunProfile};
use crate::same_job::{SHARED_TIME, bytes_a_step, same_bytes, share_in, times};
use model::units::{bytes, plural};

type Named = (String, RunProfile);

/// A program is compiled from this part of the time in kernels that compute.
const COMPILED: f64 = 0.01;

/// A property in which two sides may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Aspect {
    /// Number of ranks in the job, and of those that were read.
    Ranks,
    /// Models of the devices.
    Device,
    /// Whether torch.compile made kernels.
    Compiler,
    /// Number of compared steps.
    Steps,
    /// Bytes of a rank's collectives in a step.
    CollectiveBytes,
    /// Shapes of an operator, or blocks of a kernel.
    Shapes,
    /// Time in operators and kernels whose names and shapes the other side has too.
    CommonNames,
}

impl Aspect {
    /// The property in words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Ranks => "ranks",
            Self::Device => "device",
            Self::Compiler => "program",
            Self::Steps => "steps",
            Self::CollectiveBytes => "bytes of a rank's collectives in a step",
            Self::Shapes => "shapes",
            Self::CommonNames => "time in operators and kernels of the same name and shape",
        }
    }
}

/// A property in which the sides differ. A property that is unknown on one side is not listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The property.
    pub what: Aspect,
    /// Its values in A.
    pub a: String,
    /// Its values in B.
    pub b: String,
}

impl Difference {
    /// The difference in words: `ranks: 4 in A, 8 in B`.
    pub fn words(&self) -> String {
        format!("{}: {} in A, {} in B", self.what.words(), self.a, self.b)
    }
}

/// A name that both sides have, with shapes or sizes that only one side has. Its times are not compared.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OtherShapes {
    /// Kind of the rows.
    pub group: Group,
    /// Their name.
    pub name: Text,
    /// The shape with the longest time that only A has.
    pub a_shape: Option<Text>,
    /// The shape with the longest time that only B has.
    pub b_shape: Option<Text>,
    /// Time per step in A in shapes that B lacks.
    pub a_ns: f64,
    /// Time per step in B in shapes that A lacks.
    pub b_ns: f64,
}

/// What differs between the jobs of two sides.
pub(super) fn differences(a: &[Named], b: &[Named]) -> Vec<Difference> {
    let of =
        |what: Aspect, value: &dyn Fn(&RunProfile) -> Vec<String>| difference(what, values(a, value), values(b, value));
    let ranks = of(Aspect::Ranks, &|run| {
        let (read, size) = (run.ranks.len(), size(run));
        vec![if read == size { size.to_string() } else { format!("{read} of {size}") }]
    });
    let device = of(Aspect::Device, &|run| run.facts.identities.iter().filter_map(|i| i.device_name.clone()).collect());
    let compiler = of(Aspect::Compiler, &|run| vec![if is_compiled(run) { "torch.compile" } else { "eager" }.into()]);
    [ranks, device, compiler, collective_bytes(a, b), common_names(a, b)].into_iter().flatten().collect()
}

/// A difference between sets of values; `None` if they are equal, or one is unknown.
pub(super) fn difference(what: Aspect, a: BTreeSet<String>, b: BTreeSet<String>) -> Option<Difference> {
    let words = |side: BTreeSet<String>| side.into_iter().collect::<Vec<_>>().join(" and ");
    (a != b && !a.is_empty() && !b.is_empty()).then(|| Difference { what, a: words(a), b: words(b) })
}

fn values(side: &[Named], value: &dyn Fn(&RunProfile) -> Vec<String>) -> BTreeSet<String> {
    side.iter().flat_map(|(_, run)| value(run)).collect()
}

/// The number of ranks in the job; where it is not recorded, of those that were read.
pub(super) fn size(run: &RunProfile) -> usize {
    run.facts.world_size.and_then(|size| usize::try_from(size).ok()).unwrap_or(run.ranks.len())
}

/// Whether torch.compile made a part of a run that matters: kernels, or without a device any region
/// (torch/_inductor/codegen/triton.py, torch/_dynamo/eval_frame.py).
fn is_compiled(run: &RunProfile) -> bool {
    const REGIONS: [&str; 3] = ["Torch-Compiled Region", "## Call CompiledFxGraph", "CompiledFunction"];
    const KERNELS: [&str; 4] = ["triton_poi_", "triton_red_", "triton_per_", "triton_tem_"];
    let begins = |key: &Key, names: &[&str]| names.iter().any(|name| key.name.starts_with(name));
    let kernels = times(run, &[Group::Kernel]);
    let of_device = kernels.iter().filter(|(key, _)| !key.communicates).map(|(_, ns)| ns).sum::<f64>();
    if of_device > 0.0 {
        let compiled = kernels.iter().filter(|(key, _)| begins(key, &KERNELS)).map(|(_, ns)| ns).sum::<f64>();
        return compiled >= COMPILED * of_device;
    }
    run.ranks.iter().flat_map(|rank| rank.series.keys()).any(|key| begins(key, &REGIONS))
}

fn collective_bytes(a: &[Named], b: &[Named]) -> Option<Difference> {
    let first = |side: &[Named]| side.first().and_then(|(_, run)| bytes_a_step(run));
    let (a, b) = (first(a), first(b));
    let words = |value: Option<f64>| value.map(|value| bytes(value.round() as i64)).into_iter().collect();
    if same_bytes(a, b) { None } else { difference(Aspect::CollectiveBytes, words(a), words(b)) }
}

/// Less than half of the time of operators, or of kernels, has a counterpart on the other side.
fn common_names(a: &[Named], b: &[Named]) -> Option<Difference> {
    let (a, b) = (&a.first()?.1, &b.first()?.1);
    let share = |groups: &[Group]| {
        let (a, b) = (times(a, groups), times(b, groups));
        (share_in(&a, &b), share_in(&b, &a))
    };
    let few = |(a, b): (f64, f64)| a.min(b) < SHARED_TIME;
    let both = share(&[Group::Operator, Group::Kernel]);
    let differ = [both, share(&[Group::Operator]), share(&[Group::Kernel])].into_iter().find(|shares| few(*shares))?;
    let words = |share: f64| format!("{:.0} %", 100.0 * share);
    Some(Difference { what: Aspect::CommonNames, a: words(differ.0), b: words(differ.1) })
}

/// The operator, or else the kernel, with the longest time whose shapes are known to differ.
pub(super) fn shapes(other_shapes: &[OtherShapes]) -> Option<Difference> {
    let of = |group: Group| {
        other_shapes.iter().find(|one| one.group == group && one.a_shape.is_some() && one.b_shape.is_some())
    };
    let one = of(Group::Operator).or_else(|| of(Group::Kernel))?;
    let (a, b) = (one.a_shape.as_deref()?, one.b_shape.as_deref()?);
    Some(Difference { what: Aspect::Shapes, a: format!("`{}` {a}", one.name), b: b.to_string() })
}

/// Whether equal names are equal work: the sides have the same devices and compiler, and most names.
pub(super) fn names_match(differences: &[Difference]) -> bool {
    let named = |one: &Difference| matches!(one.what, Aspect::Device | Aspect::Compiler | Aspect::CommonNames);
    !differences.iter().any(named)
}

/// Whether the collectives of a step move other numbers of bytes, so that the work of a step is another.
pub(super) fn moves_other_bytes(differences: &[Difference]) -> bool {
    differences.iter().any(|one| one.what == Aspect::CollectiveBytes)
}

/// Why rows of one name and other shapes are not compared; `None` if there are none.
pub(super) fn refused_shapes(other_shapes: &[OtherShapes]) -> Option<String> {
    let first = other_shapes.first()?;
    let count = |group: Group, noun: &str| {
        let count = other_shapes.iter().filter(|one| one.group == group).count();
        (count > 0).then(|| plural(count, noun))
    };
    let counts = [
        count(Group::Kernel, "kernel"),
        count(Group::Operator, "operator"),
        count(Group::Collective, "collective"),
        count(Group::Bucket, "bucket"),
    ];
    let counts: Vec<String> = counts.into_iter().flatten().collect();
    let counts = counts.join(" and ");
    Some(format!("{counts} by name, because shapes differ or are unknown (the longest is `{}`)", first.name))
}

/// Drops the sums that only one side recorded, such as those by module without stacks, and returns why.
pub(super) fn refuse_cuts(keys: &mut Vec<&Key>, (a, b): (&BTreeSet<&Key>, &BTreeSet<&Key>)) -> Vec<String> {
    let mut refused = Vec::new();
    for (group, what) in
        [(Group::Category, "device work by kind"), (Group::Module, "modules"), (Group::Source, "source lines")]
    {
        let has = |side: &BTreeSet<&Key>| side.iter().any(|key| key.group == group);
        let only = match (has(a), has(b)) {
            (true, false) => "A",
            (false, true) => "B",
            _ => continue,
        };
        keys.retain(|key| key.group != group);
        refused.push(format!("{what}, because only {only} recorded them"));
    }
    refused
}
