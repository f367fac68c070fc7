//! Snapshots of the summary of a made-up analysis at common terminal widths, and properties of every summary.

use trace::{
    BucketTimingRow, ClockFitRow, CriticalPathRow, FindingRow, InstanceRow, JobPathRow, OmissionRow, PathKind,
    StepBreakdownRow, StragglerRow, Unexplained,
};

use crate::summary::{TerminalStyle, render};
use model::analysis::{Analysis, Facts, RankIdentity, Tables, Verdict, VerdictKind};

const MS: i64 = 1_000_000;

/// `ranks` ranks of two steps; rank 5 is the cause, if there is one.
fn analysis(ranks: i32) -> Analysis {
    let all = || 0..ranks;
    let facts = Facts {
        run_id: "18ea01dd".into(),
        tool: "rank-agent".into(),
        world_size: Some(ranks + 1),
        ranks: all().collect(),
        missing_ranks: vec![ranks],
        hosts: vec!["node-a".into(), "node-b".into()],
        identities: all().map(identity).collect(),
        steps: vec![3, 4],
        events: 1_234_567,
        collectives: 2 * ranks as u64,
        recorded: 1_234_600,
        dropped: 33,
        selection: Some("--steps 3..5".into()),
        ..Facts::default()
    };
    let verdict = Verdict {
        kind: VerdictKind::Cause,
        causes: vec![5],
        rank: Some(5),
        step_ns: Some(150 * MS),
        sentence: "rank 5 slows every step by 27.1 ms (18 % of a step): it computes 30.1 ms longer in `forward` than the other \
                   ranks do. That range takes longer in 5 of 5 steps, far outside the usual variation (z 12.3)."
            .into(),
        title: "SLOW RANK 5".into(),
        cost: Some(
            "27.1 ms of each 150 ms step (18 %, 95 % interval 26.0 ms to 28.2 ms), seen in 5 of 5 steps, far outside the usual \
             variation"
                .into(),
        ),
        location: Some("it computes 30.1 ms longer in `forward` than the other ranks do".into()),
        action: Some("look at the named range on that rank: more work, a slower device, or a noisy neighbour".into()),
        ..Verdict::default()
    };
    let tables = Tables {
        step_breakdown: all().flat_map(steps_of).collect(),
        critical_path: all().map(critical).collect(),
        job_critical_path: job_path(),
        collective_instances: (0..4).map(instance).collect(),
        bucket_timing: all().flat_map(|rank| [bucket(rank, 0), bucket(rank, 1)]).collect(),
        stragglers: all().map(straggler).collect(),
        clock_fit: all().map(clock).collect(),
        omissions: vec![
            OmissionRow::lost("rows of events", "the file ends in the middle of a page")
                .rank(2)
                .file(trace::Text::from("events/rank-00002-0001.parquet"))
                .amount(12_000),
        ],
        findings: vec![FindingRow {
            id: "exposed-communication".into(),
            severity: "warning".into(),
            saving_ns: Some(10 * MS),
            title: "13 % of the step is exposed communication, including waits for late ranks".into(),
            evidence: "exposed_comm_ns / wall_ns".into(),
            evidence_table: "step_breakdown".into(),
            suggestion: "fix stragglers first, because waits for them count here; then use smaller buckets, or more compute per step"
                .into(),
        }],
        ..Tables::default()
    };
    Analysis { facts, verdict, tables, ..Analysis::default() }
}

fn identity(rank: i32) -> RankIdentity {
    RankIdentity {
        rank,
        host: Some(if rank < 4 { "node-a" } else { "node-b" }.into()),
        pid: Some(4442 + i64::from(rank)),
        file: Some(format!("events/rank-{rank:05}-*.parquet")),
        ..RankIdentity::default()
    }
}

fn steps_of(rank: i32) -> Vec<StepBreakdownRow> {
    let slow = rank == 5;
    let row = |step| StepBreakdownRow {
        rank,
        step: Some(step),
        wall_ns: 150 * MS,
        compute_ns: if slow { 90 } else { 60 } * MS,
        overlap_ns: 30 * MS,
        exposed_comm_ns: if slow { 10 } else { 40 } * MS,
        exposed_wait_ns: Some(if slow { 0 } else { 30 } * MS),
        idle_ns: 20 * MS,
        comm_total_ns: if slow { 40 } else { 70 } * MS,
        ..StepBreakdownRow::default()
    };
    vec![row(3), row(4)]
}

fn critical(rank: i32) -> CriticalPathRow {
    let slow = rank == 5;
    CriticalPathRow {
        rank,
        step: 3,
        wall_ns: 150 * MS,
        cpu_ns: if slow { 120 } else { 60 } * MS,
        host_gap_ns: 30 * MS,
        communication_ns: if slow { 30 } else { 90 } * MS,
        ..CriticalPathRow::default()
    }
}

/// Rank 5 works, the others wait for it, and rank 0 ends the step.
fn job_path() -> Vec<JobPathRow> {
    let work = |rank, cpu_ns, host_gap_ns| JobPathRow {
        step: 3,
        rank,
        kind: PathKind::Work.into(),
        dur_ns: cpu_ns + host_gap_ns,
        cpu_ns,
        host_gap_ns,
        ..JobPathRow::default()
    };
    let transfer = JobPathRow {
        step: 3,
        kind: PathKind::Transfer.into(),
        dur_ns: 26 * MS,
        transfer_ns: 20 * MS,
        unexplained_ns: 6 * MS,
        unexplained: Some(Unexplained::Unmatched.into()),
        ..JobPathRow::default()
    };
    vec![work(5, 90 * MS, 20 * MS), transfer, work(0, 14 * MS, 0)]
}

fn instance(number: i64) -> InstanceRow {
    InstanceRow {
        instance: number,
        op: if number % 2 == 0 { "allreduce".into() } else { "allgather".into() },
        bytes: Some(if number % 2 == 0 { 25 << 20 } else { 64 }),
        ranks_seen: 2,
        complete: number != 3,
        first_start_ns: 1_000 * MS,
        last_start_ns: 1_027 * MS,
        end_ns: 1_040 * MS,
        skew_ns: 27 * MS,
        transfer_ns: (number % 2 == 0).then_some(13 * MS),
        algbw_gbs: (number % 2 == 0).then_some(2.0165),
        busbw_gbs: (number % 2 == 0).then_some(3.5289),
        clocks_disagree: number == 0,
        ..InstanceRow::default()
    }
}

fn bucket(rank: i32, bucket: i32) -> BucketTimingRow {
    BucketTimingRow {
        step: 3,
        bucket,
        rank,
        bytes: Some(if bucket == 0 { 1 << 20 } else { 25 << 20 }),
        start_ns: 0,
        end_ns: 40 * MS,
        queue_ns: Some(2_000),
        wait_ns: Some(if rank == 5 { 0 } else { 27 * MS }),
        transfer_ns: Some(13 * MS),
        exposed_ns: 20 * MS,
        ..BucketTimingRow::default()
    }
}

fn straggler(rank: i32) -> StragglerRow {
    let slow = rank == 5;
    StragglerRow {
        rank,
        steps: 5,
        own_excess_ns: i64::from(rank) * 1_000,
        evidence_excess_ns: Some(if slow { 30_100_000 } else { 0 }),
        evidence_z: Some(if slow { 12.3 } else { 0.1 }),
        evidence_persistence: Some(if slow { 1.0 } else { 0.2 }),
        stands_on: slow.then(|| "range".into()),
        step_delay_ns: if slow { 27_100_000 } else { 0 },
        caused_wait_ns: if slow { 190 * MS } else { 0 },
        suffered_wait_ns: if slow { 0 } else { 27 * MS },
        z: Some(0.2),
        persistence: Some(0.4),
        verdict: if slow { "cause".into() } else { "victim".into() },
        reason: slow.then(|| "compute".into()),
        evidence_range: Some("forward".into()),
        ..StragglerRow::default()
    }
}

fn clock(rank: i32) -> ClockFitRow {
    ClockFitRow {
        rank,
        clock: "host".into(),
        offset_ns: i64::from(rank) * 1_000,
        drift_ppb: Some(f64::from(rank) * 10.0),
        error_ns: Some(210),
        bound_ns: Some(1_900),
        method: if rank == 0 { "same_host".into() } else { "ping".into() },
        ..ClockFitRow::default()
    }
}

fn rendered(analysis: &Analysis, terminal: &TerminalStyle) -> String {
    let mut out = Vec::new();
    render(analysis, terminal, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn check(ranks: i32, width: usize, full: bool, name: &str) {
    let text = rendered(&analysis(ranks), &TerminalStyle { width, full, ..TerminalStyle::default() });
    for line in text.lines() {
        assert!(line.chars().count() <= width, "{} columns: {line:?}", line.chars().count());
        assert_eq!(line, line.trim_end());
    }
    assert!(full || text.lines().count() <= 24, "{} lines", text.lines().count());
    insta::assert_snapshot!(name, text);
}

#[test]
fn at_60_columns() {
    check(8, 60, false, "at_60");
}

#[test]
fn at_80_columns() {
    check(8, 80, false, "at_80");
}

#[test]
fn at_100_columns() {
    check(8, 100, false, "at_100");
}

#[test]
fn at_120_columns() {
    check(8, 120, false, "at_120");
}

#[test]
fn at_160_columns_of_64_ranks() {
    check(64, 160, false, "at_160");
}

#[test]
fn at_200_columns() {
    check(8, 200, false, "at_200");
}

#[test]
fn full_at_60_columns() {
    check(8, 60, true, "full_at_60");
}

#[test]
fn full_at_120_columns_of_64_ranks() {
    check(64, 120, true, "full_at_120");
}

/// All that a name of a trace can be printed in.
fn full() -> TerminalStyle {
    TerminalStyle { full: true, ..TerminalStyle::default() }
}

#[test]
fn the_cause_is_the_first_of_many_ranks() {
    let text = rendered(&analysis(64), &TerminalStyle { top: Some(3), ..TerminalStyle::default() });
    assert!(text.contains("61 more ranks not shown"), "{text}");
    let first = text.lines().skip_while(|line| !line.starts_with("  rank ")).nth(1).unwrap();
    assert!(first.starts_with("     5  "), "{text}");
}

#[test]
fn an_error_that_no_scatter_shows_stands_beside_the_error() {
    let with_bias = |bias_ns| {
        let mut analysis = analysis(2);
        analysis.tables.clock_fit.iter_mut().for_each(|fit| fit.bias_ns = Some(bias_ns));
        let text = rendered(&analysis, &TerminalStyle::default());
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let text = with_bias(12_000_000);
    assert!(text.contains("clocks within 210 ns (95 %), up to 12.0 ms more if a rank always leaves late"), "{text}");
    assert!(!with_bias(200).contains("more if a rank"), "a smaller one does not change what can be told");
}

/// Waits that are known for some ranks only are not zero for the others.
#[test]
fn unknown_waits_are_shown_as_exposed_communication() {
    let mut analysis = analysis(8);
    analysis.tables.step_breakdown[0].exposed_wait_ns = None;
    let text = rendered(&analysis, &TerminalStyle { top: Some(3), ..TerminalStyle::default() });
    let row = |rank: &str| {
        let line = text.lines().find(|line| line.trim_start().starts_with(rank)).unwrap();
        line.split_whitespace().map(String::from).collect::<Vec<_>>()
    };
    assert_eq!(row("rank")[..8], ["rank", "step", "compute", "overlap", "exposed", "waiting", "transfer", "idle"]);
    assert_eq!(row("0 ")[4..7], ["40.0", "–", "–"], "{text}");
    assert_eq!(row("1 ")[4..7], ["40.0", "30.0", "10.0"]);
}

#[test]
fn colour_changes_no_text() {
    let analysis = analysis(8);
    let coloured = rendered(&analysis, &TerminalStyle { colour: true, ..TerminalStyle::default() });
    let mut stripped = String::new();
    let mut rest = coloured.as_str();
    while let Some((before, after)) = rest.split_once('\u{1b}') {
        stripped.push_str(before);
        rest = after.split_once('m').unwrap().1;
    }
    stripped.push_str(rest);
    assert_ne!(coloured, stripped);
    assert_eq!(stripped, rendered(&analysis, &TerminalStyle::default()));
}

#[test]
fn names_cannot_send_terminal_commands() {
    let mut analysis = analysis(8);
    analysis.verdict.sentence = "rank 5: \u{1b}[2J`evil`".into();
    analysis.tables.stragglers[5].evidence_range = Some("\u{1b}]0;evil\u{7}".into());
    analysis.tables.collective_instances[0].op = "a\nb".into();
    analysis.facts.identities[5].host = Some("\u{1b}[3J".into());
    analysis.verdict.location = Some("in `\u{1b}[4J`".into());
    let text = rendered(&analysis, &full());
    assert!(!text.contains('\u{1b}') && !text.contains('\u{7}'), "{text:?}");
    assert!(text.contains(r"\u{1b}[2J`evil`") && text.contains(r"a\nb"), "{text:?}");
    // Among the program's own colours, those of names are shown.
    analysis.tables.stragglers[5].evidence_range = Some("\u{1b}[8mhidden".into());
    let text = rendered(&analysis, &TerminalStyle { colour: true, ..full() });
    assert!(text.contains('\u{1b}') && !text.contains("\u{1b}[8m") && !text.contains("\u{1b}[2J"), "{text:?}");
}

#[test]
fn an_empty_analysis_has_a_summary() {
    insta::assert_snapshot!(rendered(&Analysis::default(), &TerminalStyle::default()), @r#"
        NO VERDICT
        0 ranks · 0 steps · nothing left out
        More: --full, or rankscope report RUN -o report.html
    "#);
}

#[test]
fn devices_have_a_section() {
    let mut analysis = Analysis::default();
    let device = |rank: i32, utilization_pct: f64| trace::GpuUtilizationRow {
        rank,
        utilization_pct,
        sm_efficiency_pct: (rank == 0).then_some(31.0),
        occupancy_pct: Some(42.5),
        ..Default::default()
    };
    analysis.tables.gpu_utilization = vec![device(0, 71.25), device(1, 68.0)];
    let launches = |rank: i32| trace::LaunchStatsRow {
        rank,
        device_id: Some(0),
        launches: 8,
        short_kernels: 2,
        delay_p50_ns: Some(12_000),
        ..Default::default()
    };
    analysis.tables.launch_stats = vec![launches(0), launches(1)];
    analysis.tables.sync_stalls = vec![trace::SyncStallRow { rank: 1, in_steps_ns: 5 * MS, ..Default::default() }];
    let text = rendered(&analysis, &full());
    let devices = |text: &str| text[text.find("Devices").unwrap()..].split("\n\n").next().unwrap().to_string();
    insta::assert_snapshot!(devices(&text), @r#"
        Devices — a device that runs kernels for a small share of the time waits for its host or for other
        ranks; over active steps, short kernels and launch delay (median) over the whole recording
          rank  kernels run %  SM efficiency %  occupancy %  short kernels %  launch delay ms  host waits ms
             0           71.2             31.0         42.5             25.0          0.01200          0.000
             1           68.0                –         42.5             25.0          0.01200          5.000"#);
    let step = |mfu_pct| trace::StepFlopsRow { rank: 1, mfu_pct, ..Default::default() };
    analysis.tables.step_flops = vec![step(None)];
    assert!(devices(&rendered(&analysis, &full())).contains("MFU is unknown"));
    analysis.tables.step_flops = vec![step(Some(41.0)), step(Some(43.0)), step(Some(42.0))];
    let text = devices(&rendered(&analysis, &TerminalStyle { width: 200, ..full() }));
    assert!(text.contains("MFU %") && text.lines().last().unwrap().ends_with("42.0"), "{text}");
}
