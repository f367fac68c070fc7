//! Dumps of torch's Flight Recorder: the process group and the number of each collective, where the trace names none.
//!
//! ```text
//! dump     created:  A  B        C   D  E        F          entries of one operation and size, in order
//! trace    rows:              [A] [B]     [C]  [D]          rows of the same: they begin after their entry
//! ```
//!
//! A back end runs the collectives of one operation and size in the order of their calls. So rows and entries have the same order,
//! and only the number of entries before the first row is unknown: it is the largest for which every row begins after its entry.

use std::collections::BTreeMap;

use trace::Text;

use crate::bytes::memory::Room;
use crate::meaning::flight_dump::{FlightDump, FlightEntry, RankLists};

/// An operation and its elements, where these are known.
pub(crate) type Likeness = (&'static str, Option<i64>);

/// A collective that the program handed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// UTC, in ns since 1970.
    pub(crate) created_ns: i64,
    /// Name of its process group.
    pub(crate) group: Text,
    /// Its number in the group.
    pub(crate) seq: i64,
}

/// The entries of a rank by operation and elements, each in the order of their creation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dump(BTreeMap<Likeness, Vec<Entry>>);

impl Dump {
    /// Reads a dump, a pickle or JSON, whose values are taken of `room`.
    ///
    /// # Errors
    /// The reason why it is none, or that it has no room.
    pub(crate) fn read(bytes: &[u8], room: &mut Room) -> Result<Self, String> {
        let mut dump = Self::default();
        FlightDump::read(bytes, &RankLists::default(), room)?.entries.into_iter().for_each(|entry| dump.add(entry));
        dump.0.values_mut().for_each(|entries| entries.sort_by_key(|entry| entry.created_ns));
        Ok(dump)
    }

    fn add(&mut self, entry: FlightEntry) {
        // Sends and receives have numbers of their own, by which their two sides do not meet.
        let Some(op) = entry.op.filter(|op| !matches!(*op, "send" | "recv")) else { return };
        let found = entry.created_ns.zip(entry.group).zip(entry.seq);
        let Some(((created_ns, group), seq)) = found else { return };
        self.0.entry((op, entry.input_elements)).or_default().push(Entry { created_ns, group, seq });
    }

    /// The entry of each row, where there is one. Rows are given by operation, elements and start.
    pub(crate) fn entries_of(&self, rows: &[(Likeness, i64)]) -> Vec<Option<&Entry>> {
        let mut found = vec![None; rows.len()];
        let mut alike: BTreeMap<Likeness, Vec<usize>> = BTreeMap::new();
        for (at, (likeness, _)) in rows.iter().enumerate() {
            alike.entry(*likeness).or_default().push(at);
        }
        for (likeness, mut own) in alike {
            let Some(entries) = self.0.get(&likeness) else { continue };
            own.sort_by_key(|at| rows[*at].1);
            let before = |at: &usize| entries.partition_point(|entry| entry.created_ns <= rows[*at].1) as i64;
            let shift = (1..).zip(&own).map(|(number, at): (i64, _)| before(at) - number).min().unwrap_or(0);
            for (number, at) in (0..).zip(own) {
                found[at] = usize::try_from(number + shift).ok().and_then(|number| entries.get(number));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REDUCE: Likeness = ("allreduce", Some(8));

    fn dump(created: &[i64]) -> Dump {
        let entry = |(seq, at): (usize, &i64)| {
            format!(
                r#"{{"profiling_name": "gloo:all_reduce", "time_created_ns": {at}, "process_group": ["3", "tp"],
                "collective_seq_id": {seq}, "input_sizes": [[2, 4]]}}"#
            )
        };
        let entries: Vec<String> = created.iter().enumerate().map(entry).collect();
        Dump::read(
            format!(r#"{{"version": "2.10", "entries": [{}]}}"#, entries.join(",")).as_bytes(),
            &mut Room::unlimited(),
        )
        .unwrap()
    }

    fn numbers(created: &[i64], starts: &[i64]) -> Vec<Option<i64>> {
        let rows: Vec<(Likeness, i64)> = starts.iter().map(|start| (REDUCE, *start)).collect();
        dump(created).entries_of(&rows).into_iter().map(|entry| entry.map(|entry| entry.seq)).collect()
    }

    /// ```text
    /// entries   0   10  20  30  40                     0  10  20               0 1 2
    /// rows              [22 ][33 ]                      [12] [21] [30]                 [9][10][11]
    ///           a window within                     one more row than entries: a queue: all are called first
    /// ```
    #[test]
    fn rows_begin_after_their_entries_in_the_same_order() {
        assert_eq!(numbers(&[0, 10, 20, 30, 40], &[22, 33]), [Some(2), Some(3)]);
        assert_eq!(numbers(&[0, 10, 20], &[12, 21, 30]), [Some(0), Some(1), Some(2)]);
        assert_eq!(numbers(&[10, 20], &[5, 12, 21]), [None, Some(0), Some(1)]);
        assert_eq!(numbers(&[0, 1, 2], &[9, 10, 11]), [Some(0), Some(1), Some(2)]);
        assert_eq!(numbers(&[], &[1]), [None]);
        assert_eq!(dump(&[1]).entries_of(&[(("allreduce", Some(9)), 5)]), [None], "of another size");
    }

    #[test]
    fn what_is_no_dump_is_said() {
        let why = |bytes: &[u8]| Dump::read(bytes, &mut Room::unlimited()).unwrap_err();
        assert_eq!(
            (why(b"{}").as_str(), why(b"text").as_str()),
            ("it has no entries", "it is no JSON: byte 4: the file ends inside a value")
        );
        assert!(why(b"\x80\x04N.").contains("entries") && why(b"\x80").contains("ends here"), "{}", why(b"\x80"));
        let whole = Dump::read(br#"{"entries": [1, {"profiling_name": "gloo:all_reduce"}]}"#, &mut Room::unlimited());
        assert_eq!(whole, Ok(Dump::default()), "entries without their fields are left out");
    }
}
