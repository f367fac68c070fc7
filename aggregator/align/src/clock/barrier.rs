//! Offset limits from the barrier rule: shortest paths through instances.
//!
//! No rank leaves a synchronising collective before every rank has entered it. Each instance gets a moment `h` between
//! the last arrival and the first departure. This gives two inequalities per rank instead of one per pair of ranks:
//!
//! ```text
//! rank 0   ───|start════════════end|──────
//! rank 1   ─────────|start══════end|──────        offset_s + start_s  ≤  h  ≤  offset_r + end_r
//! rank 2   ──────|start═══════════════end|
//!                   ↑ last in   ↑ first out
//!                   └─── h ─────┘
//! ```
//!
//! These are difference constraints. The largest offset of a clock against the reference is the shortest path between
//! them, along (left r → instance → entered by s). A cycle of negative length is a contradiction, and its edges name
//! the instances involved.

use trace::MaybeNs;

/// One clock's entry in one instance. Times are in a frame in which all clocks nearly agree.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Entry {
    pub(crate) clock: usize,
    pub(crate) start: i64,
    /// Earliest departure; unknown if the rank did not leave.
    pub(crate) end: MaybeNs,
}

/// Offset of a clock that no path reaches.
pub(crate) const UNREACHED: i64 = i64::MAX;

/// Instances and clocks that contradict each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contradiction {
    /// Indices into the list of instances.
    pub(crate) instances: Vec<usize>,
    pub(crate) clocks: Vec<usize>,
}

/// The greatest offset of each clock over that of `reference`, or [`UNREACHED`].
///
/// `relax` gives the possible error of an entry at its time in the frame, because clocks drift.
pub(crate) fn greatest_offsets(
    instances: &[&[Entry]],
    clocks: usize,
    reference: usize,
    relax: impl Fn(i64) -> i64,
) -> Result<Vec<i64>, Contradiction> {
    offsets(instances, |entry| *entry, clocks, reference, relax)
}

/// The greatest offsets by the entries that `turn` makes of those of the instances.
fn offsets(
    instances: &[&[Entry]],
    turn: impl Fn(&Entry) -> Entry,
    clocks: usize,
    reference: usize,
    relax: impl Fn(i64) -> i64,
) -> Result<Vec<i64>, Contradiction> {
    let mut offset = vec![UNREACHED; clocks];
    // Predecessor on the shortest path: the instance, and the clock that left it.
    let mut before: Vec<Option<(usize, usize)>> = vec![None; clocks];
    offset[reference] = 0;
    // A shortest path visits each clock once, so a path that still shrinks after this many rounds contains a negative
    // cycle.
    for _ in 0..=clocks + 1 {
        let mut changed = None;
        for (k, entries) in instances.iter().enumerate() {
            let left = |e: Entry| match (e.end.get(), offset[e.clock]) {
                (None, _) | (_, UNREACHED) => None,
                (Some(end), known) => Some((known.saturating_add(end).saturating_add(relax(end)), e.clock)),
            };
            let Some((first_out, by)) = entries.iter().map(&turn).filter_map(left).min() else { continue };
            for entry in entries.iter().map(&turn) {
                let limit = first_out.saturating_sub(entry.start).saturating_add(relax(entry.start));
                if limit < offset[entry.clock] {
                    offset[entry.clock] = limit;
                    before[entry.clock] = Some((k, by));
                    changed = Some(entry.clock);
                }
            }
        }
        match changed {
            Option::None => return Ok(offset),
            Some(clock) if offset[reference] < 0 => return Err(cycle(&before, reference, clock)),
            Some(_) => {}
        }
    }
    let last = (0..clocks).rev().find(|c| before[*c].is_some()).unwrap_or(reference);
    Err(cycle(&before, last, reference))
}

/// Follows the paths back from `from` until a clock repeats.
fn cycle(before: &[Option<(usize, usize)>], from: usize, or_from: usize) -> Contradiction {
    for start in [from, or_from] {
        let mut seen = vec![false; before.len()];
        let mut clock = start;
        while !seen[clock] {
            seen[clock] = true;
            match before[clock] {
                Some((_, by)) => clock = by,
                None => break,
            }
        }
        let first = clock;
        let mut found = Contradiction { instances: Vec::new(), clocks: Vec::new() };
        while let Some((instance, by)) = before[clock] {
            found.instances.push(instance);
            found.clocks.push(clock);
            clock = by;
            if clock == first {
                found.instances.sort_unstable();
                found.instances.dedup();
                found.clocks.sort_unstable();
                return found;
            }
        }
    }
    // Unreachable by the theory of shortest paths. As a fallback, return the current state of the search.
    let instances = before.iter().flatten().map(|(instance, _)| *instance).collect();
    Contradiction { instances, clocks: (0..before.len()).collect() }
}

/// The least offset of each clock over that of `reference`, or −[`UNREACHED`]. Reverses time, so that the first
/// departure becomes the last arrival.
pub(crate) fn least_offsets(
    instances: &[&[Entry]],
    clocks: usize,
    reference: usize,
    relax: impl Fn(i64) -> i64,
) -> Result<Vec<i64>, Contradiction> {
    // Reversal would turn an entry without an end into one without a start. Such an entry arrives at the end of
    // reversed time.
    let turn = |e: &Entry| Entry {
        clock: e.clock,
        start: e.end.get().map_or(-FAR, |end| -end),
        end: MaybeNs::of(Some(-e.start)),
    };
    let relax = |t: i64| if t <= -FAR { 0 } else { relax(-t) };
    let greatest = offsets(instances, turn, clocks, reference, relax)?;
    let far = |o: i64| o >= FAR / 2;
    Ok(greatest.into_iter().map(|o| if far(o) { -UNREACHED } else { -o }).collect())
}

/// Larger than any time in a frame.
const FAR: i64 = i64::MAX / 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(clock: usize, start: i64, end: i64) -> Entry {
        Entry { clock, start, end: MaybeNs::of(Some(end)) }
    }

    // clock 0   |0════════10|
    // clock 1      |3═════10|     may be shifted by −10 + … : its start at most to 10, its end at least to 0
    #[test]
    fn two_clocks_and_one_instance() {
        let k: &[Entry] = &[entry(0, 0, 10), entry(1, 3, 10)];
        assert_eq!(greatest_offsets(&[k], 2, 0, |_| 0), Ok(vec![0, 7]));
        assert_eq!(least_offsets(&[k], 2, 0, |_| 0), Ok(vec![0, -10]));
    }

    // clock 0   |0══4|
    // clock 1   |0══4| |10══14|
    // clock 2          |12══14|   shares no instance with clock 0: the path goes through clock 1
    #[test]
    fn a_path_through_another_clock() {
        let (k, m): (&[Entry], &[Entry]) = (&[entry(0, 0, 4), entry(1, 0, 4)], &[entry(1, 10, 14), entry(2, 12, 14)]);
        assert_eq!(greatest_offsets(&[k, m], 3, 0, |_| 0), Ok(vec![0, 4, 6]));
        assert_eq!(least_offsets(&[k, m], 3, 0, |_| 0), Ok(vec![0, -4, -8]));
    }

    // Clock 1 is at least 100 late in one instance and at most 6 in the other: one of the two matches is false.
    #[test]
    fn a_contradiction_names_its_instances() {
        let k: &[Entry] = &[entry(0, 100, 110), entry(1, 0, 10)];
        let m: &[Entry] = &[entry(0, 200, 206), entry(1, 200, 206)];
        let innocent: &[Entry] = &[entry(0, 300, 900), entry(1, 0, 900)];
        let expected = Contradiction { instances: vec![0, 1], clocks: vec![0, 1] };
        assert_eq!(greatest_offsets(&[k, m, innocent], 2, 0, |_| 0), Err(expected.clone()));
        assert_eq!(least_offsets(&[k, m, innocent], 2, 0, |_| 0), Err(expected));
        assert!(greatest_offsets(&[k, m], 2, 0, |_| 50).is_ok());
    }

    #[test]
    fn a_rank_that_never_left_is_bound_on_one_side() {
        let k: &[Entry] = &[entry(0, 0, 10), Entry { clock: 1, start: 3, end: MaybeNs::UNKNOWN }];
        assert_eq!(greatest_offsets(&[k], 2, 0, |_| 0), Ok(vec![0, 7]));
        assert_eq!(least_offsets(&[k], 2, 0, |_| 0), Ok(vec![0, -UNREACHED]));
    }
}
