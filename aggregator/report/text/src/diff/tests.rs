//! Snapshots of a made-up comparison at common terminal widths.

use trace::Text;

use super::*;
use diff::{Change, DiffVerdict, Key, Measure, Method};

const MS: f64 = 1e6;

fn row(group: Group, name: &str, measure: Measure, place: Place, ms: [f64; 4], judgement: Judgement) -> DiffRow {
    let [a, b, low, high] = ms.map(|ms| ms * MS);
    let change = Change { delta_ns: b - a, se_ns: 1.0, df: 8.0, low_ns: low, high_ns: high, p: 0.5 };
    let key = Key::new(group, name, measure);
    let step_pct = 100.0 * (b - a) / (200.0 * MS);
    DiffRow { key, place, a_ns: a, b_ns: b, change, step_pct, p_adjusted: 1.0, judgement }
}

fn example(changed: bool) -> Diff {
    use Judgement::{Faster, Slower, Unclear};
    let mut rows = Vec::new();
    if changed {
        rows.push(row(Group::Range, "forward", Measure::SelfTime, Place::Rank(5), [0.02, 30.1, 25.4, 34.8], Slower));
        let mut gemm = row(
            Group::Operator,
            "aten::addmm\u{1b}[31m",
            Measure::SelfTime,
            Place::AllRanks,
            [40.0, 31.0, -12.0, -6.0],
            Faster,
        );
        gemm.key.shape = Some(Text::from("[[1024], [64, 1024], [1024, 1024]]"));
        rows.push(gemm);
    }
    let parts =
        [("idle", 2.0), ("compute", 120.0), ("wall", 200.0), ("exposed communication", 60.0), ("overlap", 18.0)];
    for (name, ms) in parts {
        let ms = [ms, ms * 1.05, -0.2 * ms, 0.3 * ms];
        rows.push(row(Group::Step, name, Measure::Total, Place::AllRanks, ms, Unclear));
    }
    let run = |path: &str| RunFacts {
        path: path.into(),
        ranks: (0..8).collect(),
        steps: 20,
        step_ns: 200.0 * MS,
        ..RunFacts::default()
    };
    let appeared = changed
        .then(|| OneSided { key: Key::new(Group::Kernel, "fused_adam_kernel", Measure::Total), step_ns: 3.0 * MS });
    let sentence = if changed {
        "rank 5: `forward` itself is slower by 30.1 ms a step beyond the other ranks (15.0 % of a step), between 25.4 ms and 34.8 ms"
    } else {
        "the step: +5.0 %, between -20.0 % and +30.0 %"
    };
    let count = |name: &str, a_per_step, b_per_step| NameCount { name: name.into(), a_per_step, b_per_step };
    let side = |kernels_per_step, launches| SideKernels { kernels_per_step, launches_per_step: Some(launches) };
    let kernels = changed.then(|| KernelCounts {
        a: side(432.0, 432.0),
        b: side(120.5, 12.0),
        changes: vec![count("elementwise_kernel\u{1b}[31m", 280.0, 0.0), count("triton_poi_fused_add_0", 0.0, 24.5)],
    });
    Diff {
        kernels,
        a: vec![run("runs/clean")],
        b: vec![run("runs/a_directory_with_a_rather_long_name_as_schedulers_give_them/job-1234567-attempt-3/run")],
        method: Method::default(),
        verdict: DiffVerdict {
            changed,
            sentence: sentence.into(),
            row: changed.then_some(0),
            detectable_step_pct: Some(45.2),
            ..DiffVerdict::default()
        },
        rows,
        too_small: 31,
        appeared: appeared.into_iter().collect(),
        vanished: Vec::new(),
        omissions: Vec::new(),
    }
}

fn check(changed: bool, width: usize, name: &str) {
    let mut out = Vec::new();
    render(&example(changed), &TerminalStyle { width, ..TerminalStyle::default() }, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    for line in text.lines() {
        assert!(line.chars().count() <= width, "{} columns: {line:?}", line.chars().count());
        assert_eq!(line, line.trim_end(), "blanks at the end");
    }
    assert!(!text.contains('\u{1b}'), "names cannot send terminal commands");
    insta::assert_snapshot!(name, text);
}

#[test]
fn terminals_of_60_80_120_and_200_columns() {
    check(true, 60, "at_60");
    check(true, 80, "at_80");
    check(true, 120, "at_120");
    check(true, 200, "at_200");
    check(false, 80, "same_at_80");
}
