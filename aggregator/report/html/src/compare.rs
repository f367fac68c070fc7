//! The comparison of two runs, as the first tab of the page.

use serde::Serialize;

use crate::columns::five_digits;
use crate::page::{ComparePage, Tab, script_json};
use crate::page_limits::Limits;
use crate::string_pool::{visible_name, visible_sentence};
use diff::{Diff, DiffRow, Difference, Group, Heading, Judgement, NameCount, OneSided, Place, RunFacts};
use model::Error;
use model::units::{count, ns, omission, omission_kind, plural, ranks_named};
use report_text::diff::{kernel_sentence, method_sentences};

/// The data of the scripts.
#[derive(Serialize)]
struct Document {
    /// Ranks in both runs.
    ranks: Vec<i32>,
    rows: Vec<Row>,
    kernels: Vec<KernelRow>,
    appeared: Vec<Single>,
    vanished: Vec<Single>,
}

/// A comparison; times per step.
#[derive(Serialize)]
struct Row {
    /// `None` for all ranks.
    rank: Option<i32>,
    group: Group,
    name: String,
    measure: &'static str,
    judgement: Judgement,
    a_ns: f64,
    b_ns: f64,
    change_ns: f64,
    low_ns: f64,
    high_ns: f64,
    step_pct: f64,
    p: f64,
}

/// A kernel whose count changed; counts per rank and step.
#[derive(Serialize)]
struct KernelRow {
    name: String,
    a: f64,
    b: f64,
}

#[derive(Serialize)]
struct Single {
    group: Group,
    name: String,
    /// Rows per step.
    calls: Option<f64>,
    step_ns: f64,
}

/// Renders the comparison as a tab.
pub(crate) fn compare_tab(diff: &Diff, limits: &Limits) -> Result<Tab, Error> {
    let shown = diff.rows.len().min(limits.diff_rows);
    let ranks = diff.b.first().map(|run| run.ranks.clone()).unwrap_or_default();
    let changes = diff.kernels.iter().flat_map(|kernels| &kernels.changes);
    let document = Document {
        kernels: changes.take(limits.names).map(kernel).collect(),
        ranks,
        rows: diff.rows.iter().take(shown).map(row).collect(),
        appeared: diff.appeared.iter().take(limits.names).map(single).collect(),
        vanished: diff.vanished.iter().take(limits.names).map(single).collect(),
    };
    let heading = diff.heading();
    let kind = match heading {
        Heading::Slower => "cause",
        Heading::Faster | Heading::NoChange => "balanced",
        Heading::TooFewSteps | Heading::Undecided => "undecided",
    };
    let page = ComparePage {
        kind,
        word: heading.words(),
        sentence: visible_sentence(&diff.verdict.sentence),
        tiles: tiles(diff),
        sides: sides(diff),
        uncovered: uncovered(diff, shown, limits),
        method: method_sentences(diff).iter().map(|words| visible_sentence(words)).collect(),
        kernels: diff.kernels.as_ref().map(kernel_sentence),
        has_kernels: !document.kernels.is_empty(),
        has_rows: shown > 0,
        one_sided: !diff.appeared.is_empty() || !diff.vanished.is_empty(),
        data: script_json(&serde_json::to_string(&document)?),
    };
    page.into_tab()
}

fn row(row: &DiffRow) -> Row {
    let rank = match row.place {
        Place::AllRanks => None,
        Place::Rank(rank) => Some(rank),
    };
    Row {
        rank,
        group: row.key.group,
        name: visible_name(&diff::plain_name(&row.key)),
        measure: row.key.measure.as_str(),
        judgement: row.judgement,
        a_ns: row.a_ns.round(),
        b_ns: row.b_ns.round(),
        change_ns: row.change.delta_ns.round(),
        low_ns: row.change.low_ns.round(),
        high_ns: row.change.high_ns.round(),
        step_pct: five_digits(row.step_pct),
        p: five_digits(row.p_adjusted),
    }
}

fn kernel(one: &NameCount) -> KernelRow {
    KernelRow { name: visible_name(&one.name), a: five_digits(one.a_per_step), b: five_digits(one.b_per_step) }
}

fn single(one: &OneSided) -> Single {
    let name = visible_name(&diff::plain_name(&one.key));
    Single { group: one.key.group, name, calls: one.calls.map(five_digits), step_ns: one.step_ns.round() }
}

fn tiles(diff: &Diff) -> Vec<(&'static str, String)> {
    let mean = |side: &[RunFacts]| side.iter().map(|run| run.step_ns).sum::<f64>() / side.len().max(1) as f64;
    let time = |value: f64| ns(value.round() as i64);
    let count_of = |judgement| diff.rows.iter().filter(|row| row.judgement == judgement).count();
    let mut tiles = vec![("step of A", time(mean(&diff.a))), ("step of B", time(mean(&diff.b)))];
    let is_step =
        |row: &&DiffRow| row.place == Place::AllRanks && row.key.group == Group::Step && &*row.key.name == "wall";
    if let Some(step) = diff.rows.iter().find(is_step) {
        let pct = |value: f64| format!("{:+.1} %", 100.0 * value / mean(&diff.a).max(1.0));
        tiles.push(("change of the step, B − A", pct(step.change.delta_ns)));
        tiles.push(("95 % interval", format!("{} to {}", pct(step.change.low_ns), pct(step.change.high_ns))));
    }
    tiles.push(("significantly slower", plural(count_of(Judgement::Slower), "row")));
    tiles.push(("significantly faster", plural(count_of(Judgement::Faster), "row")));
    tiles
}

/// Describes each run, what differs between the sides, and what is not compared because of it.
fn sides(diff: &Diff) -> Vec<(String, String)> {
    let side = |letter: &str, runs: &[RunFacts]| -> Vec<(String, String)> {
        let describe = |(at, run): (usize, &RunFacts)| {
            let which = if runs.len() == 1 { letter.to_string() } else { format!("{letter}{}", at + 1) };
            let words = format!("{}: {}, {}", run.path, ranks_named(&run.ranks), plural(run.steps, "step"));
            (which, visible_sentence(&format!("{words}; verdict on this run alone: {}", run.verdict)))
        };
        runs.iter().enumerate().map(describe).collect()
    };
    let differences: Vec<String> = diff.differences.iter().map(Difference::words).collect();
    let list = |title: &str, items: &[String]| {
        (!items.is_empty()).then(|| (title.into(), visible_sentence(&items.join("; "))))
    };
    let unlike = [list("Differs", &differences), list("Not compared", &diff.not_compared)];
    side("A", &diff.a).into_iter().chain(side("B", &diff.b)).chain(unlike.into_iter().flatten()).collect()
}

/// Lists the data that the comparison does not cover.
fn uncovered(diff: &Diff, shown: usize, limits: &Limits) -> Vec<(&'static str, String)> {
    let mut all = Vec::new();
    for row in diff.omissions.iter().take(limits.omissions) {
        all.push((omission_kind(row), visible_sentence(&omission(row))));
    }
    let rest = diff.omissions.get(limits.omissions..).unwrap_or_default();
    if let Some(worst) = rest.iter().min_by_key(|row| row.kind.known()) {
        all.push((omission_kind(worst), format!("{} more", plural(rest.len(), "omission"))));
    }
    if diff.too_small > 0 {
        let share = 100.0 * diff.method.smallest_share;
        let rows = count(diff.too_small as u64);
        all.push(("summarised", format!("{rows} rows below {share:.1} % of a step in both runs were skipped")));
    }
    if shown < diff.rows.len() {
        let (rest, all_rows) = (count((diff.rows.len() - shown) as u64), count(diff.rows.len() as u64));
        let words = format!(
            "{rest} of {all_rows} rows, those with the smallest changes, are not shown; `aggregator diff --json` has all rows"
        );
        all.push(("summarised", words));
    }
    let changed = diff.kernels.as_ref().map_or(0, |kernels| kernels.changes.len());
    if changed > limits.names {
        let rest = plural(changed - limits.names, "kernel");
        all.push(("summarised", format!("{rest} whose count changed less are not shown")));
    }
    for (side, word) in [(&diff.appeared, "new in B"), (&diff.vanished, "gone in B")] {
        if side.len() > limits.names {
            let rest = plural(side.len() - limits.names, "row");
            all.push(("summarised", format!("{rest} {word} not shown")));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use trace::OmissionRow;

    use super::*;
    use diff::{Aspect, Change, DiffVerdict, KernelCounts, Key, Measure, Method, SideKernels};

    /// Four compared rows and two one-sided rows, with `text` in every string of the comparison.
    fn analysis_with(text: &str) -> Diff {
        let row = |place, judgement| {
            let mut key = Key::new(Group::Operator, text, Measure::SelfTime);
            key.shape = Some(text.into());
            let change = Change { delta_ns: 2e6, se_ns: 1e5, df: 8.0, low_ns: 1e6, high_ns: 3e6, p: 0.001 };
            DiffRow { key, place, a_ns: 1e6, b_ns: 3e6, change, step_pct: 2.0, p_adjusted: 0.01, judgement }
        };
        let mut wall = row(Place::AllRanks, Judgement::Unclear);
        wall.key = Key::new(Group::Step, "wall", Measure::Total);
        let run = RunFacts {
            path: text.into(),
            ranks: vec![0, 1],
            steps: 20,
            step_ns: 1e8,
            verdict: text.into(),
            ..RunFacts::default()
        };
        let one = || OneSided { key: Key::new(Group::Kernel, text, Measure::Total), calls: Some(2.0), step_ns: 5e6 };
        let fewer = NameCount { name: text.into(), a_per_step: 3.0, b_per_step: 1.5 };
        let side = |kernels_per_step| SideKernels { kernels_per_step, launches_per_step: None };
        Diff {
            kernels: Some(KernelCounts { a: side(3.0), b: side(1.5), changes: vec![fewer] }),
            a: vec![run.clone()],
            b: vec![run],
            method: Method::default(),
            verdict: DiffVerdict { changed: true, sentence: text.into(), row: Some(0), ..DiffVerdict::default() },
            rows: vec![
                row(Place::Rank(1), Judgement::Slower),
                row(Place::AllRanks, Judgement::Faster),
                wall,
                row(Place::Rank(0), Judgement::Unclear),
            ],
            too_small: 3,
            differences: vec![Difference { what: Aspect::Device, a: text.into(), b: "other".into() }],
            not_compared: vec![text.into()],
            other_shapes: Vec::new(),
            appeared: vec![one()],
            vanished: vec![one()],
            omissions: vec![OmissionRow::lost(text, text)],
        }
    }

    fn html(diff: &Diff) -> String {
        compare_tab(diff, &Limits::default()).unwrap().html
    }

    /// Invariant (output): No string of a trace becomes markup.
    #[test]
    fn no_string_becomes_markup() {
        let plain = html(&analysis_with("harmless"));
        for hostile in
            ["</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "\" onmouseover=\"x", "\u{202e}a"]
        {
            let page = html(&analysis_with(hostile));
            assert_eq!(page.matches('<').count(), plain.matches('<').count(), "{hostile:?}");
            let (markup, data) = page.split_once("id=\"diff-data\">").unwrap();
            assert!(!markup.contains(hostile), "{hostile:?} stands in the page as it is");
            let data: serde_json::Value = serde_json::from_str(data.split("</script>").next().unwrap()).unwrap();
            let shown = visible_name(&format!("{hostile} {hostile}"));
            assert_eq!((&data["rows"][0]["name"], &data["rows"][2]["name"]), (&shown.as_str().into(), &"step".into()));
            assert_eq!(data["kernels"][0]["name"], visible_name(hostile));
            assert_eq!((&data["rows"][0]["rank"], &data["rows"][1]["rank"]), (&1.into(), &serde_json::Value::Null));
        }
    }

    #[test]
    fn skipped_and_hidden_rows_are_counted() {
        let mut diff = analysis_with("gemm");
        let page = html(&diff);
        assert!(page.contains("3 rows below 1.0 % of a step in both runs were skipped"), "{page}");
        assert!(page.contains("gemm: gemm") && page.contains(">Slower<") && page.contains("+2.0 %"), "{page}");
        let sentence = "A has 3 kernels in unknown launches, B has 1.5 kernels in unknown launches: -50.0 % kernels";
        assert!(page.contains(sentence) && page.contains("data-diff=\"kernels\""), "{page}");
        assert!(page.contains("device: gemm in A, other in B") && page.contains("Not compared"), "{page}");
        diff.kernels = None;
        assert!(html(&diff).contains("Neither run has kernels"), "a run on CPUs");
        let few = Limits { diff_rows: 1, ..Limits::default() };
        let page = compare_tab(&diff, &few).unwrap().html;
        assert!(page.contains("3 of 4 rows, those with the smallest changes, are not shown"), "{page}");
        (diff.rows, diff.verdict) = (Vec::new(), DiffVerdict { too_few_steps: true, ..DiffVerdict::default() });
        let page = html(&diff);
        assert!(
            page.contains("Too few steps to judge") && page.contains("No row takes a large enough share of a step"),
            "{page}"
        );
    }

    #[test]
    fn every_link_leads_to_a_section_of_the_tab() {
        let page = html(&analysis_with("gemm"));
        let targets: BTreeSet<&str> =
            page.split("href=\"#").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert_eq!(targets.len(), page.matches("<section ").count());
        assert!(targets.iter().all(|target| page.contains(&format!("id=\"{target}\""))), "{targets:?}");
    }
}
