//! The highest use of memory, and what was alive then.

use std::collections::BTreeMap;

use trace::{MemoryPeakRow, MemoryRow, Text};

/// Holders that are named.
const NAMED: usize = 5;

/// One row for each device of a rank (and for its host), from rows sorted by time. `ts_ns` is in the rank's clock.
pub(crate) fn memory_peaks(rank: i32, rows: &[MemoryRow]) -> Vec<MemoryPeakRow> {
    let mut by_device: BTreeMap<Option<i64>, Vec<&MemoryRow>> = BTreeMap::new();
    for row in rows {
        by_device.entry(row.device_id).or_default().push(row);
    }
    by_device.into_iter().filter_map(|(device, rows)| peak(rank, device, &rows)).collect()
}

fn peak(rank: i32, device_id: Option<i64>, rows: &[&MemoryRow]) -> Option<MemoryPeakRow> {
    let mut in_use = 0_i64;
    let mut peak: Option<(usize, i64)> = None;
    for (index, row) in rows.iter().enumerate() {
        // What the allocator says is in use beats the sum of what was seen: the recording may have begun later than the program.
        in_use = row.allocated_bytes.unwrap_or(in_use.saturating_add(row.delta_bytes));
        if peak.is_none_or(|(_, bytes)| in_use > bytes) {
            peak = Some((index, in_use));
        }
    }
    let (index, peak_bytes) = peak?;
    Some(MemoryPeakRow { rank, device_id, ts_ns: rows[index].ts_ns, peak_bytes, alive: alive(&rows[..=index]) })
}

/// The largest holders after `rows`, as `name=bytes`, separated by `; `.
fn alive(rows: &[&MemoryRow]) -> Text {
    let mut held: BTreeMap<&str, i64> = BTreeMap::new();
    for row in rows {
        let bytes = held.entry(row.name.as_deref().unwrap_or("unnamed")).or_default();
        *bytes = bytes.saturating_add(row.delta_bytes);
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
    fn the_peak_is_where_most_is_alive() {
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
    fn the_allocator_knows_what_was_there_before() {
        let peaks = memory_peaks(0, &[row(1, "a", 10, Some(1010)), row(2, "a", -10, Some(1000))]);
        assert_eq!(peaks[0].peak_bytes, 1010);
    }
}
