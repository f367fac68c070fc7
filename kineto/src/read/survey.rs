//! What is inside the files, where their headers do not say enough: several files of one rank, or times far apart.

use std::cell::LazyCell;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use trace::rank::{Kind, Launches};
use trace::{OmissionRow, Text, name_rules};

use crate::Error;
use crate::bytes::input::Input;
use crate::bytes::memory::MemoryShare;
use crate::columns::rows::rows_from_pieces;
use crate::columns::stream::{BLOCK_BYTES, read_processes};
use crate::columns::wanted_args::Wanted;
use crate::meaning::device_steps::steps_on_devices;
use crate::meaning::steps::find_steps;
use crate::read::jobs::{self, Traits};
use crate::read::trace_file::{TraceFile, Window, WindowChoice, listed};
use crate::read::windows::{Grouped, Piece, group, step_numbers};

/// Groups of files that an error names.
const LISTED_JOBS: usize = 4;

/// Reads the times, steps and names of files, one file at a time and thread.
pub(crate) fn survey(files: &[TraceFile]) -> Result<Vec<Traits>, Error> {
    let at_once = rayon::current_num_threads().min(files.len()) as u64;
    let one = |file: &TraceFile| {
        let ranks_at_once = file.memory.ranks_at_once.max(at_once);
        traits(file, MemoryShare { ranks_at_once, ..file.memory })
    };
    files.par_iter().with_max_len(1).map(one).collect()
}

fn traits(file: &TraceFile, memory: MemoryShare) -> Result<Traits, Error> {
    let shown = || PathBuf::from(&*file.name);
    let input = Input::open(&file.path).map_err(|source| Error::Io { path: shown(), source })?;
    let file_error = input.file_error.clone();
    let only = file.processes.clone();
    let streamed = read_processes(input, Wanted::default(), BLOCK_BYTES, memory.room(0), only);
    let unread = file_error.check().err().map(|error| error.to_string());
    let unread = unread.or_else(|| streamed.missing.filter(|_| streamed.is_full).map(|missing| missing.why));
    let rows = rows_from_pieces(streamed.pieces, streamed.scratches, streamed.header.base_ns);
    let events = &rows.events;
    let spans = (0..events.len()).map(|row| (events.ts_ns[row], events.end_ns(row)));
    let mut steps = find_steps(events, &rows.names, file.rank).rows;
    if steps.is_empty() {
        let launches = LazyCell::new(|| Launches::collect(events));
        steps = steps_on_devices(events, &rows.names, &launches, file.rank).rows;
    }
    let mut named = vec![false; rows.names.len()];
    for (kind, name) in events.kind.iter().zip(&events.name) {
        named[*name as usize] |= matches!(kind, Kind::CpuOp | Kind::UserAnnotation);
    }
    let names = rows.names.iter().zip(named).filter(|(name, named)| *named && name_rules::step_number(name).is_none());
    Ok(Traits {
        span_ns: spans.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))),
        steps: steps.iter().map(|step| step.step).collect(),
        pid: rows.pids.iter().max_by_key(|(_, rows)| **rows).map_or(0, |(pid, _)| *pid),
        world_size: file.world_size,
        names: names.map(|(name, _)| name.clone()).collect(),
        unread,
    })
}

/// Refuses files that were surveyed and look like those of different jobs.
///
/// # Errors
/// [`Error::DifferentJobs`].
pub(crate) fn refuse_other_jobs(paths: &[PathBuf], files: &[TraceFile], surveys: &[Traits]) -> Result<(), Error> {
    let jobs = jobs::group(surveys);
    if jobs.len() < 2 {
        return Ok(());
    }
    let name = |job: &Vec<usize>| match job.as_slice() {
        [only] => files[*only].name.to_string(),
        [first, others @ ..] => format!("{} and {} more", files[*first].name, others.len()),
        [] => String::new(),
    };
    let mut named: Vec<String> = jobs.iter().take(LISTED_JOBS).map(name).collect();
    if jobs.len() > LISTED_JOBS {
        named.push("…".into());
    }
    let path = paths.first().map_or(Path::new(""), PathBuf::as_path);
    Err(Error::DifferentJobs { path: path.into(), jobs: jobs.len(), named: named.join("; ") })
}

/// Gives every file its window and keeps those that are chosen; sorted by rank, then by window.
///
/// # Errors
/// [`Error::NoWindow`].
pub(crate) fn arrange(
    mut files: Vec<TraceFile>,
    surveys: &[Traits],
    choice: WindowChoice,
    omissions: &mut Vec<OmissionRow>,
) -> Result<Vec<TraceFile>, Error> {
    let Grouped { windows, doubles } = group(&pieces(&files, surveys));
    for (used, ignored) in &doubles {
        let [used, ignored] = [used, ignored].map(|file| &files[*file]);
        let why = format!("Two files of rank {}: used {}, ignored {}.", used.rank, used.name, ignored.name);
        omissions.push(OmissionRow::left_out("file", why).rank(used.rank).file(ignored.name.clone()));
    }
    let count = windows.len() as i32;
    let chosen = match choice {
        WindowChoice::All => 1..=count,
        WindowChoice::Last => count..=count,
        WindowChoice::Number(number) if (1..=count).contains(&number) => number..=number,
        WindowChoice::Number(number) => return Err(Error::NoWindow { number, windows: count }),
    };
    let steps: Vec<BTreeSet<i32>> = windows
        .iter()
        .map(|window| window.iter().flat_map(|file| surveys[*file].steps.iter().copied()).collect())
        .collect();
    let numbers = step_numbers(&steps);
    if count > 1 {
        omissions.push(remark(&windows, &steps, &numbers, &chosen));
        report_lacking(&files, &windows, &chosen, omissions);
    }
    let mut kept = vec![false; files.len()];
    for (((at, window), steps), (step_shift, first)) in windows.iter().enumerate().zip(&steps).zip(&numbers) {
        let number = at as i32 + 1;
        let as_step = steps.is_empty().then_some(*first);
        for file in window.iter().filter(|_| chosen.contains(&number)) {
            kept[*file] = true;
            files[*file].window = (count > 1).then_some(Window { number, step_shift: *step_shift, as_step });
        }
    }
    let mut kept = kept.iter();
    files.retain(|_| kept.next().copied().unwrap_or(false));
    files.sort_by_key(|file| (file.rank, file.window.map(|window| window.number)));
    Ok(files)
}

fn pieces(files: &[TraceFile], surveys: &[Traits]) -> Vec<Piece> {
    let order = |file: &TraceFile| (Reverse(file.rank_source), file.size_bytes);
    let mut by_quality: Vec<usize> = (0..files.len()).collect();
    by_quality.sort_by_key(|file| order(&files[*file]));
    let mut quality = vec![0; files.len()];
    for (place, file) in by_quality.into_iter().enumerate() {
        quality[file] = place as u64;
    }
    let piece = |((file, survey), quality): ((&TraceFile, &Traits), u64)| {
        let (start_ns, end_ns) = survey.span_ns.unwrap_or_default();
        Piece { rank: file.rank, start_ns, end_ns, steps: survey.steps.clone(), quality }
    };
    files.iter().zip(surveys).zip(quality).map(piece).collect()
}

/// The line on windows.
fn remark(
    windows: &[Vec<usize>],
    steps: &[BTreeSet<i32>],
    numbers: &[(i32, i32)],
    chosen: &std::ops::RangeInclusive<i32>,
) -> OmissionRow {
    let described = |(at, window): (usize, &Vec<usize>)| {
        let ranks = format!("{} rank{}", window.len(), if window.len() == 1 { "" } else { "s" });
        let (shift, as_step) = numbers[at];
        let steps = match (steps[at].first(), steps[at].last()) {
            (Some(first), Some(last)) if shift == 0 => format!("steps {first}–{last}"),
            (Some(first), Some(last)) => {
                format!("steps {first}–{last}, counted as {}–{} here", first + shift, last.saturating_add(shift))
            }
            _ => format!("no step marks, one step {as_step} here"),
        };
        let unused = if chosen.contains(&(at as i32 + 1)) { "" } else { ", not used" };
        format!("{} ({steps}, {ranks}{unused})", at + 1)
    };
    let mut all: Vec<Text> = windows.iter().enumerate().map(described).map(Text::from).collect();
    let last = all.last().cloned().filter(|_| all.len() > 5);
    all.truncate(if last.is_some() { 4 } else { 5 });
    let listed = match last {
        Some(last) => format!("{}, …, {last}", listed(&all)),
        None => listed(&all),
    };
    OmissionRow::note("windows of the profiler", listed).amount(windows.len() as i64)
}

/// Ranks that lack a window and are listed one by one. The others are counted.
const LISTED_LACKING: usize = 10_000;

/// Lists the ranks that lack a window that others have.
fn report_lacking(
    files: &[TraceFile],
    windows: &[Vec<usize>],
    chosen: &std::ops::RangeInclusive<i32>,
    omissions: &mut Vec<OmissionRow>,
) {
    let ranks: BTreeSet<i32> = files.iter().map(|file| file.rank).collect();
    let (mut listed, mut more) = (0, 0);
    for (number, window) in (1..).zip(windows).filter(|(number, _)| chosen.contains(number)) {
        if listed >= LISTED_LACKING {
            more += (ranks.len() - window.len()) as i64;
            continue;
        }
        let present: BTreeSet<i32> = window.iter().map(|file| files[*file].rank).collect();
        for rank in ranks.difference(&present) {
            let why = format!("there is no file of window {number} of this rank");
            omissions.push(OmissionRow::left_out("windows", why).rank(*rank).amount(1));
            listed += 1;
        }
    }
    if more > 0 {
        omissions
            .push(OmissionRow::left_out("windows", "there are no files of further windows and ranks").amount(more));
    }
}
