//! `diff` of unlike jobs, and its laws on recorded jobs, each with itself and with the next one.

#![expect(clippy::unwrap_used, reason = "tests may, and their helpers too")]

use std::path::{Path, PathBuf};

use ::diff::{Diff, Group, Heading, Method, Place, RunProfile, compare};
use fixtures::data::{places, real_traces};
use formats::format::OpenOptions;
use formats::input::{Input, resolve};
use formats::run_source::RunSource;
use model::options::Options;
use pipeline::diff::profile_run;

type Named = (String, RunProfile);

/// The profile of a job; `None` if nothing of it can be compared.
fn profiled(folder: &Path) -> Option<Named> {
    let profile = |source| profile_run(source, &Options::default(), &|| ()).ok();
    let profile = match resolve(vec![folder.to_path_buf()]).ok()? {
        Input::Run(run) => profile(&RunSource::open(&run).ok()?)?,
        Input::Files(files) => profile(&*files.open(OpenOptions::default()).ok()?)?,
    };
    Some((folder.file_name()?.to_string_lossy().into_owned(), profile))
}

fn compared(a: &Named, b: &Named) -> Option<Diff> {
    compare(std::slice::from_ref(a), std::slice::from_ref(b), &Method::default(), Vec::new()).ok()
}

/// The change of the step, and that of its parts together.
fn step_and_parts(diff: &Diff) -> (f64, f64) {
    let of_all = diff.rows.iter().filter(|row| row.key.group == Group::Step && row.place == Place::AllRanks);
    let (step, parts): (Vec<_>, Vec<_>) = of_all.partition(|row| &*row.key.name == "wall");
    let sum = |rows: Vec<&::diff::DiffRow>| rows.iter().map(|row| row.change.delta_ns).sum::<f64>();
    (sum(step), sum(parts))
}

fn hold_the_laws(folders: &[PathBuf]) {
    let jobs: Vec<Named> = folders.iter().filter_map(|folder| profiled(folder)).collect();
    let mut pairs = 0;
    for (at, a) in jobs.iter().enumerate() {
        if let Some(diff) = compared(a, a) {
            assert_eq!(diff.heading(), Heading::NoChange, "{}: {:?}", a.0, diff.verdict);
            assert_eq!((diff.differences, diff.not_compared), (vec![], vec![]), "{}", a.0);
        }
        let b = &jobs[(at + 1) % jobs.len()];
        let (Some(there), Some(back)) = (compared(a, b), compared(b, a)) else { continue };
        let both = format!("{} and {}", a.0, b.0);
        pairs += 1;
        let (step, parts) = step_and_parts(&there);
        assert!(
            (step - parts).abs() <= 1e-6 * step.abs() + 10.0,
            "{both}: the step changes by {step}, its parts by {parts}"
        );
        let rows = |diff: &Diff, sign: f64| {
            let mut rows: Vec<_> = diff
                .rows
                .iter()
                .map(|row| (row.key.clone(), row.place, (sign * row.change.delta_ns).round() as i64))
                .collect();
            rows.sort_unstable();
            rows
        };
        assert_eq!(rows(&there, 1.0), rows(&back, -1.0), "{both}");
        assert_eq!((&there.appeared, &there.vanished), (&back.vanished, &back.appeared), "{both}");
    }
    println!("{} jobs, {pairs} pairs", jobs.len());
    assert!(pairs > 1, "nothing was compared");
}

fn folders(place: &Path) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = std::fs::read_dir(place).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.retain(|path| path.is_dir());
    folders.sort();
    folders
}

#[test]
fn comparisons_of_small_jobs_hold_the_laws() {
    let inputs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/inputs");
    hold_the_laws(&[folders(&inputs), folders(&places()[0])].concat());
}

#[test]
#[ignore = "reads real traces"]
fn comparisons_of_real_jobs_hold_the_laws() {
    hold_the_laws(&folders(&real_traces().join("kineto")));
}

/// A kernel of each step: its name, the operator that launches it, the size of its inputs, and its length.
type Drawn<'a> = (&'a str, &'a str, i64, i64);

/// The trace of one rank with six steps of these kernels.
fn trace(device: &str, kernels: &[Drawn<'_>]) -> String {
    let mut events = Vec::new();
    for step in 0..6_i64 {
        let (mut at, end) = (100_000 * step, 100_000 * (step + 1));
        let mark = r#""ph": "X", "cat": "user_annotation", "pid": 9, "tid": 9"#;
        events.push(format!(r#"{{{mark}, "name": "ProfilerStep#{step}", "ts": {at}, "dur": {}}}"#, end - at - 10));
        for (number, (kernel, operator, size, dur)) in (1_i64..).zip(kernels) {
            let id = 1000 * step + number;
            let host = r#""ph": "X", "pid": 9, "tid": 9"#;
            events.push(format!(
                r#"{{{host}, "cat": "cpu_op", "name": "{operator}", "ts": {}, "dur": 20, "args": {{"Input Dims": [[{size}, {size}]]}}}}"#,
                at + 1
            ));
            events.push(format!(
                r#"{{{host}, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": {}, "dur": 5, "args": {{"correlation": {id}}}}}"#,
                at + 5
            ));
            events.push(format!(
                r#"{{"ph": "X", "cat": "kernel", "name": "{kernel}", "pid": 0, "tid": 7, "ts": {}, "dur": {dur}, "args": {{"device": 0, "stream": 7, "correlation": {id}, "grid": [132, 1, 1], "block": [128, 1, 1]}}}}"#,
                at + 30
            ));
            at += dur + 100;
        }
    }
    let properties = format!(r#""deviceProperties": [{{"id": 0, "name": "{device}"}}]"#);
    format!(r#"{{"schemaVersion": 1, {properties}, "traceEvents": [{}]}}"#, events.join(","))
}

/// The comparison of two traces of one rank.
fn compared_traces(name: &str, a: &str, b: &str) -> Diff {
    let folder = std::env::temp_dir().join(format!("rankscope-diffs-{name}-{}", std::process::id()));
    let write = |side: &str, text: &str| {
        let side = folder.join(side);
        std::fs::create_dir_all(&side).unwrap();
        std::fs::write(side.join("rank0.json"), text).unwrap();
        profiled(&side).unwrap()
    };
    let diff = compared(&write("a", a), &write("b", b)).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    diff
}

fn differences(diff: &Diff) -> Vec<String> {
    diff.differences.iter().map(::diff::Difference::words).collect()
}

/// A and B of the sums by category, in µs.
fn categories(diff: &Diff) -> Vec<(&str, f64, f64)> {
    let rows = diff.rows.iter().filter(|row| row.key.group == Group::Category);
    let mut sums: Vec<_> = rows.map(|row| (&*row.key.name, row.a_ns / 1e3, row.b_ns / 1e3)).collect();
    sums.sort_by(|x, y| x.0.cmp(y.0));
    sums
}

/// A compiler fuses two elementwise kernels into one of another name. Both are elementwise, so their kind got faster.
#[test]
fn an_eager_and_a_compiled_run_are_compared_by_kind() {
    let gemm = ("sgemm", "aten::mm", 64, 20_000);
    let mul = ("vectorized_elementwise_mul", "aten::mul", 64, 15_000);
    let add = ("vectorized_elementwise_add", "aten::add", 64, 15_000);
    let fused = ("triton_poi_fused_add_mul_0", "CompiledFunction", 64, 10_000);
    let (eager, compiled) = (trace("A100", &[gemm, mul, add]), trace("A100", &[gemm, fused]));
    let diff = compared_traces("compiled", &eager, &compiled);
    assert_eq!(differences(&diff)[0], "program: eager in A, torch.compile in B");
    assert_eq!(categories(&diff), [("elementwise", 30_000.0, 10_000.0), ("gemm", 20_000.0, 20_000.0)]);
    let kernels = |side: &[::diff::OneSided]| -> Vec<(String, Option<f64>)> {
        let kernels = side.iter().filter(|one| one.key.group == Group::Kernel);
        kernels.map(|one| (one.key.name.to_string(), one.calls)).collect()
    };
    assert_eq!(kernels(&diff.appeared), [("triton_poi_fused_add_mul_0".to_string(), Some(1.0))]);
    assert_eq!(kernels(&diff.vanished).len(), 2);
    assert!(diff.rows.iter().any(|row| &*row.key.name == "sgemm"), "both have it");
}

/// A kernel of as many blocks that works on larger inputs is not called slower.
#[test]
fn runs_of_other_sizes_are_not_compared_by_the_names_of_their_kernels() {
    let of_size = |size: i64, us: i64| trace("A100", &[("persistent_gemm", "aten::mm", size, us)]);
    let diff = compared_traces("sizes", &of_size(64, 10_000), &of_size(4096, 60_000));
    assert!(differences(&diff).contains(&"shapes: `aten::mm` [[64, 64]] in A, [[4096, 4096]] in B".to_string()));
    assert!(diff.rows.iter().all(|row| !matches!(row.key.group, Group::Kernel | Group::Operator)), "{:?}", diff.rows);
    assert!((diff.appeared.len(), diff.vanished.len()) == (0, 0));
    assert_eq!(categories(&diff), [("gemm", 10_000.0, 60_000.0)]);
    let other = diff.other_shapes.iter().find(|one| one.group == Group::Kernel).unwrap();
    assert_eq!((&*other.name, other.a_ns, other.b_ns), ("persistent_gemm", 1e7, 6e7));
    assert!(diff.not_compared.iter().any(|line| line.contains("shapes differ")), "{:?}", diff.not_compared);
}

#[test]
fn runs_on_other_devices_are_compared_by_the_step_and_by_kind() {
    let on = |device: &str, us: i64| {
        trace(device, &[("sgemm", "aten::mm", 64, us), ("reduce_kernel", "aten::sum", 64, 9_000)])
    };
    let diff = compared_traces("devices", &on("A100", 40_000), &on("H100", 20_000));
    assert_eq!(differences(&diff), ["device: A100 in A, H100 in B"]);
    assert_eq!(categories(&diff), [("gemm", 40_000.0, 20_000.0), ("reduction", 9_000.0, 9_000.0)]);
}
