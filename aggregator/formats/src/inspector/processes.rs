//! The processes of dumps, and their ranks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use trace::{OmissionRow, Text, shortened};

use crate::inspector::objects::{Damage, Object};
use crate::inspector::read::read;
use crate::ranks::numbered;
use model::Error;
use model::MAX_RANKS;
use model::units::ranks_named;

/// Processes of one file, and communicators of a process. The plugin writes one process to a file.
const MAX_PROCESSES: usize = 1 << 10;
const MAX_COMMS: usize = 1 << 14;

/// A communicator as one of its ranks knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Comm {
    pub(super) name: Option<Text>,
    /// The number of the process in it.
    pub(super) rank: i32,
    pub(super) size: i32,
}

impl Comm {
    fn of(object: &Object<'_>) -> Option<(u64, Self)> {
        let header = &object.header;
        let id = comm_id(&header.id)?;
        let is_valid = (1..=MAX_RANKS).contains(&header.n_ranks) && (0..header.n_ranks).contains(&header.rank);
        // The plugin's word for a communicator without a name.
        let name = header.comm_name.as_deref().filter(|name| !name.is_empty() && *name != "unknown");
        let name = name.map(|name| shortened(name).into());
        is_valid.then_some((id, Self { name, rank: header.rank, size: header.n_ranks }))
    }
}

/// The hash of a communicator.
pub(super) fn comm_id(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

/// A process of a dump.
#[derive(Clone, Debug)]
pub(super) struct Process {
    pub(super) rank: i32,
    pub(super) file: PathBuf,
    pub(super) host: Text,
    pub(super) pid: i64,
    /// By hash.
    pub(super) comms: BTreeMap<u64, Comm>,
    /// Of its file, when it was found; the source lists it.
    pub(super) damage: Damage,
}

impl Process {
    /// Whether an object is of this process.
    pub(super) fn has(&self, object: &Object<'_>) -> bool {
        object.metadata.pid == self.pid && *object.metadata.hostname == *self.host
    }
}

/// The processes of all files, and what is wrong with the files.
pub(super) struct Found {
    /// By rank.
    pub(super) processes: Vec<Process>,
    pub(super) world_size: Option<i32>,
    pub(super) problems: Vec<OmissionRow>,
}

/// Finds the processes of all files. A rank in `taken` is given to none that does not state it.
///
/// # Errors
/// As [`InspectorSource::open`](super::InspectorSource::open).
pub(super) fn processes(paths: &[PathBuf], taken: &BTreeSet<i32>) -> Result<Found, Error> {
    let of_files = paths.par_iter().map(|path| of_file(path)).collect::<Result<Vec<_>, Error>>()?;
    let (processes, problems): (Vec<_>, Vec<_>) = of_files.into_iter().unzip();
    let (mut processes, mut problems) = (processes.concat(), problems.concat());
    if processes.is_empty() {
        let path = paths.first().cloned().unwrap_or_default();
        return Err(Error::NoInput { path, why: "no dump has an operation of NCCL".into() });
    }
    let world = world(&processes);
    number(&mut processes, world, taken, &mut problems);
    processes.sort_by_key(|process| process.rank);
    if let Some([a, b]) = processes.windows(2).find(|pair| pair[0].rank == pair[1].rank) {
        let why = format!(
            "a process of it is of rank {}, as one of {} is; give the dumps of one job",
            b.rank,
            a.file.display()
        );
        return Err(Error::NoInput { path: b.file.clone(), why });
    }
    let world_size = world.and_then(|world| processes.iter().find_map(|process| Some(process.comms.get(&world)?.size)));
    Ok(Found { processes, world_size, problems })
}

fn of_file(path: &Path) -> Result<(Vec<Process>, Vec<OmissionRow>), Error> {
    let mut found: BTreeMap<(Text, i64), BTreeMap<u64, Comm>> = BTreeMap::new();
    let (mut unknown, mut beyond) = (0, 0);
    let result = read(path, |object| {
        let Some((id, comm)) = Comm::of(&object) else {
            unknown += 1;
            return true;
        };
        let key = (Text::from(&*object.metadata.hostname), object.metadata.pid);
        if !found.contains_key(&key) && found.len() == MAX_PROCESSES {
            beyond += 1;
            return true;
        }
        let comms = found.entry(key).or_default();
        if comms.len() < MAX_COMMS || comms.contains_key(&id) {
            comms.entry(id).or_insert(comm);
        } else {
            beyond += 1;
        }
        true
    });
    let damage = result.map_err(|source| Error::Io { path: path.into(), source })?;
    let mut problems = damaged(&damage);
    if unknown > 0 {
        let why = "their communicator has no hash, or no place for the rank";
        problems.push(OmissionRow::lost("operations", why).amount(unknown));
    }
    if beyond > 0 {
        let why = format!("only {MAX_PROCESSES} processes of a file and {MAX_COMMS} communicators of each are read");
        problems.push(OmissionRow::left_out("operations", why).amount(beyond));
    }
    let file = Text::from(path.to_string_lossy());
    let process = |((host, pid), comms): ((Text, i64), _)| {
        let damage = damage.clone();
        Process { rank: -1, file: path.into(), host, pid, comms, damage }
    };
    let problems = problems.into_iter().map(|problem| problem.file(file.clone())).collect();
    Ok((found.into_iter().map(process).collect(), problems))
}

/// Lists the damage of a file.
pub(super) fn damaged(damage: &Damage) -> Vec<OmissionRow> {
    if let Some(why) = &damage.cut {
        return vec![OmissionRow::lost("rest of the dump", format!("byte {}: {why}", damage.first_byte))];
    }
    let why = format!("byte {} begins no whole operation", damage.first_byte);
    let lost = [
        (damage.objects, why.as_str()),
        (damage.missing, "the dump announces them and does not have them, so it is cut"),
        (damage.dropped, "the plugin's ring was full; give it more room with NCCL_INSPECTOR_DUMP_COLL_RING_SIZE"),
    ];
    let lost = lost.into_iter().map(|(amount, why)| OmissionRow::lost("operations", why).amount(amount));
    let of_proxy = OmissionRow::left_out("rows of NCCL's proxy", "nothing is made of them").amount(damage.of_proxy);
    lost.chain([of_proxy]).filter(|omission| omission.amount > Some(0)).collect()
}

/// The communicator of all ranks: the largest one. It must have most of the processes, because a dump begins with the first operation
/// above a size.
fn world(processes: &[Process]) -> Option<u64> {
    let mut members: BTreeMap<u64, (i32, usize)> = BTreeMap::new();
    for (id, comm) in processes.iter().flat_map(|process| &process.comms) {
        members.entry(*id).or_insert((comm.size, 0)).1 += 1;
    }
    let (id, (_, count)) =
        members.into_iter().max_by_key(|(id, (size, count))| (*size, *count, std::cmp::Reverse(*id)))?;
    (2 * count > processes.len()).then_some(id)
}

/// Gives each process its number in the communicator of all ranks, and the others the numbers that are left.
fn number(processes: &mut [Process], world: Option<u64>, taken: &BTreeSet<i32>, problems: &mut Vec<OmissionRow>) {
    processes.sort_by(|a, b| (&a.file, &a.host, a.pid).cmp(&(&b.file, &b.host, b.pid)));
    let stated: Vec<Option<i32>> = processes.iter().map(|process| Some(process.comms.get(&world?)?.rank)).collect();
    for (process, rank) in processes.iter_mut().zip(numbered(&stated, taken)) {
        process.rank = rank;
    }
    let guessed = processes.iter().zip(&stated).filter(|(_, stated)| stated.is_none());
    let guessed: Vec<i32> = guessed.map(|(process, _)| process.rank).collect();
    if !guessed.is_empty() {
        let why = format!(
            "they have no operation of a communicator of all ranks, so {} are numbered in the order of their files",
            ranks_named(&guessed)
        );
        problems.push(OmissionRow::note("ranks of processes", why).amount(guessed.len() as i64));
    }
}
