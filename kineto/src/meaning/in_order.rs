//! Joins kernels whose launches are unknown with the records of their collectives, by order.
//!
//! RCCL's kernels have the correlation 0 in some traces. A stream runs collectives in the order of their calls, so the
//! n-th kernel of a stream belongs to the n-th record of the stream's process group:
//!
//! ```text
//! records of group 0   a ─  b ─      c ─
//! kernels of stream 7    a ────  b ───  c ──
//! ```

use std::collections::BTreeMap;

use crate::meaning::context::Record;

/// A kernel whose launch is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unlaunched {
    /// Its place in the caller's list.
    pub(crate) at: usize,
    pub(crate) end_ns: i64,
    /// The operation in its name.
    pub(crate) op: Option<&'static str>,
}

/// The row of the record of each kernel, with the kernel's place. The kernels of a stream and the records of a group are in the order
/// of time. A stream has the records of a group, or those of one of its operations; an only stream may have all. Where two
/// of these fit a stream, or two streams one of them, their records stay unknown.
pub(crate) fn join_in_order(streams: &[Vec<Unlaunched>], mut groups: Vec<Vec<Record>>) -> Vec<(usize, u32)> {
    let by_operation: Vec<Vec<Record>> = groups.iter().flat_map(|records| of_each_operation(records)).collect();
    if let ([_], [_, _, ..]) = (streams, &*groups) {
        let mut all: Vec<Record> = groups.iter().flatten().copied().collect();
        all.sort_unstable_by_key(|record| (record.ts_ns, record.row));
        groups.push(all);
    }
    groups.extend(by_operation);
    let fitting = |kernels: &[Unlaunched]| only((0..groups.len()).filter(|group| fits(kernels, &groups[*group])));
    let chosen: Vec<Option<usize>> = streams.iter().map(|kernels| fitting(kernels)).collect();
    let is_only = |group: usize| {
        let streams_of_group = streams.iter().filter(|kernels| fits(kernels, &groups[group]));
        only(streams_of_group).is_some()
    };
    let joined =
        streams.iter().zip(chosen).filter_map(|(kernels, group)| Some((kernels, group.filter(|g| is_only(*g))?)));
    joined
        .flat_map(|(kernels, group)| kernels.iter().zip(&groups[group]).map(|(k, record)| (k.at, record.row)))
        .collect()
}

/// The records of each operation, if there are several.
fn of_each_operation(records: &[Record]) -> Vec<Vec<Record>> {
    let mut by_operation: BTreeMap<&str, Vec<Record>> = BTreeMap::new();
    records.iter().for_each(|record| by_operation.entry(record.op).or_default().push(*record));
    if by_operation.len() > 1 { by_operation.into_values().collect() } else { Vec::new() }
}

/// Whether these kernels may carry out these records: as many of them, none over before its call, of the same operations.
fn fits(kernels: &[Unlaunched], records: &[Record]) -> bool {
    kernels.len() == records.len()
        && kernels
            .iter()
            .zip(records)
            .all(|(kernel, record)| record.ts_ns < kernel.end_ns && kernel.op.is_none_or(|op| record.may_be(op)))
}

fn only<T>(mut all: impl Iterator<Item = T>) -> Option<T> {
    let first = all.next()?;
    all.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernels(ends: &[i64], op: Option<&'static str>) -> Vec<Unlaunched> {
        ends.iter().enumerate().map(|(at, end_ns)| Unlaunched { at, end_ns: *end_ns, op }).collect()
    }

    fn records(first: u32, starts: &[i64], op: &'static str) -> Vec<Record> {
        (first..).zip(starts).map(|(row, ts_ns)| Record { row, ts_ns: *ts_ns, op }).collect()
    }

    #[test]
    fn kernels_take_records_in_order_where_only_one_order_is_possible() {
        let generic = || kernels(&[10, 20, 30], None);
        let reduces = |starts: &[i64]| records(5, starts, "allreduce");
        assert_eq!(join_in_order(&[generic()], vec![reduces(&[1, 11, 12])]), [(0, 5), (1, 6), (2, 7)]);
        // One record more or less; a kernel that is over before its call; another operation.
        for starts in [&[1, 11][..], &[1, 11, 12, 13], &[1, 20, 21]] {
            assert_eq!(join_in_order(&[generic()], vec![reduces(starts)]), [], "{starts:?}");
        }
        assert_eq!(join_in_order(&[kernels(&[10], Some("allgather"))], vec![reduces(&[1])]), []);
        assert_eq!(join_in_order(&[kernels(&[10], Some("sendrecv"))], vec![records(5, &[1], "recv")]), [(0, 5)]);
    }

    #[test]
    fn each_stream_takes_the_group_that_fits_it_alone() {
        let two = [kernels(&[10, 20], None), kernels(&[15], None)];
        let groups = || vec![records(3, &[9], "allgather"), records(7, &[1, 2], "allreduce")];
        assert_eq!(join_in_order(&two, groups()), [(0, 7), (1, 8), (0, 3)]);
        // Two streams with as many kernels: either may be the group's.
        let alike = [kernels(&[10], None), kernels(&[15], None)];
        assert_eq!(join_in_order(&alike, groups()), []);
        // Gathers and reductions of one group have a stream each.
        let mixed = vec![[records(3, &[9], "allgather"), records(7, &[1, 2], "allreduce")].concat()];
        assert_eq!(join_in_order(&two, mixed), [(0, 7), (1, 8), (0, 3)]);
        // One stream carries out the collectives of both groups.
        assert_eq!(join_in_order(&[kernels(&[10, 20, 30], None)], groups()), [(0, 7), (1, 8), (2, 3)]);
    }
}
