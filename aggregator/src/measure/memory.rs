//! The memory in use over time, its peak, and the largest holders at the peak.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use trace::{MemoryCurveRow, MemoryPeakRow, MemoryRow, Text};

/// The most holders that a row lists.
const NAMED: usize = 5;
/// The name of the holder for memory that was allocated before the recording began.
const BEFORE: &str = "before the recording";
/// The number of time spans of a curve. The curve has at most one point for each.
const CURVE_POINTS: i64 = 200;

/// Makes one row for each device of a rank, and one for its host, from rows sorted by time. `ts_ns` is in the rank's
/// clock.
pub(crate) fn memory_peaks(rank: i32, rows: &[MemoryRow]) -> Vec<MemoryPeakRow> {
    let mut by_device: BTreeMap<Option<i64>, Vec<&MemoryRow>> = BTreeMap::new();
    for row in rows {
        by_device.entry(row.device_id).or_default().push(row);
    }
    by_device.into_iter().filter_map(|(device, rows)| peak(rank, device, &rows)).collect()
}

fn peak(rank: i32, device_id: Option<i64>, rows: &[&MemoryRow]) -> Option<MemoryPeakRow> {
    let mut peak: Option<(usize, i64)> = None;
    for (index, in_use) in in_use(rows).enumerate() {
        if peak.is_none_or(|(_, bytes)| in_use > bytes) {
            peak = Some((index, in_use));
        }
    }
    let (index, peak_bytes) = peak?;
    // Only the allocator's own count includes memory from before the recording.
    let allocated = rows[index].allocated_bytes;
    Some(MemoryPeakRow {
        rank,
        device_id,
        ts_ns: rows[index].ts_ns,
        peak_bytes,
        alive: alive(&rows[..=index], allocated),
    })
}

/// The bytes in use after each row.
fn in_use<'a>(rows: &'a [&MemoryRow]) -> impl Iterator<Item = i64> + 'a {
    rows.iter().scan(0_i64, |in_use, row| {
        // The allocator's own count is preferred to the sum of recorded changes, because the recording may have begun
        // later than the program.
        *in_use = row.allocated_bytes.unwrap_or(in_use.saturating_add(row.delta_bytes));
        Some(*in_use)
    })
}

/// The curve of each device of a rank and of its host, from rows sorted by time. `ts_ns` is in the rank's clock.
///
/// ```text
/// in use   12334 21113 44444 32211
/// points      4↑ 2↑    4↑    3↑        the highest value of each span
/// ```
pub(crate) fn memory_curve(rank: i32, rows: &[MemoryRow]) -> Vec<MemoryCurveRow> {
    let mut by_device: BTreeMap<Option<i64>, Vec<&MemoryRow>> = BTreeMap::new();
    for row in rows {
        by_device.entry(row.device_id).or_default().push(row);
    }
    let mut curve = Vec::new();
    for (device_id, rows) in by_device {
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else { continue };
        let span_ns = (last.ts_ns.saturating_sub(first.ts_ns) / CURVE_POINTS).saturating_add(1);
        let mut current = None;
        for (row, in_use_bytes) in rows.iter().zip(in_use(&rows)) {
            let span = row.ts_ns.saturating_sub(first.ts_ns) / span_ns;
            let point =
                MemoryCurveRow { rank, device_id, ts_ns: row.ts_ns, in_use_bytes, reserved_bytes: row.reserved_bytes };
            match (&mut current, curve.last_mut()) {
                (Some(at), Some(highest)) if *at == span => {
                    let highest: &mut MemoryCurveRow = highest;
                    if in_use_bytes > highest.in_use_bytes {
                        *highest = point;
                    }
                }
                _ => {
                    current = Some(span);
                    curve.push(point);
                }
            }
        }
    }
    curve
}

/// The largest holders after `rows`, as `name=bytes`, separated by `; `. `allocated` is the allocator's count of bytes
/// in use.
///
/// A release is joined with its allocation by address. It reduces the bytes of the operator that allocated the memory,
/// even if another operator releases it.
fn alive(rows: &[&MemoryRow], allocated: Option<i64>) -> Text {
    let mut blocks: FxHashMap<i64, (&str, i64)> = FxHashMap::default();
    let mut held: BTreeMap<&str, i64> = BTreeMap::new();
    for row in rows {
        let name = row.name.as_deref().unwrap_or("unnamed");
        let (name, bytes) = match row.address {
            Some(address) if row.delta_bytes >= 0 => {
                blocks.insert(address, (name, row.delta_bytes));
                (name, row.delta_bytes)
            }
            // Memory from before the recording has no recorded allocation, so its release changes no other holder.
            Some(address) => blocks.remove(&address).map_or((BEFORE, 0), |(name, bytes)| (name, -bytes)),
            None => (name, row.delta_bytes),
        };
        let sum = held.entry(name).or_default();
        *sum = sum.saturating_add(bytes);
    }
    let seen: i64 = held.values().copied().fold(0, i64::saturating_add);
    if let Some(allocated) = allocated {
        held.insert(BEFORE, allocated.saturating_sub(seen));
    }
    let mut held: Vec<(&str, i64)> = held.into_iter().filter(|(_, bytes)| *bytes > 0).collect();
    held.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let named: Vec<String> = held.iter().take(NAMED).map(|(name, bytes)| format!("{name}={bytes}")).collect();
    named.join("; ").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(ts_ns: i64, name: &str, delta_bytes: i64, allocated_bytes: Option<i64>) -> MemoryRow {
        MemoryRow { ts_ns, name: Some(name.into()), delta_bytes, allocated_bytes, ..MemoryRow::default() }
    }

    #[test]
    fn the_peak_is_at_the_most_bytes_in_use() {
        //  weights      ####################
        //  activations  ....########........
        //  gradients    ........########....
        let rows = [
            row(0, "weights", 100, None),
            row(4, "activations", 60, None),
            row(8, "gradients", 50, None),
            row(12, "activations", -60, None),
            row(16, "gradients", -50, None),
        ];
        let peaks = memory_peaks(3, &rows);
        assert_eq!(peaks.len(), 1);
        assert_eq!((peaks[0].rank, peaks[0].ts_ns, peaks[0].peak_bytes), (3, 8, 210));
        assert_eq!(&*peaks[0].alive, "weights=100; activations=60; gradients=50");
    }

    #[test]
    fn memory_from_before_the_recording_is_a_holder() {
        let peaks = memory_peaks(0, &[row(1, "a", 10, Some(1010)), row(2, "a", -10, Some(1000))]);
        assert_eq!(peaks[0].peak_bytes, 1010);
        assert_eq!(&*peaks[0].alive, "before the recording=1000; a=10");
    }

    #[test]
    fn a_release_reduces_the_operator_that_allocated() {
        //  linear 0x1   ##########
        //  relu   0x2     ####......          released by another operator
        //  linear 0x1               ####      the same address again
        //  0x9          allocated before the recording, released during it
        let at = |ts_ns, name, delta_bytes, address| MemoryRow {
            address: Some(address),
            ..row(ts_ns, name, delta_bytes, None)
        };
        let rows = [
            at(0, "linear", 100, 1),
            at(1, "copy", -7, 9),
            at(2, "relu", 50, 2),
            at(6, "backward", -50, 2),
            at(10, "backward", -100, 1),
            at(11, "linear", 200, 1),
        ];
        let peaks = memory_peaks(0, &rows);
        assert_eq!((peaks[0].ts_ns, &*peaks[0].alive), (11, "linear=200"));
        assert_eq!(&*memory_peaks(0, &rows[..4])[0].alive, "linear=100; relu=50");
    }

    #[test]
    fn a_curve_has_the_peak_of_every_span() {
        let rows: Vec<MemoryRow> =
            (0..10_000).map(|i| row(i * 10, "a", if i % 2 == 0 { 100 } else { -100 }, None)).collect();
        let curve = memory_curve(2, &rows);
        assert!(curve.len() <= CURVE_POINTS as usize && curve.len() > 190, "{}", curve.len());
        assert!(curve.iter().all(|p| p.in_use_bytes == 100 && p.rank == 2));
        assert!(curve.is_sorted_by_key(|p| p.ts_ns));
        assert_eq!(memory_curve(0, &[]), []);
    }
}
