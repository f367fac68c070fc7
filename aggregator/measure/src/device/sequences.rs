//! The sequences of kernels that operators launch most often, as in HTA's
//! `trace_analysis.get_frequent_cuda_kernel_sequences`. By default every outermost operator counts. As in HTA, a name
//! can be given instead; then the outermost operators and ranges with that name count.
//!
//! ```text
//!  host    [ linear    ]  [ linear    ]  [ item ]
//!            l1 l2 l3       l4 l5 l6       l7
//!  device      a b c          a b c          d       linear|a|b|c twice; item has fewer than three kernels
//! ```

use regex::Regex;
use rustc_hash::FxHashMap;
use trace::{KernelSequenceRow, Text};

use crate::device::View;
use model::{Kind, NO_PARENT, RankData};
use trace::rank::Launch;
use trace::rank::outermost;

/// HTA's `min_pattern_len`.
const LEAST_KERNELS: usize = 3;
/// The most sequences of a rank in the table.
const MAX_SEQUENCES: usize = 50;
/// The most kernels that a pattern names.
const NAMED: usize = 32;

#[derive(Debug, Default)]
struct Tally {
    calls: i64,
    gpu_total_ns: i64,
    cpu_total_ns: i64,
}

/// The most frequent sequences; equally frequent ones are ordered by the time of their kernels. `operators` holds the
/// outermost operator around each row.
pub(super) fn kernel_sequences(view: &View<'_>, launched: &[Launch], operators: &[u32]) -> Vec<KernelSequenceRow> {
    if operators.is_empty() {
        return Vec::new();
    }
    let data = view.data;
    let named = view.sequences_of.map(|name| named_operators(data, name));
    let outermost = named.as_deref().unwrap_or(operators);
    let events = &data.events;
    let mut launched: Vec<(u32, u32)> =
        launched.iter().map(|launch| (outermost[launch.host as usize], launch.device)).collect();
    launched.retain(|(operator, _)| *operator != NO_PARENT);
    // Group the kernels by operator. The stable sort keeps the order of their starts.
    launched.sort_by_key(|(operator, _)| *operator);
    // The key is the operator's name and the kernels' names.
    let mut sequences: FxHashMap<Vec<u32>, Tally> = FxHashMap::default();
    let mut key = Vec::new();
    for kernels in launched.chunk_by(|(a, _), (b, _)| a == b).filter(|kernels| kernels.len() >= LEAST_KERNELS) {
        let operator = kernels[0].0;
        key.clear();
        key.push(events.name[operator as usize]);
        key.extend(kernels.iter().map(|(_, kernel)| events.name[*kernel as usize]));
        if !sequences.contains_key(&key) {
            sequences.insert(key.clone(), Tally::default());
        }
        let Some(tally) = sequences.get_mut(&key) else { continue };
        tally.calls += 1;
        let work_ns = kernels.iter().map(|(_, kernel)| events.dur_ns[*kernel as usize]).fold(0, i64::saturating_add);
        tally.gpu_total_ns = tally.gpu_total_ns.saturating_add(work_ns);
        tally.cpu_total_ns = tally.cpu_total_ns.saturating_add(events.dur_ns[operator as usize]);
    }
    let mut rows: Vec<(Vec<u32>, Tally)> = sequences.into_iter().collect();
    let name = |id: u32| &data.names[id as usize];
    rows.sort_by(|(a, x), (b, y)| {
        let by_names = || a.iter().map(|id| name(*id)).cmp(b.iter().map(|id| name(*id)));
        (y.calls, y.gpu_total_ns).cmp(&(x.calls, x.gpu_total_ns)).then_with(by_names)
    });
    rows.truncate(MAX_SEQUENCES);
    rows.into_iter().map(|(key, tally)| row(data, &key, &tally)).collect()
}

/// For each row, the outermost operator or range around it whose name matches.
fn named_operators(data: &RankData, name: &Regex) -> Vec<u32> {
    let wanted: Vec<bool> = data.names.iter().map(|n| name.is_match(n)).collect();
    let events = &data.events;
    outermost(events, &|row| {
        matches!(events.kind[row], Kind::CpuOp | Kind::UserAnnotation) && wanted[events.name[row] as usize]
    })
}

fn row(data: &RankData, key: &[u32], tally: &Tally) -> KernelSequenceRow {
    let kernels = key.len() - 1;
    let mut pattern: Vec<&str> = key.iter().take(NAMED + 1).map(|id| &*data.names[*id as usize]).collect();
    let rest = format!("… {} more", kernels.saturating_sub(NAMED));
    if kernels > NAMED {
        pattern.push(&rest);
    }
    KernelSequenceRow {
        rank: data.outline.info.rank,
        operator: data.names[key[0] as usize].clone(),
        kernels: i32::try_from(kernels).unwrap_or(i32::MAX),
        pattern: Text::from(pattern.join("|")),
        calls: tally.calls,
        gpu_total_ns: tally.gpu_total_ns,
        cpu_total_ns: tally.cpu_total_ns,
    }
}
