//! Compares the critical path with HTA's, for all steps for which HTA has one, on the real traces beside the
//! repository.

#![expect(clippy::unwrap_used, reason = "tests may, and their helpers too")]

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use fixtures::data::real_traces;
use formats::kineto::KinetoSource;
use model::options::Options;
use pipeline::analyze;
use trace::CriticalPathRow;

const KINDS: [&str; 5] = [
    "cpu_bound",
    "gpu_compute_bound",
    "gpu_communication_bound",
    "gpu_kernel_kernel_overhead",
    "gpu_kernel_launch_overhead",
];

/// HTA's percentages by rank, in the order of [`KINDS`].
fn hta(path: &Path) -> BTreeMap<i32, [f64; 5]> {
    let text = std::fs::read_to_string(path).unwrap();
    let mut lines = text.lines();
    let titles: Vec<&str> = lines.next().unwrap().split(',').collect();
    lines
        .map(|line| {
            let fields: Vec<&str> = line.split(',').collect();
            let share = |kind: &str| {
                let at = titles.iter().position(|title| *title == kind)?;
                fields[at].parse::<f64>().ok()
            };
            (fields[0].parse().unwrap(), KINDS.map(|kind| share(kind).unwrap_or(0.0)))
        })
        .collect()
}

/// Our percentages by HTA's rules, which give the time between operators no weight.
fn as_hta(row: &CriticalPathRow) -> [f64; 5] {
    let parts = [
        row.cpu_ns - row.host_gap_ns,
        row.gpu_compute_ns + row.gpu_memory_ns,
        row.communication_ns,
        row.kernel_gap_ns,
        row.launch_ns,
    ];
    let all: i64 = parts.iter().sum();
    parts.map(|part| 100.0 * part as f64 / all as f64)
}

/// HTA computes its shares from whole µs. For a path of a few ms, the rounding error is below this.
const SAME_PCT: f64 = 0.05;

/// The reasons for a difference: parts that HTA's graph lacks or gives no weight, according to
/// `critical_path_analysis.py` and the trace.
fn reasons(name: &str, row: &CriticalPathRow, hta: [f64; 5], ours: [f64; 5]) -> Vec<String> {
    let mut reasons = Vec::new();
    if hta.iter().zip(&ours).all(|(a, b)| (a - b).abs() <= SAME_PCT) {
        return reasons;
    }
    if row.inferred_waits > 0 {
        reasons.push(format!(
            "host waits on the path ({}) have no cuda_sync row: HTA's graph gives such calls no weight and no edge to \
             the device",
            row.inferred_waits
        ));
    }
    if row.host_gap_ns * 100 > row.wall_ns {
        reasons.push(format!(
            "{:.1} ms of the path lie between operators: HTA's graph gives them no weight, so its path takes other operators",
            row.host_gap_ns as f64 / 1e6
        ));
    }
    if row.data_loading_ns > 0 {
        reasons.push(
            "data loader operators count as loading here, and as cpu_bound in HTA, which does not know them".into(),
        );
    }
    if row.other_ns > 0 {
        reasons.push(format!(
            "{:.1} ms between kernels have no reason in the trace: HTA's graph has no edge there, so its path avoids them",
            row.other_ns as f64 / 1e6
        ));
    }
    if name == "event_sync" {
        reasons.push(
            "a copy that blocks its call is on the path here with its launch (20 µs); HTA gives its call no weight"
                .into(),
        );
    }
    assert!(!reasons.is_empty(), "{name} rank {}: HTA {hta:?}, here {ours:?}: no known reason", row.rank);
    reasons
}

fn shares(shares: [f64; 5]) -> String {
    shares.map(|share| format!("{share:6.2}")).join(" ")
}

#[test]
#[ignore = "reads real traces"]
fn every_path_is_beside_htas() {
    let data = real_traces();
    let mut text = String::from(
        "Critical path of the first step: shares in % by HTA, here (as HTA counts: without the time between operators), and the\n\
         whole path here in ms. Columns: cpu, gpu compute and copies, communication, between kernels, launch.\n\n",
    );
    let mut folders: Vec<PathBuf> =
        std::fs::read_dir(data.join("expected_hta")).unwrap().map(|e| e.unwrap().path()).collect();
    folders.sort();
    let mut compared = 0;
    for folder in folders {
        let expected = folder.join("critical_path_summary.csv");
        if !expected.is_file() {
            continue;
        }
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let rows = paths(&data.join("kineto").join(&name));
        for (rank, hta) in hta(&expected) {
            let row = rows.iter().find(|row| row.rank == rank).unwrap();
            let ours = as_hta(row);
            writeln!(
                text,
                "{name} rank {rank}, step {} of {:.3} ms, bound by {}",
                row.step,
                ms(row.wall_ns),
                row.bound_by
            )
            .unwrap();
            writeln!(text, "  HTA  {}\n  here {}", shares(hta), shares(ours)).unwrap();
            writeln!(
                text,
                "  path cpu {:.3} (between operators {:.3}), loading {:.3}, compute {:.3}, copies {:.3}, communication {:.3}, launch {:.3}, \
                 between kernels {:.3}, unknown {:.3}",
                ms(row.cpu_ns),
                ms(row.host_gap_ns),
                ms(row.data_loading_ns),
                ms(row.gpu_compute_ns),
                ms(row.gpu_memory_ns),
                ms(row.communication_ns),
                ms(row.launch_ns),
                ms(row.kernel_gap_ns),
                ms(row.other_ns),
            )
            .unwrap();
            for reason in reasons(&name, row, hta, ours) {
                writeln!(text, "  why: {reason}").unwrap();
            }
            compared += 1;
        }
    }
    assert!(compared >= 20, "{compared}");
    insta::assert_snapshot!("beside_hta", text);
}

fn ms(ns: i64) -> f64 {
    ns as f64 / 1e6
}

fn paths(folder: &Path) -> Vec<CriticalPathRow> {
    // One of the folders has traces of several jobs.
    let files = formats::format::OpenOptions { force: true, ..Default::default() };
    let source = KinetoSource::open_with(&[folder.into()], files).unwrap();
    let mut options = Options::default();
    options.communication.counted = Some(model::communication::Counted::Hta);
    analyze(&source, &options, &|_, _| ()).unwrap().tables.critical_path
}

/// Known facts about the traces. Rank 2 of torchrec4 computes on its host in one range for about 1.01 s of every step,
/// while the others wait in SendRecv. Rank 5 of gloo8 and rank 2 of gloo4 sleep.
#[test]
#[ignore = "reads real traces"]
fn paths_show_the_known_causes() {
    let data = real_traces();
    for row in paths(&data.join("kineto/torchrec4_long_a2a")) {
        let share = |ns: i64| ns as f64 / row.wall_ns as f64;
        if row.rank == 2 {
            assert_eq!(&*row.bound_by, "cpu");
            assert!(
                row.longest.starts_with("# running sparse arch=9")
                    || row.longest.starts_with("# running sparse arch=1"),
                "{row:?}"
            );
        } else {
            assert_eq!(&*row.bound_by, "communication");
            assert!(share(row.communication_ns) > 0.85, "{row:?}");
        }
    }
    for row in paths(&data.join("kineto/gloo8_slow5")).iter().filter(|row| row.rank == 5) {
        assert!(row.longest.contains("injected_delay=6"), "{row:?}");
    }
    for row in paths(&data.join("kineto/gloo4_slow2_stack")).iter().filter(|row| row.rank == 2) {
        assert_eq!(&*row.bound_by, "cpu", "{row:?}");
        assert!(row.longest.starts_with("<built-in function sleep>=35"), "{row:?}");
    }
}

/// The parts sum to the step in all real traces.
#[test]
#[ignore = "reads real traces"]
fn the_parts_sum_in_real_traces() {
    let data = real_traces();
    for folder in std::fs::read_dir(data.join("kineto")).unwrap().map(|e| e.unwrap().path()) {
        for row in paths(&folder) {
            let parts = row.cpu_ns
                + row.data_loading_ns
                + row.gpu_compute_ns
                + row.gpu_memory_ns
                + row.communication_ns
                + row.launch_ns
                + row.kernel_gap_ns
                + row.other_ns;
            assert_eq!(parts, row.wall_ns, "{}: {row:?}", folder.display());
        }
    }
}
