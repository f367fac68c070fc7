//! A reader of Python's pickles that executes nothing: plain containers, texts, bytes and numbers only.
//!
//! A pickle is a program for a stack machine, and some of its instructions import and call any function. This reader
//! knows only the instructions that build data, of protocols 2 to 5, and refuses all others with their byte offset:
//!
//! | what | instructions |
//! |---|---|
//! | frame of the file | `PROTO`, `FRAME`, `STOP` |
//! | stack | `MARK`, `POP`, `POP_MARK` |
//! | memo | `BINPUT`, `LONG_BINPUT`, `MEMOIZE`, `BINGET`, `LONG_BINGET` |
//! | `None`, `bool`, `int`, `float` | `NONE`, `NEWTRUE`, `NEWFALSE`, `BININT`, `BININT1`, `BININT2`, `LONG1`, `LONG4`, `BINFLOAT` |
//! | `str`, `bytes` | `SHORT_BINUNICODE`, `BINUNICODE`, `BINUNICODE8`, `SHORT_BINBYTES`, `BINBYTES`, `BINBYTES8` |
//! | `list` | `EMPTY_LIST`, `APPEND`, `APPENDS` |
//! | `tuple` | `EMPTY_TUPLE`, `TUPLE1`, `TUPLE2`, `TUPLE3`, `TUPLE` |
//! | `dict` | `EMPTY_DICT`, `SETITEM`, `SETITEMS` |
//!
//! Values lie in one list and refer to each other by number. So a value that is used often is held once, a value may
//! contain itself, and no depth of nesting overflows the stack. The memory is proportional to the pickle: each
//! instruction makes at most one value, and texts and bytes stay in the input. A caller that follows references must
//! bound its own work, because a small pickle may refer to one list a million times.

use rustc_hash::FxHashMap;

use crate::bytes::memory::Room;

/// The most memory of a value: the lists of values and of the stack double when they are full, and a container begins with
/// room for four items.
const VALUE_BYTES: usize = 2 * (size_of::<Value<'_>>() + REFERENCE_BYTES) + 4 * size_of::<(Id, Id)>();
/// The most memory of a reference on the stack or in a container, whose list may have doubled.
const REFERENCE_BYTES: usize = 2 * size_of::<Id>();
/// The most memory of an entry of the memo: its table is at least 7/16 full, and the table before it is half as large.
const MEMO_BYTES: usize = 4 * (size_of::<(u32, Id)>() + 1);

/// Values of one pickle, whatever memory they may take.
const MAX_VALUES: usize = 1 << 27;

/// The reason for which a pickle is refused, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Offset of the instruction, in bytes from the start.
    pub byte: usize,
    /// The reason.
    pub why: String,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "byte {}: {}", self.byte, self.why)
    }
}

/// Number of a value in its [`Pickle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Id(u32);

/// A value. Containers hold the numbers of their items.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<'a> {
    /// `None`.
    None,
    /// `bool`.
    Bool(bool),
    /// `int`.
    Int(i128),
    /// `int` beyond 128 bits: little-endian two's complement.
    Long(&'a [u8]),
    /// `float`.
    Float(f64),
    /// `str`.
    Text(&'a str),
    /// `bytes`.
    Bytes(&'a [u8]),
    /// `list`.
    List(Vec<Id>),
    /// `tuple`.
    Tuple(Vec<Id>),
    /// `dict`: keys and values in the order of the pickle; of equal keys, the last counts.
    Dict(Vec<(Id, Id)>),
}

impl Value<'_> {
    /// Python's name of the type.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Bool(_) => "bool",
            Self::Int(_) | Self::Long(_) => "int",
            Self::Float(_) => "float",
            Self::Text(_) => "str",
            Self::Bytes(_) => "bytes",
            Self::List(_) => "list",
            Self::Tuple(_) => "tuple",
            Self::Dict(_) => "dict",
        }
    }
}

/// The values of a pickle.
#[derive(Clone, Debug, PartialEq)]
pub struct Pickle<'a> {
    values: Vec<Value<'a>>,
    root: Id,
    /// The pairs with a text as their key of each long `dict`, by the key and then in the order of the pickle. A search
    /// through all pairs would take the square of their number where a pickle refers to one `dict` often.
    sorted: FxHashMap<Id, Vec<u32>>,
}

/// Pairs of a `dict` that are searched one by one. Those of snapshots have about ten.
const MAX_SEARCHED: usize = 64;

impl<'a> Pickle<'a> {
    /// Reads a pickle, whose values are taken of `room`. Bytes behind its end are ignored, as Python does.
    ///
    /// # Errors
    /// A [`Fault`] at the first instruction that is cut, malformed, not one of those above, or without room.
    pub fn read(bytes: &'a [u8], room: &mut Room) -> Result<Self, Fault> {
        let mut machine = Machine::new(bytes, room);
        loop {
            machine.start = machine.at;
            if let Some(root) = machine.step()? {
                machine.take_room_of_long_dicts()?;
                let mut pickle = Self { values: machine.values, root, sorted: FxHashMap::default() };
                pickle.sort_long_dicts();
                return Ok(pickle);
            }
        }
    }

    fn sort_long_dicts(&mut self) {
        let sorted = |(id, value): (usize, &Value<'a>)| {
            let Value::Dict(pairs) = value else { return None };
            if pairs.len() <= MAX_SEARCHED {
                return None;
            }
            let key = |at: &u32| pairs.get(*at as usize).and_then(|(key, _)| self.text(*key));
            let mut of_text: Vec<u32> = (0..pairs.len() as u32).filter(|at| key(at).is_some()).collect();
            of_text.sort_by_key(key);
            Some((Id(id as u32), of_text))
        };
        self.sorted = self.values.iter().enumerate().filter_map(sorted).collect();
    }

    /// The whole of it.
    pub fn root(&self) -> Id {
        self.root
    }

    /// The value with a number of this pickle.
    pub fn get(&self, id: Id) -> &Value<'a> {
        self.values.get(id.0 as usize).unwrap_or(&Value::None)
    }

    /// The items of a list or tuple; empty for other values.
    pub fn items(&self, id: Id) -> &[Id] {
        match self.get(id) {
            Value::List(items) | Value::Tuple(items) => items,
            _ => &[],
        }
    }

    /// The value of a text key in a `dict`.
    pub fn field(&self, id: Id, key: &str) -> Option<Id> {
        let Value::Dict(pairs) = self.get(id) else { return None };
        if let Some(sorted) = self.sorted.get(&id) {
            let name = |at: &u32| pairs.get(*at as usize).and_then(|(name, _)| self.text(*name));
            let after = sorted.partition_point(|at| name(at) <= Some(key));
            let last = sorted.get(after.checked_sub(1)?).filter(|at| name(at) == Some(key))?;
            return pairs.get(*last as usize).map(|(_, value)| *value);
        }
        pairs.iter().rev().find(|(name, _)| self.text(*name) == Some(key)).map(|(_, value)| *value)
    }

    /// A `str`.
    pub fn text(&self, id: Id) -> Option<&'a str> {
        match self.get(id) {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// An `int` of 64 bits. An unsigned one is stored by its bits, as addresses are.
    pub fn integer(&self, id: Id) -> Option<i64> {
        match self.get(id) {
            Value::Int(value) => i64::try_from(*value).ok().or_else(|| u64::try_from(*value).ok().map(|v| v as i64)),
            _ => None,
        }
    }
}

const NONE: Id = Id(0);
const TRUE: Id = Id(1);
const FALSE: Id = Id(2);

#[derive(Debug)]
struct Machine<'a, 'r> {
    bytes: &'a [u8],
    room: &'r mut Room,
    at: usize,
    /// Offset of the current instruction.
    start: usize,
    values: Vec<Value<'a>>,
    stack: Vec<Id>,
    /// Heights of the stack at the marks.
    marks: Vec<usize>,
    memo: FxHashMap<u32, Id>,
}

impl<'a, 'r> Machine<'a, 'r> {
    fn new(bytes: &'a [u8], room: &'r mut Room) -> Self {
        let values = vec![Value::None, Value::Bool(true), Value::Bool(false)];
        let memo = FxHashMap::default();
        Self { bytes, room, at: 0, start: 0, values, stack: Vec::new(), marks: Vec::new(), memo }
    }

    /// Takes memory, before it is used.
    fn need(&mut self, bytes: usize) -> Result<(), Fault> {
        self.room.take(bytes).or_else(|why| self.fault(why))
    }

    /// Takes the memory of what [`Pickle::sort_long_dicts`] adds.
    fn take_room_of_long_dicts(&mut self) -> Result<(), Fault> {
        let long = |value: &Value<'a>| match value {
            Value::Dict(pairs) if pairs.len() > MAX_SEARCHED => MEMO_BYTES * 4 + pairs.len() * REFERENCE_BYTES,
            _ => 0,
        };
        self.need(self.values.iter().map(long).sum())
    }

    /// Puts a value on the stack that is there.
    fn push_again(&mut self, id: Id) -> Result<(), Fault> {
        self.need(REFERENCE_BYTES)?;
        self.stack.push(id);
        Ok(())
    }

    fn fault<T>(&self, why: impl Into<String>) -> Result<T, Fault> {
        Err(Fault { byte: self.start, why: why.into() })
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Fault> {
        let end = self.at.checked_add(length).filter(|end| *end <= self.bytes.len());
        let Some(taken) = end.and_then(|end| self.bytes.get(self.at..end)) else {
            let left = self.bytes.len().saturating_sub(self.at);
            return self.fault(format!("the pickle ends here: {length} bytes are needed, {left} are left"));
        };
        self.at += length;
        Ok(taken)
    }

    /// An unsigned number of `size` bytes, little-endian.
    fn number(&mut self, size: usize) -> Result<u64, Fault> {
        Ok(self.take(size)?.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    /// Bytes behind their length, which has `size` bytes.
    fn counted(&mut self, size: usize) -> Result<&'a [u8], Fault> {
        let length = self.number(size)?;
        self.take(usize::try_from(length).unwrap_or(usize::MAX))
    }

    fn push(&mut self, value: Value<'a>) -> Result<(), Fault> {
        if self.values.len() >= MAX_VALUES {
            return self.fault(format!("the pickle has more than {MAX_VALUES} values"));
        }
        self.need(VALUE_BYTES)?;
        self.stack.push(Id(self.values.len() as u32));
        self.values.push(value);
        Ok(())
    }

    /// Takes the top of the stack, above the last mark.
    fn pop(&mut self) -> Result<Id, Fault> {
        let floor = self.marks.last().copied().unwrap_or(0);
        match self.stack.pop() {
            Some(id) if self.stack.len() >= floor => Ok(id),
            _ => self.fault("the stack is empty"),
        }
    }

    /// Takes everything above the last mark.
    fn pop_mark(&mut self) -> Result<Vec<Id>, Fault> {
        match self.marks.pop() {
            Some(height) if height <= self.stack.len() => Ok(self.stack.split_off(height)),
            _ => self.fault("there is no mark"),
        }
    }

    /// The top of the stack, which stays there.
    fn top(&self) -> Result<Id, Fault> {
        let floor = self.marks.last().copied().unwrap_or(0);
        match self.stack.last() {
            Some(id) if self.stack.len() > floor => Ok(*id),
            _ => self.fault("the stack is empty"),
        }
    }

    fn append(&mut self, items: Vec<Id>) -> Result<(), Fault> {
        self.need(items.len() * REFERENCE_BYTES)?;
        let top = self.top()?;
        match self.values.get_mut(top.0 as usize) {
            Some(Value::List(list)) => list.extend(items),
            _ => return self.fault("items are appended to something that is no list"),
        }
        Ok(())
    }

    fn set(&mut self, items: &[Id]) -> Result<(), Fault> {
        self.need(items.len() * REFERENCE_BYTES)?;
        let top = self.top()?;
        let (pairs, rest) = items.as_chunks::<2>();
        match self.values.get_mut(top.0 as usize) {
            Some(Value::Dict(dict)) if rest.is_empty() => dict.extend(pairs.iter().map(|[key, value]| (*key, *value))),
            Some(Value::Dict(_)) => return self.fault("a key has no value"),
            _ => return self.fault("keys are set in something that is no dict"),
        }
        Ok(())
    }

    fn put(&mut self, key: u64) -> Result<(), Fault> {
        self.need(MEMO_BYTES)?;
        let (key, top) = (key as u32, self.top()?);
        self.memo.insert(key, top);
        Ok(())
    }

    fn get(&mut self, key: u64) -> Result<(), Fault> {
        match self.memo.get(&(key as u32)) {
            Some(id) => self.push_again(*id),
            None => self.fault(format!("the memo has no entry {key}")),
        }
    }

    fn text(&mut self, size: usize) -> Result<(), Fault> {
        let bytes = self.counted(size)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => self.push(Value::Text(text)),
            Err(_) => self.fault("a text is not UTF-8"),
        }
    }

    /// An `int` of any size, little-endian two's complement.
    fn long(&mut self, size: usize) -> Result<(), Fault> {
        let bytes = self.counted(size)?;
        if bytes.len() > 16 {
            return self.push(Value::Long(bytes));
        }
        let sign = if bytes.last().is_some_and(|byte| *byte >= 0x80) { 0xff } else { 0 };
        let mut whole = [sign; 16];
        whole.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        self.push(Value::Int(i128::from_le_bytes(whole)))
    }

    fn tuple(&mut self, length: usize) -> Result<(), Fault> {
        let mut items = Vec::with_capacity(length);
        for _ in 0..length {
            items.push(self.pop()?);
        }
        items.reverse();
        self.push(Value::Tuple(items))
    }

    /// Runs one instruction. The value of the pickle at its end.
    fn step(&mut self) -> Result<Option<Id>, Fault> {
        let [instruction] = *self.take(1)? else { return self.fault("the pickle ends here") };
        match instruction {
            b'.' => return self.pop().map(Some),
            0x80 => match self.number(1)? {
                2..=5 => {}
                protocol => return self.fault(format!("protocol {protocol} is not read, only 2 to 5")),
            },
            0x95 => {
                self.take(8)?;
            }
            b'(' => {
                self.need(2 * size_of::<usize>())?;
                self.marks.push(self.stack.len());
            }
            b'0' => {
                self.pop()?;
            }
            b'1' => {
                self.pop_mark()?;
            }
            b'q' | b'r' | 0x94 | b'h' | b'j' => self.memo(instruction)?,
            b'N' => self.push_again(NONE)?,
            0x88 => self.push_again(TRUE)?,
            0x89 => self.push_again(FALSE)?,
            b'J' | b'K' | b'M' | 0x8a | 0x8b | b'G' => self.numeric(instruction)?,
            0x8c => self.text(1)?,
            b'X' => self.text(4)?,
            0x8d => self.text(8)?,
            b'C' | b'B' | 0x8e => {
                let bytes = self.counted(match instruction {
                    b'C' => 1,
                    b'B' => 4,
                    _ => 8,
                })?;
                self.push(Value::Bytes(bytes))?;
            }
            b']' => self.push(Value::List(Vec::new()))?,
            b'a' => {
                let item = self.pop()?;
                self.append(vec![item])?;
            }
            b'e' => {
                let items = self.pop_mark()?;
                self.append(items)?;
            }
            b')' => self.tuple(0)?,
            0x85..=0x87 => self.tuple(usize::from(instruction - 0x84))?,
            b't' => {
                let items = self.pop_mark()?;
                self.need(items.len() * REFERENCE_BYTES)?;
                self.push(Value::Tuple(items))?;
            }
            b'}' => self.push(Value::Dict(Vec::new()))?,
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.set(&[key, value])?;
            }
            b'u' => {
                let items = self.pop_mark()?;
                self.set(&items)?;
            }
            other => return self.fault(refusal(other)),
        }
        Ok(None)
    }

    fn memo(&mut self, instruction: u8) -> Result<(), Fault> {
        match instruction {
            b'q' => self.number(1).and_then(|key| self.put(key)),
            b'r' => self.number(4).and_then(|key| self.put(key)),
            0x94 => self.put(self.memo.len() as u64),
            b'h' => self.number(1).and_then(|key| self.get(key)),
            _ => self.number(4).and_then(|key| self.get(key)),
        }
    }

    fn numeric(&mut self, instruction: u8) -> Result<(), Fault> {
        match instruction {
            b'J' => {
                let number = self.number(4)? as u32 as i32;
                self.push(Value::Int(number.into()))
            }
            b'K' => self.number(1).and_then(|number| self.push(Value::Int(number.into()))),
            b'M' => self.number(2).and_then(|number| self.push(Value::Int(number.into()))),
            0x8a => self.long(1),
            0x8b => self.long(4),
            _ => {
                // The only big-endian number.
                let bits = self.number(8)?.swap_bytes();
                self.push(Value::Float(f64::from_bits(bits)))
            }
        }
    }
}

/// Why an instruction is refused.
fn refusal(instruction: u8) -> String {
    let name = match instruction {
        b'c' => "GLOBAL",
        0x93 => "STACK_GLOBAL",
        b'R' => "REDUCE",
        b'b' => "BUILD",
        b'i' => "INST",
        b'o' => "OBJ",
        0x81 => "NEWOBJ",
        0x92 => "NEWOBJ_EX",
        b'P' => "PERSID",
        b'Q' => "BINPERSID",
        0x82..=0x84 => "EXT",
        _ => return format!("instruction {instruction:#04x} is not read"),
    };
    format!("instruction {name} names or calls Python code, which is never executed")
}

#[cfg(test)]
mod tests;
