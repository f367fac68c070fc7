//! Names that only one side has, and names that both have with other shapes.

use std::collections::{BTreeMap, BTreeSet};

use trace::Text;

use crate::profile::{Group, Key, Measure};
use crate::result::{Diff, OneSided};
use crate::sample::Sample;
use crate::unlike::OtherShapes;

/// The keys of one name that have no counterpart, by side.
#[derive(Default)]
struct Unpaired<'a> {
    a: Vec<&'a Key>,
    b: Vec<&'a Key>,
}

/// Whether a key has the whole time of a name. A name is listed once.
fn is_listed(key: &Key) -> bool {
    match key.group {
        Group::Step | Group::Account => false,
        Group::Operator => key.measure == Measure::SelfTime,
        Group::Bucket => key.measure == Measure::Exposed,
        Group::Range | Group::Kernel | Group::Collective => key.measure == Measure::Total,
        Group::Category | Group::Module | Group::Source => true,
    }
}

/// The kernels of both sides that operators launched with other shapes on each side, although their blocks are equally many.
/// Their times say nothing about each other.
pub(super) fn kernels_of_other_inputs<'a>(keys: &[&'a Key], a: &[Sample<'_>], b: &[Sample<'_>]) -> BTreeSet<&'a Key> {
    let inputs =
        |side: &[Sample<'_>], key: &Key| side.iter().flat_map(|run| run.inputs(key)).collect::<BTreeSet<u64>>();
    let differ = |key: &&&Key| {
        let (a, b) = (inputs(a, key), inputs(b, key));
        !a.is_empty() && !b.is_empty() && a.is_disjoint(&b)
    };
    keys.iter().filter(|key| key.group == Group::Kernel).filter(differ).copied().collect()
}

/// Lists the keys that only A or only B has, by name: names that the other side lacks, and names with other shapes.
/// `only_a` and `only_b` are the keys without a counterpart.
pub(super) fn list_unpaired(
    diff: &mut Diff,
    (a, b): (&[Sample<'_>], &[Sample<'_>]),
    (only_a, only_b): (&[&Key], &[&Key]),
    smallest_ns: f64,
) {
    let mut by_name: BTreeMap<(Group, &Text), Unpaired<'_>> = BTreeMap::new();
    for key in only_a.iter().filter(|key| is_listed(key)) {
        by_name.entry((key.group, &key.name)).or_default().a.push(key);
    }
    for key in only_b.iter().filter(|key| is_listed(key)) {
        by_name.entry((key.group, &key.name)).or_default().b.push(key);
    }
    let (names_a, names_b) = (names(a), names(b));
    // The host is short beside the devices that work for it, so an operator is measured by the operators.
    let operators_ns = [a, b].map(|side| level_ns(side, &operators(side))).into_iter().fold(f64::INFINITY, f64::min);
    let smallest_operator_ns = smallest_ns.min(diff.method.smallest_share * operators_ns);
    for ((group, name), keys) in by_name {
        match (names_a.contains(&(group, name)), names_b.contains(&(group, name))) {
            (true, false) => diff.vanished.push(one_sided(a, &keys.a)),
            (false, true) => diff.appeared.push(one_sided(b, &keys.b)),
            _ => {
                let (a_ns, b_ns) = (level_ns(a, &keys.a), level_ns(b, &keys.b));
                if a_ns.max(b_ns) < if group == Group::Operator { smallest_operator_ns } else { smallest_ns } {
                    diff.too_small += 1;
                    continue;
                }
                let (a_shape, b_shape) = (longest_shape(a, &keys.a), longest_shape(b, &keys.b));
                diff.other_shapes.push(OtherShapes { group, name: name.clone(), a_shape, b_shape, a_ns, b_ns });
            }
        }
    }
    for side in [&mut diff.appeared, &mut diff.vanished] {
        side.sort_by(|x, y| y.step_ns.total_cmp(&x.step_ns).then_with(|| x.key.cmp(&y.key)));
    }
    let time = |one: &OtherShapes| one.a_ns.max(one.b_ns);
    diff.other_shapes
        .sort_by(|x, y| time(y).total_cmp(&time(x)).then_with(|| (x.group, &x.name).cmp(&(y.group, &y.name))));
}

fn names<'a>(side: &[Sample<'a>]) -> BTreeSet<(Group, &'a Text)> {
    side.iter().flat_map(Sample::keys).map(|key| (key.group, &key.name)).collect()
}

fn operators<'a>(side: &[Sample<'a>]) -> Vec<&'a Key> {
    let keys: BTreeSet<&Key> = side.iter().flat_map(Sample::keys).collect();
    keys.into_iter().filter(|key| key.group == Group::Operator).collect()
}

fn level_ns(side: &[Sample<'_>], keys: &[&Key]) -> f64 {
    side.iter().map(|run| run.level_ns(keys)).sum::<f64>() / side.len() as f64
}

fn longest_shape(side: &[Sample<'_>], keys: &[&Key]) -> Option<Text> {
    let longest = keys.iter().max_by(|x, y| level_ns(side, &[x]).total_cmp(&level_ns(side, &[y])));
    longest.and_then(|key| key.shape.clone())
}

fn one_sided(side: &[Sample<'_>], keys: &[&Key]) -> OneSided {
    let mut key = keys.first().map_or_else(Key::step, |key| (*key).clone());
    key.shape = key.shape.filter(|_| keys.len() == 1);
    let calls: Vec<f64> = side.iter().filter_map(|run| run.calls(key.group, &key.name)).collect();
    let calls = (!calls.is_empty()).then(|| calls.iter().sum::<f64>() / side.len() as f64);
    OneSided { step_ns: level_ns(side, keys), key, calls }
}
