//! A sound run, damaged: each damage ends in an error or in an omission that is counted and listed, never in silence.

use std::fs;
use std::path::{Path, PathBuf};

use trace::{
    CollectiveRow, CounterRow, EventRow, Manifest, OmissionRow, PartRow, RankRow, Row, Run, ShardMeta,
    StepBreakdownRow, StepRow, StragglerRow, batch_from_rows, shard_path, write_shard,
};

use crate::support::{Finished, aggregator, analyze, sound_run};
use crate::tables::analysis;

/// What the analysis lists as left out. It must say the same to the reader of the summary.
#[track_caller]
fn omissions(run: &Path, finished: &Finished) -> Vec<OmissionRow> {
    let omissions = analysis::<OmissionRow>(run);
    assert!(!omissions.is_empty(), "nothing is listed as left out:\n{}", finished.said());
    for omission in &omissions {
        assert!(!omission.why.is_empty() && !omission.what.is_empty(), "{omission:?}");
    }
    omissions
}

/// The omission that names this file.
#[track_caller]
fn of_file<'a>(omissions: &'a [OmissionRow], file: &Path) -> &'a OmissionRow {
    let name = file.file_name().unwrap().to_str().unwrap();
    let table = file.parent().unwrap().file_name().unwrap().to_str().unwrap();
    let found = omissions.iter().find(|o| {
        let path = o.file.as_deref().map(Path::new);
        path.is_some_and(|p| p.ends_with(Path::new(table).join(name)))
    });
    found.unwrap_or_else(|| panic!("{table}/{name} is not in {omissions:#?}"))
}

/// Every rank still has its breakdown; only `lost` may lack it.
fn assert_others_analyzed(run: &Path, lost: i32) {
    let breakdown = analysis::<StepBreakdownRow>(run);
    assert!(breakdown.iter().any(|b| b.rank == 1 - lost && b.compute_ns > 0), "the sound rank is gone too");
}

fn remove_rank(run: &Path, rank: i32) {
    for entry in fs::read_dir(run).unwrap() {
        let table = entry.unwrap().path();
        if !table.is_dir() {
            continue;
        }
        for shard in fs::read_dir(table).unwrap() {
            let shard = shard.unwrap().path();
            if shard.file_name().unwrap().to_str().unwrap().starts_with(&format!("rank-{rank:05}-")) {
                fs::remove_file(shard).unwrap();
            }
        }
    }
}

fn edit_manifest(run: &Path, edit: impl FnOnce(&mut serde_json::Value)) {
    let path = run.join(trace::MANIFEST_FILE);
    let mut manifest = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    edit(&mut manifest);
    fs::write(path, serde_json::to_vec(&manifest).unwrap()).unwrap();
}

fn events_shard(run: &Path, rank: i32) -> PathBuf {
    shard_path(run, "events", rank, 0)
}

/// Writes one more part of a rank's table, with rows that the recorder would never write.
fn plant<R: Row>(run: &Path, rank: i32, change: impl FnOnce(&mut ShardMeta), rows: &[R]) -> PathBuf {
    let table = R::table();
    let opened = Run::open(run).unwrap();
    let shards = opened.shards(rank, table.name);
    let mut meta = (*shards[0].meta).clone();
    change(&mut meta);
    let part = shards.iter().map(|s| s.part).max().unwrap() + 1;
    write_shard(run, &table, &meta, part, &[batch_from_rows(rows).unwrap()]).unwrap();
    shard_path(run, table.name, rank, part)
}

pub(crate) fn rows<R: Row>(run: &Path, rank: i32) -> Vec<R> {
    Run::open(run).unwrap().rows::<R>(rank).0
}

/// Replaces a rank's table by these rows, as if the rank had recorded them.
pub(crate) fn replace<R: Row>(run: &Path, rank: i32, rows: &[R]) {
    forget_list(run, rank);
    overwrite(run, rank, rows);
}

/// Removes the list of a rank's shards, so that a test may rewrite them.
pub(crate) fn forget_list(run: &Path, rank: i32) {
    let opened = Run::open(run).unwrap();
    for shard in opened.shards(rank, PartRow::table().name) {
        fs::remove_file(&shard.path).unwrap();
    }
    let unlisted: Vec<RankRow> =
        rows::<RankRow>(run, rank).into_iter().map(|row| RankRow { parts: None, ..row }).collect();
    overwrite(run, rank, &unlisted);
}

fn overwrite<R: Row>(run: &Path, rank: i32, rows: &[R]) {
    let table = R::table();
    let opened = Run::open(run).unwrap();
    let shards = opened.shards(rank, table.name).to_vec();
    for shard in &shards {
        fs::remove_file(&shard.path).unwrap();
    }
    write_shard(run, &table, &shards[0].meta, 0, &[batch_from_rows(rows).unwrap()]).unwrap();
}

#[test]
fn a_missing_rank_is_listed() {
    let Some(run) = sound_run("missing_rank") else { return };
    remove_rank(&run, 1);
    let finished = analyze(&run, &[], 3);
    let omissions = omissions(&run, &finished);
    assert!(omissions.iter().any(|o| o.rank == Some(1) && &*o.what == "rank"), "{omissions:#?}");
    assert!(finished.said().contains("rank 1"), "{}", finished.said());
    assert_others_analyzed(&run, 1);
    // One rank of two cannot be compared with anybody.
    assert!(analysis::<StragglerRow>(&run).iter().all(|s| &*s.verdict != "cause"));
}

/// Damages the bytes of a shard, with garbage at hand.
type Damage = fn(Vec<u8>, &[u8]) -> Vec<u8>;

/// Invariant (files): A damaged shard is listed, and the others are read.
#[test]
fn a_shard_that_is_cut_empty_or_garbage_is_listed_and_the_rest_is_read() {
    let garbage: Vec<u8> = (0..4096_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let damages: [(&str, Damage); 4] = [
        ("cut", |bytes, _| bytes[..bytes.len() / 2].to_vec()),
        ("empty", |_, _| Vec::new()),
        ("garbage", |_, garbage| garbage.to_vec()),
        // A sound footer over damaged pages: found only when the rows are read.
        ("scrambled", |mut bytes, garbage| {
            let third = bytes.len() / 3;
            bytes[4..third].iter_mut().zip(garbage.iter().cycle()).for_each(|(b, g)| *b ^= g | 1);
            bytes
        }),
    ];
    for (name, damage) in damages {
        let Some(run) = sound_run(&format!("shard_{name}")) else { return };
        let shard = events_shard(&run, 1);
        fs::write(&shard, damage(fs::read(&shard).unwrap(), &garbage)).unwrap();
        let finished = analyze(&run, &[], 3);
        let omissions = omissions(&run, &finished);
        let omission = of_file(&omissions, &shard);
        assert_eq!(omission.rank, Some(1), "{name}");
        assert!(omission.what.contains("events"), "{name}: {omission:?}");
        assert_others_analyzed(&run, 1);
    }
}

/// Invariant (files): Two processes that claim one rank are never mixed.
#[test]
fn two_shards_that_claim_one_rank_are_not_mixed() {
    let Some(run) = sound_run("double_claim") else { return };
    let sound = rows::<EventRow>(&run, 1).len();
    let mut stranger = rows::<EventRow>(&run, 1);
    stranger.truncate(3);
    let planted = plant(&run, 1, |meta| meta.pid += 1, &stranger);
    let finished = analyze(&run, &[], 3);
    let omissions = omissions(&run, &finished);
    let omission = of_file(&omissions, &planted);
    assert_eq!((omission.rank, omission.amount), (Some(1), Some(3)), "{omission:?}");
    assert!(omission.why.contains("two processes"), "{omission:?}");
    assert_eq!(rows::<EventRow>(&run, 1).len(), sound, "the stranger's rows are read");
}

#[test]
fn a_shard_of_another_run_is_listed() {
    let Some(run) = sound_run("foreign_shard") else { return };
    let mut foreign = rows::<EventRow>(&run, 0);
    foreign.truncate(2);
    let planted = plant(&run, 0, |meta| meta.run_id = "yesterday".into(), &foreign);
    let finished = analyze(&run, &[], 3);
    let omissions = omissions(&run, &finished);
    assert!(of_file(&omissions, &planted).why.contains("yesterday"));
}

#[test]
fn a_manifest_that_contradicts_its_shards_is_reported() {
    // More ranks than there are: the missing ones are listed.
    let Some(run) = sound_run("manifest_more") else { return };
    edit_manifest(&run, |m| m["world_size"] = 4.into());
    let finished = analyze(&run, &[], 3);
    let listed = omissions(&run, &finished);
    for rank in [2, 3] {
        assert!(listed.iter().any(|o| o.rank == Some(rank) && &*o.what == "rank"), "{listed:#?}");
    }
    // Fewer ranks than there are: the surplus is listed.
    let Some(run) = sound_run("manifest_fewer") else { return };
    edit_manifest(&run, |m| m["world_size"] = 1.into());
    let finished = analyze(&run, &[], 3);
    let listed = omissions(&run, &finished);
    assert!(listed.iter().any(|o| o.rank == Some(1) && o.why.contains("world_size")), "{listed:#?}");
    // Another run: nothing is left to analyze.
    let Some(run) = sound_run("manifest_other") else { return };
    edit_manifest(&run, |m| m["run_id"] = "another".into());
    let said = analyze(&run, &[], 1).stderr;
    assert!(said.contains("another") || said.contains("no rank"), "{said}");
}

#[test]
fn a_malformed_manifest_is_an_error() {
    for (name, text) in [("cut", "{\"schema_version\": 1, \"run_id\""), ("empty", ""), ("other", "{\"hello\": 1}")] {
        let Some(run) = sound_run(&format!("no_manifest_{name}")) else { return };
        fs::write(run.join(trace::MANIFEST_FILE), text).unwrap();
        let said = analyze(&run, &[], 1).stderr;
        assert!(said.contains("run.json"), "{name}: {said}");
    }
}

/// Invariant (files): A reader refuses a newer schema and says what to do.
#[test]
fn a_newer_schema_is_named_with_what_to_do() {
    let Some(run) = sound_run("newer_run") else { return };
    edit_manifest(&run, |m| m["schema_version"] = 99.into());
    let said = analyze(&run, &[], 1).stderr;
    assert!(said.contains("99") && said.contains("update rankscope"), "{said}");

    // One shard of a newer program: the rest is analyzed.
    let Some(run) = sound_run("newer_shard") else { return };
    let shard = events_shard(&run, 1);
    let bytes = fs::read(&shard).unwrap();
    let key = trace::KEY_SCHEMA_VERSION.as_bytes();
    // The value follows its key in the footer: a field header, its length 1, and the digit. (The Arrow schema repeats
    // none.)
    let at = bytes.windows(key.len()).rposition(|w| w == key).unwrap() + key.len();
    let mut newer = bytes.clone();
    let current = b'0' + u8::try_from(trace::SCHEMA_VERSION).unwrap();
    let digit = (at..at + 4).find(|i| newer[*i] == current).unwrap();
    newer[digit] = b'9';
    fs::write(&shard, newer).unwrap();
    let finished = analyze(&run, &[], 3);
    let listed = omissions(&run, &finished);
    assert!(of_file(&listed, &shard).why.contains("newer"), "{listed:#?}");
    assert_others_analyzed(&run, 1);
}

/// A torn clock: rows that end before they begin. Neither a panic nor a number made of them.
#[test]
fn a_clock_that_jumps_backwards_is_noticed() {
    const JUMP_NS: i64 = 5_000_000_000;
    let Some(run) = sound_run("torn_clock") else { return };
    let mut steps = rows::<StepRow>(&run, 1);
    let torn = steps.len() / 2;
    for step in &mut steps[torn..] {
        step.end_ns -= JUMP_NS;
        step.start_ns -= if step.step == 5 { 0 } else { JUMP_NS };
    }
    replace(&run, 1, &steps);
    let mut collectives = rows::<CollectiveRow>(&run, 1);
    let torn = collectives.len() / 2;
    collectives[torn].end_ns = collectives[torn].end_ns.map(|t| t - JUMP_NS);
    for c in &mut collectives[torn + 1..] {
        for time in [&mut c.ready_ns, &mut c.enqueue_ns, &mut c.start_ns, &mut c.end_ns] {
            *time = time.map(|t| t - JUMP_NS);
        }
    }
    replace(&run, 1, &collectives);
    let finished = aggregator(&[Path::new("analyze"), &run]);
    let said = finished.said();
    assert!(!said.contains("panicked"), "{said}");
    assert!(matches!(finished.code, Some(1 | 3)), "{:?}: {said}", finished.code);
    if finished.code == Some(3) {
        let listed = omissions(&run, &finished);
        assert!(listed.iter().any(|o| o.rank == Some(1)), "{listed:#?}");
        let negative = analysis::<StepBreakdownRow>(&run).into_iter().find(|b| b.wall_ns < 0 || b.idle_ns < 0);
        assert_eq!(negative, None);
    }
}

#[test]
fn rows_out_of_order_or_of_negative_length_are_listed() {
    let Some(run) = sound_run("bad_rows") else { return };
    // The writer refuses such rows, so the bytes are made by a shard of another rank under this rank's name.
    let (good, bad) = (events_shard(&run, 0), events_shard(&run, 1));
    fs::copy(good, &bad).unwrap();
    let finished = analyze(&run, &[], 3);
    let listed = omissions(&run, &finished);
    assert!(of_file(&listed, &bad).why.contains("rankscope.rank"), "{listed:#?}");
}

#[test]
fn a_step_without_any_collective_is_analyzed() {
    let Some(run) = sound_run("quiet_step") else { return };
    let active: Vec<i32> = rows::<StepRow>(&run, 0).iter().filter(|s| &*s.phase == "active").map(|s| s.step).collect();
    let quiet = active[2];
    for rank in [0, 1] {
        let mut kept = rows::<CollectiveRow>(&run, rank);
        kept.retain(|c| c.step != Some(quiet));
        replace(&run, rank, &kept);
        // The rank counted fewer rows, too, or some would be missing.
        let mut counters = rows::<CounterRow>(&run, rank);
        counters.retain(|counter| !counter.source.starts_with("collectives:"));
        replace(&run, rank, &counters);
    }
    // Nothing was left out: the run simply has no communication there.
    analyze(&run, &[], 0);
    let breakdown = analysis::<StepBreakdownRow>(&run);
    let of_step: Vec<_> = breakdown.iter().filter(|b| b.step == Some(quiet)).collect();
    assert_eq!(of_step.len(), 2);
    for b in of_step {
        assert_eq!((b.comm_total_ns, b.overlap_ns, b.exposed_comm_ns, b.overlap_pct), (0, 0, 0, None), "{b:?}");
        assert!(b.compute_ns > 0);
    }
}

#[test]
fn a_run_without_any_collective_is_analyzed() {
    let Some(run) = sound_run("quiet_run") else { return };
    fs::remove_dir_all(run.join("collectives")).unwrap();
    let finished = aggregator(&[Path::new("analyze"), &run]);
    assert!(matches!(finished.code, Some(0 | 3)), "{}", finished.said());
    assert!(analysis::<StragglerRow>(&run).iter().all(|s| &*s.verdict != "cause"));
}

#[test]
fn the_run_that_a_manifest_describes_survives_a_round_trip() {
    let Some(run) = sound_run("manifest_round_trip") else { return };
    let manifest = Manifest::read(&run).unwrap();
    manifest.write(&run).unwrap();
    assert_eq!(Manifest::read(&run).unwrap(), manifest);
    assert_eq!(manifest.world_size, 2);
    assert!(manifest.command.iter().any(|word| word == "--layers"), "{:?}", manifest.command);
}
