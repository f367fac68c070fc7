//! The order of the rows of a rank: by start, an enclosing row before the rows inside it.

use trace::rank::{Events, NO_PARENT};

/// Sorts rows by start, then longest first, then by id, so that an enclosing row precedes the rows inside it. Updates
/// the parents.
pub fn sort_rows(events: &mut Events) {
    let Some(order) = sorting_order(events) else { return };
    let mut sorted = permuted(events, &order);
    if !events.parent.is_empty() {
        let mut new_row = vec![0_u32; order.len()];
        for (new, old) in order.iter().enumerate() {
            new_row[*old as usize] = new as u32;
        }
        sorted.parent = order
            .iter()
            .map(|old| match events.parent[*old as usize] {
                NO_PARENT => NO_PARENT,
                parent => new_row[parent as usize],
            })
            .collect();
    }
    *events = sorted;
}

/// The permutation of [`sort_rows`]; `None` if the rows are sorted already.
pub fn sorting_order(events: &Events) -> Option<Vec<u32>> {
    let (ts, dur, id) = (&events.ts_ns, &events.dur_ns, &events.id);
    let key = |row: usize| (ts[row], std::cmp::Reverse(dur[row]), id[row]);
    if (1..events.len()).all(|row| ts[row - 1] < ts[row] || key(row - 1) <= key(row)) {
        return None;
    }
    let mut order: Vec<u32> = (0..events.len() as u32).collect();
    // The stable sort merges sorted runs, and the parts are a few long sorted runs.
    order.sort_by_key(|row| key(*row as usize));
    Some(order)
}

/// The values of a column at `rows`; none of a column that is empty.
pub fn gather<T: Copy>(column: &[T], rows: &[u32]) -> Vec<T> {
    if column.is_empty() { Vec::new() } else { rows.iter().map(|row| column[*row as usize]).collect() }
}

/// Permutes all columns except `parent`, which stays empty.
pub fn permuted(events: &Events, rows: &[u32]) -> Events {
    Events {
        kind: gather(&events.kind, rows),
        name: gather(&events.name, rows),
        ts_ns: gather(&events.ts_ns, rows),
        dur_ns: gather(&events.dur_ns, rows),
        id: gather(&events.id, rows),
        step: gather(&events.step, rows),
        thread: gather(&events.thread, rows),
        device: gather(&events.device, rows),
        stream: gather(&events.stream, rows),
        correlation: gather(&events.correlation, rows),
        external: gather(&events.external, rows),
        parent: Vec::new(),
        is_comm: gather(&events.is_comm, rows),
        bytes: gather(&events.bytes, rows),
        flops: gather(&events.flops, rows),
    }
}
