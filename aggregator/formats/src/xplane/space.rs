//! The messages of a profile: a space of planes, a plane's lines, a line's events, and what is stated about each.
//!
//! ```text
//!  XSpace   1 planes   2 errors   3 warnings   4 hostnames
//!  XPlane   2 name   3 lines   4 event_metadata   5 stat_metadata   6 stats
//!  XLine    1 id   2 name   3 timestamp_ns   4 events   11 display_name
//!  XEvent   1 metadata_id   2 offset_ps | 5 num_occurrences   3 duration_ps   4 stats
//!  XStat    1 metadata_id   2 double   3 uint64   4 int64   5 str   6 bytes   7 ref: the name of a stat_metadata
//! ```
//!
//! Source: the numbers of fields are those of openxla/xla xla/tsl/profiler/protobuf/xplane.proto. A plane's names follow its lines, so that
//! a plane is read twice.

use rustc_hash::FxHashMap;

use crate::xplane::stats::{Facts, Key, Keys, Stat};
use model::protobuf::read::{Damage, Fields, Message};

/// Planes, errors, warnings and hosts that are read of a profile. An empty one has two bytes, and takes twelve times as much of memory.
pub(super) const MAX_PARTS: usize = 1 << 16;

/// What could not be read: how often, and the first place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Losses {
    pub(super) count: i64,
    pub(super) first: Option<Damage>,
}

impl Losses {
    pub(super) fn add(&mut self, damage: Damage) {
        self.count += 1;
        self.first.get_or_insert(damage);
    }

    /// The value, or `None` after counting the damage.
    pub(super) fn ok<T>(&mut self, read: Result<T, Damage>) -> Option<T> {
        read.map_err(|damage| self.add(damage)).ok()
    }
}

/// A profile.
#[derive(Debug, Default)]
pub(super) struct Space<'a> {
    pub(super) planes: Vec<Message<'a>>,
    pub(super) errors: Vec<&'a [u8]>,
    pub(super) warnings: Vec<&'a [u8]>,
    pub(super) hosts: Vec<&'a [u8]>,
    /// Parts beyond [`MAX_PARTS`] of their kind.
    pub(super) too_many: i64,
    /// Where the file cannot be read further.
    pub(super) end: Option<Damage>,
}

impl<'a> Space<'a> {
    /// Finds the planes of a file. After damage, the planes before it are left.
    pub(super) fn of(bytes: &'a [u8]) -> Self {
        let mut space = Self::default();
        space.end = space.read(bytes).err();
        space
    }

    fn read(&mut self, bytes: &'a [u8]) -> Result<(), Damage> {
        for field in Message::of(bytes).fields() {
            let field = field?;
            let texts = match field.number {
                1 if self.planes.len() < MAX_PARTS => {
                    self.planes.push(field.message()?);
                    continue;
                }
                1 => {
                    self.too_many += 1;
                    continue;
                }
                2 => &mut self.errors,
                3 => &mut self.warnings,
                4 => &mut self.hosts,
                _ => continue,
            };
            match texts.len() < MAX_PARTS {
                true => texts.push(field.bytes()?),
                false => self.too_many += 1,
            }
        }
        Ok(())
    }
}

/// The name of a plane. It comes before the lines, so that little is read for it.
pub(super) fn plane_name<'a>(plane: Message<'a>) -> &'a [u8] {
    let named = plane.fields().map_while(Result::ok).find(|field| field.number == 2);
    named.and_then(|field| field.bytes().ok()).unwrap_or_default()
}

/// The lines of a plane, up to damage.
pub(super) fn lines<'a>(plane: Message<'a>) -> impl Iterator<Item = Message<'a>> {
    let lines = plane.fields().map_while(Result::ok).filter(|field| field.number == 3);
    lines.filter_map(|field| field.message().ok())
}

/// The number of events of a line, up to damage.
pub(super) fn count_events(line: Message<'_>) -> i64 {
    line.fields().map_while(Result::ok).filter(|field| field.number == 4).count() as i64
}

/// What is known of all events of a kind.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Described<'a> {
    pub(super) name: &'a [u8],
    pub(super) display: &'a [u8],
    pub(super) facts: Facts<'a>,
}

/// A plane: what its lines refer to.
#[derive(Debug, Default)]
pub(super) struct Plane<'a> {
    message: Message<'a>,
    pub(super) kinds: FxHashMap<i64, Described<'a>>,
    pub(super) keys: Keys<'a>,
    /// Of the plane itself.
    pub(super) stats: Vec<(Key, Stat<'a>)>,
    pub(super) losses: Losses,
    /// Kinds of events without room.
    pub(super) too_many: i64,
}

impl<'a> Plane<'a> {
    /// Reads all but the lines. Kinds of events may take `max_bytes`.
    pub(super) fn of(message: Message<'a>, max_bytes: u64) -> Self {
        let mut plane = Self { message, ..Self::default() };
        let max_kinds = max_bytes / (2 * size_of::<(i64, Described<'_>)>() as u64);
        // The names of stats come last, and both other parts need them.
        for field in message.fields() {
            match field {
                Ok(field) if field.number == 5 => {
                    let entry = field.message().and_then(|entry| plane.keys.add(entry));
                    plane.losses.ok(entry);
                }
                Ok(_) => {}
                Err(damage) => plane.losses.add(damage),
            }
        }
        for field in message.fields().map_while(Result::ok) {
            match field.number {
                4 if plane.kinds.len() as u64 >= max_kinds => plane.too_many += 1,
                4 => {
                    let kind = field.message().and_then(|entry| described(entry, &plane.keys));
                    plane.kinds.extend(plane.losses.ok(kind));
                }
                6 => {
                    let stat = field.message().and_then(|stat| plane.keys.stat(stat));
                    plane.stats.extend(plane.losses.ok(stat).flatten());
                }
                _ => {}
            }
        }
        plane
    }

    /// Its lines. Damage of the plane itself is counted already.
    pub(super) fn lines(&self) -> impl Iterator<Item = Result<Line<'a>, Damage>> {
        let lines = self.message.fields().map_while(Result::ok).filter(|field| field.number == 3);
        lines.map(|field| field.message().map(Line::of))
    }

    /// What is known of an event: by itself, else of its kind.
    pub(super) fn facts(&self, event: &Event<'a>) -> Facts<'a> {
        let of_kind = self.kinds.get(&event.kind).map(|kind| kind.facts).unwrap_or_default();
        event.facts.or(of_kind)
    }
}

/// An entry of `event_metadata`.
fn described<'a>(entry: Message<'a>, keys: &Keys<'a>) -> Result<(i64, Described<'a>), Damage> {
    let (mut id, mut kind) = (0, Described::default());
    for field in entry.fields() {
        let field = field?;
        match field.number {
            1 => id = field.integer()?,
            2 => {
                for field in field.message()?.fields() {
                    let field = field?;
                    match field.number {
                        2 => kind.name = field.bytes()?,
                        4 => kind.display = field.bytes()?,
                        5 => kind.facts.add(keys.stat(field.message()?)?),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    Ok((id, kind))
}

/// A line: a stream, a thread, or what was derived of others.
#[derive(Clone, Debug, Default)]
pub(super) struct Line<'a> {
    message: Message<'a>,
    pub(super) id: i64,
    pub(super) name: &'a [u8],
    pub(super) timestamp_ns: i64,
    /// Where it cannot be read further.
    pub(super) end: Option<Damage>,
}

impl<'a> Line<'a> {
    fn of(message: Message<'a>) -> Self {
        let mut line = Self { message, ..Self::default() };
        line.end = line.head().err();
        line
    }

    /// The fields beside the events, which may follow them.
    fn head(&mut self) -> Result<(), Damage> {
        let mut display: &[u8] = &[];
        for field in self.message.fields() {
            let field = field?;
            match field.number {
                1 => self.id = field.integer()?,
                2 => self.name = field.bytes()?,
                3 => self.timestamp_ns = field.integer()?,
                11 => display = field.bytes()?,
                _ => {}
            }
        }
        self.name = if self.name.is_empty() { display } else { self.name };
        Ok(())
    }

    /// Its events, as bytes.
    pub(super) fn events(&self) -> impl Iterator<Item = Result<Message<'a>, Damage>> {
        let events = self.message.fields().map_while(Result::ok).filter(|field| field.number == 4);
        events.map(|field| field.message())
    }

    /// The number of its events.
    pub(super) fn count(&self) -> i64 {
        count_events(self.message)
    }
}

/// An event.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Event<'a> {
    pub(super) kind: i64,
    pub(super) offset_ps: i64,
    pub(super) duration_ps: i64,
    /// Whether it stands for several events, without times.
    pub(super) is_aggregated: bool,
    pub(super) facts: Facts<'a>,
}

impl<'a> Event<'a> {
    pub(super) fn of(message: Message<'a>, keys: &Keys<'a>) -> Result<Self, Damage> {
        let mut event = Self::default();
        let fields: Fields<'a> = message.fields();
        for field in fields {
            let field = field?;
            match field.number {
                1 => event.kind = field.integer()?,
                2 => (event.offset_ps, event.is_aggregated) = (field.integer()?, false),
                3 => event.duration_ps = field.integer()?,
                4 => event.facts.add(keys.stat(field.message()?)?),
                5 => event.is_aggregated = field.integer().map(|_| true)?,
                _ => {}
            }
        }
        Ok(event)
    }
}
