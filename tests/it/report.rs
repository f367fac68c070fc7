//! `aggregator report` from outside: its size, its exit codes, and that it stands alone.

use std::fs;
use std::path::Path;

use fixtures::planted::{self, Plan};

use crate::support::{AGGREGATOR, Finished, aggregator, finish, gloo8, scratch};

fn report(run: &Path, out: &Path, more: &[&str]) -> Finished {
    let mut args = vec![Path::new("report"), run, Path::new("-o"), out];
    args.extend(more.iter().map(Path::new));
    aggregator(&args)
}

/// Every picture of 64 ranks and 100 steps is whole, but for bars too short to be seen. Only the table of critical paths,
/// which is long, is cut to its first rows, and the timeline has the steps that find room; both are said.
#[test]
fn a_report_of_64_ranks_and_100_steps_is_whole_and_small() {
    let here = scratch("report_64");
    let plan = Plan { ranks: 64, steps: 100, slow: vec![(21, 10_000_000)], ..Plan::default() };
    planted::write(&plan, &here.join("run")).unwrap();
    let out = here.join("report.html");
    let said = report(&here.join("run"), &out, &[]).expect_code(0).stderr;
    let bytes = fs::metadata(&out).unwrap().len();
    assert!(bytes < 4_000_000, "{bytes} bytes");
    for line in said.lines().filter(|line| line.starts_with("summarised:")) {
        let known = ["are drawn as", "critical_path: the first", "steps are not in the timeline: "];
        assert!(known.iter().any(|text| line.contains(text)), "{line}");
    }
    let page = fs::read_to_string(&out).unwrap();
    assert!(page.contains("rank 21 slows every step by 10.0 ms"), "the verdict is not in the page");
}

#[test]
fn a_report_is_the_same_whatever_the_threads() {
    let here = scratch("report_same");
    planted::write(&Plan::default(), &here.join("run")).unwrap();
    let made = |threads: &str| {
        // The page holds the command that made it, so both have one name.
        let out = here.join("report.html");
        let mut command = std::process::Command::new(AGGREGATOR);
        command.arg("report").arg(here.join("run")).arg("-o").arg(&out).env("RAYON_NUM_THREADS", threads);
        finish(&mut command).expect_code(0);
        fs::read(&out).unwrap()
    };
    assert!(made("1") == made("8"), "eight threads differ from one");
}

#[test]
fn a_failed_report_leaves_the_old_page() {
    let here = scratch("report_errors");
    let out = here.join("report.html");
    fs::write(&out, "old").unwrap();
    report(&here.join("no_such_run"), &out, &[]).expect_code(1);
    planted::write(&Plan::default(), &here.join("run")).unwrap();
    let said = report(&here.join("run"), &out, &["--timeline", "99"]).expect_code(2).stderr;
    assert!(said.contains("--timeline 99: this step was not recorded; recorded steps: 0–4"), "{said}");
    assert_eq!(fs::read_to_string(&out).unwrap(), "old");
    assert_eq!(fs::read_dir(&here).unwrap().count(), 2, "something is left of the attempts");
    report(&here.join("run"), &out, &["--timeline", "3", "--steps", "2..4", "--ranks", "0,1"]).expect_code(0);
    let page = fs::read_to_string(&out).unwrap();
    assert!(page.contains("--steps 2..4 --ranks 0,1") && page.contains("Step 3 of all ranks"));
}

/// The traces were recorded with shapes, so the operators of their products have FLOPs.
#[test]
fn a_report_does_not_miss_flops_that_it_has() {
    let out = scratch("report_flops").join("report.html");
    report(&gloo8(), &out, &[]).expect_code(0);
    let page = fs::read_to_string(&out).unwrap();
    assert!(page.contains("No roof is drawn, because the peak rates") && !page.contains("No kernel or operator has"));
    assert!(page.contains("A correction is added to a rank&#39;s clock") && !page.contains("/findings.parquet"));
}

/// Two runs: the page opens on what changed, names both runs, and has the report of the second as another tab.
#[test]
fn a_report_of_two_runs_opens_on_what_changed() {
    let here = scratch("report_two");
    let plant = |name: &str, slow: &[(i32, i64)]| {
        let plan = Plan { ranks: 6, steps: 12, jitter_ns: 3_000, slow: slow.to_vec(), ..Plan::default() };
        planted::write(&plan, &here.join(name)).unwrap();
        here.join(name)
    };
    let (clean, slow) = (plant("clean", &[]), plant("slow", &[(2, 700_000)]));
    let out = here.join("report.html");
    let second = slow.to_str().unwrap();
    report(&clean, &out, &[second]).expect_code(0);
    let page = fs::read_to_string(&out).unwrap();
    assert_eq!(page.matches("role=\"tab\"").count(), 2);
    let first = page.split("role=\"tab\" id=\"").nth(1).unwrap();
    assert!(first.starts_with("tab-diff\"") && page.contains("<b>A</b> <bdi>clean</bdi>"), "the first tab");
    assert!(
        page.contains("rank 2 slows every step by") && page.contains("rank 2 costs 700 µs more of each step"),
        "{page}"
    );
    report(&slow, &out, &[clean.to_str().unwrap()]).expect_code(0);
    assert!(fs::read_to_string(&out).unwrap().contains("rank 2 costs 700 µs less of each step"));
    for part in [["--from", "+1ms"], ["--to", "+5ms"], ["--range", "forward"]] {
        let said = report(&clean, &out, &[[second].as_slice(), part.as_slice()].concat()).expect_code(2).stderr;
        assert!(said.contains("two runs are compared step by step"), "{said}");
    }
    // Runs that share no rank cannot be compared; directories of traces that share none are one run.
    report(&clean, &out, &[second, "--ranks", "9"]).expect_code(1);
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/traces/gloo4_slow2_stack");
    let halves = [("one", 0..2), ("two", 2..4)].map(|(name, ranks)| {
        fs::create_dir(here.join(name)).unwrap();
        for file in fs::read_dir(&traces).unwrap().map(|entry| entry.unwrap().path()) {
            let rank = |r: &i32| file.file_name().unwrap().to_string_lossy().contains(&format!("rank{r}"));
            if ranks.clone().any(|r| rank(&r)) {
                fs::copy(&file, here.join(name).join(file.file_name().unwrap())).unwrap();
            }
        }
        here.join(name)
    });
    let said = report(&halves[0], &out, &[halves[1].to_str().unwrap()]).expect_code(0).stderr;
    assert!(said.contains("4 ranks") && !fs::read_to_string(&out).unwrap().contains("role=\"tab\""), "{said}");
    let said = report(&traces, &out, &[halves[1].to_str().unwrap()]);
    assert!(matches!(said.code, Some(0 | 3)), "{}", said.stderr);
    assert_eq!(fs::read_to_string(&out).unwrap().matches("role=\"tab\"").count(), 2);
}
