//! Builds the rows with their intervals from the series of both sides, and the sentence of the verdict.

use std::collections::BTreeSet;

use rayon::prelude::*;
use trace::{OmissionRow, Text};

use crate::inference::{Estimate, adjusted, change, harmonic, quantile_of_t};
use crate::kernel_counts::kernel_counts;
use crate::method::{Change, Method};
use crate::profile::{Group, Key, Measure, RunProfile};
use crate::result::{Diff, DiffRow, DiffVerdict, Judgement, OneSided, Place, RunFacts};
use crate::same_job::require_same_job;
use crate::sample::{Estimates, Sample};
use model::Error;
use model::units::ns;

type Named = (String, RunProfile);

/// Number of runs a side that show the variation between runs, however few steps they have.
const LEAST_RUNS: usize = 3;

/// Compares the profiles of both sides.
///
/// # Errors
/// [`Error::NoInput`] if the sides have no common rank, or a run has no common step.
pub fn compare(a: &[Named], b: &[Named], method: &Method, mut omissions: Vec<OmissionRow>) -> Result<Diff, Error> {
    if let Some(first) = a.first().filter(|_| !method.unlike_runs) {
        a.iter().skip(1).chain(b).try_for_each(|other| require_same_job(first, other))?;
    }
    let ranks = common_ranks(a, b, &mut omissions)?;
    let sample = |(path, run): &'_ Named| -> Result<(), Error> {
        if Sample::new(run, &ranks).steps() > 0 {
            return Ok(());
        }
        let why = "no active step that all of its ranks recorded; record steps, or mark them with --step-marker";
        Err(Error::NoInput { path: path.into(), why: why.into() })
    };
    a.iter().chain(b).try_for_each(sample)?;
    let (samples_a, samples_b) = (samples(a, &ranks), samples(b, &ranks));
    let wall = Key::new(Group::Step, "wall", Measure::Total);
    let step_of = |sample: &Sample<'_>| sample.estimates(&wall).map_or(0.0, |e| e.all.level_ns);
    let step_ns = samples_a.iter().map(step_of).sum::<f64>() / samples_a.len() as f64;
    let smallest_ns = method.smallest_share * step_ns;

    let keys: BTreeSet<&Key> = samples_a.iter().chain(&samples_b).flat_map(Sample::keys).collect();
    let keys: Vec<&Key> = keys.into_iter().collect();
    let compared: Vec<Compared> =
        keys.par_iter().map(|key| compare_key(key, &samples_a, &samples_b, &ranks, smallest_ns, method)).collect();
    let mut diff = Diff {
        a: run_facts(a, &samples_a, step_of),
        b: run_facts(b, &samples_b, step_of),
        method: method.clone(),
        verdict: DiffVerdict::default(),
        rows: Vec::new(),
        too_small: 0,
        kernels: kernel_counts(&samples_a, &samples_b),
        appeared: Vec::new(),
        vanished: Vec::new(),
        omissions,
    };
    for one in compared {
        diff.rows.extend(one.rows);
        diff.too_small += one.too_small;
        diff.appeared.extend(one.appeared);
        diff.vanished.extend(one.vanished);
    }
    for side in [&mut diff.appeared, &mut diff.vanished] {
        side.sort_by(|x, y| y.step_ns.total_cmp(&x.step_ns).then_with(|| x.key.cmp(&y.key)));
    }
    let few = samples_a.iter().chain(&samples_b).any(|sample| sample.steps() < method.least_steps);
    diff.verdict.too_few_steps = few && a.len().min(b.len()) < LEAST_RUNS;
    judge(&mut diff, step_ns);
    Ok(diff)
}

fn samples<'a>(side: &'a [Named], ranks: &BTreeSet<i32>) -> Vec<Sample<'a>> {
    side.iter().map(|(_, run)| Sample::new(run, ranks)).collect()
}

/// The ranks that every run has. The other ranks become omissions.
fn common_ranks(a: &[Named], b: &[Named], omissions: &mut Vec<OmissionRow>) -> Result<BTreeSet<i32>, Error> {
    let ranks_of = |(_, run): &Named| run.ranks.iter().map(|p| p.rank).collect::<BTreeSet<i32>>();
    let common =
        a.iter().chain(b).map(ranks_of).reduce(|x, y| x.intersection(&y).copied().collect()).unwrap_or_default();
    if common.is_empty() {
        let path = b.first().map(|(path, _)| path.into()).unwrap_or_default();
        return Err(Error::NoInput { path, why: "it shares no rank with the other runs".into() });
    }
    for (path, run) in a.iter().chain(b) {
        let others = run.ranks.iter().filter(|p| !common.contains(&p.rank)).count();
        if others > 0 {
            omissions.push(
                OmissionRow::left_out("ranks", "some runs lack them, so they are not compared")
                    .file(Text::from(path.as_str()))
                    .amount(others as i64),
            );
        }
    }
    Ok(common)
}

fn run_facts(side: &[Named], samples: &[Sample<'_>], step_of: impl Fn(&Sample<'_>) -> f64) -> Vec<RunFacts> {
    let facts = |((path, run), sample): (&Named, &Sample<'_>)| RunFacts {
        path: path.clone(),
        run_id: run.facts.run_id.clone(),
        ranks: run.facts.ranks.clone(),
        steps: sample.steps(),
        step_ns: step_of(sample),
        verdict: run.verdict.clone(),
    };
    side.iter().zip(samples).map(facts).collect()
}

/// The result for one key.
#[derive(Default)]
struct Compared {
    rows: Vec<DiffRow>,
    too_small: usize,
    appeared: Option<OneSided>,
    vanished: Option<OneSided>,
}

fn compare_key(
    key: &Key,
    a: &[Sample<'_>],
    b: &[Sample<'_>],
    ranks: &BTreeSet<i32>,
    smallest_ns: f64,
    method: &Method,
) -> Compared {
    // A run of many steps may have a name in each of them. Such names have no change that matters, and their errors are
    // not computed.
    let is_rare = smallest_ns > 0.0 && a.iter().chain(b).all(|sample| sample.is_rare(key));
    let estimates = |sample: &Sample<'_>| if is_rare { sample.zero_estimates(key) } else { sample.estimates(key) };
    let estimates_of = |side: &[Sample<'_>]| side.iter().filter_map(estimates).collect::<Vec<Estimates>>();
    let (in_a, in_b) = (estimates_of(a), estimates_of(b));
    let mut compared = Compared::default();
    // List a thing that appeared or vanished once, by its total time.
    let listed =
        matches!(key.group, Group::Range | Group::Operator | Group::Kernel | Group::Collective | Group::Bucket)
            && matches!(key.measure, Measure::Total | Measure::SelfTime | Measure::Exposed)
            && !(key.group == Group::Range && key.measure == Measure::SelfTime);
    let alone = |side: &[Estimates]| {
        let step_ns = side.iter().map(|e| e.all.level_ns).sum::<f64>() / side.len() as f64;
        Some(OneSided { key: key.clone(), step_ns }).filter(|_| listed)
    };
    match (in_a.len() == a.len(), in_b.len() == b.len()) {
        (true, true) => {}
        (true, false) if in_b.is_empty() => compared.vanished = alone(&in_a),
        (false, true) if in_a.is_empty() => compared.appeared = alone(&in_b),
        // Only some runs of a side have it: these runs differ among themselves, so make no statement.
        _ => return compared,
    }
    if in_a.is_empty() || in_b.is_empty() {
        return compared;
    }
    let mut add = |place: Place, side_a: Vec<Estimate>, side_b: Vec<Estimate>| {
        let level = |side: &[Estimate]| side.iter().map(|e| e.level_ns).sum::<f64>() / side.len() as f64;
        let (a_ns, b_ns) = (level(&side_a), level(&side_b));
        if a_ns.abs().max(b_ns.abs()) < smallest_ns {
            compared.too_small += 1;
            return;
        }
        let Some(mut change) = change(&side_a, &side_b, smallest_ns, method) else { return };
        // A rank that stands out only because all other ranks changed did not change itself.
        let own_ns = b_ns - a_ns;
        if place != Place::AllRanks && (own_ns * change.delta_ns <= 0.0 || own_ns.abs() < change.delta_ns.abs() / 2.0) {
            change.p = 1.0;
        }
        let (step_pct, p_adjusted, judgement) = (0.0, 1.0, Judgement::Unclear);
        compared.rows.push(DiffRow { key: key.clone(), place, a_ns, b_ns, change, step_pct, p_adjusted, judgement });
    };
    let all = |side: &[Estimates]| side.iter().map(|e| e.all).collect();
    add(Place::AllRanks, all(&in_a), all(&in_b));
    for (at, rank) in ranks.iter().enumerate() {
        let of_rank = |side: &[Estimates]| side.iter().filter_map(|e| e.ranks.get(at).copied()).collect::<Vec<_>>();
        let (side_a, side_b) = (of_rank(&in_a), of_rank(&in_b));
        if side_a.len() == a.len() && side_b.len() == b.len() {
            add(Place::Rank(*rank), side_a, side_b);
        }
    }
    compared
}

/// Adjusts the p-values for the number of rows, sorts the rows, and sets the verdict.
fn judge(diff: &mut Diff, step_ns: f64) {
    if diff.verdict.too_few_steps {
        diff.rows.iter_mut().for_each(|row| row.change.p = 1.0);
    }
    let p: Vec<f64> = diff.rows.iter().map(|row| row.change.p).collect();
    for (row, p_adjusted) in diff.rows.iter_mut().zip(adjusted(&p)) {
        row.p_adjusted = p_adjusted;
        row.step_pct = if step_ns > 0.0 { 100.0 * row.change.delta_ns / step_ns } else { 0.0 };
        row.judgement = match p_adjusted <= diff.method.false_discoveries {
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
        let alone = diff.method.false_discoveries / (diff.rows.len() as f64 * harmonic(diff.rows.len()));
        let beyond_ns = quantile_of_t(1.0 - alone / 2.0, row.change.df) * row.change.se_ns;
        100.0 * (diff.method.smallest_share + beyond_ns / step_ns.max(1.0))
    });
    let too_few_steps = diff.verdict.too_few_steps;
    diff.verdict = DiffVerdict {
        detectable_step_pct: detectable.filter(|_| !too_few_steps),
        too_few_steps,
        ..verdict(diff, step_ns)
    };
}

/// The row that the sentence describes: the largest change of own work, because it can be a reason; else the step; else
/// any change.
fn headline(rows: &[DiffRow]) -> Option<usize> {
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
    largest(&|row| slower(row) && (named(row) || kernel(row)))
        .or_else(|| largest(&slower))
        .or_else(|| largest(&|row| row.judgement == Judgement::Slower && row.is_step()))
        .or_else(|| largest(&|row| row.judgement == Judgement::Slower && row.key.is_cost()))
        .or_else(|| largest(&|row| row.key.is_own_work()))
        .or_else(|| largest(&|row| row.key.is_cost()))
        .or_else(|| largest(&|_| true))
        .map(|(at, _)| at)
}

fn verdict(diff: &Diff, step_ns: f64) -> DiffVerdict {
    let Some(at) = headline(&diff.rows) else {
        return DiffVerdict { sentence: undecided_sentence(diff, step_ns), ..DiffVerdict::default() };
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
    let sentence = format!(
        "{whose}{} is {word} by {} a step {beyond} ({:.1} % of a step), between {} and {}",
        name(&row.key),
        size(row.change.delta_ns),
        row.step_pct.abs(),
        bound(low_ns),
        bound(high_ns),
    );
    let sentence = sentence + &against_the_step(diff, row).unwrap_or_default();
    DiffVerdict { changed: true, sentence, row: Some(at), ..DiffVerdict::default() }
}

/// The sentence without a significant row: the change of the step, and why it is not judged if its interval excludes 0.
fn undecided_sentence(diff: &Diff, step_ns: f64) -> String {
    let Some(row) = diff.step() else { return "the length of the step was not compared".into() };
    let percent = |ns: f64| 100.0 * ns / step_ns.max(1.0);
    let (low, high) = (percent(row.change.low_ns), percent(row.change.high_ns));
    let Method { least_steps, smallest_share, .. } = diff.method;
    let why = match row.change.may_be_none() {
        _ if diff.verdict.too_few_steps => {
            format!("; a run has fewer than {least_steps} steps, too few to judge a change")
        }
        true => String::new(),
        false => format!(
            "; this does not prove a change of more than {} % when {} rows are compared",
            100.0 * smallest_share,
            diff.rows.len()
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
        .then(|| format!("; but the median step of all ranks is {:.1} % {word}{certain}", wall.step_pct.abs()))
}

/// The name of a key in a sentence.
pub(crate) fn name(key: &Key) -> String {
    let shape = key.shape.as_deref().map(|shape| format!(" {shape}")).unwrap_or_default();
    match key.group {
        Group::Step if &*key.name == "wall" => "the step".into(),
        Group::Step => key.name.to_string(),
        Group::Range if key.measure == Measure::SelfTime => format!("`{}` itself", key.name),
        Group::Range | Group::Operator | Group::Kernel => format!("`{}`{shape}", key.name),
        Group::Collective => format!("{}{shape}", key.name),
        Group::Bucket => format!("bucket {}", key.name),
    }
}

/// The name of a key without quotes and without its measure.
pub fn plain_name(key: &Key) -> String {
    let shape = key.shape.as_deref().map(|shape| format!(" {shape}")).unwrap_or_default();
    match key.group {
        Group::Step if &*key.name == "wall" => "step".into(),
        Group::Step => key.name.to_string(),
        Group::Bucket => format!("bucket {}", key.name),
        _ => format!("{}{shape}", key.name),
    }
}
