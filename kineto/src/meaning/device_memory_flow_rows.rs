//! Rows of the tables of devices, memory and arrows.

use std::collections::BTreeSet;

use rayon::prelude::*;
use rustc_hash::FxHashMap;
use trace::name_rules::is_step;
use trace::rank::{Events, Kind, NO_PARENT, NONE, enclosing, innermost_at};
use trace::{DeviceRow, FlowRow, MemoryRow};

use crate::bytes::value::Value;
use crate::columns::batch::Allocation;
use crate::columns::rows::Rows;
/// torch's `DeviceType` of the host.
const DEVICE_TYPE_CPU: i64 = 0;
/// Rows in one task of a thread.
const MIN_ROWS: usize = 1 << 14;

/// Allocations and releases, sorted by time, each with the outermost operator around it.
pub(crate) fn memory_rows(rows: &Rows, allocations: Vec<(Allocation, (i64, i64))>, rank: i32) -> Vec<MemoryRow> {
    let known = |value: i64| Some(value).filter(|v| *v != NONE);
    if allocations.is_empty() {
        return Vec::new();
    }
    let events = &rows.events;
    // Old traces have steps as operators.
    let is_mark: Vec<bool> = rows.names.iter().map(|name| is_step(name)).collect();
    let is_operator = |row: usize| events.kind[row] == Kind::CpuOp && !is_mark[events.name[row] as usize];
    let (around, operators) = rayon::join(
        || innermost_at(events, allocations.iter().map(|(a, (_, thread))| (a.ts_ns, *thread))),
        || Operators::of(events, &is_operator),
    );
    allocations
        .into_par_iter()
        .zip(around)
        .with_min_len(MIN_ROWS)
        .map(|((a, (_, thread)), row)| MemoryRow {
            rank,
            ts_ns: a.ts_ns,
            device_id: known(a.device_id).filter(|id| a.device_type != DEVICE_TYPE_CPU && *id >= 0),
            name: operators.outermost(row, a.ts_ns).map(|row| rows.names[events.name[row] as usize].clone()),
            delta_bytes: a.bytes,
            allocated_bytes: known(a.allocated),
            reserved_bytes: known(a.reserved).filter(|_| a.device_type != DEVICE_TYPE_CPU),
            address: known(a.address),
            thread_id: known(thread),
            stack: None,
        })
        .collect()
}

/// The operators around each row, as far as one of them may be the outermost one that encloses a time.
///
/// In whole µs, an operator may seem to end before the last row inside of it does. So at a late time, the outermost one is
/// one further in:
///
/// ```text
/// a   ───────────
///    b ───────────          a may be the outermost one at x, and b at y
///      c ────────           never, for b ends later and begins earlier
///              x y
/// ```
struct Operators<'a> {
    events: &'a Events,
    /// For each row, the innermost of these operators, itself included, or [`NO_PARENT`].
    innermost: Vec<u32>,
    /// For each such operator: the next one around it, which ends earlier; one further out, so that any of them is reached
    /// in few steps; and the number of operators around it.
    around: Vec<u32>,
    far: Vec<u32>,
    depth: Vec<u32>,
}

impl<'a> Operators<'a> {
    fn of(events: &'a Events, is_operator: &dyn Fn(usize) -> bool) -> Self {
        let none = || vec![NO_PARENT; events.len()];
        let (innermost, around, far, depth) = (none(), none(), none(), vec![0; events.len()]);
        let mut operators = Self { events, innermost, around, far, depth };
        for row in 0..events.len() {
            let outer = enclosing(events, row).map_or(NO_PARENT, |parent| operators.innermost[parent]);
            let ends_later = outer == NO_PARENT || events.end_ns(outer as usize) < events.end_ns(row);
            operators.innermost[row] = outer;
            if is_operator(row) && ends_later {
                operators.add(row, outer);
            }
        }
        operators
    }

    /// Adds an operator inside of `outer`. Its pointers are those of a skew-binary list (Myers, Information Processing
    /// Letters 17(5), 1983).
    fn add(&mut self, row: usize, outer: u32) {
        self.innermost[row] = row as u32;
        self.around[row] = outer;
        if outer == NO_PARENT {
            return;
        }
        self.depth[row] = self.depth[outer as usize] + 1;
        let depth = |row: u32| if row == NO_PARENT { -1 } else { i64::from(self.depth[row as usize]) };
        let next = |row: u32| if row == NO_PARENT { NO_PARENT } else { self.far[row as usize] };
        let (first, second) = (next(outer), next(next(outer)));
        let equal = depth(outer) - depth(first) == depth(first) - depth(second);
        self.far[row] = if equal { second } else { outer };
    }

    /// The outermost operator that encloses a time, from the innermost row there.
    fn outermost(&self, innermost: u32, ts_ns: i64) -> Option<usize> {
        let encloses = |row: &u32| *row != NO_PARENT && self.events.end_ns(*row as usize) >= ts_ns;
        let innermost = Some(innermost).filter(|row| *row != NO_PARENT)?;
        let mut at = Some(self.innermost[innermost as usize]).filter(encloses)? as usize;
        // Operators further out end earlier.
        while let Some(next) = [self.far[at], self.around[at]].into_iter().find(encloses) {
            at = next as usize;
        }
        Some(at)
    }
}

/// The rows of `deviceProperties`, and the ids of devices that have rows in the trace, but no properties.
///
/// With HIP_VISIBLE_DEVICES, a process counts its devices from 0 in `deviceProperties`, and rows have their numbers in the host. As many
/// properties as devices belong to each other by order, if no name tells the devices apart.
pub(crate) fn device_rows(properties: Option<&Value>, events: &Events, rank: i32) -> (Vec<DeviceRow>, Vec<i64>) {
    let mut rows = stated_devices(properties, rank);
    if rows.is_empty() {
        return (rows, Vec::new());
    }
    let mut used = BTreeSet::new();
    let mut last = NONE;
    for row in (0..events.len()).filter(|row| events.kind[*row].is_device_work()) {
        // Most rows are of the device of the row before.
        if events.device[row] != last {
            last = events.device[row];
            used.insert(last);
        }
    }
    used.remove(&NONE);
    let stated: BTreeSet<i64> = rows.iter().map(|row| row.device_id).collect();
    let unknown: Vec<i64> = used.difference(&stated).copied().collect();
    let none_fits = unknown.len() == used.len();
    let are_alike = rows.windows(2).all(|pair| pair[0].name == pair[1].name);
    if unknown.is_empty() || rows.len() != used.len() || !none_fits || !are_alike {
        return (rows, unknown);
    }
    rows.sort_by_key(|row| row.device_id);
    rows.iter_mut().zip(unknown).for_each(|(row, id)| row.device_id = id);
    (rows, Vec::new())
}

fn stated_devices(properties: Option<&Value>, rank: i32) -> Vec<DeviceRow> {
    let row = |device: &Value| {
        let text = |key: &str| device.get(key).and_then(Value::text).map(Into::into);
        let integer = |key: &str| device.get(key).and_then(Value::integer);
        let narrow = |key: &str| integer(key).and_then(|n| i32::try_from(n).ok());
        Some(DeviceRow {
            rank,
            device_id: integer("id")?,
            name: text("name"),
            uuid: text("uuid"),
            sm_count: narrow("numSms"),
            max_threads_per_sm: narrow("maxThreadsPerMultiprocessor"),
            registers_per_sm: narrow("regsPerMultiprocessor"),
            shared_mem_per_sm_bytes: integer("sharedMemPerMultiprocessor"),
            memory_bytes: integer("totalGlobalMem"),
            ..DeviceRow::default()
        })
    };
    // A file that was merged from those of many ranks may list the devices of a host for each of them.
    let mut known = BTreeSet::new();
    let rows = properties.map(Value::items).unwrap_or_default().iter().filter_map(row);
    rows.filter(|row| known.insert(row.device_id)).collect()
}

/// Arrows between forward and backward operators, and the number of arrows that lack an end.
///
/// An arrow's end has a thread and a time instead of a row. It belongs to the operator that begins there.
pub(crate) fn flow_rows(rows: &Rows, rank: i32) -> (Vec<FlowRow>, i64) {
    let ends = &rows.flows;
    if ends.is_empty() {
        return (Vec::new(), 0);
    }
    let events = &rows.events;
    let mut times: Vec<i64> = ends.iter().map(|(end, _)| end.ts_ns).collect();
    times.sort_unstable();
    let mut times = times.into_iter().peekable();
    let mut starts: FxHashMap<(i64, i64), i64> = FxHashMap::default();
    // Rows are sorted by start too, and few operators begin where an arrow ends.
    for row in (0..events.len()).filter(|row| events.kind[*row] == Kind::CpuOp) {
        let ts_ns = events.ts_ns[row];
        while times.next_if(|time| *time < ts_ns).is_some() {}
        if times.peek() == Some(&ts_ns) {
            starts.entry((events.thread[row], ts_ns)).or_insert(events.id[row]);
        }
    }
    let mut arrows: FxHashMap<i64, (Option<i64>, Option<i64>)> = FxHashMap::default();
    let mut order = Vec::new();
    for (end, (_, thread)) in ends {
        let row = starts.get(&(*thread, end.ts_ns)).copied();
        let arrow = arrows.entry(end.id).or_insert_with(|| {
            order.push(end.id);
            (None, None)
        });
        let slot = if end.start { &mut arrow.0 } else { &mut arrow.1 };
        *slot = row;
    }
    let mut flows = Vec::with_capacity(order.len());
    let mut incomplete = 0;
    for id in order {
        match arrows.get(&id) {
            Some((Some(src_id), Some(dst_id))) => {
                flows.push(FlowRow { rank, id, kind: "fwdbwd".into(), src_id: *src_id, dst_id: *dst_id });
            }
            _ => incomplete += 1,
        }
    }
    (flows, incomplete)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Rows with a parent, an end, and whether each is an operator.
    fn events(rows: &[(u32, i64, bool)]) -> Events {
        Events {
            kind: rows.iter().map(|row| if row.2 { Kind::CpuOp } else { Kind::Runtime }).collect(),
            parent: rows.iter().map(|row| row.0).collect(),
            ts_ns: vec![0; rows.len()],
            dur_ns: rows.iter().map(|row| row.1).collect(),
            ..Events::default()
        }
    }

    #[test]
    fn properties_belong_to_the_devices_of_the_rows() {
        let seen = |properties: &str, used: &[i64]| {
            let properties = Value::parse(properties.as_bytes()).unwrap();
            let events = Events {
                kind: vec![Kind::Kernel; used.len()],
                device: used.to_vec(),
                ts_ns: vec![0; used.len()],
                ..Events::default()
            };
            let (rows, unknown) = device_rows(Some(&properties), &events, 3);
            (rows.into_iter().map(|row| row.device_id).collect::<Vec<_>>(), unknown)
        };
        let one = r#"[{"id": 0, "name": "a"}]"#;
        let alike = r#"[{"id": 0, "name": "a"}, {"id": 1, "name": "a"}]"#;
        let different = r#"[{"id": 0, "name": "a"}, {"id": 1, "name": "b"}]"#;
        assert_eq!(seen(one, &[9, 9]), (vec![9], vec![]));
        assert_eq!(seen(one, &[0]), (vec![0], vec![]));
        assert_eq!(seen(one, &[]), (vec![0], vec![]));
        assert_eq!(seen(alike, &[9, 5, 9]), (vec![5, 9], vec![]));
        // By order, these would be guesses.
        assert_eq!(seen(different, &[5, 9]), (vec![0, 1], vec![5, 9]));
        assert_eq!(seen(alike, &[1, 9]), (vec![0, 1], vec![9]));
        assert_eq!(seen(alike, &[9]), (vec![0, 1], vec![9]));
    }

    proptest! {
        #[test]
        fn the_outermost_operator_at_a_time_is_found(
            rows in prop::collection::vec((0..1_000_u32, 0..20_i64, prop::bool::weighted(0.7)), 1..60),
            outlive in any::<bool>(),
        ) {
            // With `outlive`, each row is inside of the last one and mostly ends later.
            let row = |(at, (parent, end, is_operator)): (u32, &(u32, i64, bool))| match at {
                0 => (NO_PARENT, *end, *is_operator),
                _ if outlive => (at - 1, *end / 2 + i64::from(at), *is_operator),
                _ if parent % 7 == 0 => (NO_PARENT, *end, *is_operator),
                _ => (parent % at, *end, *is_operator),
            };
            let events = events(&(0..).zip(&rows).map(row).collect::<Vec<_>>());
            let is_operator = |row: usize| events.kind[row] == Kind::CpuOp;
            let operators = Operators::of(&events, &is_operator);
            for row in 0..rows.len() {
                for ts_ns in 0..70 {
                    let around = std::iter::successors(Some(row), |row| enclosing(&events, *row));
                    let expected = around.filter(|row| is_operator(*row) && events.end_ns(*row) >= ts_ns).last();
                    prop_assert_eq!(operators.outermost(row as u32, ts_ns), expected);
                }
            }
            prop_assert_eq!(operators.outermost(NO_PARENT, 0), None);
        }
    }

    /// Each operator ends before the one inside of it. A walk from the innermost one outwards would take 10¹⁰ steps.
    #[test]
    fn many_nested_operators_take_little_time() {
        const ROWS: u32 = 100_000;
        let rows: Vec<(u32, i64, bool)> =
            (0..ROWS).map(|row| (row.checked_sub(1).unwrap_or(NO_PARENT), i64::from(row), true)).collect();
        let events = events(&rows);
        let operators = Operators::of(&events, &|_| true);
        for at in 0..ROWS {
            assert_eq!(operators.outermost(ROWS - 1, i64::from(at)), Some(at as usize));
        }
    }
}
