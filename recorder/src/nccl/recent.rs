//! What is remembered for what refers to it later: so much of it, and no more.

use std::collections::VecDeque;
use std::hash::Hash;

use rustc_hash::FxHashMap;

/// Calls, launches, and channels and proxy steps that are over, that are remembered, of each.
pub(super) const MAX_REMEMBERED: usize = 65_536;

/// A map that forgets its oldest entries, but none that is open.
#[derive(Debug)]
pub(super) struct Recent<K, V> {
    entries: FxHashMap<K, V>,
    order: VecDeque<K>,
}

impl<K: Hash + Eq + Copy, V> Recent<K, V> {
    pub(super) fn new() -> Self {
        Self { entries: FxHashMap::default(), order: VecDeque::new() }
    }

    /// Adds what may be forgotten.
    pub(super) fn insert(&mut self, key: K, value: V) {
        if self.entries.insert(key, value).is_none() {
            self.age(key);
        }
    }

    /// Adds what is not forgotten before it is closed: there are no more of these than handles.
    pub(super) fn open(&mut self, key: K, value: V) {
        self.entries.insert(key, value);
    }

    /// From now on it may be forgotten.
    pub(super) fn close(&mut self, key: K) {
        if self.entries.contains_key(&key) {
            self.age(key);
        }
    }

    fn age(&mut self, key: K) {
        self.order.push_back(key);
        if self.order.len() > MAX_REMEMBERED
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
    fn the_oldest_is_forgotten_and_a_new_value_makes_nothing_younger() {
        let mut recent = Recent::new();
        recent.insert(0, "first");
        recent.insert(0, "again");
        (1..MAX_REMEMBERED).for_each(|key| recent.insert(key, "more"));
        assert_eq!(recent.get(0), Some(&"again"));
        recent.insert(MAX_REMEMBERED, "one too many");
        assert_eq!((recent.get(0), recent.get(1)), (None, Some(&"more")));
    }

    #[test]
    fn what_is_open_is_not_forgotten() {
        let mut recent = Recent::new();
        recent.open(0, "open");
        for key in 1..=2 * MAX_REMEMBERED {
            recent.open(key, "short");
            recent.close(key);
        }
        assert_eq!((recent.get(0), recent.get(1)), (Some(&"open"), None));
        recent.close(0);
        recent.close(3 * MAX_REMEMBERED);
        (0..MAX_REMEMBERED).for_each(|key| recent.insert(4 * MAX_REMEMBERED + key, "more"));
        assert_eq!((recent.get(0), recent.entries.len()), (None, MAX_REMEMBERED));
    }
}
