//! The blocks of an object: fetched one by one, ahead of a reader that goes forward, and bounded.
//!
//! ```text
//!   | 128 KiB | 1 MiB | 1 MiB | 1 MiB | …            the begin of a file decides its format, so it is a small block
//!   in order:   block 3 is read, blocks 4 to 11 are on their way
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore};
use tokio::task::JoinHandle;

use super::process::runtime;
use super::reasons::explain;
use super::retry::repeated;

const FIRST_BYTES: u64 = 128 << 10;
const BLOCK_BYTES: u64 = 1 << 20;
/// Blocks that are fetched at the same time for a reader that goes forward.
const AHEAD: u64 = 8;
/// Blocks that are kept: a row group of a usual shard, whose columns are read in turn.
const KEPT: usize = 32;

#[derive(Debug)]
pub(super) struct Blocks {
    store: Arc<dyn ObjectStore>,
    object: ObjectMeta,
    host: String,
    kept: BTreeMap<u64, Bytes>,
    /// The numbers of the kept blocks, the oldest first.
    order: VecDeque<u64>,
    coming: BTreeMap<u64, JoinHandle<io::Result<Bytes>>>,
    last: Option<u64>,
}

impl Drop for Blocks {
    fn drop(&mut self) {
        self.coming.values().for_each(JoinHandle::abort);
    }
}

impl Blocks {
    pub(super) fn new(store: Arc<dyn ObjectStore>, object: ObjectMeta, host: String) -> Self {
        let (kept, order, coming) = (BTreeMap::new(), VecDeque::new(), BTreeMap::new());
        Self { store, object, host, kept, order, coming, last: None }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.object.size
    }

    /// The block with byte `at`, which is inside the object, and the place of the byte in it.
    pub(super) fn block_with(&mut self, at: u64) -> io::Result<(Bytes, usize)> {
        let number = number_of(at);
        let from = (at - range_of(number, self.bytes()).start) as usize;
        let goes_forward = self.last.is_some_and(|last| number == last + 1);
        let is_same = self.last == Some(number);
        self.last = Some(number);
        if goes_forward {
            self.fetch_ahead(number)?;
        } else if !is_same {
            // A reader that jumps does not want the next blocks.
            self.coming.retain(|of, coming| {
                *of == number || {
                    coming.abort();
                    false
                }
            });
        }
        if let Some(block) = self.kept.get(&number) {
            return Ok((block.clone(), from));
        }
        let coming = match self.coming.remove(&number) {
            Some(coming) => coming,
            None => self.fetch(number)?,
        };
        let block = runtime()?.block_on(coming).map_err(io::Error::other)??;
        if self.order.len() == KEPT
            && let Some(oldest) = self.order.pop_front()
        {
            self.kept.remove(&oldest);
        }
        self.kept.insert(number, block.clone());
        self.order.push_back(number);
        Ok((block, from))
    }

    fn fetch_ahead(&mut self, number: u64) -> io::Result<()> {
        let last = number_of(self.bytes() - 1);
        for ahead in number..=last.min(number + AHEAD) {
            if !self.kept.contains_key(&ahead) && !self.coming.contains_key(&ahead) {
                let coming = self.fetch(ahead)?;
                self.coming.insert(ahead, coming);
            }
        }
        Ok(())
    }

    /// Begins to fetch a block.
    fn fetch(&self, number: u64) -> io::Result<JoinHandle<io::Result<Bytes>>> {
        let (store, key, host) = (self.store.clone(), self.object.location.clone(), self.host.clone());
        let range = range_of(number, self.bytes());
        let wanted = (range.end - range.start) as usize;
        // A weak tag does not promise the same bytes, and a server may refuse to compare it.
        let tag = self.object.e_tag.clone().filter(|tag| !tag.starts_with("W/"));
        let options = GetOptions { range: Some(GetRange::Bounded(range)), if_match: tag, ..GetOptions::default() };
        Ok(runtime()?.spawn(async move {
            let get = || async { store.get_opts(&key, options.clone()).await?.bytes().await };
            let block = repeated(get).await.map_err(|error| explain(&error, &host))?;
            match block.len() == wanted {
                true => Ok(block),
                false => {
                    let got = block.len();
                    Err(io::Error::other(format!("the server sent {got} bytes of a range of {wanted}")))
                }
            }
        }))
    }
}

fn number_of(at: u64) -> u64 {
    if at < FIRST_BYTES { 0 } else { 1 + (at - FIRST_BYTES) / BLOCK_BYTES }
}

fn range_of(number: u64, bytes: u64) -> Range<u64> {
    let start = if number == 0 { 0 } else { FIRST_BYTES + (number - 1) * BLOCK_BYTES };
    start..(FIRST_BYTES + number * BLOCK_BYTES).min(bytes)
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;
    use object_store::path::Path as Key;
    use object_store::{ObjectStoreExt, PutPayload};

    use super::*;

    fn blocks_of(content: &[u8]) -> (Arc<InMemory>, Blocks) {
        let (store, key) = (Arc::new(InMemory::new()), Key::from("a"));
        let put = store.put(&key, PutPayload::from(content.to_vec()));
        runtime().unwrap().block_on(put).unwrap();
        let object = runtime().unwrap().block_on(store.head(&key)).unwrap();
        (store.clone(), Blocks::new(store, object, "bucket".into()))
    }

    fn content() -> Vec<u8> {
        (0..40 * BLOCK_BYTES as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
    }

    /// Invariant (input): The blocks of an open object that are kept in memory are bounded.
    ///
    /// Forward, backward and at jumps, the bytes are those of the object, and no more than the bound are kept.
    #[test]
    fn any_order_of_reading_gives_the_bytes_and_stays_in_bounds() {
        let content = content();
        let (_store, mut blocks) = blocks_of(&content);
        let forward: Vec<u64> = (0..content.len() as u64).step_by(300_000).collect();
        let jumps = (0..200).map(|n| n * 7_654_321 % content.len() as u64);
        let places = forward.iter().copied().chain(forward.iter().rev().copied()).chain(jumps);
        for at in places {
            let (block, from) = blocks.block_with(at).unwrap();
            let length = 1000.min(block.len() - from);
            assert_eq!(block[from..from + length], content[at as usize..at as usize + length], "at {at}");
            assert!(blocks.kept.len() <= KEPT && blocks.order.len() == blocks.kept.len(), "{}", blocks.kept.len());
            assert!(blocks.coming.len() <= AHEAD as usize, "{}", blocks.coming.len());
        }
    }

    /// Invariant (input): An object in a store that changes while it is read is an error.
    ///
    /// An object that is written again while it is read is no mixture of both.
    #[test]
    fn an_object_that_changes_is_an_error() {
        let (store, mut blocks) = blocks_of(&content());
        blocks.block_with(0).unwrap();
        let key = Key::from("a");
        let put = store.put(&key, PutPayload::from(vec![0; content().len()]));
        runtime().unwrap().block_on(put).unwrap();
        let error = blocks.block_with(content().len() as u64 - 1).unwrap_err();
        assert!(error.to_string().contains("changed while it was read"), "{error}");
    }
}
