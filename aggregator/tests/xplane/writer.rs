//! Profiles that the tests write, field by field.

use std::path::{Path, PathBuf};

use formats::xplane::XplaneSource;
use model::protobuf::write;
use model::source::Source;
use model::{Kind, RankData};

/// A message of protobuf, as its bytes.
#[derive(Clone, Default)]
pub(crate) struct Message(pub(crate) Vec<u8>);

impl Message {
    fn with(mut self, write: impl FnOnce(&mut write::Message)) -> Self {
        let mut field = write::Message::default();
        write(&mut field);
        self.0.extend_from_slice(field.bytes());
        self
    }

    pub(crate) fn number(self, field: u32, value: i64) -> Self {
        self.with(|message| message.signed(field, value))
    }

    pub(crate) fn bytes(self, field: u32, bytes: &[u8]) -> Self {
        self.with(|message| message.blob(field, bytes))
    }

    fn double(self, field: u32, value: f64) -> Self {
        self.with(|message| message.double(field, value))
    }
}

/// The value of a stat.
#[derive(Clone, Copy)]
pub(crate) enum Value<'a> {
    Unsigned(u64),
    Signed(i64),
    Double(f64),
    Text(&'a str),
    /// The text is the name of a stat, as XLA writes texts that repeat.
    Ref(&'a str),
}

pub(crate) type Stats<'a> = &'a [(&'a str, Value<'a>)];

/// An event: name, offset and length in ps, and its own stats.
#[derive(Clone, Copy)]
pub(crate) struct Event<'a>(pub(crate) &'a str, pub(crate) i64, pub(crate) i64, pub(crate) Stats<'a>);

/// A plane.
#[derive(Default)]
pub(crate) struct Plane {
    name: String,
    lines: Vec<Message>,
    stats: Vec<Message>,
    /// Names of kinds of events, with display names and stats.
    kinds: Vec<(String, String, Vec<Message>)>,
    stat_names: Vec<String>,
}

impl Plane {
    pub(crate) fn new(name: &str) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    fn stat_id(&mut self, name: &str) -> i64 {
        let known = self.stat_names.iter().position(|known| known == name);
        let at = known.unwrap_or_else(|| {
            self.stat_names.push(name.into());
            self.stat_names.len() - 1
        });
        at as i64 + 1
    }

    fn encoded(&mut self, stats: Stats<'_>) -> Vec<Message> {
        let mut messages = Vec::new();
        for (name, value) in stats {
            let stat = Message::default().number(1, self.stat_id(name));
            messages.push(match value {
                Value::Double(value) => stat.double(2, *value),
                Value::Unsigned(value) => stat.number(3, value.cast_signed()),
                Value::Signed(value) => stat.number(4, *value),
                Value::Text(text) => stat.bytes(5, text.as_bytes()),
                Value::Ref(text) => stat.number(7, self.stat_id(text)),
            });
        }
        messages
    }

    fn kind_id(&mut self, name: &str) -> i64 {
        let known = self.kinds.iter().position(|(known, ..)| known == name);
        let at = known.unwrap_or_else(|| {
            self.kinds.push((name.into(), String::new(), Vec::new()));
            self.kinds.len() - 1
        });
        at as i64 + 1
    }

    /// States what all events of a name have.
    pub(crate) fn kind(mut self, name: &str, display: &str, stats: Stats<'_>) -> Self {
        let stats = self.encoded(stats);
        let at = self.kind_id(name) as usize - 1;
        (self.kinds[at].1, self.kinds[at].2) = (display.into(), stats);
        self
    }

    pub(crate) fn stats(mut self, stats: Stats<'_>) -> Self {
        let stats = self.encoded(stats);
        self.stats.extend(stats);
        self
    }

    pub(crate) fn line(mut self, id: i64, name: &str, timestamp_ns: i64, events: &[Event<'_>]) -> Self {
        let mut line = Message::default().number(1, id).bytes(2, name.as_bytes()).number(3, timestamp_ns);
        for Event(name, offset_ps, duration_ps, stats) in events {
            let mut event = Message::default().number(1, self.kind_id(name));
            event = event.number(2, *offset_ps).number(3, *duration_ps);
            for stat in self.encoded(stats) {
                event = event.bytes(4, &stat.0);
            }
            line = line.bytes(4, &event.0);
        }
        self.lines.push(line);
        self
    }

    /// Adds an event that stands for several to the last line.
    pub(crate) fn aggregated(mut self, name: &str, times: i64) -> Self {
        let event = Message::default().number(1, self.kind_id(name)).number(5, times).number(3, 7);
        let line = self.lines.pop().unwrap_or_default();
        self.lines.push(line.bytes(4, &event.0));
        self
    }

    fn message(&self) -> Message {
        let mut plane = Message::default().bytes(2, self.name.as_bytes());
        for line in &self.lines {
            plane = plane.bytes(3, &line.0);
        }
        for (at, (name, display, stats)) in self.kinds.iter().enumerate() {
            let id = at as i64 + 1;
            let mut kind = Message::default().number(1, id).bytes(2, name.as_bytes()).bytes(4, display.as_bytes());
            for stat in stats {
                kind = kind.bytes(5, &stat.0);
            }
            plane = plane.bytes(4, &Message::default().number(1, id).bytes(2, &kind.0).0);
        }
        for (at, name) in self.stat_names.iter().enumerate() {
            let id = at as i64 + 1;
            let stat = Message::default().number(1, id).bytes(2, name.as_bytes());
            plane = plane.bytes(5, &Message::default().number(1, id).bytes(2, &stat.0).0);
        }
        for stat in &self.stats {
            plane = plane.bytes(6, &stat.0);
        }
        plane
    }
}

/// The plane that says when a recording was made.
pub(crate) fn recorded(start_ns: i64, stop_ns: i64) -> Plane {
    let times = [
        ("profile_start_time", Value::Unsigned(start_ns as u64)),
        ("profile_stop_time", Value::Unsigned(stop_ns as u64)),
    ];
    Plane::new("Task Environment").stats(&times)
}

/// The bytes of a profile.
pub(crate) fn profile(host: &str, planes: &[Plane]) -> Vec<u8> {
    let space = planes.iter().fold(Message::default(), |space, plane| space.bytes(1, &plane.message().0));
    if host.is_empty() { space.0 } else { space.bytes(4, host.as_bytes()).0 }
}

/// Writes a profile, with the folders above it.
pub(crate) fn write(path: &Path, host: &str, planes: &[Plane]) -> PathBuf {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, profile(host, planes)).unwrap();
    path.into()
}

/// Opens profiles.
pub(crate) fn opened(paths: &[PathBuf]) -> XplaneSource {
    XplaneSource::open(paths).unwrap()
}

/// Loads the rank of a single file.
pub(crate) fn loaded(planes: &[Plane]) -> RankData {
    let directory = tempfile::tempdir().unwrap();
    let source = opened(&[write(&directory.path().join("h.xplane.pb"), "", planes)]);
    source.load(source.ranks()[0]).unwrap()
}

/// Rows as `(kind, name, start, length)`.
pub(crate) fn rows(data: &RankData) -> Vec<(Kind, &str, i64, i64)> {
    let events = &data.events;
    let name = |row: usize| &*data.names[events.name[row] as usize];
    (0..events.len()).map(|row| (events.kind[row], name(row), events.ts_ns[row], events.dur_ns[row])).collect()
}

/// What was left out, with its amount.
pub(crate) fn omitted(data: &RankData) -> Vec<(&str, &str, Option<i64>)> {
    data.omissions.iter().map(|omission| (&*omission.kind, &*omission.what, omission.amount)).collect()
}
