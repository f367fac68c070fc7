//! A map that keeps all open entries and the N most recently closed ones.

use std::collections::VecDeque;
use std::hash::Hash;

use rustc_hash::FxHashMap;

/// The number N: calls, launches, channels or proxy steps.
pub(super) const MAX_CLOSED: usize = if cfg!(miri) { 256 } else { 65_536 };

/// Later events look up entries by their key. Closed entries are discarded in the order in which they were closed.
#[derive(Debug)]
pub(super) struct BoundedMap<K, V> {
    entries: FxHashMap<K, V>,
    order: VecDeque<K>,
}

impl<K: Hash + Eq + Copy, V> BoundedMap<K, V> {
    pub(super) fn new() -> Self {
        Self { entries: FxHashMap::default(), order: VecDeque::new() }
    }

    /// Adds a closed entry.
    pub(super) fn insert(&mut self, key: K, value: V) {
        if self.entries.insert(key, value).is_none() {
            self.age(key);
        }
    }

    /// Adds an open entry. The number of open entries is bounded by that of handles.
    pub(super) fn open(&mut self, key: K, value: V) {
        self.entries.insert(key, value);
    }

    /// Closes an entry.
    pub(super) fn close(&mut self, key: K) {
        if self.entries.contains_key(&key) {
            self.age(key);
        }
    }

    fn age(&mut self, key: K) {
        self.order.push_back(key);
        if self.order.len() > MAX_CLOSED
            && let Some(oldest) = self.order.pop_front()
        {
            self.entries.remove(&oldest);
        }
    }

    pub(super) fn get(&self, key: K) -> Option<&V> {
        self.entries.get(&key)
    }

    pub(super) fn get_mut(&mut self, key: K) -> Option<&mut V> {
        self.entries.get_mut(&key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_entry_is_discarded_even_if_its_value_is_new() {
        let mut map = BoundedMap::new();
        map.insert(0, "first");
        map.insert(0, "again");
        (1..MAX_CLOSED).for_each(|key| map.insert(key, "more"));
        assert_eq!(map.get(0), Some(&"again"));
        map.insert(MAX_CLOSED, "one too many");
        assert_eq!((map.get(0), map.get(1)), (None, Some(&"more")));
    }

    #[test]
    fn open_entries_are_kept() {
        let mut map = BoundedMap::new();
        map.open(0, "open");
        for key in 1..=2 * MAX_CLOSED {
            map.open(key, "short");
            map.close(key);
        }
        assert_eq!((map.get(0), map.get(1)), (Some(&"open"), None));
        map.close(0);
        map.close(3 * MAX_CLOSED);
        (0..MAX_CLOSED).for_each(|key| map.insert(4 * MAX_CLOSED + key, "more"));
        assert_eq!((map.get(0), map.entries.len()), (None, MAX_CLOSED));
    }
}
