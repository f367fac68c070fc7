//! The verdict as a title and short lines: what it costs and how sure, where the time goes, what to do.

use trace::{KernelStatsRow, LostTimeLineRow, Reason, StragglerRow, Verdict as RankVerdict, Word};

use super::level::Found as Level;
use super::phrases::{
    HIDING, certainty_of, every, in_python, named, stands_on_range, stands_on_transfers, variation, why,
};
use crate::slow_kernels::slow_kernels;
use model::analysis::{Facts, Verdict, VerdictKind};
use model::parts_of_step::when;
use model::thresholds::Thresholds;
use model::units::{ns, plural, ranks, ranks_named, shorten};

/// The rows that a verdict is about, and where they ran.
pub(super) struct About<'a> {
    /// The rank that the verdict names.
    pub(super) row: Option<&'a StragglerRow>,
    /// The other ranks with the same verdict, the largest delay first.
    pub(super) rivals: &'a [&'a StragglerRow],
    /// What slow ranks have in common.
    pub(super) level: Option<&'a Level>,
    /// What takes time by the account.
    pub(super) lines: &'a [LostTimeLineRow],
    pub(super) facts: &'a Facts,
    pub(super) kernels: &'a [KernelStatsRow],
}

/// Fills the lines of `verdict`.
pub(super) fn fill(verdict: &mut Verdict, about: &About<'_>, t: &Thresholds) {
    verdict.title = title(verdict, about);
    verdict.action = action(verdict, about, t);
    let is_suspected = matches!(verdict.kind, VerdictKind::Cause | VerdictKind::Undecided);
    if let Some(row) = about.row.filter(|_| is_suspected) {
        verdict.cost = Some(cost(verdict, row, about.rivals, t));
        verdict.location = Some(location(row, about));
    }
}

/// The words for a cause that takes time in some of the steps: `LOST 4.98 ms of each 14.2 ms step: rank 3, every 5th step`.
fn in_some_steps(verdict: &Verdict, about: &About<'_>) -> Option<String> {
    let row = about.row.filter(|row| verdict.kind == VerdictKind::Cause && row.delayed_steps.is_some())?;
    let line =
        about.lines.iter().find(|line| line.rank == Some(row.rank) && line.steps == row.delayed_steps.unwrap_or(0))?;
    let all: Vec<i32> =
        about.lines.iter().filter(|other| other.line == line.line).filter_map(|line| line.rank).collect();
    let cost_ns = if all.len() > 1 { line.together_ns } else { row.step_delay_ns };
    let step = verdict.step_ns.map_or(String::new(), |step| format!(" of each {} step", ns(step)));
    Some(format!("LOST {}{step}: {}, {}", ns(cost_ns), ranks_named(&all), when(line)))
}

/// `SLOW RANK 5`, `SLOW HOSTS node-a, node-b`, `UNDECIDED: rank 7`, `BALANCED`, …
fn title(verdict: &Verdict, about: &About<'_>) -> String {
    if let Some(title) = in_some_steps(verdict, about) {
        return title;
    }
    let level = about.level;
    let all = |ranks_of: &[i32]| {
        let mut sorted = ranks_of.to_vec();
        sorted.sort_unstable();
        ranks(&sorted)
    };
    match (verdict.kind, level.map(|level| (level.level, level.place.as_ref()))) {
        (VerdictKind::Cause, Some((_, Some(place)))) => {
            let beside = level.map_or(&[][..], |level| &level.beside);
            let ranks = if beside.len() == 1 { "RANK" } else { "RANKS" };
            let beside = if beside.is_empty() { String::new() } else { format!(", {ranks} {}", all(beside)) };
            format!("SLOW {}{beside}", place.title())
        }
        (VerdictKind::Cause, Some((trace::Level::Communicator, _))) => {
            format!("SLOW LINK between ranks {}", all(&verdict.causes))
        }
        (VerdictKind::Cause, Some((trace::Level::Link, _))) => format!("SLOW LINK of rank {}", all(&verdict.causes)),
        (VerdictKind::Cause, _) if verdict.causes.len() > 1 => format!("SLOW RANKS {}", all(&verdict.causes)),
        (VerdictKind::Cause, _) => format!("SLOW RANK {}", all(&verdict.causes)),
        (VerdictKind::Undecided, _) if verdict.suspects.len() > 1 => {
            format!("UNDECIDED: ranks {}", all(&verdict.suspects))
        }
        (VerdictKind::Undecided, _) if !verdict.suspects.is_empty() => {
            format!("UNDECIDED: rank {}", all(&verdict.suspects))
        }
        (VerdictKind::Undecided, _) => "UNDECIDED".into(),
        (VerdictKind::Balanced | VerdictKind::Jitter | VerdictKind::Lost, _) => "BALANCED".into(),
        (VerdictKind::Nothing | VerdictKind::Hung, _) => "NO VERDICT".into(),
    }
}

/// What it costs, and how sure that is.
fn cost(verdict: &Verdict, row: &StragglerRow, rivals: &[&StragglerRow], t: &Thresholds) -> String {
    let interval = row.step_delay_low_ns.zip(row.step_delay_high_ns);
    let interval = interval.map(|(low, high)| format!("95 % interval {} to {}", ns(low), ns(high)));
    let step_ns = verdict.step_ns.filter(|step| *step > 0);
    let share = step_ns.map(|step| format!("{:.0} %", 100.0 * row.step_delay_ns as f64 / step as f64));
    let certain: Vec<String> = share.into_iter().chain(interval).collect();
    let certain = if certain.is_empty() { String::new() } else { format!(" ({})", certain.join(", ")) };
    let step = step_ns.map_or("step".into(), |step| format!("{} step", ns(step)));
    // A rank that is late in some steps costs this on average over all of them.
    let each = if row.delayed_steps.is_some() { "of the mean" } else { "of each" };
    let high_ns = row.step_delay_high_ns.filter(|_| row.step_delay_ns == 0 && row.step_delay_low_ns == Some(0));
    if let Some(high_ns) = high_ns.filter(|_| verdict.kind == VerdictKind::Undecided) {
        let doubt = verdict.doubt.as_deref().unwrap_or("the evidence is not certain");
        let also = also("Also suspected", rivals);
        return format!("unknown, at most {} {each} {step}; undecided, because {doubt}{also}", ns(high_ns));
    }
    let mut text = format!("{} {each} {step}{certain}", ns(row.step_delay_ns));
    if verdict.kind == VerdictKind::Undecided {
        let doubt = verdict.doubt.as_deref().unwrap_or("the evidence is not certain");
        return format!("perhaps {text}; undecided, because {doubt}{}", also("Also suspected", rivals));
    }
    text.push_str(&format!(", {}", seen(row, t)));
    if let Some(all_ns) = verdict.together_delay_ns.filter(|ns| *ns > HIDING * row.step_delay_ns) {
        let interval = verdict.together_delay_low_ns.zip(verdict.together_delay_high_ns);
        let interval =
            interval.map_or(String::new(), |(low, high)| format!(" (95 % interval {} to {})", ns(low), ns(high)));
        return format!("{} per step{interval}, all slow ranks together; rank {} alone {text}", ns(all_ns), row.rank);
    }
    text + &also("Also slow", &rivals.iter().copied().filter(|other| !is_of_link(row, other)).collect::<Vec<_>>())
}

/// Whether both ranks are slow by the same communicator.
fn is_of_link(row: &StragglerRow, other: &StragglerRow) -> bool {
    row.slow_comm_id.is_some() && row.slow_comm_id == other.slow_comm_id
}

fn also(title: &str, rivals: &[&StragglerRow]) -> String {
    match named(title, rivals).trim_end_matches('.') {
        "" => String::new(),
        ranks => format!(".{ranks}"),
    }
}

/// How often the excess is seen, and how far it is from chance.
fn seen(row: &StragglerRow, t: &Thresholds) -> String {
    let steps = plural(row.steps.max(0) as usize, "step");
    let (z, persistence) = certainty_of(row);
    let mut text = match (row.delayed_steps, persistence) {
        (Some(delayed), _) => {
            let period = row.period_steps.zip(row.period_first_step);
            let period = period.map_or(String::new(), |(steps, first)| format!(" ({})", every(steps, first)));
            format!("seen in {delayed} of {steps}{period}")
        }
        (None, Some(share)) => format!("seen in {:.0} of {steps}", share * f64::from(row.steps)),
        (None, None) => format!("measured over {steps}"),
    };
    if let Some(z) = z {
        text.push_str(&format!(", {} the usual variation", variation(z, t)));
    }
    text
}

/// Where the time goes.
fn location(row: &StragglerRow, about: &About<'_>) -> String {
    let of_device = row.reason.as_ref().is_some_and(|reason| *reason == Reason::Device);
    let slow = if of_device { slow_kernels(row.rank, about.kernels, about.facts) } else { None };
    let kernel = slow.map_or(String::new(), |slow| {
        let (name, ratio, others) = (shorten(&slow.kernel.name, 60), slow.ratio, slow.compared_with);
        format!("; its kernel `{name}` takes {ratio:.2} × as long as on {others}")
    });
    why(row, about.facts) + &in_the_step(row) + &in_python(row) + &kernel
}

/// The part of the excess that delays the step, if it is much smaller: other work hides the rest.
fn in_the_step(row: &StragglerRow) -> String {
    let excess_ns = row.evidence_excess_ns.filter(|_| stands_on_range(row)).unwrap_or(row.own_excess_ns);
    // The delay of a rank that is late in some steps is a mean over all steps, and its excess is not.
    if row.delayed_steps.is_some() || stands_on_transfers(row) || 10 * row.step_delay_ns > 9 * excess_ns {
        return String::new();
    }
    let delay = if row.verdict == RankVerdict::Cause { "delay" } else { "may delay" };
    format!("; {} of it {delay} the step", ns(row.step_delay_ns))
}

/// Advice for the reason of a verdict.
fn of_reason(verdict: &Verdict, about: &About<'_>) -> String {
    let code = about.row.and_then(|row| row.evidence_code.as_ref());
    let text = match (verdict.reason.as_ref().and_then(Word::known), code) {
        (Some(Reason::Host | Reason::Waiting | Reason::Input), Some(code)) => {
            return format!("look at `{code}` on that rank: Python's recorded stacks show that the time goes there");
        }
        (Some(Reason::Input), _) => {
            "look at the data loader of that rank: its storage, its workers, the size of its samples"
        }
        (Some(Reason::Device), _) => {
            "check the clocks, power, temperature and errors of that GPU, as with nvidia-smi -q or dcgmi diag"
        }
        (Some(Reason::Waiting), _) => "look at what that range waits for: another process, a queue, a lock, or storage",
        (Some(Reason::Network), _) => {
            "look at the network of that rank's host, and at the algorithm and channels it uses"
        }
        (Some(Reason::Host), _) => {
            "see what that process does then: stacks (with_stack=True of torch.profiler, perf, py-spy), or ranges around its parts \
             (record_function, NVTX), show its code, locks, input and output"
        }
        _ if about.row.is_some_and(stands_on_range) => {
            "look at the named range on that rank: more work, a slower device, or a noisy neighbour"
        }
        _ => "compare that rank's operators with another rank's: more work, a slower device, or a noisy neighbour",
    };
    text.into()
}

/// What to do.
fn action(verdict: &Verdict, about: &About<'_>, t: &Thresholds) -> Option<String> {
    let of_reason = || of_reason(verdict, about);
    let few = about.row.is_some_and(|row| (row.steps.max(0) as usize) < t.min_steps);
    let missing = &about.facts.missing_ranks;
    match (verdict.kind, about.row) {
        (VerdictKind::Cause, _) => Some(of_reason()),
        (VerdictKind::Undecided, Some(row)) if !missing.is_empty() && row.step_delay_ns == 0 => {
            Some(format!("record the missing ranks too: {}; {}", ranks(missing), of_reason()))
        }
        (VerdictKind::Undecided, Some(_)) if few && verdict.within_variation => {
            Some(format!("this may be chance: record at least {} steps", t.min_steps))
        }
        (VerdictKind::Undecided, Some(_)) if few => {
            Some(format!("record at least {} steps; {}", t.min_steps, of_reason()))
        }
        (VerdictKind::Undecided, Some(_)) if verdict.within_variation => {
            Some("this may be chance: record more steps before you look for a reason".into())
        }
        (VerdictKind::Undecided, Some(_)) => Some(of_reason()),
        (VerdictKind::Undecided, None) if !missing.is_empty() => {
            let verb = if about.facts.has_chosen_ranks() { "analyze the other" } else { "record the missing" };
            Some(format!("{verb} ranks too, for which the others may wait: {}", ranks(missing)))
        }
        _ => None,
    }
}
