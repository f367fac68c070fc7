//! The order of a file's rows: by start, then longest first, then as in the file.

use rayon::prelude::*;

use crate::columns::batch::Columns;

/// Rows in one task of a thread.
pub(super) const MIN_ROWS: usize = 1 << 14;
/// Parts that are sorted in parallel. Each reads all starts.
const MAX_SORT_PARTS: usize = 8;
/// One start of so many shows where the parts end.
const SAMPLED_ROWS: usize = 256;

/// The number of rows of all pieces.
pub(super) fn rows_in(pieces: &[(u32, Columns)]) -> usize {
    pieces.iter().map(|(_, p)| p.len()).sum()
}

/// The order in which rows are kept: by start, then longest first, then as in the file.
pub(super) fn order_rows(pieces: &[(u32, Columns)]) -> Vec<u32> {
    let total = rows_in(pieces);
    let spans = pieces.par_iter().filter_map(|(_, p)| Some((*p.ts_ns.iter().min()?, *p.ts_ns.iter().max()?)));
    let Some((first_ns, last_ns)) = spans.reduce_with(|a, b| (a.0.min(b.0), a.1.max(b.1))) else { return Vec::new() };
    let row_bits = usize::BITS - total.leading_zeros();
    let span_bits = u64::BITS - last_ns.abs_diff(first_ns).leading_zeros();
    if row_bits + span_bits > u64::BITS {
        return order_any_rows(pieces);
    }
    let places = Places::of(pieces);
    let bounds = bounds_of_parts(pieces);
    let parts = (0..=bounds.len()).into_par_iter().map(|part| {
        let from = part.checked_sub(1).map_or(i64::MIN, |before| bounds[before]);
        let is_in = |ts_ns: i64| from <= ts_ns && bounds.get(part).is_none_or(|until| ts_ns < *until);
        order_part(pieces, &places, is_in, (first_ns, row_bits))
    });
    parts.collect::<Vec<_>>().concat()
}

/// Starts at which the rows are divided into parts of about equal length, which are sorted in parallel.
fn bounds_of_parts(pieces: &[(u32, Columns)]) -> Vec<i64> {
    let total = rows_in(pieces);
    // Other columns are joined at the same time. With more parts than threads, the threads end together.
    let parts = (total / MIN_ROWS).clamp(1, (2 * rayon::current_num_threads()).min(MAX_SORT_PARTS));
    let starts = pieces.iter().flat_map(|(_, p)| p.ts_ns.iter().step_by(SAMPLED_ROWS).copied());
    let mut sample: Vec<i64> = if parts > 1 { starts.collect() } else { Vec::new() };
    sample.sort_unstable();
    (1..parts).filter_map(|part| sample.get(part * sample.len() / parts).copied()).collect()
}

/// The order of the rows whose start is wanted. A key has the time since `first_ns`, and the row in its last `row_bits` bits.
fn order_part(
    pieces: &[(u32, Columns)],
    places: &Places,
    is_in: impl Fn(i64) -> bool,
    (first_ns, row_bits): (i64, u32),
) -> Vec<u32> {
    let count = |(_, piece): &(u32, Columns)| piece.ts_ns.iter().filter(|ts_ns| is_in(**ts_ns)).count();
    // Start and row number share one integer, which takes a third of the memory and sorts several times as fast.
    let mut keys: Vec<u64> = Vec::with_capacity(pieces.iter().map(count).sum());
    for ((_, piece), first) in pieces.iter().zip(&places.firsts) {
        let rows = piece.ts_ns.iter().zip(*first as u64..).filter(|(ts_ns, _)| is_in(**ts_ns));
        keys.extend(rows.map(|(ts_ns, row)| ts_ns.abs_diff(first_ns) << row_bits | row));
    }
    // Each thread and stream writes its rows in order. The standard library's stable sort finds such runs and merges them.
    keys.sort();
    let row_of = |key: &u64| (key & ((1 << row_bits) - 1)) as u32;
    let mut order: Vec<u32> = keys.iter().map(row_of).collect();
    let dur_ns = |row: u32| {
        let (piece, at) = places.find(row);
        pieces[piece].1.dur_ns[at]
    };
    let mut from = 0;
    for tied in keys.chunk_by(|a, b| a >> row_bits == b >> row_bits) {
        let rows = &mut order[from..from + tied.len()];
        if rows.len() > 1 {
            rows.sort_by_cached_key(|row| std::cmp::Reverse(dur_ns(*row)));
        }
        from += tied.len();
    }
    order
}

/// Finds the rows of the file in its pieces.
pub(super) struct Places {
    /// The number of the first row of each piece.
    firsts: Vec<usize>,
}

impl Places {
    pub(super) fn of(pieces: &[(u32, Columns)]) -> Self {
        let mut next = 0;
        let first = |(_, piece): &(u32, Columns)| {
            let first = next;
            next += piece.len();
            first
        };
        Self { firsts: pieces.iter().map(first).collect() }
    }

    /// The piece of a row, and its place there.
    pub(super) fn find(&self, row: u32) -> (usize, usize) {
        let piece = self.firsts.partition_point(|first| *first <= row as usize) - 1;
        (piece, row as usize - self.firsts[piece])
    }
}

/// As [`order_rows`], for times too far apart to share an integer with a row number.
fn order_any_rows(pieces: &[(u32, Columns)]) -> Vec<u32> {
    let mut keys: Vec<(i64, i64, u32)> = Vec::with_capacity(rows_in(pieces));
    for (_, piece) in pieces {
        for (ts, dur) in piece.ts_ns.iter().zip(&piece.dur_ns) {
            keys.push((*ts, -*dur, keys.len() as u32));
        }
    }
    keys.par_sort_unstable();
    keys.into_iter().map(|(_, _, row)| row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of a few threads in pieces: each thread writes in order, and many rows begin at the same time.
    fn pieces(rows: usize) -> Vec<(u32, Columns)> {
        let mut random = 7_u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % below
        };
        let (mut pieces, mut times) = (Vec::new(), [0_i64; 3]);
        while rows_in(&pieces) < rows {
            let mut piece = Columns::default();
            for _ in 0..next(900) {
                let time = &mut times[next(3) as usize];
                *time += next(4) as i64;
                piece.ts_ns.push(*time);
                piece.dur_ns.push(next(3) as i64);
            }
            pieces.push((0, piece));
        }
        pieces
    }

    #[test]
    fn any_number_of_parts_gives_the_same_order() -> Result<(), rayon::ThreadPoolBuildError> {
        let pieces = pieces(5 * MIN_ROWS);
        let expected = order_any_rows(&pieces);
        for threads in [1, 2, 3, 16] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
            let bounds = pool.install(|| bounds_of_parts(&pieces).len());
            assert_eq!(bounds + 1, (2 * threads).min(5));
            assert!(pool.install(|| order_rows(&pieces)) == expected, "{threads} threads");
        }
        assert!(order_rows(&[]).is_empty());
        Ok(())
    }
}
