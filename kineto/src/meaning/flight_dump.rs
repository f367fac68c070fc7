//! One dump of torch's Flight Recorder, as a pickle or as its JSON twin: the process groups of a rank, how far it is in each, and
//! the operations of its ring.
//!
//! Versions 2.x are read. Fields that a version lacks are unknown, and JSON may hold numbers as texts. The positions of a rank lie
//! under a number of its own, which only entries connect with the name of a group:
//!
//! ```text
//! numbers      0   1   4       5   9       12       positions; both lists are in the order in which the groups were made
//! groups      "0" "5" "34"   "40" "57"   "112"
//! entries                    5 = "40"               an anchor; between anchors, runs of equal length belong together
//! ```

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{Arc, PoisonError, RwLock};

use rustc_hash::FxHashMap;
use trace::Text;
use trace::rank::MAX_RANKS;

use crate::bytes::json::{Cursor, FaultKind};
use crate::bytes::memory::Room;
use crate::bytes::pickle::{Id, Pickle, Value as Pickled};
use crate::bytes::value::Value;
use crate::meaning::names;

/// The reason for which a file without a list of entries is no dump.
pub(crate) const NO_ENTRIES: &str = "it has no entries";

/// A dump of one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlightDump {
    /// Version of the format, such as `2.10`.
    pub version: Option<Text>,
    /// Process groups of the rank, by name.
    pub groups: BTreeMap<Text, FlightGroup>,
    /// How far the rank is in each group, by name of the group.
    pub positions: BTreeMap<Text, FlightPosition>,
    /// The name of each group by the rank's own number of it, where it is certain.
    pub names: BTreeMap<i64, Text>,
    /// How far the rank is in the groups whose names are unknown, by its own numbers of them.
    pub unplaced: BTreeMap<i64, FlightPosition>,
    /// Operations of the ring, in the order of the dump.
    pub entries: Vec<FlightEntry>,
}

/// A process group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlightGroup {
    /// What it is for, as the program says; empty if it does not.
    pub description: Text,
    /// Global ranks by their number in the group; `None` if the dump does not list them.
    pub ranks: Option<Arc<[i32]>>,
}

/// The memory of a list in a table of lists, without its items.
const LIST_BYTES: usize = 128;

/// Lists of ranks that were read before, by their text. All dumps of a job hold the same texts, and that of the whole job is long.
#[derive(Debug, Default)]
pub struct RankLists(RwLock<ByText>);

/// `None` for a text that holds no list of ranks.
type ByText = FxHashMap<Box<str>, Option<Arc<[i32]>>>;

impl RankLists {
    fn read(&self, text: &str, room: &mut Room) -> Result<Option<Arc<[i32]>>, String> {
        if let Some(known) = self.0.read().unwrap_or_else(PoisonError::into_inner).get(text) {
            return Ok(known.clone());
        }
        room.take(text.len() + LIST_BYTES)?;
        let list = match Value::read_within(&mut Cursor::new(text.as_bytes(), 0), room) {
            Err(fault) if fault.what == FaultKind::Full => return Err(room.full.clone()),
            list => list.ok(),
        };
        room.take(list.as_ref().map_or(0, |list| list.items().len() * (size_of::<i64>() + size_of::<i32>())))?;
        let read = list.and_then(|list| list.integers()).and_then(as_ranks);
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(text.into(), read.clone());
        Ok(read)
    }
}

/// Numbers as ranks; `None` if there are none, or one is impossible.
fn as_ranks(numbers: Vec<i64>) -> Option<Arc<[i32]>> {
    let rank = |number: i64| i32::try_from(number).ok().filter(|rank| (0..MAX_RANKS).contains(rank));
    let ranks: Option<Arc<[i32]>> = numbers.into_iter().map(rank).collect();
    ranks.filter(|ranks| !ranks.is_empty())
}

/// The numbers of the last operations of a group; −1 before the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlightPosition {
    /// The last one that the program handed over.
    pub enqueued: i64,
    /// The last one that ended.
    pub completed: i64,
}

/// An operation that the program handed over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlightEntry {
    /// Number in the ring: the order in which the program handed operations over.
    pub record_id: Option<i64>,
    /// Name of its process group.
    pub group: Option<Text>,
    /// Description of its process group.
    pub description: Option<Text>,
    /// Operation in the words of `collectives.op`; `None` for another one, such as `coalesced`.
    pub op: Option<&'static str>,
    /// Its name in the dump, such as `nccl:recv 0<-3`.
    pub name: Text,
    /// Number of the collective in its group, from 1; of a send or receive, that of the collective before it.
    pub seq: Option<i64>,
    /// Number of the send or receive in its group.
    pub p2p_seq: Option<i64>,
    /// Whether it is a send or receive.
    pub is_p2p: bool,
    /// Of a send or receive, the other rank by its number in the group.
    pub peer: Option<i32>,
    /// UTC of the call, in ns since 1970.
    pub created_ns: Option<i64>,
    /// Elements of all inputs together; `None` without inputs.
    pub input_elements: Option<i64>,
    /// Elements of all outputs together; `None` without outputs.
    pub output_elements: Option<i64>,
    /// Type of the elements, in torch's words.
    pub dtype: Option<Text>,
    /// Whether it ended: its state is `completed`, or the recorder no longer watches it.
    pub is_finished: bool,
    /// Line of the program that called it: the innermost frame outside of torch.
    pub frame: Option<FlightFrame>,
}

impl FlightEntry {
    /// Bytes of the inputs, or else of the outputs; `None` if the dump has no size, or a type of unknown size.
    pub fn bytes(&self) -> Option<i64> {
        let (_, size) = names::dtype(self.dtype.as_deref()?)?;
        self.input_elements.or(self.output_elements)?.checked_mul(size)
    }
}

/// A line of Python code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlightFrame {
    /// Function.
    pub name: Text,
    /// File.
    pub file: Text,
    /// Line, from 1.
    pub line: Option<i64>,
}

impl FlightDump {
    /// Reads a dump, whose values are taken of `room`. Of a pickle, only plain types are read.
    ///
    /// # Errors
    /// The reason why it is none, with the byte where it is known; or that it has no room.
    pub fn read(bytes: &[u8], lists: &RankLists, room: &mut Room) -> Result<Self, String> {
        let left = bytes.len();
        if bytes.first() == Some(&0x80) {
            let pickle = Pickle::read(bytes, room).map_err(|fault| fault.to_string())?;
            return Reader { left, lists, room }.dump(PickledNode { pickle: &pickle, id: pickle.root() });
        }
        let whole = Value::read_within(&mut Cursor::new(bytes, 0), room).map_err(|fault| match fault.what {
            FaultKind::Full => format!("byte {}: {}", fault.at, room.full),
            what => format!("it is no JSON: byte {}: {}", fault.at, what.describe()),
        })?;
        Reader { left, lists, room }.dump(&whole)
    }
}

/// A value of either form.
trait Node<'t>: Copy {
    fn field(self, key: &str) -> Option<Self>;
    fn text(self) -> Option<&'t str>;
    fn integer(self) -> Option<i64>;
    fn is_true(self) -> bool;
    fn items(self) -> impl ExactSizeIterator<Item = Self>;
    fn members(self) -> impl Iterator<Item = (Cow<'t, str>, Self)>;
}

impl<'t> Node<'t> for &'t Value {
    fn field(self, key: &str) -> Option<Self> {
        self.get(key)
    }

    fn text(self) -> Option<&'t str> {
        Value::text(self)
    }

    fn integer(self) -> Option<i64> {
        Value::integer(self)
    }

    fn is_true(self) -> bool {
        Value::text(self) == Some("true")
    }

    fn items(self) -> impl ExactSizeIterator<Item = Self> {
        Value::items(self).iter()
    }

    fn members(self) -> impl Iterator<Item = (Cow<'t, str>, Self)> {
        let members: &[_] = if let Value::Map(members) = self { members } else { &[] };
        members.iter().map(|(key, value)| (key.as_str().into(), value))
    }
}

#[derive(Clone, Copy)]
struct PickledNode<'p, 't> {
    pickle: &'p Pickle<'t>,
    id: Id,
}

impl<'t> Node<'t> for PickledNode<'_, 't> {
    fn field(self, key: &str) -> Option<Self> {
        self.pickle.field(self.id, key).map(|id| Self { id, ..self })
    }

    fn text(self) -> Option<&'t str> {
        self.pickle.text(self.id)
    }

    fn integer(self) -> Option<i64> {
        self.pickle.integer(self.id)
    }

    fn is_true(self) -> bool {
        *self.pickle.get(self.id) == Pickled::Bool(true)
    }

    fn items(self) -> impl ExactSizeIterator<Item = Self> {
        self.pickle.items(self.id).iter().map(move |id| Self { id: *id, ..self })
    }

    fn members(self) -> impl Iterator<Item = (Cow<'t, str>, Self)> {
        let pairs: &[_] = if let Pickled::Dict(pairs) = self.pickle.get(self.id) { pairs } else { &[] };
        pairs.iter().filter_map(move |(key, value)| {
            let key = Self { id: *key, ..self };
            let key = key.text().map(Cow::from).or_else(|| key.integer().map(|number| number.to_string().into()))?;
            Some((key, Self { id: *value, ..self }))
        })
    }
}

/// Reads a dump by following references. A small pickle may refer to one list a million times, so the items that are visited are
/// bounded: each takes at least a byte in an honest dump. A text that is referred to often is copied each time, so what is kept is taken of
/// `room`.
struct Reader<'l> {
    /// Items that may still be visited.
    left: usize,
    lists: &'l RankLists,
    room: &'l mut Room,
}

/// The most memory of an entry, a group or a position, without its texts. A list of them may have doubled.
const ENTRY_BYTES: usize = 2 * size_of::<FlightEntry>();
const GROUP_BYTES: usize = 4 * size_of::<(Text, FlightGroup)>();
const POSITION_BYTES: usize = 8 * size_of::<(i64, FlightPosition)>();
/// The counts before a [`Text`].
const TEXT_BYTES: usize = 2 * size_of::<usize>();

impl Reader<'_> {
    /// A text that is kept.
    fn kept(&mut self, text: &str) -> Result<Text, String> {
        self.room.take(TEXT_BYTES + text.len())?;
        Ok(text.into())
    }

    fn kept_if_any(&mut self, text: Option<&str>) -> Result<Option<Text>, String> {
        text.map(|text| self.kept(text)).transpose()
    }

    fn visit(&mut self, items: usize) -> Result<(), String> {
        self.left = self.left.checked_sub(items).ok_or("its lists hold more items than the dump has bytes")?;
        Ok(())
    }

    fn dump<'t>(&mut self, root: impl Node<'t>) -> Result<FlightDump, String> {
        let version = root.field("version").and_then(Node::text);
        if let Some(version) = version.filter(|version| !version.starts_with("2.")) {
            return Err(format!("version {version} of the Flight Recorder is not read, only 2.x"));
        }
        let list = root.field("entries").ok_or(NO_ENTRIES)?;
        let mut dump = FlightDump { version: version.map(Text::from), ..FlightDump::default() };
        let mut anchors = BTreeMap::new();
        self.visit(list.items().len())?;
        for entry in list.items() {
            self.room.take(ENTRY_BYTES)?;
            let read = self.entry(entry)?;
            if let (Some(id), Some(group)) = (entry.field("pg_id").and_then(Node::integer), &read.group) {
                anchors.insert(id, group.clone());
            }
            dump.entries.push(read);
        }
        for (name, group) in root.field("pg_config").into_iter().flat_map(Node::members) {
            self.visit(1)?;
            if name.is_empty() {
                continue;
            }
            self.room.take(GROUP_BYTES)?;
            let name = self.kept(&name)?;
            let description = self.kept(group.field("desc").and_then(Node::text).unwrap_or_default())?;
            dump.groups.insert(name, FlightGroup { description, ranks: self.ranks(group)? });
        }
        let mut by_id: BTreeMap<i64, FlightPosition> = BTreeMap::new();
        for (id, position) in root.field("pg_status").into_iter().flat_map(Node::members) {
            self.visit(1)?;
            self.room.take(POSITION_BYTES)?;
            let number = |key: &str| position.field(key).and_then(Node::integer);
            let found = number("last_enqueued_collective").zip(number("last_completed_collective"));
            if let (Ok(id), Some((enqueued, completed))) = (id.parse(), found) {
                by_id.insert(id, FlightPosition { enqueued, completed });
            }
        }
        dump.names = names_of(&by_id.keys().copied().collect(), dump.groups.keys().cloned().collect(), &anchors);
        for (id, position) in by_id {
            match dump.names.get(&id) {
                Some(name) => drop(dump.positions.insert(name.clone(), position)),
                None => drop(dump.unplaced.insert(id, position)),
            }
        }
        Ok(dump)
    }

    /// The ranks of a group: a text that holds a list, or a list.
    fn ranks<'t>(&mut self, group: impl Node<'t>) -> Result<Option<Arc<[i32]>>, String> {
        let Some(ranks) = group.field("ranks") else { return Ok(None) };
        match ranks.text() {
            Some(text) => self.lists.read(text, self.room),
            None => Ok(self.integers(ranks)?.and_then(as_ranks)),
        }
    }

    fn integers<'t>(&mut self, list: impl Node<'t>) -> Result<Option<Vec<i64>>, String> {
        self.visit(list.items().len())?;
        self.room.take(list.items().len() * size_of::<i64>())?;
        Ok(list.items().map(Node::integer).collect())
    }

    fn entry<'t>(&mut self, entry: impl Node<'t>) -> Result<FlightEntry, String> {
        let text = |key: &str| entry.field(key).and_then(Node::text);
        let integer = |key: &str| entry.field(key).and_then(Node::integer);
        let is_true = |key: &str| entry.field(key).is_some_and(Node::is_true);
        let name = text("profiling_name").unwrap_or_default();
        let mut group = entry.field("process_group").into_iter().flat_map(Node::items).take(2).map(Node::text);
        let dtype = |key: &str| entry.field(key)?.items().next()?.text();
        let op = names::operation(name);
        Ok(FlightEntry {
            record_id: integer("record_id"),
            // The first versions had a text here.
            group: self.kept_if_any(group.next().flatten().or_else(|| text("pg_name")))?,
            description: self.kept_if_any(group.next().flatten())?,
            op,
            seq: integer("collective_seq_id").or_else(|| integer("seq_id")),
            p2p_seq: integer("p2p_seq_id"),
            is_p2p: is_true("is_p2p") || matches!(op, Some("send" | "recv")),
            peer: peer_of(name),
            created_ns: integer("time_created_ns"),
            input_elements: self.elements(entry.field("input_sizes"))?,
            output_elements: self.elements(entry.field("output_sizes"))?,
            dtype: self.kept_if_any(dtype("input_dtypes").or_else(|| dtype("output_dtypes")))?,
            is_finished: is_true("retired") || text("state") == Some("completed"),
            frame: self.frame(entry.field("frames"))?,
            name: self.kept(name)?,
        })
    }

    /// Elements of all arrays of a list of sizes; `None` without any.
    fn elements<'t>(&mut self, sizes: Option<impl Node<'t>>) -> Result<Option<i64>, String> {
        let Some(sizes) = sizes.filter(|sizes| sizes.items().len() > 0) else { return Ok(None) };
        self.visit(sizes.items().len())?;
        let mut sum = Some(0_i64);
        for dims in sizes.items() {
            let product = self.integers(dims)?.and_then(|dims| dims.into_iter().try_fold(1_i64, i64::checked_mul));
            sum = sum.zip(product).and_then(|(sum, product)| sum.checked_add(product));
        }
        Ok(sum)
    }

    fn frame<'t>(&mut self, frames: Option<impl Node<'t>>) -> Result<Option<FlightFrame>, String> {
        let Some(frames) = frames else { return Ok(None) };
        let (mut innermost, mut visited) = (None, 0);
        for frame in frames.items() {
            visited += 1;
            let file = frame.field("filename").and_then(Node::text).unwrap_or_default();
            let is_torch = ["/torch/", "torch/"].iter().any(|part| file.contains(part)) || file.starts_with('<');
            if is_torch && innermost.is_some() {
                continue;
            }
            let name = frame.field("name").and_then(Node::text).unwrap_or_default();
            innermost = Some(FlightFrame {
                name: self.kept(name)?,
                file: self.kept(file)?,
                line: frame.field("line").and_then(Node::integer),
            });
            if !is_torch {
                break;
            }
        }
        self.visit(visited)?;
        Ok(innermost)
    }
}

/// The other rank of `nccl:send 3->2` and `nccl:recv 0<-3`.
fn peer_of(name: &str) -> Option<i32> {
    let (_, peer) = name.split_once("->").or_else(|| name.split_once("<-"))?;
    let digits = peer.trim_start();
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

/// The name of each numbered group, where it is certain.
fn names_of(ids: &BTreeSet<i64>, names: Vec<Text>, anchors: &BTreeMap<i64, Text>) -> BTreeMap<i64, Text> {
    let mut found: BTreeMap<i64, Text> =
        anchors.iter().filter(|(id, _)| ids.contains(id)).map(|(id, name)| (*id, name.clone())).collect();
    // Names count the groups of the job. A name that is no number has no place in their order.
    let numbered: Option<BTreeMap<i64, Text>> =
        names.into_iter().map(|name| name.parse().ok().map(|number| (number, name))).collect();
    let Some(numbered) = numbered else { return found };
    let cuts: Option<Vec<(i64, i64)>> = found.iter().map(|(id, name)| Some((*id, name.parse().ok()?))).collect();
    let Some(cuts) = cuts.filter(|cuts| cuts.windows(2).all(|pair| pair[0].1 < pair[1].1)) else { return found };
    for at in 0..=cuts.len() {
        let low = at.checked_sub(1).and_then(|before| cuts.get(before));
        let high = cuts.get(at);
        let bounds = |of: fn(&(i64, i64)) -> i64| {
            let bound = |cut: Option<&(i64, i64)>| cut.map_or(Bound::Unbounded, |cut| Bound::Excluded(of(cut)));
            (bound(low), bound(high))
        };
        let between: Vec<i64> = ids.range(bounds(|cut| cut.0)).copied().collect();
        let of_names: Vec<&Text> = numbered.range(bounds(|cut| cut.1)).map(|(_, name)| name).collect();
        if between.len() == of_names.len() {
            found.extend(between.into_iter().zip(of_names.into_iter().cloned()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A dump with one entry of everything.
    const WHOLE: &str = r#"{"version": "2.10", "pg_config": {"7": {"name": "7", "desc": "tp", "ranks": "[4, 9]"}, "": {}},
        "pg_status": {"3": {"last_enqueued_collective": "6", "last_started_collective": "-1",
        "last_completed_collective": "5"}}, "entries": [{"record_id": 8, "pg_id": 3, "process_group": ["7", "tp"],
        "profiling_name": "nccl:recv 1<-0", "collective_seq_id": 5, "p2p_seq_id": 2, "is_p2p": true, "time_created_ns": 11,
        "input_sizes": [], "output_sizes": [[2, 3], [4]], "output_dtypes": ["BFloat16"], "state": "started",
        "retired": false, "frames": [{"name": "f", "filename": "a/torch/x.py", "line": 1},
        {"name": "main", "filename": "train.py", "line": 20}]}]}"#;

    fn read(bytes: &[u8]) -> Result<FlightDump, String> {
        FlightDump::read(bytes, &RankLists::default(), &mut Room::unlimited())
    }

    #[test]
    fn every_field_is_read() {
        let dump = read(WHOLE.as_bytes()).unwrap();
        let group = FlightGroup { description: "tp".into(), ranks: Some([4, 9].into()) };
        assert_eq!(dump.groups, BTreeMap::from([("7".into(), group)]));
        assert_eq!(dump.positions, BTreeMap::from([("7".into(), FlightPosition { enqueued: 6, completed: 5 })]));
        let [entry] = dump.entries.as_slice() else { panic!("{dump:?}") };
        assert_eq!((entry.record_id, entry.op, entry.peer, entry.seq), (Some(8), Some("recv"), Some(0), Some(5)));
        assert_eq!((entry.input_elements, entry.output_elements, entry.bytes()), (None, Some(10), Some(20)));
        assert!(entry.is_p2p && !entry.is_finished);
        let frame = entry.frame.clone().unwrap();
        assert_eq!((&*frame.name, &*frame.file, frame.line), ("main", "train.py", Some(20)));
    }

    #[test]
    fn versions_other_than_2_and_broken_dumps_are_errors() {
        let why = |text: &str| read(text.as_bytes()).unwrap_err();
        assert_eq!(
            why(r#"{"version": "3.0", "entries": []}"#),
            "version 3.0 of the Flight Recorder is not read, only 2.x"
        );
        assert_eq!(why("{}"), "it has no entries");
        for end in 0..WHOLE.len() {
            assert!(read(&WHOLE.as_bytes()[..end]).is_err(), "{end}");
        }
        let class = read(b"\x80\x02cos\nsystem\n.").unwrap_err();
        assert!(class.starts_with("byte 2: instruction GLOBAL"), "{class}");
    }

    #[test]
    fn a_pickle_that_repeats_a_list_takes_no_more_work_than_its_bytes() {
        // An entry of 200 sizes, and 2000 references to it.
        let mut bytes = b"\x80\x02}(X\x07\0\0\0entries]q\x01(}q\x02X\x0b\0\0\0input_sizes](".to_vec();
        bytes.extend([b']'; 200]);
        bytes.extend(b"es");
        bytes.extend(b"h\x02".repeat(2000));
        bytes.extend(b"eu.");
        assert_eq!(read(&bytes).unwrap_err(), "its lists hold more items than the dump has bytes");
    }

    /// ```text
    /// numbers   0   1   4    5    9          runs of equal length between anchors
    /// names     0   5   34   40   57
    /// ```
    #[test]
    fn positions_belong_to_groups_by_anchors_and_order() {
        let anchored = |ids: &[i64], names: &[&str], anchors: &[(i64, &str)]| {
            let names = names.iter().map(|name| Text::from(*name)).collect();
            let anchors = anchors.iter().map(|(id, name)| (*id, Text::from(*name))).collect();
            let found = names_of(&ids.iter().copied().collect(), names, &anchors);
            found.into_iter().map(|(id, name)| format!("{id}={name}")).collect::<Vec<_>>().join(" ")
        };
        let names = ["34", "0", "5", "57", "40"];
        assert_eq!(anchored(&[0, 1, 4, 5, 9], &names, &[]), "0=0 1=5 4=34 5=40 9=57");
        assert_eq!(anchored(&[0, 4, 5, 9], &names, &[(4, "34")]), "4=34 5=40 9=57", "one of two names is unknown");
        assert_eq!(anchored(&[0, 1], &["0", "aa"], &[(1, "aa")]), "1=aa", "no order among names");
    }
}
