//! A random rank of a job is killed at a random moment. Its closed parts are whole and are read. An omission
//! lists each other loss. Some jobs keep the newest rows only.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fixtures::random::Random;
use fixtures::shards::manifest;
use recorder::{Collective, CollectiveOp, Kind, Memory, Options, Recorder};
use trace::{CounterRow, EventRow, OmissionRow, RankRow, Run, parse_shard_name};

use crate::support::{aggregator, number_of, scratch, seed};
use crate::tables::analysis;

const RANKS: i32 = 3;
/// The run and the rank of a process that records.
const RUN: &str = "RANKSCOPE_TEST_RUN";
const RANK: &str = "RANKSCOPE_TEST_RANK";
/// For how many milliseconds it keeps rows; 0: all rows.
const KEEP: &str = "RANKSCOPE_TEST_KEEP_MS";
const KEEPS_MS: [u64; 4] = [0, 0, 40, 200];
/// The file that ends the ranks in order.
const STOP: &str = "stop";
/// The longest time before a rank is killed; some parts are closed by then.
const MAX_LIFE_MS: usize = 300;

/// Body of a rank. Without its variables it does nothing.
#[test]
fn a_rank_records_until_it_is_killed_or_stopped() {
    let (Some(run), Ok(rank)) = (std::env::var_os(RUN), std::env::var(RANK)) else { return };
    let (run, rank) = (PathBuf::from(run), rank.parse().unwrap());
    let part_period = Duration::from_millis(5);
    let keep = Some(Duration::from_millis(number_of(KEEP, 0) as u64)).filter(|keep| !keep.is_zero());
    let recorder = Recorder::start(Options { part_period, keep, ..Options::new(&run, "kills", rank, RANKS) }).unwrap();
    recorder.set_active(true);
    let (thread, name) = (recorder.thread("main"), recorder.intern("op"));
    let stop = run.with_file_name(STOP);
    for number in 0.. {
        drop(thread.scope(Kind::CpuOp, name));
        let now = Some(thread.now_ns());
        thread.collective(Collective {
            start_ns: now,
            end_ns: now,
            ..Collective::new(1, number, CollectiveOp::Barrier)
        });
        thread.memory(Memory::host(name, 8));
        if number % 16 == 0 {
            if stop.exists() {
                break;
            }
            // Fewer rows than the writer can take, so that no queue is ever full.
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert!(recorder.finish().closed_cleanly);
}

fn start(run: &Path, rank: i32, keep_ms: u64) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "disk::killed_ranks::a_rank_records_until_it_is_killed_or_stopped"]);
    command.env(RUN, run).env(RANK, rank.to_string()).env(KEEP, keep_ms.to_string());
    command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()
}

/// The shards of the tables under their final names.
fn closed(run: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for table in trace::rank_tables() {
        let Ok(entries) = fs::read_dir(run.join(table.name)) else { continue };
        let paths = entries.map(|entry| entry.unwrap().path());
        found.extend(paths.filter(|path| parse_shard_name(path.file_name().unwrap().to_str().unwrap()).is_some()));
    }
    found
}

/// One job. Returns the number of parts that the victim had closed.
fn kill_one(place: &Path, random: &mut Random) -> Result<usize, String> {
    if place.exists() {
        fs::remove_dir_all(place).unwrap();
    }
    let run = place.join("run");
    manifest("kills", RANKS).write(&run).unwrap();
    let keep_ms = KEEPS_MS[random.below(KEEPS_MS.len())];
    let mut ranks: Vec<Child> = (0..RANKS).map(|rank| start(&run, rank, keep_ms)).collect();
    let victim = random.below(RANKS as usize);
    std::thread::sleep(Duration::from_micros(random.below(MAX_LIFE_MS * 1000) as u64));
    let before = if keep_ms == 0 { closed(&run) } else { BTreeSet::new() };
    ranks[victim].kill().unwrap();
    fs::write(place.join(STOP), "").unwrap();
    for (rank, child) in ranks.iter_mut().enumerate() {
        let status = child.wait().unwrap();
        if status.success() == (rank == victim) {
            return Err(format!("rank {rank} ended with {status}; rank {victim} was killed"));
        }
    }
    check(&run, victim as i32, &before)
}

fn check(run: &Path, victim: i32, before: &BTreeSet<PathBuf>) -> Result<usize, String> {
    let opened = Run::open(run).map_err(|error| error.to_string())?;
    let closed = closed(run);
    if let Some(lost) = before.difference(&closed).next() {
        return Err(format!("{} was closed and is gone", lost.display()));
    }
    // Everything under a final name is whole, and is read.
    let mut read = BTreeSet::new();
    for (rank, table) in (0..RANKS).flat_map(|rank| trace::rank_tables().into_iter().map(move |table| (rank, table))) {
        for shard in opened.shards(rank, table.name) {
            let mut rows = 0;
            let visit = |batch: &trace::RecordBatch| -> Result<(), trace::Error> {
                rows += batch.num_rows() as u64;
                Ok(())
            };
            shard.read(&table, None, visit).map_err(|error| error.to_string())?;
            if rows != shard.rows {
                return Err(format!("{} has {} rows, {rows} were read", shard.path.display(), shard.rows));
            }
            read.insert(shard.path.clone());
        }
    }
    if read != closed {
        return Err(format!("closed, but not read: {:?}", closed.difference(&read).collect::<Vec<_>>()));
    }
    // Nothing of the other ranks is lost, and their rows are all there.
    for rank in 0..RANKS {
        let ids: BTreeSet<i64> = opened.rows::<EventRow>(rank).0.iter().map(|event| event.id).collect();
        let is_clean = opened.rows::<RankRow>(rank).0.last().is_some_and(|row| row.closed_cleanly);
        if is_clean == (rank == victim) {
            return Err(format!("rank {rank} is taken for clean: {is_clean}, rank {victim} was killed"));
        }
        if ids.last().is_some_and(|last| *last - ids.first().unwrap() + 1 != ids.len() as i64) {
            return Err(format!("rows between others are lost on rank {rank}"));
        }
        let removed = |row: &CounterRow| if &*row.source == "keep:events" { row.omitted } else { 0 };
        let removed: i64 = opened.rows::<CounterRow>(rank).0.iter().map(removed).sum();
        // Rows that were open when their part closed are written twice, so more rows may be removed than ids.
        if ids.first().is_some_and(|first| first - 1 > removed) {
            return Err(format!(
                "{removed} rows of rank {rank} are counted as removed, and its first one is {:?}",
                ids.first()
            ));
        }
    }
    check_analysis(run, victim)?;
    Ok(closed.iter().filter(|path| path.to_string_lossy().contains(&format!("rank-{victim:05}"))).count())
}

/// The analysis ends with 3 and lists a loss of the killed rank and of no other, twice alike.
fn check_analysis(run: &Path, victim: i32) -> Result<(), String> {
    let analyze = || aggregator(&[Path::new("analyze"), run]);
    let (first, second) = (analyze(), analyze());
    if first.code != Some(3) || first.stdout != second.stdout {
        return Err(format!("the analysis ended with {:?} and {:?}: {}", first.code, second.code, first.said()));
    }
    let mut lost = analysis::<OmissionRow>(run);
    lost.retain(|row| &*row.kind == "lost");
    match !lost.is_empty() && lost.iter().all(|row| row.rank == Some(victim)) {
        true => Ok(()),
        false => Err(format!("rank {victim} was killed, and lost are {lost:?}")),
    }
}

fn kill(kills: usize) {
    let mut random = Random(seed("killed ranks"));
    let place = scratch("killed_ranks").join("job");
    let (mut parts, mut wrong) = (0, Vec::new());
    for number in 0..kills {
        match kill_one(&place, &mut random) {
            Ok(closed) => parts += closed,
            Err(why) => wrong.push(format!("kill {number}: {why}")),
        }
    }
    println!(
        "killed ranks: {kills} jobs of {RANKS} ranks; {parts} closed parts read; {} with a loss unsaid",
        wrong.len()
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Invariant (files): What a killed rank had closed is read, and what is missing is reported.
#[test]
fn what_a_killed_rank_closed_is_read_and_the_rest_is_said() {
    kill(4);
}

/// `tests/faults` runs it.
#[test]
#[ignore = "takes minutes"]
fn ranks_are_killed_many_times() {
    kill(number_of("RANKSCOPE_KILLS", 500));
}
