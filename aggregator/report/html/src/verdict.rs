//! The head of the page: the verdict as lines and numbers.

use crate::page::BarPart;
use crate::string_pool::visible_sentence;
use model::analysis::{Analysis, RankIdentity, VerdictKind};
use model::parts_of_step::PartOfStep;
use model::units::{ns, plural};
use trace::LostPart;

/// The ranks whose places are listed; others are counted.
const PLACES: usize = 4;

/// The lines below the title of the verdict: machine, cost, location, action.
pub(crate) fn answers(analysis: &Analysis) -> Vec<(&'static str, String)> {
    let v = &analysis.verdict;
    let machine = match v.kind {
        VerdictKind::Cause | VerdictKind::Hung => places(analysis, &v.causes),
        VerdictKind::Undecided => places(analysis, &v.suspects),
        VerdictKind::Balanced | VerdictKind::Jitter | VerdictKind::Lost => {
            Some("none: no rank slows the others".into())
        }
        VerdictKind::Nothing if analysis.facts.ranks.len() == 1 => places(analysis, &analysis.facts.ranks),
        VerdictKind::Nothing => None,
    };
    let top = analysis.tables.findings.iter().max_by_key(|row| row.saving_ns);
    let of_finding = top.filter(|_| v.kind == VerdictKind::Balanced);
    let of_finding = of_finding.map(|row| format!("{}, because {}", row.suggestion, row.title));
    let action = v.action.clone().or(of_finding);
    let lines = [
        ("machine", machine),
        ("cost", v.cost.clone()),
        ("where", v.location.clone()),
        ("what to do", action),
        ("recorded in", file_of(analysis)),
    ];
    lines.into_iter().filter_map(|(name, text)| Some((name, visible_sentence(&text?)))).collect()
}

/// The file of the rank that the page is about.
fn file_of(analysis: &Analysis) -> Option<String> {
    let v = &analysis.verdict;
    let rank = match v.kind {
        VerdictKind::Cause | VerdictKind::Undecided => v.rank,
        VerdictKind::Balanced | VerdictKind::Jitter | VerdictKind::Lost | VerdictKind::Hung => None,
        VerdictKind::Nothing => analysis.facts.ranks.first().copied().filter(|_| analysis.facts.ranks.len() == 1),
    };
    analysis.identity(rank?)?.file.clone()
}

/// Where ranks ran, in words; `None` without ranks.
fn places(analysis: &Analysis, of: &[i32]) -> Option<String> {
    let place = |rank: &i32| {
        let identity = analysis.identity(*rank).cloned().map(|identity| RankIdentity { file: None, ..identity });
        let words = identity.map(|identity| identity.words()).unwrap_or_default();
        let host = analysis.identity(*rank).and_then(|identity| identity.host.as_ref());
        let known = match (words.is_empty(), host) {
            (true, _) => "not recorded".to_string(),
            (_, Some(_)) => format!("host {}", words.join(" · ")),
            (_, None) => format!("host not recorded · {}", words.join(" · ")),
        };
        if of.len() > 1 { format!("rank {rank}: {known}") } else { known }
    };
    let mut places: Vec<String> = of.iter().take(PLACES).map(place).collect();
    if of.len() > PLACES {
        places.push(plural(of.len() - PLACES, "more rank"));
    }
    (!places.is_empty()).then(|| places.join("; "))
}

/// Beside the title: the verdict as a sentence, where no lines say it.
pub(crate) fn headline(analysis: &Analysis) -> Option<String> {
    analysis.verdict.cost.is_none().then(|| visible_sentence(&analysis.verdict.sentence))
}

/// The account of lost time as a bar. `ids` are those of sections that are drawn.
pub(crate) fn parts(analysis: &Analysis, ids: &[&'static str]) -> Vec<BarPart> {
    let all = analysis.parts_of_step();
    let sum_ns: i64 = all.iter().map(|part| part.ns.max(0)).sum();
    let mut from = 0.0;
    let bar = |part: PartOfStep| {
        let (kind, evidence) = match part.part {
            LostPart::Work => ("work", "kernels"),
            LostPart::Dependencies => ("dependencies", "idle"),
            LostPart::Transfer => ("transfer", "collectives"),
            LostPart::Stages => ("stages", "steps"),
            LostPart::LongerSteps => ("longer", "steps"),
            LostPart::Line => ("line", "lateness"),
            LostPart::Variation => ("variation", "skew"),
        };
        let length = 1000.0 * part.ns.max(0) as f64 / sum_ns.max(1) as f64;
        from += length;
        BarPart {
            kind,
            words: visible_sentence(&part.words),
            amount: format!("{}, {:.0} %", ns(part.ns), 100.0 * part.share),
            from: from - length,
            length,
            link: ids.iter().find(|id| **id == evidence).copied().unwrap_or("findings"),
        }
    };
    all.into_iter().map(bar).collect()
}

/// Three numbers of the verdict, each with its name.
pub(crate) fn tiles(analysis: &Analysis) -> Vec<(String, String)> {
    let v = &analysis.verdict;
    let mut tiles = Vec::new();
    let mut tile = |name: &str, value: Option<String>| tiles.extend(value.map(|value| (name.to_string(), value)));
    if v.cost.is_none() || v.kind.acquits_all() {
        let is_mean = !analysis.tables.lost_time.is_empty();
        tile(if is_mean { "mean step" } else { "median step" }, v.step_ns.map(ns));
        let steps = plural(analysis.facts.steps.len(), "step");
        let (sure, value) = match v.kind {
            kind if kind.acquits_all() => (format!("how sure: over {steps}, no rank stands out"), "none found".into()),
            VerdictKind::Undecided => (format!("how sure: over {steps}"), "not certain".into()),
            VerdictKind::Hung => ("a collective did not end".into(), plural(v.causes.len(), "missing rank")),
            _ => (format!("how sure: over {steps}; there is no rank to compare with"), "not compared".into()),
        };
        tile(&sure, Some(value).filter(|_| analysis.facts.events > 0));
        return tiles;
    }
    let name = match v.kind {
        VerdictKind::Cause if v.delayed_steps.is_some() => "mean delay of a step",
        VerdictKind::Cause => "delay of every step",
        _ => "possible delay of every step",
    };
    tile(name, v.step_delay_ns.map(ns));
    let share = |delay: i64| v.step_ns.filter(|s| *s > 0).map(|s| format!("{:.0} %", 100.0 * delay as f64 / s as f64));
    tile("share of a step", v.step_delay_ns.and_then(share));
    let shown = v
        .persistence
        .map(|share| format!("{:.0} of {}", share * f64::from(v.steps), plural(v.steps.max(0) as usize, "step")));
    let (sure, seen) = match v.kind {
        VerdictKind::Cause => ("certain", "seen in"),
        _ => ("not certain", "perhaps in"),
    };
    tile(&shown.map_or("how sure".into(), |shown| format!("how sure: {seen} {shown}")), Some(sure.into()));
    tiles
}
