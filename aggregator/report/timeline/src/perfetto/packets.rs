//! Packets of a Perfetto trace. Field numbers are those of `perfetto/protos/perfetto/trace` (`trace_packet.proto`,
//! `track_event/*.proto`, `interned_data.proto`).

use rustc_hash::FxHashMap;

use model::protobuf::write::Message;

/// The rank of a sequence of packets; −1 is the job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rank(pub(super) i32);

/// A track: one line on the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Track {
    Process,
    CriticalPath,
    Steps,
    Thread(i64, usize),
    Stream(i64, i64, usize),
    Communicator(i64, usize),
    Other(usize),
    Queue(i64, i64),
    Memory(i64),
    Bandwidth(i64),
    Metric(u32),
}

impl Track {
    /// Position among the tracks of its rank.
    fn order(self) -> u64 {
        match self {
            Self::Process => 0,
            Self::Steps | Self::CriticalPath => 1,
            Self::Communicator(..) => 2,
            Self::Thread(..) => 3,
            Self::Stream(..) => 4,
            Self::Other(_) => 5,
            Self::Queue(..) => 6,
            Self::Memory(_) => 7,
            Self::Bandwidth(_) => 8,
            Self::Metric(_) => 9,
        }
    }
}

/// A value that a click on a slice shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Annotation {
    Id,
    Step,
    Bytes,
    Flops,
    Correlation,
    ExternalId,
    Instance,
    Seq,
    Bucket,
    WaitNs,
    LastRank,
    InputDims,
    InputTypes,
    InputValues,
    Stack,
    Module,
    Grid,
    Block,
    Registers,
    SharedMemBytes,
    OccupancyPct,
}

impl Annotation {
    const COUNT: usize = Self::OccupancyPct as usize + 1;

    fn name(self) -> &'static str {
        match self {
            Self::Id => "id",
            Self::Step => "step",
            Self::Bytes => "bytes",
            Self::Flops => "flops",
            Self::Correlation => "correlation",
            Self::ExternalId => "external_id",
            Self::Instance => "instance",
            Self::Seq => "seq",
            Self::Bucket => "bucket",
            Self::WaitNs => "wait_ns",
            Self::LastRank => "last_rank",
            Self::InputDims => "input_dims",
            Self::InputTypes => "input_types",
            Self::InputValues => "input_values",
            Self::Stack => "stack",
            Self::Module => "module",
            Self::Grid => "grid",
            Self::Block => "block",
            Self::Registers => "registers",
            Self::SharedMemBytes => "shared_mem_bytes",
            Self::OccupancyPct => "occupancy_pct",
        }
    }
}

/// The value of an annotation.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value {
    Number(i64),
    Share(f64),
    /// A text, by the number that [`Sequence::text`] gave it.
    Text(u64),
}

/// The interned name of a slice.
#[derive(Clone, Copy, Debug)]
pub(super) struct Name(u64);

/// The interned category of a slice.
#[derive(Clone, Copy, Debug)]
pub(super) struct Category(u64);

/// The begin of a slice.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slice<'a> {
    pub(super) track: u64,
    pub(super) at_ns: i64,
    pub(super) category: Category,
    pub(super) name: Name,
    /// Annotations; unknown values are `None`.
    pub(super) annotations: &'a [(Annotation, Option<Value>)],
    /// Arrows that begin, end or pass here.
    pub(super) flows: &'a [u64],
}

/// Numbers of written items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Slices for rows of `events`.
    pub events: u64,
    /// Slices for rows of `collectives`.
    pub collectives: u64,
    /// Slices that mark steps.
    pub marks: u64,
    /// Slices of the critical path of the job.
    pub critical_path: u64,
    /// Ends of arrows: two or more per arrow.
    pub flow_ends: u64,
    /// Counter values.
    pub counter_values: u64,
    /// Ranks.
    pub ranks: u64,
}

impl Counts {
    pub(super) fn add(&mut self, other: Self) {
        self.events += other.events;
        self.collectives += other.collectives;
        self.marks += other.marks;
        self.critical_path += other.critical_path;
        self.flow_ends += other.flow_ends;
        self.counter_values += other.counter_values;
        self.ranks += other.ranks;
    }
}

const TRACE_PACKET: u32 = 1;
const PACKET_TIMESTAMP: u32 = 8;
const PACKET_SEQUENCE_ID: u32 = 10;
const PACKET_TRACK_EVENT: u32 = 11;
const PACKET_INTERNED_DATA: u32 = 12;
const PACKET_SEQUENCE_FLAGS: u32 = 13;
const PACKET_TRACK_DESCRIPTOR: u32 = 60;
const STATE_CLEARED: u64 = 1;
const NEEDS_STATE: u64 = 2;

const EVENT_CATEGORY_IIDS: u32 = 3;
const EVENT_ANNOTATIONS: u32 = 4;
const EVENT_TYPE: u32 = 9;
const EVENT_NAME_IID: u32 = 10;
const EVENT_TRACK_UUID: u32 = 11;
const EVENT_DOUBLE_VALUE: u32 = 44;
const EVENT_FLOW_IDS: u32 = 47;
const SLICE_BEGIN: u64 = 1;
const SLICE_END: u64 = 2;
const COUNTER: u64 = 4;

const ANNOTATION_NAME_IID: u32 = 1;
const ANNOTATION_INT: u32 = 4;
const ANNOTATION_DOUBLE: u32 = 5;
const ANNOTATION_STRING_IID: u32 = 17;

const INTERNED_CATEGORIES: u32 = 1;
const INTERNED_NAMES: u32 = 2;
const INTERNED_ANNOTATIONS: u32 = 3;
const INTERNED_STRINGS: u32 = 29;

const DESCRIPTOR_UUID: u32 = 1;
const DESCRIPTOR_NAME: u32 = 2;
const DESCRIPTOR_PROCESS: u32 = 3;
const DESCRIPTOR_PARENT: u32 = 5;
const DESCRIPTOR_COUNTER: u32 = 8;
const DESCRIPTOR_CHILD_ORDER: u32 = 11;
const DESCRIPTOR_RANK: u32 = 12;
const ORDER_EXPLICIT: u64 = 3;

/// The packets of one rank. Each string is written once per sequence and then referred to by number.
#[derive(Debug)]
pub(super) struct Sequence {
    id: u64,
    rank: i32,
    out: Message,
    begun: bool,
    tracks: FxHashMap<Track, u64>,
    names: FxHashMap<Box<str>, u64>,
    categories: FxHashMap<&'static str, u64>,
    /// Whether the name of each annotation was written. Its number is its position, from 1.
    annotations: [bool; Annotation::COUNT],
    /// The number of texts of annotations.
    texts: u64,
    /// New strings, which are written with the next slice.
    interned: Message,
    pub(super) counts: Counts,
}

impl Sequence {
    pub(super) fn new(Rank(rank): Rank) -> Self {
        Self {
            // 0 is no valid id; the job has 1.
            id: (i64::from(rank) + 2).unsigned_abs(),
            rank,
            out: Message::default(),
            begun: false,
            tracks: FxHashMap::default(),
            names: FxHashMap::default(),
            categories: FxHashMap::default(),
            annotations: [false; Annotation::COUNT],
            texts: 0,
            interned: Message::default(),
            counts: Counts { ranks: u64::from(rank >= 0), ..Counts::default() },
        }
    }

    pub(super) fn finish(mut self) -> (Vec<u8>, Counts) {
        (self.out.take(), self.counts)
    }

    /// Takes the buffered packets if they have at least `bytes` bytes.
    pub(super) fn piece_of(&mut self, bytes: usize) -> Option<Vec<u8>> {
        (self.out.bytes().len() >= bytes).then(|| self.out.take())
    }

    fn packet(&mut self, fill: impl FnOnce(&mut Message)) {
        let flags = if self.begun { NEEDS_STATE } else { STATE_CLEARED | NEEDS_STATE };
        self.begun = true;
        let id = self.id;
        self.out.nested(TRACE_PACKET, |packet| {
            packet.unsigned(PACKET_SEQUENCE_ID, id);
            packet.unsigned(PACKET_SEQUENCE_FLAGS, flags);
            fill(packet);
        });
    }

    /// Track ids are unique in the trace and the same in every export of a run.
    fn uuid(&self, number: u64) -> u64 {
        self.id << 32 | number
    }

    /// Names the process. Its id is that of the sequence, because process ids of several hosts may be equal.
    pub(super) fn process(&mut self, name: &str) {
        let (uuid, pid, rank) = (self.uuid(1), self.id, (i64::from(self.rank) + 1).unsigned_abs());
        self.tracks.insert(Track::Process, uuid);
        self.packet(|packet| {
            packet.nested(PACKET_TRACK_DESCRIPTOR, |track| {
                track.unsigned(DESCRIPTOR_UUID, uuid);
                track.nested(DESCRIPTOR_PROCESS, |process| {
                    process.unsigned(1, pid);
                    process.string(6, name);
                });
                track.unsigned(DESCRIPTOR_CHILD_ORDER, ORDER_EXPLICIT);
                track.unsigned(DESCRIPTOR_RANK, rank);
            });
        });
    }

    /// Returns the id of a track. The first call writes its description.
    pub(super) fn track(&mut self, track: Track, name: &str) -> u64 {
        self.described(track, name, None)
    }

    /// Interns a name.
    pub(super) fn name(&mut self, name: &str) -> Name {
        if let Some(id) = self.names.get(name) {
            return Name(*id);
        }
        let id = self.names.len() as u64 + 1;
        self.names.insert(name.into(), id);
        entry(&mut self.interned, INTERNED_NAMES, id, name);
        Name(id)
    }

    /// Interns a text of annotations. Each text is given once.
    pub(super) fn text(&mut self, text: &str) -> Value {
        self.texts += 1;
        entry(&mut self.interned, INTERNED_STRINGS, self.texts, text);
        Value::Text(self.texts)
    }

    /// Interns a category.
    pub(super) fn category(&mut self, category: &'static str) -> Category {
        let next = self.categories.len() as u64 + 1;
        let interned = &mut self.interned;
        Category(*self.categories.entry(category).or_insert_with(|| {
            entry(interned, INTERNED_CATEGORIES, next, category);
            next
        }))
    }

    /// Returns the id of a counter track. `unit` is `B` for bytes, otherwise the printed unit.
    pub(super) fn counter(&mut self, track: Track, name: &str, unit: &str) -> u64 {
        self.described(track, name, Some(unit))
    }

    fn described(&mut self, track: Track, name: &str, counter: Option<&str>) -> u64 {
        if let Some(uuid) = self.tracks.get(&track) {
            return *uuid;
        }
        let uuid = self.uuid(self.tracks.len() as u64 + 1);
        self.tracks.insert(track, uuid);
        let parent = self.uuid(1);
        self.packet(|packet| {
            packet.nested(PACKET_TRACK_DESCRIPTOR, |message| {
                message.unsigned(DESCRIPTOR_UUID, uuid);
                message.string(DESCRIPTOR_NAME, name);
                message.unsigned(DESCRIPTOR_PARENT, parent);
                message.unsigned(DESCRIPTOR_RANK, track.order());
                if let Some(unit) = counter {
                    message.nested(DESCRIPTOR_COUNTER, |counter| match unit {
                        "B" => counter.unsigned(3, 3),
                        "" => counter.unsigned(3, 2),
                        other => counter.string(6, other),
                    });
                }
            });
        });
        uuid
    }

    /// Begins a slice.
    pub(super) fn begin(&mut self, slice: &Slice<'_>) {
        let present = || slice.annotations.iter().filter_map(|(annotation, value)| Some((*annotation, (*value)?)));
        for (annotation, _) in present() {
            if !std::mem::replace(&mut self.annotations[annotation as usize], true) {
                entry(&mut self.interned, INTERNED_ANNOTATIONS, annotation as u64 + 1, annotation.name());
            }
        }
        let mut interned = std::mem::take(&mut self.interned);
        self.packet(|packet| {
            packet.signed(PACKET_TIMESTAMP, slice.at_ns);
            if !interned.bytes().is_empty() {
                packet.message(PACKET_INTERNED_DATA, &interned);
            }
            packet.nested(PACKET_TRACK_EVENT, |event| {
                event.unsigned(EVENT_TYPE, SLICE_BEGIN);
                event.unsigned(EVENT_TRACK_UUID, slice.track);
                event.unsigned(EVENT_NAME_IID, slice.name.0);
                event.unsigned(EVENT_CATEGORY_IIDS, slice.category.0);
                for (annotation, value) in present() {
                    event.nested(EVENT_ANNOTATIONS, |message| {
                        message.unsigned(ANNOTATION_NAME_IID, annotation as u64 + 1);
                        match value {
                            Value::Number(number) => message.signed(ANNOTATION_INT, number),
                            Value::Share(share) => message.double(ANNOTATION_DOUBLE, share),
                            Value::Text(id) => message.unsigned(ANNOTATION_STRING_IID, id),
                        }
                    });
                }
                slice.flows.iter().for_each(|flow| event.fixed64(EVENT_FLOW_IDS, *flow));
            });
        });
        interned.clear();
        self.interned = interned;
    }

    /// Ends the innermost slice of a track.
    pub(super) fn end(&mut self, track: u64, at_ns: i64) {
        self.packet(|packet| {
            packet.signed(PACKET_TIMESTAMP, at_ns);
            packet.nested(PACKET_TRACK_EVENT, |event| {
                event.unsigned(EVENT_TYPE, SLICE_END);
                event.unsigned(EVENT_TRACK_UUID, track);
            });
        });
    }

    /// Sets a counter.
    pub(super) fn count(&mut self, track: u64, at_ns: i64, value: f64) {
        self.counts.counter_values += 1;
        self.packet(|packet| {
            packet.signed(PACKET_TIMESTAMP, at_ns);
            packet.nested(PACKET_TRACK_EVENT, |event| {
                event.unsigned(EVENT_TYPE, COUNTER);
                event.unsigned(EVENT_TRACK_UUID, track);
                event.double(EVENT_DOUBLE_VALUE, value);
            });
        });
    }

    /// Id of the arrow from a launch, unique over ranks.
    pub(super) fn flow_of_launch(&self, rank: i32, correlation: i64) -> u64 {
        mix(u64::from(rank.cast_unsigned()) + 1, correlation.cast_unsigned())
    }

    /// Id of the arrow from a forward operator to its backward operator, unique over ranks.
    pub(super) fn flow_of_backward(&self, rank: i32, id: i64) -> u64 {
        mix((u64::from(rank.cast_unsigned()) + 1) << 32, id.cast_unsigned())
    }

    /// Id of the arrow through the ranks of a collective.
    pub(super) fn flow_of_instance(&self, instance: i64) -> u64 {
        mix(0, instance.cast_unsigned())
    }
}

/// Mixes two numbers into 64 bits with the finaliser of MurmurHash3, which is a bijection of `b` for each `a`.
fn mix(a: u64, b: u64) -> u64 {
    let mut x = b ^ a.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for multiplier in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
        x = (x ^ x >> 33).wrapping_mul(multiplier);
    }
    x ^ x >> 33
}

fn entry(interned: &mut Message, field: u32, id: u64, name: &str) {
    interned.nested(field, |entry| {
        entry.unsigned(1, id);
        entry.string(2, name);
    });
}
