//! The windows of one rank, put one behind the other.
//!
//! Each file numbers its rows, names and correlation ids for itself. Numbers of later windows are shifted, so that they
//! stay unique within the rank.

use rustc_hash::{FxHashMap, FxHashSet};
use trace::Text;
use trace::rank::{Details, Events, NO_PARENT, RankData};

use crate::Error;
use crate::columns::wanted_args::Wanted;
use crate::read::load::{Loaded, load_wanted};
use crate::read::trace_file::TraceFile;

/// Reads the windows of one rank, which are `files` in order of time, as long as their rows fit into the memory of the rank.
/// See [`load`](crate::load).
///
/// # Errors
/// As [`load`](crate::load), for the first file that has one.
pub fn load_windows(files: &[TraceFile]) -> Result<RankData, Error> {
    load_windows_wanted(files, Wanted::default())
}

/// As [`load_windows`], but only rows, steps and collectives: no allocations and arrows, and no FLOPs and launch parameters.
/// The omissions do not list losses of these.
///
/// # Errors
/// As [`load_windows`].
pub fn load_windows_rows(files: &[TraceFile]) -> Result<RankData, Error> {
    load_windows_wanted(files, Wanted { rows_only: true, ..Wanted::default() })
}

fn load_windows_wanted(files: &[TraceFile], wanted: Wanted) -> Result<RankData, Error> {
    let Some((first, later)) = files.split_first() else { return Ok(RankData::default()) };
    let Loaded { data: first, memory_bytes: mut used_bytes, .. } = load_wanted(first, wanted, 0)?;
    if later.is_empty() {
        return Ok(first);
    }
    let mut all = Joined::new(first);
    for file in later {
        let Loaded { data: next, memory_bytes, .. } = load_wanted(file, wanted, used_bytes)?;
        used_bytes += memory_bytes;
        all.append(next);
    }
    Ok(all.data)
}

/// As [`load_windows`], with shapes, stacks and modules.
///
/// # Errors
/// As [`load_windows`].
pub fn load_windows_detailed(files: &[TraceFile]) -> Result<(RankData, Details), Error> {
    const WANTED: Wanted = Wanted { args: true, shapes: false, rows_only: false };
    let Some((first, later)) = files.split_first() else { return Ok((RankData::default(), Details::default())) };
    let first = load_wanted(first, WANTED, 0)?;
    let mut used_bytes = first.memory_bytes;
    let (first, mut details) = first.detailed();
    if later.is_empty() {
        return Ok((first, details));
    }
    let mut all = Joined::new(first);
    for file in later {
        let next = load_wanted(file, WANTED, used_bytes)?;
        used_bytes += next.memory_bytes;
        let (next, its_details) = next.detailed();
        details.append(&its_details, all.data.events.len(), next.events.len());
        all.append(next);
    }
    Ok((all.data, details))
}

/// The first free numbers of a rank.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Numbers {
    pub(crate) id: i64,
    correlation: i64,
    external: i64,
    flow: i64,
}

impl Numbers {
    /// The numbers after those in `data`.
    pub(crate) fn after(self, data: &RankData) -> Self {
        let Events { id, correlation, external, .. } = &data.events;
        let above = |next: i64, used: Option<i64>| used.map_or(next, |used| next.max(used.saturating_add(1)));
        Self {
            id: above(self.id, id.iter().copied().max()),
            correlation: above(self.correlation, correlation.iter().copied().max()),
            external: above(self.external, external.iter().copied().max()),
            flow: above(self.flow, data.flows.iter().map(|flow| flow.id).max()),
        }
    }

    /// Shifts the numbers in `data` above these. Correlation and External ids that are larger already stay, since the
    /// ids of one process ascend over its windows.
    pub(crate) fn shift(self, data: &mut RankData) {
        let Events { id, correlation, external, .. } = &mut data.events;
        id.iter_mut().for_each(|id| *id += self.id);
        shift_above(correlation, self.correlation);
        shift_above(external, self.external);
        let flow_shift = shift_of(data.flows.iter().map(|flow| flow.id), self.flow);
        for flow in &mut data.flows {
            flow.id = flow.id.saturating_add(flow_shift);
            flow.src_id += self.id;
            flow.dst_id += self.id;
        }
        data.kernel_use.iter_mut().for_each(|row| row.id += self.id);
        data.flops_types.iter_mut().for_each(|row| row.id += self.id);
        data.copy_rates.iter_mut().for_each(|row| row.id += self.id);
        for collective in &mut data.outline.collectives {
            collective.set_event_id(collective.event_id().map(|id| id + self.id));
        }
    }
}

/// The shift that moves all numbers to `free` or above; 0 if they are there. Negative numbers are none of a profiler.
fn shift_of(numbers: impl Iterator<Item = i64>, free: i64) -> i64 {
    let least = numbers.filter(|number| *number > 0).min().unwrap_or(free);
    free.saturating_sub(least).max(0)
}

fn shift_above(numbers: &mut [i64], free: i64) {
    let shift = shift_of(numbers.iter().copied(), free);
    for number in numbers.iter_mut().filter(|number| **number > 0) {
        *number = number.saturating_add(shift);
    }
}

/// The windows of a rank up to one, with the facts that the next one needs of them. A search through all of them for each
/// would take the square of their number.
struct Joined {
    data: RankData,
    numbers: Numbers,
    /// The position of each name in `data.names`.
    names: FxHashMap<Text, u32>,
    known: Known,
}

impl Joined {
    fn new(data: RankData) -> Self {
        let names = data.names.iter().cloned().zip(0..).collect();
        Self { numbers: Numbers::default().after(&data), names, known: Known::of(&data), data }
    }

    /// Appends a later window.
    fn append(&mut self, mut next: RankData) {
        let all = &mut self.data;
        self.numbers.shift(&mut next);
        self.numbers = self.numbers.after(&next);
        let new_id: Vec<u32> = std::mem::take(&mut next.names)
            .into_iter()
            .map(|name| {
                *self.names.entry(name.clone()).or_insert_with(|| {
                    all.names.push(name);
                    all.names.len() as u32 - 1
                })
            })
            .collect();
        next.events.name.iter_mut().for_each(|name| *name = new_id[*name as usize]);
        let rows = all.events.len() as u32;
        next.events.parent.iter_mut().filter(|parent| **parent != NO_PARENT).for_each(|parent| *parent += rows);
        append_columns(&mut all.events, &mut next.events);
        self.known.append_tables(all, next);
    }
}

fn append_columns(all: &mut Events, next: &mut Events) {
    macro_rules! append {
        ($($column:ident)*) => { $(all.$column.append(&mut next.$column);)* };
    }
    append!(kind name ts_ns dur_ns id step thread device stream correlation external parent is_comm bytes flops);
}

/// The communicators and devices of a rank. Those of later windows are added if they are new.
#[derive(Debug, Default)]
pub(crate) struct Known {
    comms: FxHashSet<i64>,
    devices: FxHashSet<i64>,
}

impl Known {
    pub(crate) fn of(data: &RankData) -> Self {
        Self {
            comms: data.outline.comms.iter().map(|comm| comm.comm_id).collect(),
            devices: data.devices.iter().map(|device| device.device_id).collect(),
        }
    }

    /// Leaves out the communicators and devices that are known already.
    pub(crate) fn keep_new(&mut self, next: &mut RankData) {
        next.outline.comms.retain(|comm| !self.comms.contains(&comm.comm_id));
        next.devices.retain(|device| !self.devices.contains(&device.device_id));
        self.comms.extend(next.outline.comms.iter().map(|comm| comm.comm_id));
        self.devices.extend(next.devices.iter().map(|device| device.device_id));
    }

    /// Appends everything but the rows and their names.
    pub(crate) fn append_tables(&mut self, all: &mut RankData, mut next: RankData) {
        self.keep_new(&mut next);
        all.outline.comms.extend(next.outline.comms);
        all.devices.extend(next.devices);
        all.outline.collectives.extend(next.outline.collectives);
        all.outline.steps.extend(next.outline.steps);
        all.memory.extend(next.memory);
        all.buckets.extend(next.buckets);
        all.kernel_use.extend(next.kernel_use);
        all.flops_types.extend(next.flops_types);
        all.copy_rates.extend(next.copy_rates);
        all.flows.extend(next.flows);
        all.counters.extend(next.counters);
        all.omissions.extend(next.omissions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace::rank::NONE;

    use crate::read::tests::rank_from_events;

    #[test]
    fn numbers_stay_unique_and_parents_inside() {
        let events = |ts: i64| {
            format!(
                r#"{{"ph":"X","cat":"cpu_op","name":"outer","pid":1,"tid":1,"ts":{ts},"dur":9,"args":{{"External id":3}}}},
                {{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":2,"ts":{ts},"dur":9,
                  "args":{{"Input Dims":[[3,4],[4,5]],"Input type":["float","float"]}}}},
                {{"ph":"X","cat":"cuda_runtime","name":"launch {ts}","pid":1,"tid":1,"ts":{},"dur":1,"args":{{"correlation":5}}}}"#,
                ts + 1
            )
        };
        let mut joined = Joined::new(rank_from_events(&events(10)));
        joined.append(rank_from_events(&events(100)));
        let all = joined.data;
        let Events { id, parent, correlation, external, ts_ns, .. } = &all.events;
        assert_eq!(**id, [0, 1, 2, 3, 4, 5]);
        assert_eq!(**parent, [NO_PARENT, NO_PARENT, 0, NO_PARENT, NO_PARENT, 3]);
        assert_eq!((&**correlation, &external[3]), (&[NONE, NONE, 5, NONE, NONE, 6][..], &4));
        let types: Vec<_> = all.flops_types.iter().map(|known| (known.id, known.min_bytes)).collect();
        assert_eq!(types, [(1, Some(188)), (4, Some(188))]);
        assert!(ts_ns.is_sorted());
        let names: Vec<&str> = all.events.name.iter().map(|name| &*all.names[*name as usize]).collect();
        assert_eq!(names, ["outer", "aten::mm", "launch 10", "outer", "aten::mm", "launch 100"]);
    }
}
