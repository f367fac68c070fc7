//! Tests of the whole page: its content, and that no string of a trace becomes markup.

use trace::{FindingRow, InstanceRow, OmissionRow, OpStatsRow, StepBreakdownRow, StragglerRow, WaitRow};

use super::*;
use align::clock::Clocks;
use model::RankData;
use model::analysis::{Facts, Tables, Verdict, VerdictKind};

/// A source whose ranks cannot be loaded, as if the files were deleted after the analysis.
pub(crate) struct Gone;

impl Source for Gone {
    fn info(&self) -> SourceInfo {
        SourceInfo::default()
    }
    fn ranks(&self) -> Vec<i32> {
        Vec::new()
    }
    fn problems(&self) -> Vec<OmissionRow> {
        Vec::new()
    }
    fn load(&self, rank: i32) -> Result<RankData, Error> {
        Err(Error::NoRank { path: "gone".into(), why: format!("rank {rank} is gone") })
    }
}

fn page_of(analysis: Analysis, settings: &Settings) -> String {
    let analyzed = Analyzed {
        analysis,
        clocks: Clocks::default(),
        time: Default::default(),
        devices: Vec::new(),
        recorded_ns: None,
    };
    let options = Options::default();
    let run = ReportedRun { source: &Gone, options: &options, analyzed: &analyzed, hang: Ok(None) };
    let run = run_tab(&run, settings, "Run").unwrap();
    let mut out = Vec::new();
    let frame = Frame {
        title: title("traces", &analyzed.analysis),
        inputs: vec![Input { letter: "", name: "traces".into(), path: "some/traces".into() }],
        command: "rankscope report 'some traces'".into(),
    };
    write_page(&frame, &[run.tab], &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// The JSON of a page.
fn data_of(page: &str) -> serde_json::Value {
    let start = page.split("id=\"run-data\">").nth(1).unwrap();
    serde_json::from_str(start.split("</script>").next().unwrap()).unwrap()
}

/// Two ranks and a step, with `text` in every string of the analysis.
fn analysis_with(text: &str) -> Analysis {
    let breakdown =
        |rank| StepBreakdownRow { rank, step: Some(3), wall_ns: 100, compute_ns: 100, ..Default::default() };
    let straggler = StragglerRow {
        rank: 1,
        steps: 3,
        verdict: "cause".into(),
        reason: Some("compute".into()),
        evidence_range: Some(text.into()),
        evidence: Some(text.into()),
        ..Default::default()
    };
    let instance = InstanceRow { op: text.into(), step: Some(3), ranks_seen: 2, complete: true, ..Default::default() };
    Analysis {
        facts: Facts {
            run_id: text.into(),
            tool: text.into(),
            hosts: vec![text.into()],
            ranks: vec![0, 1],
            steps: vec![3],
            selection: Some(text.into()),
            ..Facts::default()
        },
        verdict: Verdict {
            kind: VerdictKind::Cause,
            rank: Some(1),
            causes: vec![1],
            sentence: format!("rank 1 slows every step: {text}"),
            ..Verdict::default()
        },
        tables: Tables {
            step_breakdown: vec![breakdown(0), breakdown(1)],
            stragglers: vec![straggler],
            collective_instances: vec![instance],
            collective_waits: vec![WaitRow { rank: 1, ..Default::default() }],
            op_stats: vec![OpStatsRow { name: text.into(), calls: 1, total_ns: 5, ..Default::default() }],
            omissions: vec![OmissionRow::lost(text, text)],
            findings: vec![FindingRow {
                id: "input".into(),
                severity: "warning".into(),
                saving_ns: Some(5),
                title: text.into(),
                evidence: text.into(),
                evidence_table: "op_stats".into(),
                suggestion: text.into(),
            }],
            ..Tables::default()
        },
        ..Analysis::default()
    }
}

const HOSTILE: [&str; 6] = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\" onmouseover=\"alert(1)",
    "' autofocus onfocus='alert(1)",
    "{{ title }}${alert(1)}<!-- -->]]>",
    "\u{202e}exe.gpj\u{2028}\u{0}",
];

/// Invariant (output): No string of a trace becomes markup.
#[test]
fn no_string_becomes_markup() {
    let plain = page_of(analysis_with("harmless"), &Settings::default());
    let tags = |page: &str| page.matches('<').count();
    for hostile in HOSTILE {
        let page = page_of(analysis_with(hostile), &Settings::default());
        // The page has the same elements for every text, so the text added no markup.
        assert_eq!(tags(&page), tags(&plain), "{hostile:?}");
        let (before, after) = page.split_once("id=\"run-data\">").unwrap();
        let markup = [before, after.split_once("</script>").unwrap().1];
        assert!(!markup.iter().any(|part| part.contains(hostile)), "{hostile:?} stands in the page as it is");
        // The data contains the text in its visible form.
        let data = data_of(&page);
        let shown = string_pool::visible_name(hostile);
        assert!(
            data["names"].as_array().unwrap().iter().any(|n| n == shown.as_str()),
            "{hostile:?}: {}",
            data["names"]
        );
    }
}

#[test]
fn long_names_are_shortened() {
    let base = page_of(analysis_with("x"), &Settings::default()).len();
    let page = page_of(analysis_with(&"<b>".repeat(10_000)), &Settings::default());
    assert!(page.len() < base + 100_000, "{} bytes more", page.len() - base);
}

/// Invariant (output): A section of the report that has no data names the missing data.
#[test]
fn sections_without_data_name_the_missing_data() {
    let page = page_of(Analysis::default(), &Settings::default());
    for text in [
        "No active step was recorded",
        "No collective was recorded",
        "No gradient bucket was recorded",
        "No clock was fitted",
        "No device row was recorded",
        "No host operator or range was recorded",
        "No allocation was recorded",
        "FLOP count",
    ] {
        assert!(page.contains(text), "{text}");
    }
    let drawn: Vec<&str> = page.split("data-draw=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert_eq!(drawn, [""; 0]);
    assert!(page.contains("<b>Not in this trace:</b>"), "sections without data are one line");
}

/// Invariant (output): The report lists what it does not cover, also without scripts.
#[test]
fn uncovered_data_is_listed_without_scripts() {
    let mut analysis = analysis_with("forward");
    let dropped = OmissionRow::lost("rows lost while recording", "the queue was full").rank(0).amount(7);
    analysis.tables.omissions = vec![dropped, OmissionRow::left_out("ranks", "no file was found").amount(2)];
    analysis.facts.missing_ranks = vec![2, 3];
    analysis.tables.stragglers[0].verdict = "undecided".into();
    let html = page_of(analysis, &Settings::default());
    let before_scripts = html.split("<script").next().unwrap();
    for text in [
        "<span class=\"badge lost\">lost</span> <bdi>rank 0: 7 rows lost while recording: the queue was full",
        "<span class=\"badge left out\">left out</span> <bdi>2 ranks: no file was found",
        "2 ranks of the job are missing: 2–3",
        "It is undecided whether ranks 1 slow the others",
        "Only a part of the run is selected: forward",
        "2 ranks could not be read a second time",
        "NO VERDICT",
        "rank 1 slows every step",
    ] {
        assert!(before_scripts.contains(text), "{text}");
    }
}

#[test]
fn findings_link_to_sections_that_exist() {
    let page = page_of(analysis_with("forward"), &Settings::default());
    assert!(page.contains("<a href=\"#operators\">evidence: Operators and ranges</a>"));
    for target in page.split("href=\"#").skip(1).filter_map(|rest| rest.split('"').next()) {
        assert!(page.contains(&format!("id=\"{target}\"")), "#{target} has no target");
    }
}

#[test]
fn every_section_has_a_title_and_a_link_in_the_contents() {
    let page = page_of(analysis_with("forward"), &Settings::default());
    let sections = page.matches("<section ").count();
    assert_eq!(sections, page.matches("aria-labelledby=").count());
    let contents = page.split("<nav ").nth(1).unwrap().split("</nav>").next().unwrap();
    assert_eq!(contents.matches("<li>").count(), sections);
}

#[test]
fn the_policy_has_the_hashes_of_script_and_style() {
    use base64::Engine;
    use sha2::Digest;
    let page = page_of(analysis_with("forward"), &Settings::default());
    let between = |start: &str, end: &str| page.split(start).nth(1).unwrap().split(end).next().unwrap().to_string();
    let policy = between("Content-Security-Policy\" content=\"", "\"").replace("&#39;", "'");
    assert!(policy.starts_with("default-src 'none'; "), "{policy}");
    for text in [between("<script type=\"module\">", "</script>"), between("<style>", "</style>")] {
        let hash = base64::engine::general_purpose::STANDARD.encode(sha2::Sha256::digest(text.as_bytes()));
        assert!(policy.contains(&format!("'sha256-{hash}'")), "{policy}");
    }
    // The page loads nothing: its only links lead to its own sections.
    assert!(!page.contains("src="), "something is loaded");
}

/// Invariant (output): The report names its input and the command that made it.
#[test]
fn every_page_says_what_it_is_of_and_how_it_was_made() {
    let page = page_of(analysis_with("forward"), &Settings::default());
    for text in [
        "<bdi>traces</bdi>",
        "title=\"some/traces\"",
        "date not recorded",
        "<bdi>rankscope report &#39;some traces&#39;</bdi>",
    ] {
        assert!(page.contains(text), "{text}");
    }
    assert!(page.contains(&format!("Made by rankscope {}", env!("CARGO_PKG_VERSION"))));
}

#[test]
fn findings_with_the_largest_saving_come_first() {
    let mut analysis = analysis_with("forward");
    let finding =
        |title: &str, saving_ns| FindingRow { title: title.into(), saving_ns, ..analysis.tables.findings[0].clone() };
    analysis.tables.findings = vec![finding("unknown", None), finding("small", Some(1)), finding("large", Some(9))];
    let page = page_of(analysis, &Settings::default());
    let list = page.split("id=\"findings-title\"").nth(1).unwrap();
    let at = |title: &str| list.find(&format!("<bdi>{title}</bdi>")).unwrap();
    assert!(at("large") < at("small") && at("small") < at("unknown"));
}
