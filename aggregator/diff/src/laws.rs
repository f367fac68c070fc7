//! Laws of every comparison, over random runs: a run equals itself, B with A mirrors A with B, and the parts of the step sum to it.

use std::cell::Cell;
use std::collections::BTreeSet;

use crate::judge::compare;
use crate::method::Method;
use crate::profile::{Group, Key, Measure, RankProfile, RunProfile};
use crate::result::{Diff, DiffRow, Heading, Judgement, OneSided, Place};
use crate::unlike::Aspect;
use model::analysis::{Facts, RankIdentity};
use trace::Text;
use trace::random::SplitMix64;

type Named = (String, RunProfile);

const PARTS: [&str; 4] = ["compute", "exposed communication", "idle", "unknown"];

fn below(random: &mut SplitMix64, end: u64) -> u64 {
    random.next_u64() % end
}

/// A run of random size whose names, shapes and devices vary. The step is the sum of its parts; some steps lack a part.
fn random_run(random: &mut SplitMix64) -> Named {
    let ranks = 1 + below(random, 4) as i32;
    let steps = 1 + below(random, 12) as i32;
    let device = ["A100", "H100"][below(random, 2) as usize];
    let size = below(random, 3);
    let names: Vec<String> = (0..6).filter(|_| below(random, 4) > 0).map(|name| format!("kernel_{name}")).collect();
    let mut run = RunProfile::default();
    for rank in 0..ranks {
        let mut profile = RankProfile { rank, steps: (0..steps).collect(), ..RankProfile::default() };
        let mut add = |key: Key, values: Vec<f64>| profile.series.insert(key, values.into_iter().collect());
        let mut wall = vec![0.0; steps as usize];
        for part in PARTS {
            let is_missing = below(random, 5) == 0;
            let draw = |random: &mut SplitMix64| if below(random, 5) == 0 { 0.0 } else { below(random, 9_000) as f64 };
            let values: Vec<f64> = wall.iter().map(|_| if is_missing { 0.0 } else { draw(random) }).collect();
            wall.iter_mut().zip(&values).for_each(|(wall, value)| *wall += value);
            if !is_missing {
                add(Key::new(Group::Step, part, Measure::Total), values);
            }
        }
        add(Key::step(), wall.clone());
        for name in &names {
            let shape = Some(Text::from(format!("{size} blocks")));
            let key = Key { shape, ..Key::new(Group::Kernel, name, Measure::Total) };
            let values: Vec<f64> = wall.iter().map(|_| below(random, 900) as f64).collect();
            profile.calls.insert((Group::Kernel, key.name.clone()), 2.0);
            profile.inputs.insert(key.clone(), BTreeSet::from([below(random, 2)]));
            profile.series.insert(key, values.into_iter().collect());
        }
        run.ranks.push(profile);
    }
    let identity = RankIdentity { device_name: Some(device.into()), ..RankIdentity::default() };
    run.facts = Facts { world_size: Some(ranks), identities: vec![identity], ..Facts::default() };
    (String::new(), run)
}

fn compared(a: &Named, b: &Named) -> Diff {
    compare(std::slice::from_ref(a), std::slice::from_ref(b), &Method::default(), Vec::new()).unwrap()
}

fn each_pair(check: impl Fn(&Named, &Named)) {
    let mut random = SplitMix64(51);
    for _ in 0..60 {
        check(&random_run(&mut random), &random_run(&mut random));
    }
}

/// Invariant (verdicts): `diff` of a run with itself finds no change and no difference.
#[test]
fn a_run_equals_itself() {
    each_pair(|run, _| {
        let diff = compared(run, run);
        assert_eq!(diff.heading(), Heading::NoChange, "{:?}", diff.verdict);
        assert_eq!((diff.differences, diff.not_compared), (vec![], vec![]));
        assert_eq!((diff.appeared, diff.vanished, diff.other_shapes), (vec![], vec![], vec![]));
    });
}

/// Invariant (verdicts): `diff B A` is the mirror of `diff A B`.
#[test]
fn the_comparison_of_b_with_a_mirrors_that_of_a_with_b() {
    each_pair(|a, b| {
        let (there, back) = (compared(a, b), compared(b, a));
        let turned = |judgement| match judgement {
            Judgement::Slower => Judgement::Faster,
            Judgement::Faster => Judgement::Slower,
            Judgement::Unclear => Judgement::Unclear,
        };
        assert_eq!((there.rows.len(), there.too_small), (back.rows.len(), back.too_small));
        for row in &there.rows {
            let other = back.rows.iter().find(|other| other.key == row.key && other.place == row.place).unwrap();
            let (change, turned_change) = (&row.change, &other.change);
            assert_eq!((row.a_ns, row.b_ns, row.judgement), (other.b_ns, other.a_ns, turned(other.judgement)));
            assert_eq!(change.delta_ns, -turned_change.delta_ns);
            assert_eq!((change.low_ns, change.high_ns), (-turned_change.high_ns, -turned_change.low_ns));
        }
        assert_eq!((&there.appeared, &there.vanished), (&back.vanished, &back.appeared));
        let shapes =
            |diff: &Diff| diff.other_shapes.iter().map(|s| (s.name.clone(), s.a_ns, s.b_ns)).collect::<Vec<_>>();
        let mirrored: Vec<_> = shapes(&back).into_iter().map(|(name, a_ns, b_ns)| (name, b_ns, a_ns)).collect();
        assert_eq!(shapes(&there), mirrored);
        let aspects = |diff: &Diff| diff.differences.iter().map(|one| one.what).collect::<Vec<_>>();
        assert_eq!(aspects(&there), aspects(&back));
    });
}

/// Invariant (verdicts): The changes of the parts of the step sum to the change of the step.
#[test]
fn changes_of_the_parts_sum_to_the_change_of_the_step() {
    each_pair(|a, b| {
        let diff = compared(a, b);
        let of_all = || diff.rows.iter().filter(|row| row.key.group == Group::Step && row.place == Place::AllRanks);
        let sum = |value: fn(&DiffRow) -> f64| -> f64 {
            of_all().map(|row| if row.is_step() { -value(row) } else { value(row) }).sum()
        };
        assert!(of_all().any(|row| row.is_step()));
        assert!(sum(|row| row.change.delta_ns).abs() < 1e-6, "{:?}", of_all().collect::<Vec<_>>());
        assert!(sum(|row| row.a_ns).abs() < 1e-6 && sum(|row| row.b_ns).abs() < 1e-6);
    });
}

/// Comparisons without meaning are refused with a reason: single ranks of jobs of other sizes, kernels of other shapes.
#[test]
fn what_cannot_be_compared_is_not_compared() {
    let (ranks, shapes) = (Cell::new(0), Cell::new(0));
    each_pair(|a, b| {
        let diff = compared(a, b);
        let differs = |what: Aspect| diff.differences.iter().any(|one| one.what == what);
        assert_eq!(differs(Aspect::Ranks), a.1.ranks.len() != b.1.ranks.len());
        assert_eq!(differs(Aspect::Device), a.1.facts.identities != b.1.facts.identities);
        let refused = |words: &str| diff.not_compared.iter().any(|line| line.contains(words));
        assert_eq!(refused("single ranks"), differs(Aspect::Ranks), "{:?}", diff.not_compared);
        assert_eq!(refused("shapes differ"), !diff.other_shapes.is_empty());
        assert!(!differs(Aspect::Ranks) || diff.rows.iter().all(|row| row.place == Place::AllRanks));
        let has = |one: &OneSided| diff.rows.iter().any(|row| row.key.name == one.key.name);
        assert!(!diff.appeared.iter().chain(&diff.vanished).any(has));
        assert!(diff.appeared.iter().all(|one| one.calls == Some(2.0)));
        ranks.set(ranks.get() + usize::from(differs(Aspect::Ranks)));
        shapes.set(shapes.get() + usize::from(!diff.other_shapes.is_empty()));
    });
    assert!(ranks.get() > 10 && shapes.get() > 10, "{ranks:?} pairs of other sizes, {shapes:?} of other shapes");
}
