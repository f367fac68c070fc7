//! Collectives that were reported but have not ended.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::queue_entry::Collective;

/// The most collectives in flight that are kept. More of them are a leak of the caller.
pub(super) const MAX_IN_FLIGHT: usize = 4096;

/// Identity of a collective in flight: communicator, sequence number, operation, peer.
pub(super) type CollectiveKey = (i64, i64, &'static str, Option<i32>);

/// The key that all reports of one collective have in common.
fn key(c: &Collective) -> CollectiveKey {
    (c.comm_id, c.seq, c.op.as_str(), c.peer)
}

#[derive(Debug)]
struct Entry {
    collective: Collective,
    since: Instant,
    written: bool,
}

impl Entry {
    /// Whether no part contains this report yet, although the collective has been in flight for `period`. Shorter
    /// collectives end in the next part at the latest: rows for them would only repeat their final rows.
    fn is_news(&self, period: Duration) -> bool {
        !self.written && self.since.elapsed() >= period
    }
}

/// The collectives in flight of one rank.
#[derive(Debug, Default)]
pub(super) struct InFlight(BTreeMap<CollectiveKey, Entry>);

impl InFlight {
    /// Keeps a report. Returns `false` if too many collectives are in flight.
    pub(super) fn report(&mut self, collective: Collective) -> bool {
        let key = key(&collective);
        if let Some(known) = self.0.get_mut(&key) {
            *known = Entry { collective, written: false, ..*known };
        } else if self.0.len() < MAX_IN_FLIGHT {
            self.0.insert(key, Entry { collective, since: Instant::now(), written: false });
        } else {
            return false;
        }
        true
    }

    /// Removes a collective that has ended.
    pub(super) fn end(&mut self, collective: &Collective) {
        self.0.remove(&key(collective));
    }

    /// Keys of the collectives that a part should contain now.
    pub(super) fn news(&self, period: Duration) -> Vec<CollectiveKey> {
        self.0.iter().filter(|(_, entry)| entry.is_news(period)).map(|(key, _)| *key).collect()
    }

    /// Whether [`news`](Self::news) returns any key.
    pub(super) fn has_news(&self, period: Duration) -> bool {
        self.0.values().any(|entry| entry.is_news(period))
    }

    /// The collectives of these keys.
    pub(super) fn get<'a>(&'a self, keys: &'a [CollectiveKey]) -> impl Iterator<Item = &'a Collective> {
        keys.iter().filter_map(|key| self.0.get(key)).map(|entry| &entry.collective)
    }

    /// Marks the reports of these keys as contained in a part.
    pub(super) fn set_written(&mut self, keys: &[CollectiveKey]) {
        for key in keys {
            if let Some(entry) = self.0.get_mut(key) {
                entry.written = true;
            }
        }
    }
}
