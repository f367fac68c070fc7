//! The calls in which the host waits for the device, and the operators that made them.
//!
//! ```text
//!  host     [ item                    ]
//!             [cudaStreamSynchronize ]         12 ns; the device works for 8 of them
//!  device   ########......##.............
//! ```

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use trace::{SyncStallRow, Text};

use crate::device::View;
use model::intervals::{Coverage, Interval};
use model::{Events, Kind, NO_PARENT, RankData};
use trace::name_rules::{is_step, synchronizes};
use trace::rank::enclosing;

#[derive(Debug, Default)]
struct Tally {
    calls: i64,
    total_ns: i64,
    max_ns: i64,
    in_steps_ns: i64,
    device_busy_ns: i64,
}

/// The call, the innermost operator, the outermost operator and the annotation around it, as ids of names.
pub(super) type Key = (u32, Option<u32>, Option<u32>, Option<u32>);

/// Makes one row for each call and place in the program, the longest total first; no row without devices. `outermost`
/// holds the outermost operator around each row.
pub(super) fn sync_stalls(view: &View<'_>, busy: Option<&Coverage>, outermost: &[u32]) -> Vec<SyncStallRow> {
    let Some(busy) = busy else { return Vec::new() };
    let data = view.data;
    let events = &data.events;
    let waits: Vec<bool> = data.names.iter().map(|name| synchronizes(name)).collect();
    let steps: Vec<bool> = data.names.iter().map(|name| is_step(name)).collect();
    let mut around = Around::new(events, &steps);
    let mut tallies: BTreeMap<Key, Tally> = BTreeMap::new();
    for row in 0..events.len() {
        let host = matches!(events.kind[row], Kind::Runtime | Kind::Driver);
        if !host || !waits[events.name[row] as usize] || !(view.keep)(row) || inside_another(events, row, &waits) {
            continue;
        }
        let tally = tallies.entry(around.place(row, outermost[row])).or_default();
        let dur_ns = events.dur_ns[row];
        tally.calls += 1;
        tally.total_ns = tally.total_ns.saturating_add(dur_ns);
        tally.max_ns = tally.max_ns.max(dur_ns);
        if events.step[row] >= 0 {
            tally.in_steps_ns = tally.in_steps_ns.saturating_add(dur_ns);
        }
        tally.device_busy_ns += busy.within_ns(Interval::new(events.ts_ns[row], events.end_ns(row)));
    }
    let mut rows: Vec<SyncStallRow> = tallies.into_iter().map(|(key, tally)| stall_row(data, key, &tally)).collect();
    rows.sort_by(|a, b| {
        let place =
            |r: &SyncStallRow| (r.api_call.clone(), r.operator.clone(), r.outer_operator.clone(), r.annotation.clone());
        b.total_ns.cmp(&a.total_ns).then_with(|| place(a).cmp(&place(b)))
    });
    rows
}

/// Whether a call is inside another waiting call. A runtime call contains the driver call that does its work, and only
/// the outer call counts.
fn inside_another(events: &Events, row: usize, waits: &[bool]) -> bool {
    enclosing(events, row).is_some_and(|outer| {
        matches!(events.kind[outer], Kind::Runtime | Kind::Driver) && waits[events.name[outer] as usize]
    })
}

/// The names of the innermost operator and of the innermost range, from a row outwards.
type Innermost = (Option<u32>, Option<u32>);

/// The innermost operators and ranges around rows. Each row is looked at once, however deep the calls lie.
pub(super) struct Around<'a> {
    events: &'a Events,
    steps: &'a [bool],
    known: FxHashMap<u32, Innermost>,
}

impl<'a> Around<'a> {
    /// `steps` says of each name whether it is that of a step.
    pub(super) fn new(events: &'a Events, steps: &'a [bool]) -> Self {
        Self { events, steps, known: FxHashMap::default() }
    }

    /// The place of a call in the program; `outermost` is the outermost operator around it.
    pub(super) fn place(&mut self, row: usize, outermost: u32) -> Key {
        let (operator, annotation) = enclosing(self.events, row).map_or((None, None), |outer| self.innermost(outer));
        let outer = Some(outermost).filter(|outer| *outer != NO_PARENT).map(|outer| self.events.name[outer as usize]);
        (self.events.name[row], operator, outer, annotation)
    }

    fn innermost(&mut self, row: usize) -> Innermost {
        let mut unknown = Vec::new();
        let mut found = (None, None);
        let mut at = Some(row);
        while let Some(row) = at {
            if let Some(known) = self.known.get(&(row as u32)) {
                found = *known;
                break;
            }
            unknown.push(row);
            at = enclosing(self.events, row);
        }
        for row in unknown.into_iter().rev() {
            let name = self.events.name[row];
            match self.events.kind[row] {
                Kind::CpuOp => found.0 = Some(name),
                Kind::UserAnnotation if !self.steps[name as usize] => found.1 = Some(name),
                _ => {}
            }
            self.known.insert(row as u32, found);
        }
        found
    }
}

fn stall_row(data: &RankData, (call, operator, outer, annotation): Key, tally: &Tally) -> SyncStallRow {
    let name = |id: u32| -> Text { data.names[id as usize].clone() };
    SyncStallRow {
        rank: data.outline.info.rank,
        api_call: name(call),
        operator: operator.map(name),
        outer_operator: outer.map(name),
        annotation: annotation.map(name),
        calls: tally.calls,
        total_ns: tally.total_ns,
        max_ns: tally.max_ns,
        in_steps_ns: tally.in_steps_ns,
        device_busy_ns: tally.device_busy_ns,
    }
}
