//! `aggregator diff` as a user runs it: over real runs of the reference workload, and over planted ones.

use std::path::{Path, PathBuf};

use fixtures::planted::{self, Plan};
use serde_json::Value;

use crate::support::{aggregator, have_mpirun, scratch, train, train_side_by_side};

fn diff(a: &Path, b: &Path, extra: &[&str], code: i32) -> crate::support::Finished {
    let mut arguments = vec!["diff", a.to_str().unwrap(), b.to_str().unwrap()];
    arguments.extend(extra);
    aggregator(&arguments).expect_code(code)
}

/// Six ranks of twelve steps of about 3 ms.
fn plant(place: &Path, name: &str, slow: &[(i32, i64)]) -> PathBuf {
    let run = place.join(name);
    let plan = Plan { ranks: 6, steps: 12, jitter_ns: 3_000, slow: slow.to_vec(), ..Plan::default() };
    planted::write(&plan, &run).unwrap();
    run
}

/// A slowdown beyond the limit ends with 4, one below it with 0, and 5 means that the runs cannot show a change of the
/// limit's size.
#[test]
fn fail_over_ends_with_4_and_only_then() {
    let place = scratch("diff_fail_over");
    let (clean, slow) = (plant(&place, "clean", &[]), plant(&place, "slow", &[(2, 700_000)]));
    let said = diff(&clean, &slow, &["--fail-over", "5%"], 4);
    assert!(said.stderr.contains("slower by more than 5 %"), "{}", said.stderr);
    assert!(said.stdout.starts_with("SLOWER"), "{}", said.stdout);
    diff(&clean, &slow, &["--fail-over", "60"], 0);
    diff(&clean, &slow, &[], 0);
    diff(&slow, &clean, &["--fail-over", "60"], 0);
    let said = diff(&slow, &clean, &["--fail-over", "5%"], 5);
    assert!(said.stdout.starts_with("FASTER") && said.stdout.contains("between 605 µs and 795 µs"), "{}", said.stdout);
    let said = diff(&clean, &clean, &["--fail-over", "5%"], 5);
    assert!(said.stdout.starts_with("NO SIGNIFICANT CHANGE"), "{}", said.stdout);
    assert!(said.stderr.contains("inconclusive for 5 %"), "{}", said.stderr);
    for wrong in ["--fail-over=much", "--smallest=-1", "--between-runs=-2", "--steps=9..3", "--step-marker=("] {
        let said = aggregator(&["diff", "a", "b", wrong]).expect_code(2).stderr;
        let option = wrong.split_once('=').unwrap().0;
        assert!(said.contains("invalid value") && said.contains(option), "{wrong}: {said}");
    }
    aggregator(&["diff", clean.to_str().unwrap(), "no_such_run"]).expect_code(1);
}

/// Jobs of other sizes are compared by their means. The runs of one side must be of one job, because their mean is taken.
#[test]
fn runs_of_different_world_sizes_are_compared_without_single_ranks() {
    let place = scratch("diff_world_sizes");
    let six = plant(&place, "six", &[]);
    let four = place.join("four");
    planted::write(&Plan { ranks: 4, steps: 12, ..Plan::default() }, &four).unwrap();
    let said = diff(&six, &four, &["--strict"], 0).stdout;
    assert!(said.contains("\nDiffers: ranks: 6 in A, 4 in B"), "{said}");
    assert!(said.contains("\nNot compared: single ranks, because the jobs have 6 and 4 ranks"), "{said}");
    let value: Value = serde_json::from_str(&diff(&six, &four, &["--json"], 0).stdout).unwrap();
    let rows = value["rows"].as_array().unwrap();
    assert!(!rows.is_empty() && rows.iter().all(|row| row["place"] == "all_ranks"), "{rows:#?}");
    let both = PathBuf::from(format!("{},{}", six.display(), four.display()));
    let error = diff(&both, &six, &[], 1).stderr;
    assert!(error.contains("their jobs have 6 and 4 ranks; --force compares them anyway"), "{error}");
    diff(&both, &six, &["--force"], 0);
}

/// The JSON names the phase and the rank, and is the same however often it is asked for.
#[test]
fn json_names_phase_and_rank_and_does_not_change() {
    let place = scratch("diff_json");
    let (clean, slow) = (plant(&place, "clean", &[]), plant(&place, "slow", &[(4, 900_000)]));
    let first = diff(&clean, &slow, &["--json"], 0).stdout;
    assert!(first == diff(&clean, &slow, &["--json"], 0).stdout, "two calls differ");
    let value: Value = serde_json::from_str(&first).unwrap();
    assert_eq!((&value["format"], &value["version"]), (&"rankscope.diff".into(), &2.into()));
    let row = &value["rows"][value["verdict"]["row"].as_u64().unwrap() as usize];
    assert_eq!((&row["key"]["group"], &row["key"]["name"]), (&"account".into(), &"cost".into()), "{row:#}");
    let location = value["b"][0]["causes"]["4"].as_str().unwrap();
    assert!(location.contains("`forward`"), "{location}");
    assert_eq!(value["a"][0]["causes"], serde_json::json!({}));
    assert_eq!((&row["place"]["rank"], &row["judgement"]), (&4.into(), &"slower".into()), "{row:#}");
    let delta = row["change"]["delta_ns"].as_f64().unwrap();
    assert!((delta - 900_000.0).abs() < 20_000.0, "{delta}");
    assert_eq!(value["a"][0]["steps"], 12);
}

/// Invariant (verdicts): Two clean runs are not called different, and a slow rank is found.
///
/// Real runs on a shared machine: two clean ones do not differ, and a slow rank is found with its phase.
#[test]
fn clean_runs_do_not_differ_and_a_slow_rank_is_found() {
    if !have_mpirun("clean_runs_do_not_differ_and_a_slow_rank_is_found") {
        return;
    }
    let place = scratch("diff_real");
    let [clean, again, slow] = ["clean", "again", "slow"].map(|name| place.join(name));
    let schedule = ["--steps", "26", "--schedule", "wait=1,warmup=1,active=24,repeat=1"];
    for done in train_side_by_side(4, &[&clean, &again], &schedule) {
        done.expect_code(0);
    }
    // Long beside what the machine may take from a rank, and from all of them while two jobs run.
    let inject = ["--inject", "slow:rank=2,ms=200,phase=backward"];
    train(4, &slow, &[schedule.as_slice(), &inject].concat()).expect_code(0);
    let said = diff(&clean, &again, &[], 0).stdout;
    assert!(said.starts_with("NO SIGNIFICANT CHANGE"), "{said}");
    let said = diff(&clean, &slow, &["--fail-over", "5%"], 4).stdout;
    let one_line = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(one_line.starts_with("SLOWER rank 2 costs ") && one_line.contains("longer in `backward`"), "{said}");
}
