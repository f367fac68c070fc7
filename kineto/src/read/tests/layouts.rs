//! Traces as users keep them: directories, archives, other files beside them, windows, and files of other jobs.

use std::io::Write;
use std::path::{Path, PathBuf};

use crate::read::{Plan, PlanOptions, WindowChoice, load_windows, plan};

const NOW_US: i64 = 1_790_857_026_000_000;

/// A trace of a process that begins `at_us` after the others and marks three steps.
fn trace(pid: i64, at_us: i64, first_step: i32) -> String {
    let step = |i: i64| {
        format!(
            r#"{{"ph":"X","cat":"user_annotation","name":"ProfilerStep#{}","pid":{pid},"tid":1,"ts":{},"dur":90}},
            {{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":{pid},"tid":1,"ts":{},"dur":50}}"#,
            i64::from(first_step) + i,
            NOW_US + at_us + 100 * i,
            NOW_US + at_us + 100 * i + 10
        )
    };
    format!(r#"{{"traceEvents":[{}]}}"#, (0..3).map(step).collect::<Vec<_>>().join(","))
}

fn put(root: &Path, name: &str, bytes: impl AsRef<[u8]>) {
    let path = root.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}

/// The files of a plan as rank and name, and what was said.
fn planned(paths: &[PathBuf], options: PlanOptions) -> (Vec<(i32, String)>, Vec<String>) {
    let Plan { files, omissions, .. } = plan(paths, options).unwrap();
    let files = files.iter().map(|file| (file.rank, file.name.to_string())).collect();
    (files, omissions.iter().map(|o| format!("{}: {}", o.what, o.why)).collect())
}

fn found(root: &Path) -> (Vec<(i32, String)>, Vec<String>) {
    planned(&[root.into()], PlanOptions::default())
}

fn two_ranks(names: [&str; 2]) -> Vec<(i32, String)> {
    (0..).zip(names.map(String::from)).collect()
}

#[test]
fn a_directory_names_the_rank() {
    for (a, b) in [("rank_0/x", "rank_1/a"), ("logs/rank0/t/x", "logs/rank1/t/a"), ("0/x", "1/a")] {
        let dir = tempfile::tempdir().unwrap();
        let names = [format!("{a}.json"), format!("{b}.json")];
        put(dir.path(), &names[0], trace(100, 0, 3));
        put(dir.path(), &names[1], trace(101, 0, 3));
        assert_eq!(found(dir.path()), (two_ranks([&names[0], &names[1]]), vec![]));
        // Named one by one, as a shell expands a pattern.
        let paths: Vec<PathBuf> = names.iter().map(|name| dir.path().join(name)).collect();
        assert_eq!(planned(&paths, PlanOptions::default()).0.len(), 2);
    }
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "7/x.json", trace(100, 0, 3));
    put(dir.path(), "other/x.json", trace(101, 0, 3));
    assert_eq!(found(dir.path()).0, two_ranks(["7/x.json", "other/x.json"]));
}

#[test]
fn other_files_are_named_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "rank0.json", trace(100, 0, 3));
    put(dir.path(), "README.md", "# Traces");
    put(dir.path(), "config.json", r#"{"layers": 8}"#);
    put(dir.path(), "plugins/events.out.tfevents.1790857026.host", [24, 0, 0, 0]);
    put(dir.path(), "rank1.json", &trace(101, 0, 3)[..40]);
    let plan = plan(&[dir.path().into()], PlanOptions::default()).unwrap();
    let said: Vec<(String, &str)> =
        plan.omissions.iter().map(|o| (format!("{}: {}", o.what, o.why), o.kind.as_str())).collect();
    let others = "files without traces: README.md, config.json, plugins/events.out.tfevents.1790857026.host";
    assert!(said.contains(&(others.to_string(), "left_out")), "{said:?}");
    assert_eq!(
        plan.files.len() + plan.omissions.iter().filter(|o| o.kind == trace::OmissionKind::Lost).count(),
        2,
        "{said:?}"
    );
}

fn zip(members: &[(&str, &str)]) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, text) in members {
        writer.start_file(*name, zip::write::SimpleFileOptions::default()).unwrap();
        writer.write_all(text.as_bytes()).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

fn tar(members: &[(&str, &str)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, text) in members {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        // The crate refuses `..` in names, so they are put into the header directly.
        if name.len() < 100 {
            header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_cksum();
            builder.append(&header, text.as_bytes()).unwrap();
        } else {
            builder.append_data(&mut header, name, text.as_bytes()).unwrap();
        }
    }
    builder.into_inner().unwrap()
}

/// Invariant (input): The names in an archive are data and never paths.
#[test]
fn archives_are_read_and_their_names_are_no_paths() {
    let (a, b) = (trace(100, 0, 3), trace(101, 0, 3));
    let long = format!("{}/rank_1.json", "d".repeat(150));
    let members = [
        ("../../x/rank_0.json", a.as_str()),
        (&long, b.as_str()),
        ("/etc/README", "text"),
        ("..", "{}"),
        ("deep/", ""),
    ];
    let (zipped, tarred) = (zip(&members[..3]), tar(&members));
    for (name, bytes) in [
        ("t.zip", zipped),
        ("t.tar", tarred.clone()),
        ("t.tgz", fixtures::small_trace::gzip(&tarred)),
        ("t.tar.zst", zstd::encode_all(&tarred[..], 1).unwrap()),
    ] {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), name, bytes);
        let (files, said) = found(dir.path());
        assert_eq!(files, two_ranks([&format!("{name}/x/rank_0.json"), &format!("{name}/{long}")]), "{said:?}");
        assert!(said[0].starts_with("files without traces: ") && said[0].contains("etc/README"), "{said:?}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        let plan = plan(&[dir.path().join(name)], PlanOptions::default()).unwrap();
        let spooled = plan.files[0].path.clone();
        assert_eq!(load_windows(&plan.files[..1]).unwrap().events.len(), 6);
        drop(plan);
        assert!(!spooled.exists());
    }
}

#[test]
fn a_damaged_archive_keeps_what_comes_before() {
    let (a, b) = (trace(100, 0, 3), trace(101, 0, 3));
    let whole = tar(&[("rank_0.json", &a), ("rank_1.json", &b)]);
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "t.tar", &whole[..1600]);
    let (files, said) = found(dir.path());
    assert_eq!(files, [(0, "t.tar/rank_0.json".to_string()), (1, "t.tar/rank_1.json".to_string())][..files.len()]);
    assert!(said.iter().any(|text| text.starts_with("rest of the archive: ")), "{said:?}");
    put(dir.path(), "t.tar", zip(&[("a", &a)]).split_off(30));
    assert!(plan(&[dir.path().join("t.tar")], PlanOptions::default()).is_err());
}

#[test]
fn files_compressed_with_zstd_are_read() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "rank_0.json.zst", zstd::encode_all(trace(100, 0, 3).as_bytes(), 1).unwrap());
    let plan = plan(&[dir.path().into()], PlanOptions::default()).unwrap();
    assert_eq!(load_windows(&plan.files).unwrap().events.len(), 6);
}

#[test]
fn windows_of_a_process_are_one_rank() {
    let dir = tempfile::tempdir().unwrap();
    let file = |pid: i64, window: i64, first_step| {
        let name = format!("host_{pid}.{}.pt.trace.json", 1_790_857_026_000 + window * 5000);
        put(dir.path(), &name, trace(pid, window * 5_000_000, first_step));
        name
    };
    let a = [file(1100, 0, 3), file(1100, 1, 9)];
    let b = [file(1101, 0, 3), file(1101, 1, 9), file(1101, 2, 15)];
    let all = |a: &[String], b: &[String]| -> Vec<(i32, String)> {
        a.iter().map(|name| (0, name.clone())).chain(b.iter().map(|name| (1, name.clone()))).collect()
    };
    let (files, said) = found(dir.path());
    assert_eq!(files, all(&a, &b));
    assert_eq!(
        said,
        [
            "ranks: guessed from the order of the files' names: neither the traces nor the names state them",
            "windows of the profiler: 1 (steps 3–5, 2 ranks), 2 (steps 9–11, 2 ranks), 3 (steps 15–17, 1 rank)",
            "windows: there is no file of window 3 of this rank"
        ]
    );
    let chosen = |window| planned(&[dir.path().into()], PlanOptions { window, ..PlanOptions::default() }).0;
    assert_eq!(chosen(WindowChoice::Number(2)), all(&a[1..], &b[1..2]));
    assert_eq!(chosen(WindowChoice::Last), all(&[], &b[2..]));
    let fourth = PlanOptions { window: WindowChoice::Number(4), ..PlanOptions::default() };
    let none = plan(&[dir.path().into()], fourth);
    assert_eq!(none.unwrap_err().to_string(), "--window 4: the files hold windows 1 to 3 of the profiler");

    let plan = plan(&[dir.path().into()], PlanOptions::default()).unwrap();
    let rank = load_windows(&plan.files[2..]).unwrap();
    let steps: Vec<(i32, Option<i32>)> = rank.outline.steps.iter().map(|step| (step.step, step.window)).collect();
    assert_eq!(steps, (0..9).map(|i| (3 + 6 * (i / 3) + i % 3, Some(i / 3 + 1))).collect::<Vec<_>>());
    assert_eq!((rank.events.len(), rank.events.step[2], rank.events.id[17]), (18, 4, 17));
}

#[test]
fn a_second_run_of_the_same_steps_gets_other_numbers() {
    let dir = tempfile::tempdir().unwrap();
    for rank in 0..2 {
        put(dir.path(), &format!("rank{rank}.1.json"), trace(1100 + rank, 0, 3));
        put(dir.path(), &format!("rank{rank}.2.json"), trace(1200 + rank, 60_000_000, 3));
    }
    let said = found(dir.path()).1;
    assert_eq!(said, ["windows of the profiler: 1 (steps 3–5, 2 ranks), 2 (steps 3–5, counted as 6–8 here, 2 ranks)"]);
}

#[test]
fn of_two_files_of_one_window_one_is_used() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "rank0.json", trace(1100, 0, 3));
    put(dir.path(), "rank0.copy.json", trace(1100, 0, 3) + " ");
    let (files, said) = found(dir.path());
    assert_eq!(files, [(0, "rank0.copy.json".to_string())]);
    assert_eq!(said, ["file: Two files of rank 0: used rank0.copy.json, ignored rank0.json."]);
}

/// Invariant (input): Files of different jobs are put together only with `--force`.
#[test]
fn files_of_different_jobs_need_force() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "rank0.json", trace(1100, 0, 3));
    put(dir.path(), "rank1.json", trace(1200, 86_400_000_000, 100));
    let refused = plan(&[dir.path().into()], PlanOptions::default()).unwrap_err().to_string();
    assert!(refused.contains("2 different jobs: rank0.json; rank1.json. Name the files of one job"), "{refused}");
    let (files, _) = planned(&[dir.path().into()], PlanOptions { force: true, ..PlanOptions::default() });
    assert_eq!(files, two_ranks(["rank0.json", "rank1.json"]));
    // A common step joins them.
    put(dir.path(), "rank1.json", trace(1200, 86_400_000_000, 5));
    assert_eq!(found(dir.path()).0.len(), 2);
}
