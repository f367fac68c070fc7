//! The processes of exports, their ranks and their clocks.
//!
//! The rank is stated, best first, by MPI (a table, or a thread's name `MPI Rank 3`), by the communicator of NCCL with the most ranks, by
//! the launcher's variables or the name of the file if the export has one process. Other processes get the numbers that are left, in
//! the order of the files and of their ids.
//!
//! An export may hold the whole environment of the program, with its secrets. Only the variables in [`RANK`] and [`WORLD_SIZE`] are asked
//! for, and nothing else leaves the file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use trace::{OmissionRow, Text};

use crate::nsys::database::{Cells, Database, unread};
use crate::nsys::nccl::{Payload, Schemas};
use crate::nsys::owners::Owners;
use crate::nsys::session::{Session, session};
use crate::nsys::tables::{self, MPI_COLLECTIVES, NVTX, OF_DEVICES};
use crate::nsys::wanted::{THREAD_BITS, Wanted};
use crate::ranks::{by_rank, numbered};
use model::Error;
use model::MAX_RANKS;

/// Processes of one export.
pub(super) const MAX_PROCESSES: usize = 1 << 12;
/// Two readings of one host's clocks say the same boot time up to what its UTC was set by.
const SAME_BOOT_NS: u64 = 60_000_000_000;

/// The variables by which launchers state the rank, best first, and the number of ranks.
const RANK: [&str; 3] = ["RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"];
const WORLD_SIZE: &str = "WORLD_SIZE";

/// Tables whose rows belong to a thread. They say which processes there are in an export without devices.
const OF_HOSTS: [&str; 4] = ["CUPTI_ACTIVITY_KIND_RUNTIME", NVTX[0], NVTX[1], MPI_COLLECTIVES];

/// A process of an export.
#[derive(Clone, Debug)]
pub(super) struct Process {
    pub(super) rank: i32,
    pub(super) file: PathBuf,
    /// As in the export; `None` if no row names its process, so that all rows are of one.
    pub(super) global_pid: Option<i64>,
    /// The processes of the file that are ranks, ascending.
    pub(super) of_file: Arc<[i64]>,
    pub(super) owners: Arc<Owners>,
    pub(super) session: Session,
    /// The clock of its times.
    pub(super) clock_domain: Text,
}

impl Process {
    /// The number by which the system knows the process; 0 if unknown.
    pub(super) fn pid(&self) -> i64 {
        self.global_pid.map_or(0, |pid| pid >> 24 & THREAD_BITS)
    }

    /// Whether it lists what no process of the file reads.
    pub(super) fn is_first(&self) -> bool {
        self.global_pid == self.of_file.first().copied()
    }
}

/// The processes of all files, and what is wrong with the files.
pub(super) struct Found {
    /// By rank.
    pub(super) processes: Vec<Process>,
    pub(super) world_size: Option<i32>,
    pub(super) problems: Vec<OmissionRow>,
}

/// A process before its rank is decided.
struct Claim {
    process: Process,
    rank: Option<i32>,
}

/// Finds the processes of all files. A rank in `taken` is given to none that does not state it.
///
/// # Errors
/// As [`NsysSource::open`](super::NsysSource::open).
pub(super) fn processes(paths: &[PathBuf], taken: &BTreeSet<i32>) -> Result<Found, Error> {
    let mut claims: Vec<Claim> = Vec::new();
    let mut problems = Vec::new();
    let mut world_size = None;
    for path in paths {
        let database = Database::open(path)?;
        let mut remarks = Vec::new();
        let (of_file, size) = of_file(&database, &mut remarks)?;
        world_size = world_size.max(size);
        claims.extend(of_file);
        let file = Text::from(path.to_string_lossy());
        problems.extend(remarks.into_iter().map(|remark| remark.file(file.clone())));
    }
    if claims.is_empty() {
        let path = paths.first().cloned().unwrap_or_default();
        return Err(unread(&path, "it has no rows of a process: no kernels, copies, calls or ranges"));
    }
    number(&mut claims, taken, &mut problems);
    tell_hosts_apart(&mut claims, &mut problems);
    let processes = claims.into_iter().map(|claim| claim.process).collect();
    let processes = by_rank(processes, |process: &Process| process.rank, |process| &process.file)?;
    Ok(Found { processes, world_size, problems })
}

/// Gives the processes without a stated rank the numbers that are left.
fn number(claims: &mut [Claim], taken: &BTreeSet<i32>, problems: &mut Vec<OmissionRow>) {
    let stated: Vec<Option<i32>> = claims.iter().map(|claim| claim.rank).collect();
    let guessed = stated.iter().filter(|rank| rank.is_none()).count();
    for (claim, rank) in claims.iter_mut().zip(numbered(&stated, taken)) {
        claim.process.rank = rank;
    }
    if guessed > 0 && claims.len() + taken.len() > 1 {
        let why = "neither MPI, NCCL, the launcher's variables nor the names of the files state them; processes are numbered in the order \
                   of the files and of their ids";
        problems.push(OmissionRow::note("ranks of processes", why).amount(guessed as i64));
    }
}

/// Containers of different hosts may have one name. Then their steady clocks were zero at different times.
fn tell_hosts_apart(claims: &mut [Claim], problems: &mut Vec<OmissionRow>) {
    let mut boots: BTreeMap<Text, i64> = BTreeMap::new();
    for Claim { process, .. } in claims {
        let Some(boot_ns) = process.session.boot_ns() else { continue };
        let first_ns = *boots.entry(process.clock_domain.clone()).or_insert(boot_ns);
        if first_ns.abs_diff(boot_ns) > SAME_BOOT_NS {
            process.clock_domain = format!("{}/{boot_ns}", process.clock_domain).into();
            let why = "its host has the name of another one and was started at another time, so they share no clock";
            let file = Text::from(process.file.to_string_lossy());
            problems.push(OmissionRow::note("clock", why).file(file).rank(process.rank));
        }
    }
}

/// The processes of a file, in the order of their ids, and the number of ranks that it states.
fn of_file(database: &Database, problems: &mut Vec<OmissionRow>) -> Result<(Vec<Claim>, Option<i32>), Error> {
    let path = database.path();
    let is_export = OF_DEVICES.iter().chain(&OF_HOSTS).chain(&["StringIds"]).any(|table| database.has(table));
    if !is_export {
        return Err(unread(path, "it has none of the tables of one"));
    }
    problems.extend(tables::unread(database));
    problems.extend(database.unsaved());
    let session = session(database, problems);
    let mut pids: Vec<Option<i64>> = global_pids(database, problems).into_iter().map(Some).collect();
    let has_rows = |table: &&str| database.count(table, 0) == Ok(None);
    if pids.is_empty() && OF_DEVICES.iter().chain(&OF_HOSTS).any(has_rows) {
        pids.push(None);
    }
    if pids.len() > MAX_PROCESSES {
        let why = format!("a file of more than {MAX_PROCESSES} processes is read up to there");
        problems.push(OmissionRow::lost("processes", why).amount((pids.len() - MAX_PROCESSES) as i64));
        pids.truncate(MAX_PROCESSES);
    }
    let stated = Stated::read(database, pids.len(), problems);
    let of_name = kineto::rank_of_name(&path.to_string_lossy());
    let is_only = pids.len() == 1;
    let of_file: Arc<[i64]> = pids.iter().flatten().copied().collect();
    let clock_domain = Text::from(clock_domain(path, &session));
    let owners = Arc::new(Owners::default());
    let claim = |global_pid: Option<i64>| {
        let of_process = global_pid.and_then(|pid| stated.of_process.get(&pid).copied());
        let rank = of_process.or(stated.of_launcher.or(of_name).filter(|_| is_only));
        let process = Process {
            rank: 0,
            file: path.into(),
            global_pid,
            of_file: of_file.clone(),
            owners: owners.clone(),
            session: session.clone(),
            clock_domain: clock_domain.clone(),
        };
        Claim { process, rank: rank.filter(|rank| (0..MAX_RANKS).contains(rank)) }
    };
    Ok((pids.into_iter().map(claim).collect(), stated.world_size))
}

/// The clock: the host's steady one, or else that of the session. The host's UTC is read once in a session, so it does not make
/// two sessions agree.
fn clock_domain(path: &Path, session: &Session) -> String {
    let Session { host, utc_ns, system_ns, shift_ns } = session;
    match (system_ns, utc_ns, shift_ns) {
        (Some(_), _, Some(_)) if !host.is_empty() => format!("{host}/steady"),
        (_, Some(utc_ns), Some(_)) => format!("{host}/nsys/{utc_ns}"),
        _ => format!("nsys/{}", path.display()),
    }
}

/// The processes that used a device; or else, those with calls or ranges. Ascending.
fn global_pids(database: &Database, problems: &mut Vec<OmissionRow>) -> BTreeSet<i64> {
    let mut found: BTreeSet<i64> = BTreeSet::new();
    let mut collect = |tables: &[&str], column: &str| {
        let mut last = None;
        for table in tables {
            let why = database.rows(table, &[column], &[column], Wanted::All, |cells| {
                let id = cells.integer(0).map(|id| id & !THREAD_BITS);
                // Wanted of one process follow each other.
                if id != last {
                    found.extend(id);
                    last = id;
                }
            });
            // The load of the table lists what cannot be read. Processes that only occur there are lost with it.
            problems.extend(why.map(|why| OmissionRow::lost(format!("processes in the rest of table {table}"), why)));
        }
        !found.is_empty()
    };
    if !collect(&OF_DEVICES, "globalPid") {
        collect(&OF_HOSTS, "globalTid");
    }
    found
}

/// The ranks that a file states.
#[derive(Default)]
struct Stated {
    /// By process.
    of_process: BTreeMap<i64, i32>,
    /// Of the process that nsys started.
    of_launcher: Option<i32>,
    world_size: Option<i32>,
}

impl Stated {
    fn read(database: &Database, processes: usize, problems: &mut Vec<OmissionRow>) -> Self {
        let (of_launcher, size) = variables(database, problems);
        let mut stated = Self { of_launcher, world_size: size, ..Self::default() };
        stated.by_mpi(database, problems);
        if stated.of_process.is_empty() {
            stated.by_nccl(database, processes, problems);
        }
        stated
    }

    fn by_mpi(&mut self, database: &Database, problems: &mut Vec<OmissionRow>) {
        let mut add = |tid: Option<i64>, rank: Option<i32>| {
            self.of_process.extend(tid.map(|tid| tid & !THREAD_BITS).zip(rank));
        };
        let table = "MPI_RANKS";
        let why = database.rows(table, &["globalTid", "globalPid", "rank"], &["rank"], Wanted::All, |cells| {
            let rank = cells.integer(2).and_then(|rank| rank.try_into().ok());
            add(cells.integer(0).or_else(|| cells.integer(1)), rank);
        });
        problems.extend(why.map(|why| OmissionRow::lost(format!("rest of table {table}"), why)));
        let prefix = "MPI Rank ";
        let condition = Wanted::Beginning("text", &[prefix]);
        // The load of the table lists what cannot be read.
        for table in NVTX {
            let _ = database.rows(table, &["globalTid", "text"], &["text"], condition, |cells| {
                let rank = cells.text(1).and_then(|text| text.strip_prefix(prefix)?.parse().ok());
                add(cells.integer(0), rank);
            });
        }
    }

    /// The ranks in the largest communicator, if it has all processes of the file and they differ.
    fn by_nccl(&mut self, database: &Database, processes: usize, problems: &mut Vec<OmissionRow>) {
        let schemas = Schemas::read(database, problems);
        if schemas.is_empty() {
            return;
        }
        let mut largest: BTreeMap<i64, (i32, i32)> = BTreeMap::new();
        let needed = ["globalTid", "binaryData"];
        let condition = Wanted::Having("binaryData");
        // The load of the table lists what cannot be read.
        let mut keep = |cells: Cells<'_>| {
            let payload = cells.bytes(1).and_then(|bytes| schemas.decode(&bytes));
            if let (Some(tid), Some(Payload { ranks: Some(ranks), rank: Some(rank), .. })) = (cells.integer(0), payload)
                && rank < ranks
            {
                let known = largest.entry(tid & !THREAD_BITS).or_insert((ranks, rank));
                *known = if ranks > known.0 { (ranks, rank) } else { *known };
            }
        };
        for table in NVTX {
            let _ = database.rows(table, &needed, &needed, condition, &mut keep);
        }
        let sizes: BTreeSet<i32> = largest.values().map(|(ranks, _)| *ranks).collect();
        let ranks: BTreeSet<i32> = largest.values().map(|(_, rank)| *rank).collect();
        let size = sizes.first().copied().filter(|_| sizes.len() == 1);
        let is_world = size.is_some_and(|size| self.world_size.is_none_or(|world| world == size));
        if is_world && ranks.len() == processes && largest.len() == processes {
            self.world_size = size;
            self.of_process = largest.into_iter().map(|(pid, (_, rank))| (pid, rank)).collect();
        }
    }
}

/// Rank and number of ranks by the launcher's variables.
fn variables(database: &Database, problems: &mut Vec<OmissionRow>) -> (Option<i32>, Option<i32>) {
    let mut found: BTreeMap<&str, i32> = BTreeMap::new();
    let mut add = |line: &str| {
        let Some((name, value)) = line.split_once('=') else { return };
        let known = RANK.iter().chain([&WORLD_SIZE]).find(|known| **known == name);
        if let (Some(name), Ok(number)) = (known, value.trim().trim_matches('"').parse()) {
            found.entry(name).or_insert(number);
        }
    };
    let wanted: Vec<String> = RANK.iter().chain([&WORLD_SIZE]).map(|name| format!("{name}=")).collect();
    let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
    let table = "META_DATA_CAPTURE";
    let columns = ["value", "name"];
    let why = database.rows(table, &columns, &columns, Wanted::Beginning("value", &wanted), |cells| {
        if cells.text(1).is_some_and(|name| name.ends_with(":ENVIRONMENT_VARIABLE")) {
            add(&cells.text(0).unwrap_or_default());
        }
    });
    problems.extend(why.map(|why| OmissionRow::lost(format!("rest of table {table}"), why)));
    // Other releases keep all variables in one text, a line for each.
    let condition = Wanted::With("name", "DeviceEnvironment");
    let table = "TARGET_INFO_SYSTEM_ENV";
    let why = database.rows(table, &["value"], &["name", "value"], condition, |cells| {
        cells.text(0).unwrap_or_default().split(['\n', '\0']).for_each(&mut add);
    });
    problems.extend(why.map(|why| OmissionRow::lost(format!("rest of table {table}"), why)));
    let rank = RANK.iter().find_map(|name| found.get(name).copied());
    (rank, found.get(WORLD_SIZE).copied().filter(|size| (1..=MAX_RANKS).contains(size)))
}
