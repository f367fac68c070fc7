//! Numbers NCCL's strings without a lock and without an allocation.
//!
//! Names of functions, types, algorithms and protocols are C strings that are valid only during the callback. There are few
//! of them. Each is copied once into a fixed table; a later lookup is a hash and a comparison.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Capacity of the table. NCCL has about forty strings. Miri is too slow to fill a large table.
const CAPACITY: usize = if cfg!(miri) { 64 } else { 512 };
/// The most bytes that are kept of a string.
pub(crate) const MAX_BYTES: usize = 48;

const EMPTY: u32 = 0;
const WRITING: u32 = 1;
const READY: u32 = 2;

/// Number of a string; 0 for none, and for strings beyond the capacity.
pub(crate) type StringId = u16;

#[derive(Debug)]
struct Entry {
    state: AtomicU32,
    length: AtomicU32,
    bytes: [AtomicU64; MAX_BYTES / 8],
}

/// The table.
#[derive(Debug)]
pub(crate) struct StringTable(Box<[Entry]>);

impl StringTable {
    pub(crate) fn new() -> Self {
        let entry = |_| Entry {
            state: AtomicU32::new(EMPTY),
            length: AtomicU32::new(0),
            bytes: std::array::from_fn(|_| AtomicU64::new(0)),
        };
        Self((0..CAPACITY).map(entry).collect())
    }

    /// Returns the number of a string, of which only [`MAX_BYTES`] count. Two threads that intern a new string at the same
    /// time may get two numbers for it.
    pub(crate) fn intern(&self, text: &[u8]) -> StringId {
        let text = &text[..text.len().min(MAX_BYTES)];
        let packed = pack(text);
        let start = hash(&packed, text.len()) as usize;
        for probe in 0..CAPACITY {
            let index = (start + probe) % CAPACITY;
            let Some(entry) = self.0.get(index) else { return 0 };
            match entry.state.load(Ordering::Acquire) {
                READY if entry.is(&packed, text.len()) => return index as StringId + 1,
                EMPTY => {
                    let claim =
                        entry.state.compare_exchange(EMPTY, WRITING, Ordering::Acquire, Ordering::Relaxed).is_ok();
                    if claim {
                        entry.write(&packed, text.len());
                        return index as StringId + 1;
                    }
                }
                _ => {}
            }
        }
        0
    }

    /// The string of a number.
    pub(crate) fn get(&self, id: StringId) -> Option<String> {
        let entry = self.0.get(usize::from(id).checked_sub(1)?)?;
        if entry.state.load(Ordering::Acquire) != READY {
            return None;
        }
        let bytes: Vec<u8> = entry.bytes.iter().flat_map(|part| part.load(Ordering::Relaxed).to_le_bytes()).collect();
        let length = entry.length.load(Ordering::Relaxed) as usize;
        Some(String::from_utf8_lossy(bytes.get(..length)?).into_owned())
    }
}

type Packed = [u64; MAX_BYTES / 8];

fn pack(text: &[u8]) -> Packed {
    let mut packed = [0; MAX_BYTES / 8];
    for (part, bytes) in packed.iter_mut().zip(text.chunks(8)) {
        let mut eight = [0; 8];
        eight[..bytes.len()].copy_from_slice(bytes);
        *part = u64::from_le_bytes(eight);
    }
    packed
}

/// Multiplies and folds like FxHash. The strings are NCCL's own, so that collisions are no attack.
fn hash(packed: &Packed, length: usize) -> u64 {
    let mut hash = length as u64;
    for part in &packed[..length.div_ceil(8)] {
        hash = (hash.rotate_left(5) ^ part).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
    hash >> 32
}

impl Entry {
    fn is(&self, packed: &Packed, length: usize) -> bool {
        let parts = length.div_ceil(8);
        self.length.load(Ordering::Relaxed) as usize == length
            && self.bytes[..parts].iter().zip(packed).all(|(own, other)| own.load(Ordering::Relaxed) == *other)
    }

    fn write(&self, packed: &Packed, length: usize) {
        for (own, part) in self.bytes.iter().zip(packed) {
            own.store(*part, Ordering::Relaxed);
        }
        self.length.store(length as u32, Ordering::Relaxed);
        self.state.store(READY, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_strings_have_one_number() {
        let strings = StringTable::new();
        let all_reduce = strings.intern(b"AllReduce");
        assert_ne!(all_reduce, 0);
        assert_eq!(strings.intern(b"AllReduce"), all_reduce);
        let others = [&b""[..], b"AllReduc", b"AllReducf", b"Ring", &[0xff, 0xfe], &[b'x'; 100]];
        for other in others {
            assert_ne!(strings.intern(other), all_reduce);
        }
        assert_eq!(strings.get(all_reduce).as_deref(), Some("AllReduce"));
        assert_eq!(strings.get(strings.intern(&[b'x'; 100])), Some("x".repeat(MAX_BYTES)));
        assert_eq!((strings.get(0), strings.get(u16::MAX)), (None, None));
    }

    #[test]
    fn a_full_table_keeps_its_strings() {
        let strings = StringTable::new();
        let known: Vec<StringId> = (0..CAPACITY).map(|i| strings.intern(format!("id {i}").as_bytes())).collect();
        assert!(known.iter().all(|id| *id != 0));
        assert_eq!(strings.intern(b"one too many"), 0);
        assert_eq!(strings.get(known[17]).as_deref(), Some("id 17"));
        assert_eq!(strings.intern(b"id 17"), known[17]);
    }

    #[test]
    fn threads_read_complete_strings() {
        const ROUNDS: usize = if cfg!(miri) { 3 } else { 200 };
        let strings = StringTable::new();
        std::thread::scope(|threads| {
            for _ in 0..3 {
                threads.spawn(|| {
                    for i in 0..ROUNDS {
                        let text = format!("a word of several parts, number {}", i % 50);
                        let id = strings.intern(text.as_bytes());
                        assert_eq!(strings.get(id), Some(text));
                    }
                });
            }
        });
    }
}
