//! The pattern of a unit's series over the steps: a level, a ramp, a part of the steps, or single steps.
//!
//! Units are those that do the same work, so that exchanging them changes nothing but chance. A unit stands out by sizes and not by
//! counts: its level by the lowest gap in the sorted levels with at least half of the units below, its single steps by how much they
//! exceed the unit's own usual step.

use model::stats::{at_least, median};

/// The usual spread of equal units, as a share of a step's work.
const USUAL_SPREAD: f64 = 0.005;
/// The weight of that belief, in units.
const WEIGHT: f64 = 8.0;
/// A single step stands out by so many median deviations of its unit …
const SPIKE_DEVIATIONS: f64 = 8.0;
/// … and by this share of a step.
const SPIKE_SHARE: f64 = 0.05;
/// Steps that stand out in a larger share are no single ones.
const MOST_SPIKES: f64 = 0.4;
/// The least number of a unit's single steps that are its own.
const LEAST_SPIKES: usize = 3;
/// The largest probability that they are one unit's by chance, and that before their period counts.
const MOST_CHANCE: f64 = 1e-3;
const MOST_TAIL: f64 = 0.2;
/// A larger one that makes it likely.
const LIKELY_TAIL: f64 = 0.02;
/// The share of the cost of all single steps that one unit has if they do not move.
const ALONE_SHARE: f64 = 0.8;
/// From so many steps on, a series has a shape.
pub(crate) const SHAPED_STEPS: usize = 8;
/// From so many steps on, a part of the steps may have a level.
const DIVIDED_STEPS: usize = 6;
/// From so many steps on, a level may come and go.
const TURNING_STEPS: usize = 12;
/// A part has at least so many.
const LEAST_PART: usize = 3;

/// Of fewer steps, a level needs more to be certain.
const LEAST_STEPS: usize = 4;
/// So many times as much.
const FEW_STRICT: f64 = 4.0;
/// From so many steps on, one may lack the level.
const CUT_STEPS: usize = 4;
/// From so many steps on, their halves tell whether speeds drift.
const DRIFT_STEPS: usize = 6;
/// So many single steps may stand out on different units, if each takes longer than a usual step.
const FEW_EVENTS: usize = 3;
/// Running sums of squares of a series are off by less than this part of the whole sum.
const ROUNDING: f64 = 1e-9;

/// When a unit stands out.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Pattern {
    /// In every step.
    Every,
    /// More with each step; from this one on.
    Ramp(usize),
    /// From this step on.
    Begins(usize),
    /// Until this step.
    Ends(usize),
    /// In so many steps, on and off.
    ComesAndGoes,
    /// In single steps, every so many if they have a period.
    Single(Option<usize>),
}

impl Pattern {
    /// The word of the table.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Every => "every",
            Self::Ramp(_) => "ramp",
            Self::Begins(_) => "begins",
            Self::Ends(_) => "ends",
            Self::ComesAndGoes => "on_and_off",
            Self::Single(Some(_)) => "periodic",
            Self::Single(None) => "single",
        }
    }
}

/// A unit that stands out: its position, how, and in which steps.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Outstanding {
    pub(crate) unit: usize,
    pub(crate) pattern: Pattern,
    pub(crate) steps: Vec<usize>,
    /// Whether that is far enough from chance for so few steps.
    pub(crate) is_certain: bool,
}

/// The units of a role, with what each step of each costs above the reference.
pub(crate) struct Series<'a> {
    /// Whether each unit shows how long the work usually takes.
    pub(crate) usual: &'a [bool],
    /// Whether something else shows that each unit is late in every step.
    pub(crate) is_shown: &'a [bool],
    /// For each unit, its excess in each step.
    pub(crate) above_ns: &'a [Vec<f64>],
    /// For each unit, the credit of the longest path in each step.
    pub(crate) credit_ns: &'a [Vec<f64>],
    /// Length of a step.
    pub(crate) step_ns: f64,
    /// Work of a unit on the path in a step.
    pub(crate) work_ns: f64,
    /// The least credit of a unit that matters, over all steps.
    pub(crate) least_ns: f64,
}

/// The units that stand out.
pub(crate) fn outstanding(series: &Series<'_>) -> Vec<Outstanding> {
    let units = series.above_ns.len();
    let steps = series.above_ns.first().map_or(0, Vec::len);
    if units < 2 || steps == 0 {
        return Vec::new();
    }
    // Against the lower median of the units in each step.
    let mut above = series.above_ns.to_vec();
    for step in 0..steps {
        let usual = above.iter().zip(series.usual).filter(|(_, is_usual)| **is_usual);
        let mut column: Vec<f64> = usual.map(|(of, _)| of[step]).collect();
        column.sort_by(f64::total_cmp);
        let usual = column.get(column.len().saturating_sub(1) / 2).copied().unwrap_or(0.0);
        above.iter_mut().for_each(|of| of[step] -= usual);
    }
    let usual: Vec<f64> = above.iter().map(|of| middle(of)).collect();
    let spikes = spikes(&above, &usual, series.step_ns);
    let without: Vec<Vec<f64>> = (0..units)
        .map(|unit| (0..steps).map(|s| if spikes[unit][s] { usual[unit] } else { above[unit][s] }).collect())
        .collect();
    let mut found = single_steps(series, &spikes);
    levels(series, &without, &mut found);
    shown(series, &usual, &mut found);
    found
}

fn middle(of: &[f64]) -> f64 {
    median(of.iter().copied()).unwrap_or(0.0)
}

/// Whether each step of each unit is a single one that stands out.
fn spikes(above: &[Vec<f64>], usual: &[f64], step_ns: f64) -> Vec<Vec<bool>> {
    let steps = above[0].len();
    if steps < 4 {
        return vec![vec![false; steps]; above.len()];
    }
    let deviation = |(of, usual): (&Vec<f64>, &f64)| {
        1.4826 * middle(&of.iter().map(|x| (x - usual).abs()).collect::<Vec<f64>>()) + 0.002 * step_ns
    };
    let deviations: Vec<f64> = above.iter().zip(usual).map(deviation).collect();
    let pooled = middle(&deviations).max(0.002 * step_ns);
    let of_unit = |unit: usize| -> Vec<bool> {
        let least = (SPIKE_DEVIATIONS * deviations[unit].min(2.0 * pooled)).max(SPIKE_SHARE * step_ns);
        let spikes: Vec<bool> = above[unit].iter().map(|x| x - usual[unit] > least).collect();
        let share = spikes.iter().filter(|is| **is).count() as f64 / steps as f64;
        // The last steps of a ramp are no single ones.
        let is_ramp = || matches!(shape(&above[unit], deviations[unit]), (Pattern::Ramp(_), _));
        let is_none = share > MOST_SPIKES
            || spikes.chunk_by(|a, b| a == b).any(|run| run[0] && run.len() > LEAST_PART) && is_ramp();
        if is_none { vec![false; steps] } else { spikes }
    };
    (0..above.len()).map(of_unit).collect()
}

/// The single steps that belong to one unit. Single steps that move over units belong to none.
fn single_steps(series: &Series<'_>, spikes: &[Vec<bool>]) -> Vec<Outstanding> {
    let (units, steps) = (spikes.len(), spikes[0].len());
    let at = |unit: usize| -> Vec<usize> { (0..steps).filter(|step| spikes[unit][*step]).collect() };
    let all: usize = (0..units).map(|unit| at(unit).len()).sum();
    let cost_ns = |unit: usize| at(unit).iter().map(|step| series.credit_ns[unit][*step].max(0.0)).sum::<f64>();
    let all_ns: f64 = (0..units).map(cost_ns).sum();
    let mut found = Vec::new();
    for unit in 0..units {
        let own = at(unit);
        if own.is_empty() {
            continue;
        }
        let cost_ns = cost_ns(unit);
        let tail = (units as f64 * at_least(own.len(), all, 1.0 / units as f64)).min(1.0);
        let period = period(&own);
        let periodic =
            |period: usize| (1.0 / steps as f64).powi(own.len() as i32 - 2) * f64::from(u8::from(period > 1));
        let chance = period.filter(|period| *period > 1).map_or(tail, |period| tail * periodic(period));
        let is_own = own.len() >= LEAST_SPIKES && chance < MOST_CHANCE && tail < MOST_TAIL;
        // A stall that happens once is its unit's by its size, if hardly any other unit has one.
        let is_long = cost_ns >= series.step_ns * own.len() as f64;
        let is_alone = is_long && cost_ns >= ALONE_SHARE * all_ns && cost_ns >= 2.0 * series.least_ns;
        let is_event = is_long && all <= FEW_EVENTS;
        let is_certain = is_own || is_alone || is_event;
        let is_likely = own.len() >= LEAST_SPIKES && tail < LIKELY_TAIL && cost_ns >= ALONE_SHARE * all_ns;
        if (is_certain || is_likely) && cost_ns >= series.least_ns {
            let period = period.filter(|period| own.len() >= LEAST_SPIKES && *period > 1);
            found.push(Outstanding { unit, pattern: Pattern::Single(period), steps: own, is_certain });
        }
    }
    found
}

/// Units that vary too much to stand out by their level, but of which something else shows that they are late in every step.
fn shown(series: &Series<'_>, usual: &[f64], found: &mut Vec<Outstanding>) {
    let steps = series.above_ns[0].len();
    let has_level = |unit: usize, found: &[Outstanding]| {
        found.iter().any(|of| of.unit == unit && !matches!(of.pattern, Pattern::Single(_)))
    };
    for unit in (0..usual.len()).filter(|unit| series.is_shown[*unit]) {
        if usual[unit] * steps as f64 >= series.least_ns && !has_level(unit, found) {
            let taken = |step: &usize| found.iter().any(|of| of.unit == unit && of.steps.binary_search(step).is_ok());
            let at = (0..steps).filter(|step| !taken(step)).collect();
            found.push(Outstanding { unit, pattern: Pattern::Every, steps: at, is_certain: true });
        }
    }
}

/// The distance of steps that are equally far apart.
fn period(steps: &[usize]) -> Option<usize> {
    let first = steps.get(1)? - steps[0];
    steps.windows(2).all(|pair| pair[1] - pair[0] == first).then_some(first)
}

/// Units with a level above the others, in all steps or in a part of them.
fn levels(series: &Series<'_>, above: &[Vec<f64>], found: &mut Vec<Outstanding>) {
    let (units, steps) = (above.len(), above[0].len());
    let noise_ns = noise(above, series.step_ns);
    let inflation = inflation(above, noise_ns);
    let mut windows = vec![(0, steps, 1.0)];
    if steps >= DIVIDED_STEPS {
        windows.extend(
            above.iter().filter_map(|of| change_point(of, noise_ns)).flat_map(|k| [(k, steps, 1.3), (0, k, 1.3)]),
        );
    }
    // More than half may be slow, if the others are known to show the usual work.
    let least_low = series.usual.iter().filter(|is_usual| **is_usual).count().min(units.div_ceil(2));
    let mut used = vec![false; units];
    for (from, to, strict) in windows {
        let part = |unit: usize| &above[unit][from..to];
        let few = to - from < 8;
        let level =
            |unit: usize| if few { middle(part(unit)) } else { part(unit).iter().sum::<f64>() / (to - from) as f64 };
        let levels: Vec<f64> = (0..units).map(level).collect();
        let n = (to - from) as f64;
        let error_ns = (1.2 * noise_ns * (n.min(inflation) / n).sqrt()).max(drift(above, (from, to), noise_ns));
        let mut high: Vec<usize> = split((&levels, least_low), error_ns, series.work_ns, strict);
        let certain = split((&levels, least_low), error_ns, series.work_ns, FEW_STRICT);
        high.retain(|unit| !used[*unit]);
        if few {
            // The recording cuts what the first or the last step waits for.
            let lacks = |unit: usize| part(unit).iter().filter(|ns| **ns <= 0.5 * levels[unit]).count();
            high.retain(|unit| lacks(*unit) <= usize::from(to - from >= CUT_STEPS));
        }
        let most = high.iter().map(|unit| levels[*unit]).fold(0.0, f64::max);
        if most * n < 0.8 * series.least_ns {
            continue;
        }
        for unit in high {
            used[unit] = true;
            let (mut pattern, mut span) = shape(&above[unit], noise_ns);
            if (from, to) != (0, steps) && pattern == Pattern::Every {
                (pattern, span) = (if to == steps { Pattern::Begins(from) } else { Pattern::Ends(to) }, (from, to));
            }
            let taken =
                |step: &usize| found.iter().any(|other| other.unit == unit && other.steps.binary_search(step).is_ok());
            let at: Vec<usize> = (span.0..span.1).filter(|step| !taken(step)).collect();
            let is_certain = to - from >= LEAST_STEPS || certain.contains(&unit);
            found.push(Outstanding { unit, pattern, steps: at, is_certain });
        }
    }
}

/// The standard deviation of a step of a unit, by differences of consecutive steps.
fn noise(above: &[Vec<f64>], step_ns: f64) -> f64 {
    // Of two units, one is the reference of the other in each step. Of three, one is that of both.
    let apart = match above {
        [a, b] => Some([a.iter().zip(b).map(|(a, b)| a - b).collect::<Vec<f64>>()]),
        _ => None,
    };
    let series = apart.as_ref().map_or(above, |apart| apart.as_slice());
    let is_known = |pair: &&[f64]| above.len() != 3 || pair.iter().all(|ns| *ns != 0.0);
    let pairs = series.iter().flat_map(|of| of.windows(2)).filter(is_known);
    let differences = pairs.map(|pair| (pair[1] - pair[0]).abs());
    let noise = median(differences).map_or(0.002 * step_ns, |ns| 1.4826 * ns / 2.0_f64.sqrt());
    noise.max(0.0005 * step_ns)
}

/// How far the units' means wander from one half of the steps to the other, beside the noise of steps: speeds that drift differ by as
/// much.
fn drift(above: &[Vec<f64>], (from, to): (usize, usize), noise_ns: f64) -> f64 {
    if to - from < DRIFT_STEPS {
        return 0.0;
    }
    let middle = from.midpoint(to);
    let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len().max(1) as f64;
    let apart = above.iter().map(|of| (mean(&of[from..middle]) - mean(&of[middle..to])).abs());
    let (apart, by_noise) = (1.4826 * median(apart).unwrap_or(0.0), 2.0 * noise_ns / ((to - from) as f64).sqrt());
    (apart * apart - by_noise * by_noise).max(0.0).sqrt()
}

/// By how much the variance of a mean is larger because steps follow each other.
fn inflation(above: &[Vec<f64>], noise_ns: f64) -> f64 {
    let steps = above[0].len();
    if steps < 4 {
        return 1.0;
    }
    let (mut both, mut square) = (0.0, 0.0);
    for of in above {
        let usual = middle(of);
        let clipped: Vec<f64> = of.iter().map(|x| (x - usual).clamp(-3.0 * noise_ns, 3.0 * noise_ns)).collect();
        both += clipped.windows(2).map(|pair| pair[0] * pair[1]).sum::<f64>();
        square += clipped.iter().map(|x| x * x).sum::<f64>();
    }
    let rho = (both / square.max(1e-9) + 1.0 / steps as f64).clamp(0.0, 0.9);
    (1.0 + rho) / (1.0 - rho)
}

/// The step at which a series changes its level most clearly.
fn change_point(of: &[f64], noise_ns: f64) -> Option<usize> {
    let n = of.len();
    let all: f64 = of.iter().sum();
    let mut before: f64 = of[..LEAST_PART].iter().sum();
    let mut best: Option<(f64, usize)> = None;
    for (k, ns) in of.iter().enumerate().take(n - LEAST_PART + 1).skip(LEAST_PART) {
        let (left, right) = (before / k as f64, (all - before) / (n - k) as f64);
        let z = (right - left).abs() * (k as f64 * (n - k) as f64 / n as f64).sqrt();
        best = best.filter(|(most, _)| *most >= z).or(Some((z, k)));
        before += ns;
    }
    best.filter(|(z, _)| *z > 8.0 * noise_ns).map(|(_, k)| k)
}

/// The units above the lowest clear gap of the sorted levels, with at least `least_low` units below it.
fn split((levels, least_low): (&[f64], usize), error_ns: f64, work_ns: f64, strict: f64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..levels.len()).collect();
    order.sort_by(|a, b| levels[*a].total_cmp(&levels[*b]));
    let sorted: Vec<f64> = order.iter().map(|unit| levels[*unit]).collect();
    for j in least_low.max(1)..levels.len() {
        let low = &sorted[..j];
        let mean = low.iter().sum::<f64>() / j as f64;
        let squares: f64 = low.iter().map(|x| (x - mean).powi(2)).sum();
        let freedom = WEIGHT + j as f64 - 1.0;
        let expected = (USUAL_SPREAD * work_ns).powi(2) + error_ns * error_ns;
        let sd = ((WEIGHT * expected + squares) / freedom).sqrt();
        let need = strict * (4.0 + 20.0 / freedom) * sd;
        if sorted[j] - mean > need && sorted[j] - sorted[j - 1] > 0.5 * need {
            let mut high = order[j..].to_vec();
            high.sort_unstable();
            return high;
        }
    }
    Vec::new()
}

/// The shape of a series that stands out, by the Bayesian information criterion, and the steps that have it.
fn shape(of: &[f64], noise_ns: f64) -> (Pattern, (usize, usize)) {
    let n = of.len();
    let every = (Pattern::Every, (0, n));
    if n < SHAPED_STEPS {
        return every;
    }
    let least = (0.05 * noise_ns).powi(2) + 1e-9;
    let cost_of = |mean: f64, parameters: f64| n as f64 * mean.max(least).ln() + parameters * 1.5 * (n as f64).ln();
    let cost = |residual: &dyn Fn(usize) -> f64, parameters: f64| {
        cost_of((0..n).map(|t| residual(t).powi(2)).sum::<f64>() / n as f64, parameters)
    };
    let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len().max(1) as f64;
    let all = mean(of);
    let level = cost(&|t| of[t] - all, 0.0);
    let mut best = (level - 10.0, every.clone());
    let mut offer = |cost: f64, shape: (Pattern, (usize, usize))| {
        if cost < best.0 {
            best = (cost, shape);
        }
    };
    let (slope, at_zero) = line(of, |t| t as f64);
    let ramp = cost(&|t| of[t] - slope * t as f64 - at_zero, 1.0);
    offer(ramp, (Pattern::Ramp(0), (0, n)));
    for k in steps_that_may_fit(of, ramp.min(level - 10.0), |mean| cost_of(mean, 2.0)) {
        let (low, high) = (mean(&of[..k]), mean(&of[k..]));
        let fit = cost(&|t| of[t] - if t < k { low } else { high }, 2.0);
        let (inside, outside) = if high > low { (high, low) } else { (low, high) };
        let shape = match () {
            // A step in a level that is there all the time.
            () if outside > 0.4 * inside => every.clone(),
            () if high > low => (Pattern::Begins(k), (k, n)),
            () => (Pattern::Ends(k), (0, k)),
        };
        offer(fit, shape);
    }
    for k in (3..n.saturating_sub(4)).step_by((n / 50).max(1)) {
        let hinge = |t: usize| t.saturating_sub(k) as f64;
        let (slope, at_zero) = line(of, hinge);
        offer(cost(&|t| of[t] - slope * hinge(t) - at_zero, 2.0), (Pattern::Ramp(k), (k, n)));
    }
    let half = of.iter().copied().fold(f64::NEG_INFINITY, f64::max) / 2.0;
    let on: Vec<bool> = of.iter().map(|x| *x > half).collect();
    let share = on.iter().filter(|is| **is).count() as f64 / n as f64;
    let turns = on.windows(2).filter(|pair| pair[0] != pair[1]).count();
    if n >= TURNING_STEPS && (0.15..0.85).contains(&share) && turns > 0 {
        let of_side =
            |side: bool| mean(&of.iter().zip(&on).filter(|(_, is)| **is == side).map(|(x, _)| *x).collect::<Vec<_>>());
        let (high, low) = (of_side(true), of_side(false));
        offer(
            cost(&|t| of[t] - if on[t] { high } else { low }, 2.0 + turns as f64 / 4.0),
            (Pattern::ComesAndGoes, (0, n)),
        );
    }
    best.1
}

/// The places at which a step of the level may fit a series best, and not worse than `most`. Running sums tell which can not, because the
/// exact sums of all places take the square of the length. `cost` is that of a mean square.
fn steps_that_may_fit(of: &[f64], mut most: f64, cost: impl Fn(f64) -> f64) -> Vec<usize> {
    let n = of.len();
    let middle = of.iter().sum::<f64>() / n as f64;
    let centered = || of.iter().map(|x| x - middle);
    let (all, squares) = centered().fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
    let error = ROUNDING * squares;
    let mean = |squares: f64| squares.max(0.0) / n as f64;
    let (mut before, mut found) = (0.0, Vec::new());
    for (k, x) in centered().enumerate().take(n - 2) {
        if k >= 3 {
            let around = squares - before * before / k as f64 - (all - before).powi(2) / (n - k) as f64;
            most = most.min(cost(mean(around + error)));
            found.push((cost(mean(around - error)), k));
        }
        before += x;
    }
    found.into_iter().filter(|(least, _)| *least <= most).map(|(_, k)| k).collect()
}

/// Slope and value at 0 of the line through a series over x, by least squares.
fn line(of: &[f64], x: impl Fn(usize) -> f64) -> (f64, f64) {
    let n = of.len() as f64;
    let (mean_x, mean_y) = ((0..of.len()).map(&x).sum::<f64>() / n, of.iter().sum::<f64>() / n);
    let (mut both, mut square) = (0.0, 0.0);
    for (t, y) in of.iter().enumerate() {
        both += (x(t) - mean_x) * (y - mean_y);
        square += (x(t) - mean_x).powi(2);
    }
    let slope = if square > 0.0 { both / square } else { 0.0 };
    (slope, mean_y - slope * mean_x)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP_NS: f64 = 1_000.0;

    /// Four units that vary by 2 ns from step to step, the last one with more.
    fn found(more_ns: &[f64]) -> Vec<(usize, Pattern, Vec<usize>)> {
        let varies = |unit: usize, step: usize| if (3 * unit + 5 * step) % 4 < 2 { 1.0 } else { -1.0 };
        let of_unit = |unit: usize| -> Vec<f64> {
            let more = |step: usize| if unit == 3 { more_ns[step] } else { 0.0 };
            (0..more_ns.len()).map(|step| varies(unit, step) + more(step)).collect()
        };
        let above_ns: Vec<Vec<f64>> = (0..4).map(of_unit).collect();
        let series = Series {
            usual: &[true; 4],
            is_shown: &[false; 4],
            above_ns: &above_ns,
            credit_ns: &above_ns,
            step_ns: STEP_NS,
            work_ns: 800.0,
            least_ns: 0.01 * STEP_NS * more_ns.len() as f64,
        };
        outstanding(&series).into_iter().map(|of| (of.unit, of.pattern, of.steps)).collect()
    }

    #[test]
    fn places_that_cannot_fit_best_are_left_out_and_no_other() {
        let mut random = trace::random::SplitMix64(7);
        for case in 0..200 {
            let (n, at, above) = (20 + case, 5 + case / 2, [0.0, 1.0, 30.0][case % 3]);
            let noise = if case % 5 == 0 { 0.0 } else { 1.0 };
            let mut next = || 1e6 + noise * (random.next_u64() % 1000) as f64 / 100.0;
            let of: Vec<f64> = (0..n).map(|t| next() + if t < at { 0.0 } else { above }).collect();
            let squares = |of: &[f64]| {
                let mean = of.iter().sum::<f64>() / of.len() as f64;
                of.iter().map(|x| (x - mean).powi(2)).sum::<f64>()
            };
            let exact = |k: usize| (squares(&of[..k]) + squares(&of[k..])) / n as f64;
            let best = (3..n - 2).map(exact).fold(f64::INFINITY, f64::min);
            let all: Vec<usize> = (3..n - 2).filter(|k| exact(*k) <= best).collect();
            let found = steps_that_may_fit(&of, f64::INFINITY, |mean| mean);
            assert!(all.iter().all(|k| found.contains(k)), "{all:?} of {found:?} in case {case}");
            let few = noise > 0.0 || above > 0.0;
            assert!(!few || found.len() < 4, "{found:?} in case {case}");
            assert!(steps_that_may_fit(&of, best - 1.0, |mean| mean).is_empty());
        }
    }

    #[test]
    fn equal_units_do_not_stand_out() {
        assert_eq!(found(&[0.0; 12]), []);
    }

    #[test]
    fn a_level_begins_ends_or_lasts() {
        let level = |steps: std::ops::Range<usize>| -> Vec<f64> {
            (0..20).map(|step| if steps.contains(&step) { 200.0 } else { 0.0 }).collect()
        };
        assert_eq!(found(&level(0..20)), [(3, Pattern::Every, (0..20).collect())]);
        assert_eq!(found(&level(11..20)), [(3, Pattern::Begins(11), (11..20).collect())]);
        assert_eq!(found(&level(0..9)), [(3, Pattern::Ends(9), (0..9).collect())]);
    }

    /// Its last steps are far above the median, but they do not stand alone.
    #[test]
    fn a_ramp_is_no_row_of_single_steps() {
        let ramp: Vec<f64> = (0..40).map(|step| 20.0 * step as f64).collect();
        assert_eq!(found(&ramp), [(3, Pattern::Ramp(0), (0..40).collect())]);
    }

    #[test]
    fn single_steps_have_a_period() {
        let stalls: Vec<f64> = (0..20).map(|step| if step % 5 == 2 { 2_000.0 } else { 0.0 }).collect();
        assert_eq!(found(&stalls), [(3, Pattern::Single(Some(5)), vec![2, 7, 12, 17])]);
    }
}
