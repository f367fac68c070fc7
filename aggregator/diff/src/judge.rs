//! Builds the rows with their intervals from the series of both sides, and the sentence of the verdict.

use std::collections::BTreeSet;

use rayon::prelude::*;
use trace::{OmissionRow, Text};

use crate::inference::{Estimate, adjusted, change, harmonic, quantile_of_t};
use crate::kernel_counts::kernel_counts;
use crate::method::{Change, Method};
use crate::one_sided::{kernels_of_other_inputs, list_unpaired};
use crate::profile::{Group, Key, Measure, RunProfile};
use crate::result::{Diff, DiffRow, DiffVerdict, Judgement, Place, RunFacts};
use crate::same_job::require_same_job;
use crate::sample::{Estimates, Sample};
use crate::unlike::{
    Aspect, difference, differences, moves_other_bytes, names_match, refuse_cuts, refused_shapes, shapes, size,
};
use model::Error;
use model::units::ns;

type Named = (String, RunProfile);

/// Number of runs a side that show the variation between runs, however few steps they have.
const LEAST_RUNS: usize = 3;

/// Compares the profiles of both sides.
///
/// # Errors
/// [`Error::NoInput`] if the runs of a side have no common rank, or a run has no common step; [`Error::UnlikeRuns`] if the runs
/// of a side are of different jobs.
pub fn compare(a: &[Named], b: &[Named], method: &Method, mut omissions: Vec<OmissionRow>) -> Result<Diff, Error> {
    for side in [a, b].into_iter().filter(|_| !method.unlike_runs) {
        side.iter().skip(1).try_for_each(|other| require_same_job(&side[0], other))?;
    }
    let ranks = Ranks::chosen(a, b, &mut omissions)?;
    let (samples_a, samples_b) = (samples(a, &ranks.a)?, samples(b, &ranks.b)?);
    let step_of = |sample: &Sample<'_>| sample.estimates(&Key::step()).map_or(0.0, |e| e.all.level_ns);
    let mean_step = |side: &[Sample<'_>]| side.iter().map(step_of).sum::<f64>() / side.len() as f64;
    let (step_ns, step_b_ns) = (mean_step(&samples_a), mean_step(&samples_b));
    // The comparison of B with A has the same rows as that of A with B.
    let smallest_ns = method.smallest_share * if step_b_ns > 0.0 { step_ns.min(step_b_ns) } else { step_ns };

    let mut diff = Diff {
        a: run_facts(a, &samples_a, step_of),
        b: run_facts(b, &samples_b, step_of),
        method: method.clone(),
        verdict: DiffVerdict::default(),
        differences: differences(a, b),
        not_compared: ranks.why_not_single().into_iter().collect(),
        rows: Vec::new(),
        too_small: 0,
        kernels: kernel_counts(&samples_a, &samples_b),
        appeared: Vec::new(),
        vanished: Vec::new(),
        other_shapes: Vec::new(),
        omissions,
    };
    let step_counts = |side: &[RunFacts]| side.iter().map(|run| run.steps.to_string()).collect();
    diff.differences.extend(difference(Aspect::Steps, step_counts(&diff.a), step_counts(&diff.b)));
    let names_match = names_match(&diff.differences);
    let (keys_a, keys_b) = (keys_of(&samples_a), keys_of(&samples_b));
    let mut keys: Vec<&Key> = keys_a.union(&keys_b).copied().collect();
    if names_match {
        keys.retain(|key| !key.group.is_cut());
    } else {
        diff.not_compared.extend(refuse_cuts(&mut keys, (&keys_a, &keys_b)));
    }
    let refused = kernels_of_other_inputs(&keys, &samples_a, &samples_b);
    let compared: Vec<Compared> = keys
        .par_iter()
        .map(|key| match refused.contains(key) {
            true => Compared { vanished: true, appeared: true, ..Compared::default() },
            false => compare_key(key, (&samples_a, &samples_b), &ranks.single, smallest_ns, method),
        })
        .collect();
    let unpaired = |only: fn(&Compared) -> bool| -> Vec<&Key> {
        keys.iter().zip(&compared).filter(|(_, one)| only(one)).map(|(key, _)| *key).collect()
    };
    let only = (unpaired(|one| one.vanished), unpaired(|one| one.appeared));
    list_unpaired(&mut diff, (&samples_a, &samples_b), (&only.0, &only.1), smallest_ns);
    diff.differences.extend(shapes(&diff.other_shapes));
    diff.not_compared.extend(refused_shapes(&diff.other_shapes));
    for one in compared {
        diff.rows.extend(one.rows);
        diff.too_small += one.too_small;
    }
    let few = samples_a.iter().chain(&samples_b).any(|sample| sample.steps() < method.least_steps);
    diff.verdict.too_few_steps = few && a.len().min(b.len()) < LEAST_RUNS;
    let is_unlike = !names_match || ranks.why_not.is_some() || moves_other_bytes(&diff.differences);
    judge(&mut diff, (step_ns, smallest_ns), is_unlike);
    Ok(diff)
}

fn keys_of<'a>(side: &[Sample<'a>]) -> BTreeSet<&'a Key> {
    side.iter().flat_map(Sample::keys).collect()
}

/// The compared runs of one side. Each needs a step that all of its ranks have.
fn samples<'a>(side: &'a [Named], ranks: &BTreeSet<i32>) -> Result<Vec<Sample<'a>>, Error> {
    let sample = |(path, run): &'a Named| {
        let sample = Sample::new(run, ranks);
        let why = "no active step that all of its ranks recorded; record steps, or mark them with --step-marker";
        if sample.steps() > 0 { Ok(sample) } else { Err(Error::NoInput { path: path.into(), why: why.into() }) }
    };
    side.iter().map(sample).collect()
}

/// The ranks that are compared.
struct Ranks {
    /// Those over which A's mean is taken.
    a: BTreeSet<i32>,
    /// Those over which B's mean is taken.
    b: BTreeSet<i32>,
    /// Those that are compared one by one: all of A's and B's, or none.
    single: Vec<i32>,
    /// Why single ranks are not compared.
    why_not: Option<String>,
}

impl Ranks {
    /// The ranks that every run has. If the jobs have other numbers of ranks, a rank of the one does not do the work of that rank
    /// of the other; then the means over the ranks of each side are compared. Ranks that are left out become omissions.
    fn chosen(a: &[Named], b: &[Named], omissions: &mut Vec<OmissionRow>) -> Result<Self, Error> {
        let (of_a, of_b) = (common_ranks(a)?, common_ranks(b)?);
        let common: BTreeSet<i32> = of_a.intersection(&of_b).copied().collect();
        let sizes: BTreeSet<usize> = a.iter().chain(b).map(|(_, run)| size(run)).collect();
        let why_not = if sizes.len() > 1 {
            let sizes: Vec<String> =
                [a, b].iter().filter_map(|side| Some(size(&side.first()?.1).to_string())).collect();
            Some(format!("the jobs have {} ranks", sizes.join(" and ")))
        } else {
            common.is_empty().then(|| "no rank is on both sides".to_string())
        };
        let chosen = match why_not {
            None => Self { single: common.iter().copied().collect(), a: common.clone(), b: common, why_not },
            Some(_) => Self { a: of_a, b: of_b, single: Vec::new(), why_not },
        };
        for (side, ranks) in [(a, &chosen.a), (b, &chosen.b)] {
            for (path, run) in side {
                let others = run.ranks.iter().filter(|p| !ranks.contains(&p.rank)).count();
                let why = "some runs lack them, so they are not compared";
                let omission =
                    OmissionRow::left_out("ranks", why).file(Text::from(path.as_str())).amount(others as i64);
                omissions.extend((others > 0).then_some(omission));
            }
        }
        Ok(chosen)
    }

    fn why_not_single(&self) -> Option<String> {
        self.why_not.as_ref().map(|why| format!("single ranks, because {why}"))
    }
}

/// The ranks that all runs of a side have.
fn common_ranks(side: &[Named]) -> Result<BTreeSet<i32>, Error> {
    let ranks_of = |(_, run): &Named| run.ranks.iter().map(|p| p.rank).collect::<BTreeSet<i32>>();
    let common: Option<BTreeSet<i32>> = side.iter().map(ranks_of).reduce(|x, y| x.intersection(&y).copied().collect());
    let path = || side.last().map(|(path, _)| path.into()).unwrap_or_default();
    let why = || "it shares no rank with the other runs of its side".to_string();
    common.filter(|ranks| !ranks.is_empty()).ok_or_else(|| Error::NoInput { path: path(), why: why() })
}

fn run_facts(side: &[Named], samples: &[Sample<'_>], step_of: impl Fn(&Sample<'_>) -> f64) -> Vec<RunFacts> {
    let facts = |((path, run), sample): (&Named, &Sample<'_>)| RunFacts {
        path: path.clone(),
        run_id: run.facts.run_id.clone(),
        ranks: run.facts.ranks.clone(),
        steps: sample.steps(),
        step_ns: step_of(sample),
        verdict: run.verdict.clone(),
        causes: run.ranks.iter().filter_map(|profile| Some((profile.rank, profile.cause.clone()?))).collect(),
    };
    side.iter().zip(samples).map(facts).collect()
}

/// The result for one key.
#[derive(Default)]
struct Compared {
    rows: Vec<DiffRow>,
    too_small: usize,
    /// Whether only B has the key.
    appeared: bool,
    /// Whether only A has the key.
    vanished: bool,
}

fn compare_key(
    key: &Key,
    (a, b): (&[Sample<'_>], &[Sample<'_>]),
    ranks: &[i32],
    smallest_ns: f64,
    method: &Method,
) -> Compared {
    // A run of many steps may have a name in each of them. Such names have no change that matters, and their errors are
    // not computed. The parts of the step must sum to it.
    let is_part = key.group == Group::Step;
    let is_rare = !is_part && smallest_ns > 0.0 && a.iter().chain(b).all(|sample| sample.is_rare(key));
    let estimates = |sample: &Sample<'_>| if is_rare { sample.zero_estimates(key) } else { sample.estimates(key) };
    let estimates_of = |side: &[Sample<'_>]| side.iter().filter_map(estimates).collect::<Vec<Estimates>>();
    let (in_a, in_b) = (estimates_of(a), estimates_of(b));
    let mut compared = Compared::default();
    match (in_a.len() == a.len(), in_b.len() == b.len()) {
        (true, true) => {}
        (true, false) if in_b.is_empty() => compared.vanished = true,
        (false, true) if in_a.is_empty() => compared.appeared = true,
        // Only some runs of a side have it: these runs differ among themselves, so make no statement.
        _ => return compared,
    }
    if in_a.is_empty() || in_b.is_empty() {
        return compared;
    }
    let is_named = |rank: i32| a.iter().chain(b).any(|sample| sample.cause(rank).is_some());
    let mut add = |place: Place, side_a: Vec<Estimate>, side_b: Vec<Estimate>| {
        let level = |side: &[Estimate]| side.iter().map(|e| e.level_ns).sum::<f64>() / side.len() as f64;
        let (a_ns, b_ns) = (level(&side_a), level(&side_b));
        let most_ns = a_ns.abs().max(b_ns.abs());
        let is_kept = is_part && place == Place::AllRanks && most_ns > 0.0;
        if most_ns < smallest_ns && !is_kept {
            compared.too_small += usize::from(key.group != Group::Account);
            return;
        }
        let Some(mut change) = change(&side_a, &side_b, smallest_ns, method) else { return };
        // A rank that stands out only because all other ranks changed did not change itself.
        let own_ns = b_ns - a_ns;
        let is_contrast = !key.is_rank_cost() && place != Place::AllRanks;
        if is_contrast && (own_ns * change.delta_ns <= 0.0 || own_ns.abs() < change.delta_ns.abs() / 2.0) {
            change.p = 1.0;
        }
        let (step_pct, p_adjusted, judgement) = (0.0, 1.0, Judgement::Unclear);
        compared.rows.push(DiffRow { key: key.clone(), place, a_ns, b_ns, change, step_pct, p_adjusted, judgement });
    };
    let all = |side: &[Estimates]| side.iter().map(|e| e.all).collect();
    // The costs of ranks have no mean: each is what the job saves.
    if !key.is_rank_cost() {
        add(Place::AllRanks, all(&in_a), all(&in_b));
    }
    for (at, rank) in ranks.iter().enumerate() {
        let of_rank = |side: &[Estimates]| side.iter().filter_map(|e| e.ranks.get(at).copied()).collect::<Vec<_>>();
        let (side_a, side_b) = (of_rank(&in_a), of_rank(&in_b));
        let is_judged = !key.is_rank_cost() || is_named(*rank);
        if is_judged && side_a.len() == a.len() && side_b.len() == b.len() {
            add(Place::Rank(*rank), side_a, side_b);
        }
    }
    compared
}

/// Rows whose false discoveries are controlled together.
#[derive(Clone, Copy, PartialEq)]
enum Family {
    /// Names, parts of the step, and the step of like runs.
    Names,
    /// Sums of many names.
    Cuts,
    /// The parts of the account of lost time.
    Account,
    /// Costs of the ranks that a verdict names.
    Costs,
    /// The step of unlike runs: the one question that is asked of them.
    Step,
}

impl Family {
    fn of(row: &DiffRow, is_unlike: bool) -> Self {
        match row.key.group {
            group if group.is_cut() => Self::Cuts,
            _ if row.key.is_rank_cost() => Self::Costs,
            Group::Account => Self::Account,
            _ if is_unlike && row.is_step() && row.place == Place::AllRanks => Self::Step,
            _ => Self::Names,
        }
    }
}

/// Adjusts the p-values for the number of rows, sorts the rows, and sets the verdict.
fn judge(diff: &mut Diff, (step_ns, smallest_ns): (f64, f64), is_unlike: bool) {
    if diff.verdict.too_few_steps {
        diff.rows.iter_mut().for_each(|row| row.change.p = 1.0);
    }
    for family in [Family::Names, Family::Cuts, Family::Account, Family::Costs, Family::Step] {
        let is_of = |row: &&mut DiffRow| Family::of(row, is_unlike) == family;
        let p: Vec<f64> = diff.rows.iter_mut().filter(is_of).map(|row| row.change.p).collect();
        diff.rows.iter_mut().filter(is_of).zip(adjusted(&p)).for_each(|(row, p)| row.p_adjusted = p);
    }
    for row in &mut diff.rows {
        row.step_pct = if step_ns > 0.0 { 100.0 * row.change.delta_ns / step_ns } else { 0.0 };
        row.judgement = match row.p_adjusted <= diff.method.false_discoveries {
            true if row.change.delta_ns > 0.0 => Judgement::Slower,
            true => Judgement::Faster,
            false => Judgement::Unclear,
        };
    }
    let order = |row: &DiffRow| (row.judgement == Judgement::Unclear, -row.change.delta_ns.abs());
    diff.rows.sort_by(|x, y| {
        let ((unclear_x, size_x), (unclear_y, size_y)) = (order(x), order(y));
        let place = || (&x.key, x.place).cmp(&(&y.key, y.place));
        unclear_x.cmp(&unclear_y).then(size_x.total_cmp(&size_y)).then_with(place)
    });
    let detectable = diff.step().map(|row| {
        let tests = tests_with_the_step(diff, is_unlike);
        let alone = diff.method.false_discoveries / (tests as f64 * harmonic(tests));
        let beyond_ns = quantile_of_t(1.0 - alone / 2.0, row.change.df) * row.change.se_ns;
        100.0 * (smallest_ns + beyond_ns) / step_ns.max(1.0)
    });
    let too_few_steps = diff.verdict.too_few_steps;
    diff.verdict = DiffVerdict {
        detectable_step_pct: detectable.filter(|_| !too_few_steps),
        too_few_steps,
        ..verdict(diff, step_ns, is_unlike)
    };
}

/// The number of rows in the family of the step.
fn tests_with_the_step(diff: &Diff, is_unlike: bool) -> usize {
    let family = if is_unlike { Family::Step } else { Family::Names };
    diff.rows.iter().filter(|row| Family::of(row, is_unlike) == family).count()
}

/// The row that the sentence describes: the largest change of what a rank costs, or else of own work, because these can be a reason; else
/// the step; else any change. Of unlike runs it is the step first, because one name of many is no reason for their difference.
fn headline(rows: &[DiffRow], is_unlike: bool) -> Option<usize> {
    let certain = || rows.iter().enumerate().filter(|(_, row)| row.judgement != Judgement::Unclear);
    // Of nested rows, the innermost is the most specific: a phase's self time, or an operator. Of equals, take the
    // first.
    let largest = |keep: &dyn Fn(&DiffRow) -> bool| {
        certain().filter(|(_, row)| keep(row)).max_by(|(i, x), (j, y)| {
            let size = |row: &DiffRow| row.change.delta_ns.abs();
            size(x).total_cmp(&size(y)).then(j.cmp(i))
        })
    };
    let slower = |row: &DiffRow| row.judgement == Judgement::Slower && row.key.is_own_work();
    let named = |row: &DiffRow| row.key.group != Group::Step && row.key.measure != Measure::Total;
    let kernel = |row: &DiffRow| row.key.group == Group::Kernel;
    largest(&|row| is_unlike && row.place == Place::AllRanks && row.is_step())
        .or_else(|| largest(&|row| row.judgement == Judgement::Slower && row.key.is_rank_cost()))
        .or_else(|| largest(&|row| slower(row) && (named(row) || kernel(row))))
        .or_else(|| largest(&slower))
        .or_else(|| largest(&|row| row.judgement == Judgement::Slower && row.is_step()))
        .or_else(|| largest(&|row| row.judgement == Judgement::Slower && row.key.is_cost()))
        .or_else(|| largest(&|row| row.key.is_rank_cost()))
        .or_else(|| largest(&|row| row.key.is_own_work()))
        .or_else(|| largest(&|row| row.key.is_cost()))
        .or_else(|| largest(&|_| true))
        .map(|(at, _)| at)
}

fn verdict(diff: &Diff, step_ns: f64, is_unlike: bool) -> DiffVerdict {
    let Some(at) = headline(&diff.rows, is_unlike) else {
        let tests = tests_with_the_step(diff, is_unlike);
        return DiffVerdict { sentence: undecided_sentence(diff, step_ns, tests), ..DiffVerdict::default() };
    };
    let row = &diff.rows[at];
    let word = if row.judgement == Judgement::Slower { "slower" } else { "faster" };
    let size = |value: f64| ns(value.abs().round() as i64);
    let whose = match row.place {
        Place::AllRanks => String::new(),
        Place::Rank(rank) => format!("rank {rank}: "),
    };
    let beyond = if row.place == Place::AllRanks { "on all ranks" } else { "beyond the other ranks" };
    // "faster by 60 ms, between 57 and 63 ms": the word has the sign, unless the interval has both signs.
    let Change { low_ns, high_ns, .. } = row.change;
    let (low_ns, high_ns) = if row.judgement == Judgement::Slower { (low_ns, high_ns) } else { (-high_ns, -low_ns) };
    let bound = |value: f64| ns(value.round() as i64);
    let (size, pct, low, high) = (size(row.change.delta_ns), row.step_pct.abs(), bound(low_ns), bound(high_ns));
    let sentence = match row.place {
        Place::Rank(rank) if row.key.is_rank_cost() => {
            let is_slower = row.judgement == Judgement::Slower;
            let (side, letter, more) = if is_slower { (&diff.b, "B", "more") } else { (&diff.a, "A", "less") };
            let location = side.iter().find_map(|run| run.causes.get(&rank)).filter(|location| !location.is_empty());
            let location = location.map_or(String::new(), |location| format!(": in {letter}, {location}"));
            format!(
                "rank {rank} costs {size} {more} of each step ({pct:.1} % of a step), between {low} and {high}{location}"
            )
        }
        _ => {
            let name = name(&row.key);
            format!(
                "{whose}{name} is {word} by {size} a step {beyond} ({pct:.1} % of a step), between {low} and {high}"
            )
        }
    };
    let sentence = sentence + &against_the_step(diff, row).unwrap_or_default();
    DiffVerdict { changed: true, sentence, row: Some(at), ..DiffVerdict::default() }
}

/// The sentence without a significant row: the change of the step, and why it is not judged if its interval excludes 0.
fn undecided_sentence(diff: &Diff, step_ns: f64, tests: usize) -> String {
    let Some(row) = diff.step() else { return "the length of the step was not compared".into() };
    let percent = |ns: f64| 100.0 * ns / step_ns.max(1.0);
    let (low, high) = (percent(row.change.low_ns), percent(row.change.high_ns));
    let Method { least_steps, smallest_share, .. } = diff.method;
    let why = match row.change.may_be_none() {
        _ if diff.sides_are_equal() => "; all rows are equal".to_string(),
        _ if diff.verdict.too_few_steps => {
            format!("; a run has fewer than {least_steps} steps, too few to judge a change")
        }
        true => String::new(),
        false if tests == 1 => format!("; this does not prove a change of more than {} %", 100.0 * smallest_share),
        false => format!(
            "; this does not prove a change of more than {} % when {tests} rows are compared",
            100.0 * smallest_share
        ),
    };
    format!("the step: {:+.1} %, between {low:+.1} % and {high:+.1} %{why}", row.step_pct)
}

/// A clause for a headline whose sign differs from that of the step of all ranks; without it, the reader would take the
/// headline for the change of the step.
fn against_the_step(diff: &Diff, row: &DiffRow) -> Option<String> {
    let wall = diff.step()?;
    let opposite = (wall.change.delta_ns > 0.0) != (row.change.delta_ns > 0.0);
    let certain = if wall.judgement == Judgement::Unclear { ", not significant" } else { "" };
    let word = if wall.change.delta_ns > 0.0 { "longer" } else { "shorter" };
    (opposite && wall.change.delta_ns != 0.0)
        .then(|| format!("; but the step of all ranks is {:.1} % {word}{certain}", wall.step_pct.abs()))
}

/// The name of a key in a sentence.
pub(crate) fn name(key: &Key) -> String {
    let shape = key.shape.as_deref().map(|shape| format!(" {shape}")).unwrap_or_default();
    match key.group {
        Group::Step if &*key.name == "wall" => "the step".into(),
        Group::Step => key.name.to_string(),
        Group::Account => account_name(key),
        Group::Range if key.measure == Measure::SelfTime => format!("`{}` itself", key.name),
        Group::Range | Group::Operator | Group::Kernel => format!("`{}`{shape}", key.name),
        Group::Collective => format!("{}{shape}", key.name),
        Group::Bucket => format!("bucket {}", key.name),
        Group::Category => format!("device work of the kind {}", key.name),
        Group::Module | Group::Source => format!("`{}`", key.name),
    }
}

fn account_name(key: &Key) -> String {
    match key.is_rank_cost() {
        true => "cost of the rank".into(),
        false => format!("account: {}", key.name.replace('_', " ")),
    }
}

/// The name of a key without quotes and without its measure.
pub fn plain_name(key: &Key) -> String {
    let shape = key.shape.as_deref().map(|shape| format!(" {shape}")).unwrap_or_default();
    match key.group {
        Group::Step if &*key.name == "wall" => "step".into(),
        Group::Step => key.name.to_string(),
        Group::Account => account_name(key),
        Group::Bucket => format!("bucket {}", key.name),
        _ => format!("{}{shape}", key.name),
    }
}
