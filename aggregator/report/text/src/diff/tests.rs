//! Snapshots of a made-up comparison at common terminal widths.

use trace::Text;

use super::*;
use diff::{Aspect, Change, DiffVerdict, Key, Measure, Method};

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
    let appeared = changed.then(|| OneSided {
        key: Key::new(Group::Kernel, "fused_adam_kernel", Measure::Total),
        calls: Some(1.0),
        step_ns: 3.0 * MS,
    });
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
        changes: vec![count("elementwise_kernel\u{1b}[31m", 280.0, 40.0), count("gemm", 24.0, 24.5)],
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
        differences: Vec::new(),
        not_compared: Vec::new(),
        other_shapes: Vec::new(),
        omissions: Vec::new(),
    }
}

/// An eager run on eight A100 and a compiled one on four H100.
fn unlike() -> Diff {
    use Judgement::{Faster, Unclear};
    let mut diff = example(false);
    let difference = |what, a: &str, b: &str| Difference { what, a: a.into(), b: b.into() };
    diff.differences = vec![
        difference(Aspect::Ranks, "8", "4"),
        difference(Aspect::Device, "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"),
        difference(Aspect::Compiler, "eager", "torch.compile"),
    ];
    diff.not_compared = vec![
        "single ranks, because the jobs have 8 and 4 ranks".into(),
        "2 kernels by name, because shapes differ or are unknown (the longest is `gemm\u{1b}[31m`)".into(),
    ];
    let of_all = |group, name: &str, ms, judgement| row(group, name, Measure::Device, Place::AllRanks, ms, judgement);
    diff.rows.extend([
        of_all(Group::Category, "gemm", [80.0, 41.0, -45.0, -33.0], Faster),
        of_all(Group::Category, "elementwise", [30.0, 29.0, -6.0, 5.0], Unclear),
        of_all(Group::Module, "Model_0.Block_0\u{1b}[31m", [12.0, 7.0, -6.0, -4.0], Faster),
        of_all(Group::Source, "train.py(7): step", [12.0, 7.0, -6.0, -4.0], Faster),
    ]);
    let attention = Key::new(Group::Category, "attention", Measure::Device);
    diff.appeared.push(OneSided { key: attention, calls: None, step_ns: 12.0 * MS });
    diff
}

fn check(diff: &Diff, width: usize, name: &str) {
    let mut out = Vec::new();
    render(diff, &TerminalStyle { width, ..TerminalStyle::default() }, &mut out).unwrap();
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
    check(&example(true), 60, "at_60");
    check(&example(true), 80, "at_80");
    check(&example(true), 120, "at_120");
    check(&example(true), 200, "at_200");
    check(&example(false), 80, "same_at_80");
    check(&unlike(), 60, "unlike_at_60");
    check(&unlike(), 100, "unlike_at_100");
}
