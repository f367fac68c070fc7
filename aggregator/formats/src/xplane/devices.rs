//! Which files are of one recording, and which device is which rank.
//!
//! ```text
//!  host a   GPU 0  GPU 1      host b   GPU 0  GPU 1         hosts by name, 2 before 10; devices by number
//!  rank       0      1                   2      3
//! ```

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use kineto::WindowChoice;
use trace::{OmissionRow, Text};

use crate::format::Beside;
use crate::xplane::profile::{Device, Profile, unread};
use model::Error;
use model::MAX_RANKS;
use model::units;

/// Hosts whose ranks a message names.
const MAX_NAMED: usize = 8;

/// A device as a rank.
#[derive(Clone, Debug)]
pub(super) struct Claimed {
    pub(super) rank: i32,
    pub(super) profile: Arc<Profile>,
    /// `None`: a host without a device that did anything.
    pub(super) device: Option<Device>,
}

/// The ranks of all files, ascending, and what is wrong with the files.
pub(super) struct Found {
    pub(super) ranks: Vec<Claimed>,
    pub(super) problems: Vec<OmissionRow>,
}

/// Finds the ranks of all files. No device gets a rank that other formats have.
///
/// # Errors
/// As [`XplaneSource::open`](super::XplaneSource::open).
pub(super) fn ranks(paths: &[PathBuf], max_bytes: u64, beside: &Beside<'_>) -> Result<Found, Error> {
    let mut problems = Vec::new();
    let profiles = profiles(paths, max_bytes, &mut problems)?;
    let mut profiles = one_session(profiles, beside.options.window, &mut problems)?;
    if profiles.iter().any(|profile| !profile.devices.is_empty()) {
        let (with, without): (Vec<Profile>, Vec<Profile>) =
            profiles.into_iter().partition(|profile| !profile.devices.is_empty());
        let why = "no device of it did anything, and devices of other files did";
        problems.extend(without.iter().map(|profile| OmissionRow::left_out("file", why).file(profile.shown())));
        profiles = with;
    }
    profiles.retain(|profile| !profile.devices.is_empty() || profile.has_threads);
    if profiles.is_empty() {
        let path = paths.first().cloned().unwrap_or_default();
        return Err(unread(&path, "it has no events of a device or of a thread"));
    }
    let ranks = number(profiles, |rank| beside.taken.contains(&rank), &mut problems);
    Ok(Found { ranks, problems })
}

/// Examines the files. One that cannot be read is a loss, if others can.
fn profiles(paths: &[PathBuf], max_bytes: u64, problems: &mut Vec<OmissionRow>) -> Result<Vec<Profile>, Error> {
    let (mut profiles, mut failed) = (Vec::new(), Vec::new());
    for path in paths {
        let mut remarks = Vec::new();
        match Profile::open(path, max_bytes, &mut remarks) {
            Ok(profile) => {
                problems.extend(remarks.into_iter().map(|remark| remark.file(profile.shown())));
                profiles.push(profile);
            }
            Err(error) => failed.push((path, error)),
        }
    }
    if profiles.is_empty() {
        return failed.into_iter().next().map_or(Ok(profiles), |(_, error)| Err(error));
    }
    for (path, error) in failed {
        let why = match &error {
            Error::NoInput { why, .. } => why.clone(),
            error => error.to_string(),
        };
        problems.push(OmissionRow::lost("file", why).file(Text::from(path.to_string_lossy())));
    }
    Ok(profiles)
}

/// The files of one session. Several sessions of a host are recordings of the same devices.
///
/// # Errors
/// [`Error::Option`] if there is no session of the chosen number.
fn one_session(
    profiles: Vec<Profile>,
    window: WindowChoice,
    problems: &mut Vec<OmissionRow>,
) -> Result<Vec<Profile>, Error> {
    let mut by_host: BTreeMap<String, Vec<Profile>> = BTreeMap::new();
    for profile in profiles {
        by_host.entry(profile.host.clone()).or_default().push(profile);
    }
    let mut chosen = Vec::new();
    let mut most = 0;
    for (host, mut profiles) in by_host {
        profiles.sort_by(|a, b| (a.clock.start_ns, &a.path).cmp(&(b.clock.start_ns, &b.path)));
        let sessions = sessions(drop_copies(profiles, problems));
        let count = sessions.len();
        most = most.max(count);
        let wanted = match window {
            WindowChoice::Number(number) => usize::try_from(number).unwrap_or(usize::MAX),
            WindowChoice::All | WindowChoice::Last => count,
        };
        for (at, session) in sessions.into_iter().enumerate() {
            if at + 1 == wanted {
                say_processes(&host, &session, problems);
                chosen.extend(session);
                continue;
            }
            let why = format!(
                "it is recording {} of {count} of its host; one is analyzed, the last if --window chooses no other",
                at + 1
            );
            let left_out = |profile: &Profile| OmissionRow::left_out("file", why.as_str()).file(profile.shown());
            problems.extend(session.iter().map(left_out));
        }
    }
    match window {
        WindowChoice::Number(number) if chosen.is_empty() => {
            let why = format!("there are {}, counted from 1", units::plural(most, "recording"));
            Err(Error::Option { option: "window", value: number.to_string(), why })
        }
        _ => Ok(chosen),
    }
}

/// Leaves out files of one host that began in the same nanosecond: they are copies.
fn drop_copies(profiles: Vec<Profile>, problems: &mut Vec<OmissionRow>) -> Vec<Profile> {
    let mut kept: Vec<Profile> = Vec::new();
    for profile in profiles {
        let is_same =
            |other: &&Profile| other.clock.start_ns == profile.clock.start_ns && other.devices == profile.devices;
        match kept.last().filter(|last| profile.clock.start_ns.is_some() && is_same(last)) {
            Some(first) => {
                let why = format!("it is the recording of {}", first.path.display());
                problems.push(OmissionRow::left_out("file", why).file(profile.shown()));
            }
            None => kept.push(profile),
        }
    }
    kept
}

/// Divides the files of a host, which are in the order of their starts, where one begins after all before it have ended. Files that do not
/// say when they were recorded are of one session.
fn sessions(profiles: Vec<Profile>) -> Vec<Vec<Profile>> {
    let mut sessions: Vec<Vec<Profile>> = Vec::new();
    let mut end_ns = None;
    for profile in profiles {
        let clock = profile.clock;
        let is_later = clock.start_ns.zip(end_ns).is_some_and(|(start_ns, end_ns)| start_ns >= end_ns);
        match sessions.last_mut() {
            Some(session) if !is_later => session.push(profile),
            _ => sessions.push(vec![profile]),
        }
        end_ns = end_ns.max(clock.stop_ns.or(clock.start_ns));
    }
    sessions
}

fn say_processes(host: &str, session: &[Profile], problems: &mut Vec<OmissionRow>) {
    if session.len() > 1 {
        let why = format!(
            "the host {host} has {} of one time; each counts as a process with devices of its own",
            units::plural(session.len(), "file")
        );
        problems.push(OmissionRow::note("processes", why).amount(session.len() as i64));
    }
}

/// Numbers the devices.
fn number(mut profiles: Vec<Profile>, is_taken: impl Fn(i32) -> bool, problems: &mut Vec<OmissionRow>) -> Vec<Claimed> {
    profiles.sort_by_cached_key(|profile| (natural(&profile.host), profile.clock.start_ns, profile.path.clone()));
    let devices = |profile: &Profile| match &profile.devices[..] {
        [] => vec![None],
        devices => devices.iter().copied().map(Some).collect(),
    };
    if let Some(ranks) = stated(&profiles, &is_taken) {
        let why = "the names of the files or of their folders state them; each file has one device";
        problems.push(OmissionRow::note("ranks of devices", why).amount(ranks.len() as i64));
        let claimed = profiles.into_iter().zip(ranks).map(|(profile, rank)| {
            let device = profile.devices.first().copied();
            Claimed { rank, profile: Arc::new(profile), device }
        });
        let mut claimed: Vec<Claimed> = claimed.collect();
        claimed.sort_by_key(|claimed| claimed.rank);
        return claimed;
    }
    let mut free = (0..MAX_RANKS).filter(|rank| !is_taken(*rank));
    let mut claimed = Vec::new();
    let mut named = Vec::new();
    for profile in profiles {
        let profile = Arc::new(profile);
        let first = claimed.len();
        if profile.has_threads && profile.devices.len() > 1 {
            let why = "a thread that launched work of one device only is of its rank, and a launch is of the rank of its work; other rows of \
                       threads are of all ranks of the file";
            problems.push(OmissionRow::note("rows of threads", why).file(profile.shown()));
        }
        claimed.extend(devices(&profile).into_iter().zip(free.by_ref()).map(|(device, rank)| Claimed {
            rank,
            profile: profile.clone(),
            device,
        }));
        let ranks: Vec<i32> = claimed[first..].iter().map(|claimed| claimed.rank).collect();
        named.push(format!("{} of {}", units::ranks_named(&ranks), profile.host));
    }
    if claimed.len() > 1 {
        let more = named.len().saturating_sub(MAX_NAMED);
        named.truncate(MAX_NAMED);
        let more = if more > 0 { format!(", and those of {more} more hosts") } else { String::new() };
        let why = format!(
            "the files state none; devices are numbered in the order of the hosts' names and of their own numbers: {}{more}",
            named.join(", ")
        );
        problems.push(OmissionRow::note("ranks of devices", why).amount(claimed.len() as i64));
    }
    claimed
}

/// The ranks in the names of files, if each has one device and a rank of its own.
fn stated(profiles: &[Profile], is_taken: impl Fn(i32) -> bool) -> Option<Vec<i32>> {
    let rank = |profile: &Profile| {
        let of_name = kineto::rank_of_name(&profile.path.to_string_lossy());
        of_name.filter(|rank| profile.devices.len() <= 1 && (0..MAX_RANKS).contains(rank) && !is_taken(*rank))
    };
    let ranks: Vec<i32> = profiles.iter().map(rank).collect::<Option<_>>()?;
    let distinct: std::collections::BTreeSet<i32> = ranks.iter().copied().collect();
    (distinct.len() == ranks.len()).then_some(ranks)
}

/// A key by which `host-2` comes before `host-10`: texts and numbers in turns.
fn natural(name: &str) -> Vec<(String, u64)> {
    let mut parts = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let text = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let digits = rest[text..].find(|c: char| !c.is_ascii_digit()).map_or(rest.len(), |at| text + at);
        parts.push((rest[..text].to_string(), rest[text..digits].parse().unwrap_or(u64::MAX)));
        rest = &rest[digits..];
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_names_of_hosts_count_as_numbers() {
        let mut hosts = ["w-10", "w-2", "w", "a9b", "w-2-x", "w-99999999999999999999999"];
        hosts.sort_by_cached_key(|host| natural(host));
        assert_eq!(hosts, ["a9b", "w", "w-2", "w-2-x", "w-10", "w-99999999999999999999999"]);
    }
}
