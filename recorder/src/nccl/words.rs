//! Strings of the library, numbered without a lock and without an allocation.
//!
//! Function, type, algorithm and protocol names come as C strings that are valid during the callback only. There are
//! few of them. Each is copied once into a fixed table; afterwards a lookup is a hash and a comparison.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Strings at most; the libraries have some forty.
const WORDS: usize = 512;
/// Bytes kept of a string.
pub(crate) const MAX_BYTES: usize = 48;

const EMPTY: u32 = 0;
const WRITING: u32 = 1;
const READY: u32 = 2;

/// Number of a string; 0: none, or one too many.
pub(crate) type Word = u16;

#[derive(Debug)]
struct Entry {
    state: AtomicU32,
    length: AtomicU32,
    bytes: [AtomicU64; MAX_BYTES / 8],
}

/// The table.
#[derive(Debug)]
pub(crate) struct Words(Box<[Entry]>);

impl Words {
    pub(crate) fn new() -> Self {
        let entry = |_| Entry {
            state: AtomicU32::new(EMPTY),
            length: AtomicU32::new(0),
            bytes: std::array::from_fn(|_| AtomicU64::new(0)),
        };
        Self((0..WORDS).map(entry).collect())
    }

    /// The number of a string, of which no more than [`MAX_BYTES`] count. Two threads that bring the same string first
    /// at the same moment may get two numbers for it.
    pub(crate) fn intern(&self, text: &[u8]) -> Word {
        let text = &text[..text.len().min(MAX_BYTES)];
        let packed = pack(text);
        let start = hash(&packed, text.len()) as usize;
        for probe in 0..WORDS {
            let index = (start + probe) % WORDS;
            let Some(entry) = self.0.get(index) else { return 0 };
            match entry.state.load(Ordering::Acquire) {
                READY if entry.is(&packed, text.len()) => return index as Word + 1,
                EMPTY => {
                    let claim =
                        entry.state.compare_exchange(EMPTY, WRITING, Ordering::Acquire, Ordering::Relaxed).is_ok();
                    if claim {
                        entry.write(&packed, text.len());
                        return index as Word + 1;
                    }
                }
                _ => {}
            }
        }
        0
    }

    /// The string of a number.
    pub(crate) fn get(&self, word: Word) -> Option<String> {
        let entry = self.0.get(usize::from(word).checked_sub(1)?)?;
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

/// Multiply and fold, as in FxHash; the strings are the library's own, so nobody chooses them to collide.
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
        let words = Words::new();
        let all_reduce = words.intern(b"AllReduce");
        assert_ne!(all_reduce, 0);
        assert_eq!(words.intern(b"AllReduce"), all_reduce);
        let others = [&b""[..], b"AllReduc", b"AllReducf", b"Ring", &[0xff, 0xfe], &[b'x'; 100]];
        for other in others {
            assert_ne!(words.intern(other), all_reduce);
        }
        assert_eq!(words.get(all_reduce).as_deref(), Some("AllReduce"));
        assert_eq!(words.get(words.intern(&[b'x'; 100])), Some("x".repeat(MAX_BYTES)));
        assert_eq!((words.get(0), words.get(u16::MAX)), (None, None));
    }

    #[test]
    fn a_full_table_says_none_and_keeps_what_it_has() {
        let words = Words::new();
        let known: Vec<Word> = (0..WORDS).map(|i| words.intern(format!("word {i}").as_bytes())).collect();
        assert!(known.iter().all(|word| *word != 0));
        assert_eq!(words.intern(b"one too many"), 0);
        assert_eq!(words.get(known[17]).as_deref(), Some("word 17"));
        assert_eq!(words.intern(b"word 17"), known[17]);
    }

    #[test]
    fn threads_read_whole_strings() {
        const ROUNDS: usize = if cfg!(miri) { 3 } else { 200 };
        let words = Words::new();
        std::thread::scope(|threads| {
            for _ in 0..3 {
                threads.spawn(|| {
                    for i in 0..ROUNDS {
                        let text = format!("a word of several parts, number {}", i % 50);
                        let word = words.intern(text.as_bytes());
                        assert_eq!(words.get(word), Some(text));
                    }
                });
            }
        });
    }
}
