//! A profile: one file, of one host, with its planes.

use std::collections::BTreeSet;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustc_hash::FxHashMap;
use trace::place;
use trace::{OmissionRow, Text};

use crate::shared_file::{LastFile, SharedFile};
use crate::xplane::space::{MAX_PARTS, Plane, Space, count_events, lines, plane_name};
use crate::xplane::stats::Key;
use model::Error;
use model::protobuf::read::Message;
use model::units;

/// The plane that says when the recording was made.
const ENVIRONMENT: &[u8] = b"Task Environment";
/// Planes of the host without rows: compiled programs, counters of the runtime, a tree of names.
const NO_THREADS: [&[u8]; 3] = [b"/host:metadata", b"/host:tfstreamz", b"/host:__ScopeRangeCallStack__"];
/// A time of a line beyond this counts from 1970, and not from the start of the recording: 2001 in ns.
pub(super) const ABSOLUTE_NS: i64 = 1_000_000_000_000_000_000;
/// Planes that a message names, and characters of a text that it repeats.
const MAX_NAMED: usize = 8;
const MAX_SHOWN: usize = 120;
/// The largest number of a device.
const MAX_DEVICE: i64 = 1 << 20;
/// Bytes of the names that planes refer to, while their stats are read.
const HEAD_BYTES: u64 = 1 << 20;

/// A device of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Device {
    pub(super) is_tpu: bool,
    pub(super) number: i64,
}

impl Device {
    /// The device of a plane: `/device:GPU:3`, `/device:TPU:0`, or `/device:TPU:0 SparseCore 1`, a part of it.
    pub(super) fn of(plane: &[u8]) -> Option<Self> {
        let name = std::str::from_utf8(plane).ok()?;
        let gpu = name.strip_prefix("/device:GPU:").map(|number| (false, number));
        let (is_tpu, number) = gpu.or_else(|| name.strip_prefix("/device:TPU:").map(|number| (true, number)))?;
        let number = match number.split_once(' ') {
            Some((number, part)) if is_tpu && part.starts_with("SparseCore") => number,
            Some(_) => return None,
            None => number,
        };
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        let number = number.parse().ok().filter(|number| is_number && *number <= MAX_DEVICE)?;
        Some(Self { is_tpu, number })
    }
}

/// Whether a plane has threads of the host.
fn has_threads(plane: &[u8]) -> bool {
    plane.starts_with(b"/host:") && !NO_THREADS.contains(&plane)
}

/// The device of each launch or thread by its number; `None` if several claim it.
pub(super) type Owners = FxHashMap<i64, Option<Device>>;

/// What the times of a profile count from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Clock {
    /// UTC at the start and the end of the recording, in ns since 1970.
    pub(super) start_ns: Option<i64>,
    pub(super) stop_ns: Option<i64>,
    /// The times count from 1970 themselves.
    pub(super) is_absolute: bool,
}

/// A file of one host.
#[derive(Debug)]
pub(super) struct Profile {
    pub(super) path: PathBuf,
    pub(super) host: String,
    pub(super) clock: Clock,
    /// Those with events, ascending.
    pub(super) devices: Vec<Device>,
    pub(super) has_threads: bool,
    pub(super) size_bytes: u64,
    /// The places of the planes of each device, ascending, and of those with threads. A rank looks at no others.
    device_planes: Vec<(Device, Range<usize>)>,
    thread_planes: Vec<Range<usize>>,
    file: SharedFile<Content>,
}

/// The bytes of a profile, and what its ranks make of all of them.
#[derive(Debug, Default)]
pub(super) struct Content {
    pub(super) bytes: Vec<u8>,
    /// The device of each launch, once a rank has asked for it.
    pub(super) launches: OnceLock<Owners>,
}

/// The error of a file that cannot be read.
pub(super) fn unread(path: &Path, why: impl std::fmt::Display) -> Error {
    Error::NoInput { path: path.into(), why: format!("it cannot be read as a profile of XLA (XPlane): {why}") }
}

impl Profile {
    /// Examines a file. Remarks about it become omissions.
    ///
    /// # Errors
    /// [`Error::NoInput`] if it is larger than `max_bytes`, if no plane of it can be read, or if it has none; [`Error::Io`].
    pub(super) fn open(path: &Path, max_bytes: u64, remarks: &mut Vec<OmissionRow>) -> Result<Self, Error> {
        let bytes = read(path, max_bytes)?;
        let space = Space::of(&bytes);
        if space.planes.is_empty() {
            return Err(match space.end {
                Some(damage) => unread(path, damage),
                None => unread(path, "it has no planes"),
            });
        }
        if let Some(damage) = space.end {
            remarks.push(OmissionRow::lost("rest of the file", format!("it is damaged: {damage}")));
        }
        if space.too_many > 0 {
            let why = format!("a profile is read up to {MAX_PARTS} planes, errors, warnings and hosts each");
            remarks.push(OmissionRow::lost("parts of the file", why).amount(space.too_many));
        }
        let mut profile = Self {
            path: path.into(),
            host: host(path, &space),
            clock: Clock::default(),
            devices: Vec::new(),
            has_threads: false,
            size_bytes: bytes.len() as u64,
            device_planes: Vec::new(),
            thread_planes: Vec::new(),
            file: SharedFile::of(1),
        };
        profile.survey(&space, remarks);
        said(&space, remarks);
        Ok(profile)
    }

    /// Finds the devices, the threads and the clock, and counts what is not read.
    fn survey(&mut self, space: &Space<'_>, remarks: &mut Vec<OmissionRow>) {
        let mut devices = BTreeSet::new();
        let (mut others, mut total) = (Vec::new(), 0);
        let mut first_ns = None;
        for plane in &space.planes {
            let name = plane_name(*plane);
            let mut with_events = lines(*plane).filter(|line| line.fields().flatten().any(|field| field.number == 4));
            if let Some(device) = Device::of(name) {
                self.device_planes.push((device, plane.place()));
                let first = with_events.next();
                devices.extend(first.map(|_| device));
                first_ns = first_ns.or(first.and_then(timestamp_ns));
            } else if has_threads(name) {
                self.thread_planes.push(plane.place());
                self.has_threads |= with_events.next().is_some();
            } else if name == ENVIRONMENT {
                let environment = Plane::of(*plane, HEAD_BYTES);
                for (key, stat) in &environment.stats {
                    let time = stat.integer().filter(|ns| *ns > 0);
                    match key {
                        Key::ProfileStart => self.clock.start_ns = time,
                        Key::ProfileStop => self.clock.stop_ns = time,
                        _ => {}
                    }
                }
            } else {
                let events: i64 = with_events.map(count_events).sum();
                if events > 0 {
                    total += events;
                    others.push(format!("{} {events}", shown(name)));
                }
            }
        }
        self.devices = devices.into_iter().collect();
        self.file = SharedFile::of(self.devices.len());
        self.device_planes.sort_by_key(|(device, place)| (*device, place.start));
        self.clock.is_absolute = first_ns.is_some_and(|ns: i64| ns > ABSOLUTE_NS);
        if total > 0 {
            let more = others.len().saturating_sub(MAX_NAMED);
            others.truncate(MAX_NAMED);
            let more = if more > 0 { format!(", and {more} more planes") } else { String::new() };
            let why = format!("nothing is made of them: {}{more}", others.join(", "));
            remarks.push(OmissionRow::left_out("events of other planes", why).amount(total));
        }
    }

    /// The planes of a device.
    pub(super) fn planes_of<'a>(&self, device: Device, bytes: &'a [u8]) -> Vec<Message<'a>> {
        let first = self.device_planes.partition_point(|(other, _)| *other < device);
        let of_device = self.device_planes[first..].iter().take_while(|(other, _)| *other == device);
        // The file may be another one by now.
        let is_of_device = |plane: &Message<'a>| Device::of(plane_name(*plane)) == Some(device);
        of_device.filter_map(|(_, place)| Message::within(bytes, place.clone())).filter(is_of_device).collect()
    }

    /// The planes with threads of the host.
    pub(super) fn planes_with_threads<'a>(&self, bytes: &'a [u8]) -> Vec<Message<'a>> {
        let planes = self.thread_planes.iter().filter_map(|place| Message::within(bytes, place.clone()));
        planes.filter(|plane| has_threads(plane_name(*plane))).collect()
    }

    /// Its bytes.
    ///
    /// # Errors
    /// As [`open`](Self::open); [`Error::NoInput`] if the file has another size than then.
    pub(super) fn content(&self, last: &LastFile<Content>, max_bytes: u64) -> Result<Arc<Content>, Error> {
        let content =
            self.file.get(last, || Ok(Content { bytes: read(&self.path, max_bytes)?, launches: OnceLock::new() }))?;
        match content.bytes.len() as u64 == self.size_bytes {
            true => Ok(content),
            false => Err(unread(&self.path, "it has changed since it was opened")),
        }
    }

    /// The clock of its times. UTC is read once for a recording, so it does not make two recordings agree.
    pub(super) fn clock_domain(&self) -> String {
        let Self { host, clock, path, .. } = self;
        match clock.start_ns {
            Some(start_ns) => format!("{host}/xplane/{start_ns}/utc"),
            None if clock.is_absolute => format!("{host}/xplane/{}/utc", path.display()),
            None => format!("xplane/{}", path.display()),
        }
    }

    /// Its path, in messages.
    pub(super) fn shown(&self) -> Text {
        self.path.to_string_lossy().into()
    }
}

fn timestamp_ns(line: Message<'_>) -> Option<i64> {
    line.fields().flatten().find(|field| field.number == 3)?.integer().ok()
}

fn read(path: &Path, max_bytes: u64) -> Result<Vec<u8>, Error> {
    let io = |source| Error::Io { path: path.into(), source };
    let opened = place::open(path).map_err(io)?;
    let size_bytes = opened.size_bytes().map_err(io)?;
    if size_bytes > max_bytes {
        let size = |bytes: u64| units::bytes(i64::try_from(bytes).unwrap_or(i64::MAX));
        let why = format!(
            "it takes {} of memory, and rows and files may take {}; give more with --max-memory",
            size(size_bytes),
            size(max_bytes)
        );
        return Err(Error::NoInput { path: path.into(), why });
    }
    let mut bytes = Vec::new();
    opened.take(max_bytes).read_to_end(&mut bytes).map_err(io)?;
    Ok(bytes)
}

/// The name of the host: as the file states, else as it is called.
fn host(path: &Path, space: &Space<'_>) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let of_name = name.strip_suffix(".xplane.pb").or_else(|| name.strip_suffix(".pb")).unwrap_or(&name);
    let stated = space.hosts.iter().map(|host| shown(host)).find(|host| !host.is_empty());
    stated.unwrap_or_else(|| of_name.into())
}

/// What the profiler says of its recording.
fn said(space: &Space<'_>, remarks: &mut Vec<OmissionRow>) {
    for (what, texts) in [("recording", &space.errors), ("warnings of the profiler", &space.warnings)] {
        let Some(first) = texts.first() else { continue };
        let why = format!("the profiler says: {}", shown(first));
        let is_error = what == "recording";
        let omission = if is_error { OmissionRow::left_out(what, why) } else { OmissionRow::note(what, why) };
        remarks.push(omission.amount(texts.len() as i64));
    }
    if space.hosts.len() > 1 {
        let why = "the file names several; all of it counts as the first's";
        remarks.push(OmissionRow::note("hosts", why).amount(space.hosts.len() as i64));
    }
}

/// The beginning of a text of the file.
pub(super) fn shown(text: &[u8]) -> String {
    let text = &text[..text.len().min(4 * MAX_SHOWN)];
    String::from_utf8_lossy(text).chars().take(MAX_SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_planes_are_devices_or_threads() {
        let number = |name: &str| Device::of(name.as_bytes()).map(|device| (device.is_tpu, device.number));
        assert_eq!(number("/device:GPU:3"), Some((false, 3)));
        assert_eq!(number("/device:TPU:12"), Some((true, 12)));
        assert_eq!(number("/device:TPU:1 SparseCore 0"), Some((true, 1)));
        for name in ["/device:GPU:", "/device:GPU:+1", "/device:GPU:0 x", "/device:TPU:9999999999", "/device:CUSTOM:0"]
        {
            assert_eq!(number(name), None, "{name}");
        }
        assert!(has_threads(b"/host:CPU") && has_threads(b"/host:python-tracer") && !has_threads(b"/host:metadata"));
    }
}
