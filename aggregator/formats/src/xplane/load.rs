//! A device as a rank: its rows in the order of time, with steps, collectives and what is known of the device.

use std::collections::BTreeMap;

use kineto::steps_of_marks;
use rustc_hash::FxHashMap;
use trace::name_rules::roles::roles_in;
use trace::rank::mark_below_operators;
use trace::{DeviceRow, OmissionRow, Text};

use crate::rows::{Added, Rows, counted, list, step};
use crate::shared_file::LastFile;
use crate::xplane::collectives::{Found, collectives};
use crate::xplane::devices::Claimed;
use crate::xplane::profile::{ABSOLUTE_NS, Content, Device, shown};
use crate::xplane::space::{Event, Line, Losses, Plane};
use crate::xplane::stats::{Key, Stat};
use model::Error;
use model::protobuf::read::{Damage, Message};
use model::{RankData, RankInfo};

/// Names of lines that a message lists.
const MAX_NAMED: usize = 8;

/// Numbers of steps with their times.
#[derive(Default)]
pub(super) struct Marks {
    /// Ranges of the host with the number of a step.
    pub(super) host: Vec<(i32, i64, i64)>,
    /// The line `Steps` of the device.
    pub(super) device: Vec<(i32, i64, i64)>,
    /// First start and last end of the device's work with one `group_id`.
    pub(super) groups: FxHashMap<i32, (i64, i64)>,
    /// Marks whose number is impossible.
    pub(super) impossible: i64,
}

/// Events that were counted and not added, or that are said.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) aggregated: i64,
    pub(super) nameless: i64,
    pub(super) long_names: i64,
    pub(super) replaced_names: i64,
    pub(super) absolute_lines: i64,
    pub(super) kinds_without_room: i64,
    /// Lines that repeat others, with their events.
    pub(super) derived: BTreeMap<String, i64>,
}

/// Reads the planes of a device and of its host.
pub(super) struct Loader<'a> {
    /// The file.
    pub(super) content: &'a Content,
    pub(super) claimed: &'a Claimed,
    pub(super) rows: Rows,
    pub(super) counts: Counts,
    pub(super) losses: Losses,
    pub(super) marks: Marks,
    pub(super) found: Vec<Found>,
    pub(super) description: Option<DeviceRow>,
    /// What kinds of events may take of the memory.
    max_kind_bytes: u64,
}

/// What a rank is of.
pub(super) struct Job {
    /// All ranks, ascending.
    pub(super) ranks: Vec<i32>,
    /// Memory for files, and for the rows of a rank.
    pub(super) max_file_bytes: u64,
    pub(super) max_rows_bytes: u64,
    pub(super) last: LastFile<Content>,
}

/// Loads a rank.
///
/// # Errors
/// [`Error::NoInput`] if its file cannot be read.
pub(super) fn load(claimed: &Claimed, job: &Job) -> Result<RankData, Error> {
    let content = claimed.profile.content(&job.last, job.max_file_bytes)?;
    let mut loader = Loader {
        content: &content,
        claimed,
        rows: Rows::within(job.max_rows_bytes),
        counts: Counts::default(),
        losses: Losses::default(),
        marks: Marks::default(),
        found: Vec::new(),
        description: None,
        max_kind_bytes: job.max_rows_bytes / 4,
    };
    loader.device();
    loader.host();
    Ok(loader.into_rank(job))
}

impl<'a> Loader<'a> {
    /// What kinds of events may take of the memory.
    pub(super) fn max_kind_bytes(&self) -> u64 {
        self.max_kind_bytes
    }

    /// Reads what the lines of a plane refer to.
    pub(super) fn plane(&mut self, message: Message<'a>) -> Plane<'a> {
        let plane = Plane::of(message, self.max_kind_bytes);
        self.counts.kinds_without_room += plane.too_many;
        self.losses.count += plane.losses.count;
        self.losses.first = self.losses.first.or(plane.losses.first);
        plane
    }

    /// The lines of a plane. Damaged ones are counted, and read up to the damage.
    pub(super) fn lines(&mut self, plane: &Plane<'a>) -> Vec<Line<'a>> {
        let mut lines = Vec::new();
        for line in plane.lines() {
            let Some(line) = self.losses.ok(line) else { continue };
            if let Some(damage) = line.end {
                self.losses.add(damage);
            }
            self.counts.absolute_lines += i64::from(line.timestamp_ns > ABSOLUTE_NS);
            lines.push(line);
        }
        lines
    }

    /// An event of a line; `None` if it is damaged or stands for several, which is counted.
    pub(super) fn event(&mut self, plane: &Plane<'a>, event: Result<Message<'a>, Damage>) -> Option<Event<'a>> {
        let event = self.losses.ok(event.and_then(|event| Event::of(event, &plane.keys)))?;
        self.counts.aggregated += i64::from(event.is_aggregated);
        (!event.is_aggregated).then_some(event)
    }

    /// Start and end of an event, in whole ns. Both are rounded down, so that events that follow each other do not overlap.
    pub(super) fn times(&self, line: &Line<'_>, event: &Event<'_>) -> Added {
        let is_absolute = line.timestamp_ns > ABSOLUTE_NS;
        let start_ns = self.claimed.profile.clock.start_ns.filter(|_| !is_absolute).unwrap_or(0);
        let start_ps = (i128::from(start_ns) + i128::from(line.timestamp_ns)) * 1_000 + i128::from(event.offset_ps);
        let end_ps = start_ps + i128::from(event.duration_ps);
        let whole = |ps: i128| i64::try_from(ps.div_euclid(1_000)).ok();
        Added { start: whole(start_ps), end: whole(end_ps), ..Added::default() }
    }

    /// The number of a name, as text.
    pub(super) fn name(&mut self, name: &[u8], unknown: &'static str) -> u32 {
        if name.is_empty() {
            return self.rows.name(unknown);
        }
        self.counts.long_names += i64::from(name.len() > trace::MAX_TEXT_BYTES);
        let text = String::from_utf8_lossy(&name[..name.len().min(trace::MAX_TEXT_BYTES)]);
        self.counts.replaced_names += i64::from(matches!(text, std::borrow::Cow::Owned(_)));
        self.rows.name(trace::shortened(&text))
    }

    /// A mark of a step; `None` if its number is impossible.
    pub(super) fn mark(&mut self, number: i64, times: Added) -> Option<(i32, i64, i64)> {
        let (start_ns, end_ns) = times.start.zip(times.end)?;
        let number = i32::try_from(number).ok().filter(|number| *number >= 0);
        self.marks.impossible += i64::from(number.is_none());
        Some((number?, start_ns, end_ns))
    }

    /// The events of a line that repeats others.
    pub(super) fn derived(&mut self, line: &Line<'_>) {
        let count = line.count();
        if count > 0 {
            *self.counts.derived.entry(shown(line.name)).or_default() += count;
        }
    }

    fn into_rank(self, job: &Job) -> RankData {
        let omissions = self.omissions();
        let Self { claimed, rows, marks, found, description, .. } = self;
        let profile = &claimed.profile;
        let info = RankInfo {
            rank: claimed.rank,
            host: profile.host.clone(),
            clock_domain: profile.clock_domain(),
            roles: roles_in(&profile.shown()).map(Text::from),
            file: profile.shown(),
            ..RankInfo::default()
        };
        let mut data = rows.into_rank(info, &[], omissions);
        data.devices = description.into_iter().collect();
        if marks.impossible > 0 {
            let why = "their numbers are negative or beyond 32 bits";
            list(&mut data, [OmissionRow::left_out("marks of steps", why).amount(marks.impossible)]);
        }
        let is_tpu = claimed.device.is_some_and(|device| device.is_tpu);
        let marks = chosen(marks, is_tpu);
        step(&mut data, steps_of_marks(marks, claimed.rank));
        collectives(&mut data, &found, &job.ranks, !is_tpu);
        mark_below_operators(&mut data.events, &data.names, None);
        data
    }

    /// What was counted.
    fn omissions(&self) -> Vec<OmissionRow> {
        let Counts { aggregated, nameless, long_names, replaced_names, absolute_lines, kinds_without_room, .. } =
            self.counts;
        let clock = self.claimed.profile.clock;
        let mut omissions = Vec::new();
        if let Some(first) = self.losses.first {
            let why = format!("the file is damaged, first at {first}; what follows in the damaged message is lost");
            omissions.push(OmissionRow::lost("events or what is known of them", why).amount(self.losses.count));
        }
        let lost = [
            ("names of events", nameless, "the plane does not describe their kind"),
            ("names of events", long_names, "they are too long; their beginnings are kept"),
            ("texts", replaced_names, "they are no UTF-8; the bytes that are none are replaced"),
            (
                "kinds of events",
                kinds_without_room,
                "they need more memory than a rank may take; give more with --max-memory",
            ),
        ];
        let left_out = [("events", aggregated, "each stands for several and has no times")];
        let unanchored = i64::from(clock.start_ns.is_none() && !clock.is_absolute);
        let mixed = if clock.start_ns.is_some() { absolute_lines } else { 0 };
        let notes = [
            (
                "clock",
                unanchored,
                "the file does not say when it was recorded; its times are only comparable with each other",
            ),
            ("lines", mixed, "their times count from 1970, and not from the start of the recording"),
        ];
        omissions.extend(counted(&self.rows.lost(), OmissionRow::lost));
        omissions.extend(counted(&lost, OmissionRow::lost));
        omissions.extend(counted(&left_out, OmissionRow::left_out));
        omissions.extend(counted(&notes, OmissionRow::note));
        let derived = &self.counts.derived;
        if !derived.is_empty() {
            let named: Vec<String> =
                derived.iter().take(MAX_NAMED).map(|(line, count)| format!("{line} {count}")).collect();
            let more = derived.len().saturating_sub(MAX_NAMED);
            let more = if more > 0 { format!(", and {more} more lines") } else { String::new() };
            let why = format!("they repeat other lines, or are no work of the device: {}{more}", named.join(", "));
            let amount = derived.values().sum::<i64>();
            omissions.push(OmissionRow::left_out("events of other lines", why).amount(amount));
        }
        omissions
    }
}

/// The marks that count: on a GPU those of the host, whose launches say what belongs to a step; on a TPU, without launches, those of the
/// device.
fn chosen(marks: Marks, is_tpu: bool) -> Vec<(i32, i64, i64)> {
    let Marks { host, device, groups, .. } = marks;
    let candidates = if is_tpu { [device, host] } else { [host, device] };
    let mut marks = candidates.into_iter().find(|marks| !marks.is_empty()).unwrap_or_default();
    if !marks.is_empty() {
        marks.sort_by_key(|(number, start_ns, end_ns)| (*start_ns, std::cmp::Reverse(*end_ns), *number));
        return marks;
    }
    let mut groups: Vec<(i32, i64, i64)> =
        groups.into_iter().map(|(number, (start, end))| (number, start, end)).collect();
    groups.sort_by_key(|(number, start_ns, _)| (*start_ns, *number));
    // The last work of a step may end after the next has begun on another stream.
    for at in 1..groups.len() {
        let end_ns = groups[at - 1].2;
        groups[at].1 = groups[at].1.max(end_ns);
        groups[at].2 = groups[at].2.max(groups[at].1);
    }
    groups
}

/// What a plane says of its device.
pub(super) fn description(rank: i32, device: Device, stats: &[(Key, Stat<'_>)]) -> DeviceRow {
    let find = |key: Key| stats.iter().find(|(of, _)| *of == key).map(|(_, stat)| *stat);
    let positive = |key: Key| find(key).and_then(Stat::integer).filter(|value| *value > 0);
    let rate = |key: Key, unit: f64| {
        let value = find(key).and_then(Stat::double).map(|value| value * unit);
        value.filter(|value| value.is_finite() && *value > 0.0)
    };
    // XLA computes the rate of a GPU's memory from two transfers a cycle, which is half the truth of AMD's.
    let is_nvidia = find(Key::Vendor).and_then(Stat::text) == Some(b"Nvidia");
    DeviceRow {
        rank,
        device_id: device.number,
        name: find(Key::DeviceType).and_then(Stat::text).map(|name| Text::from(shown(name))),
        sm_count: positive(Key::Cores).and_then(|cores| i32::try_from(cores).ok()).filter(|_| !device.is_tpu),
        clock_khz: positive(Key::ClockKhz),
        memory_bytes: positive(Key::MemoryBytes),
        peak_flops: rate(Key::PeakTeraflops, 1e12),
        peak_bytes_per_s: rate(Key::PeakMemoryGbs, 1e9).or(rate(Key::MemoryRate, 1.0).filter(|_| is_nvidia)),
        ..DeviceRow::default()
    }
}
