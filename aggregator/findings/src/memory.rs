//! Findings about memory: a peak near the capacity, a pool in pieces, and growth over steps.

use trace::{MemoryGrowthRow, MemoryPeakRow, Severity};

use crate::finding::{Found, finding, place};
use crate::registry::Context;
use measure::memory::growth::{MAX_SCATTER, MIN_GROWTH_BYTES, MIN_Z};
use model::claim::{Claim, Quantity, Relation, Value};
use model::units::{bytes, plural};

/// Frames of a stack in one sentence, the innermost ones.
const FRAMES: usize = 3;

kind! {
    /// Memory grows from step to step, as a leak does.
    MEMORY_GROWTH: "memory-growth", by growth
}

kind! {
    /// A rank uses nearly all of its device's memory.
    MEMORY_PEAK: "memory-peak", by peak
}

kind! {
    /// The allocator holds nearly the whole device, but much of that is not in use at the peak.
    MEMORY_FRAGMENTATION: "memory-fragmentation", by fragmentation
}

/// The rank is named where it grows most.
fn growth(context: &Context<'_>) -> Option<Found> {
    let growing: Vec<&MemoryGrowthRow> = context.analysis.tables.memory_growth.iter().filter(|row| row.grows).collect();
    let row = growing.iter().max_by(|a, b| a.growth_bytes.total_cmp(&b.growth_bytes))?;
    let more = match growing.len() {
        1 => String::new(),
        n => format!(", and on {}", plural(n - 1, "more place")),
    };
    let side = if row.device_id.is_some() { "memory" } else { "host memory" };
    let size = |value: f64| bytes(value.round() as i64);
    let title = format!(
        "the {side} of {} grows by {} per step{more}, as a leak does",
        place(row.rank, row.device_id),
        size(row.growth_bytes)
    );
    let most = row.operator_growth_bytes.map_or_else(
        || "the blocks that grow are unknown".to_string(),
        |growth| {
            let operator = row.operator.as_deref().unwrap_or("code outside of operators");
            let frames: Vec<&str> = row.stack.iter().flat_map(|stack| stack.split(';')).collect();
            let frames = frames[frames.len().saturating_sub(FRAMES)..].join(" > ");
            let stack = if frames.is_empty() { String::new() } else { format!(" in {frames}") };
            format!("most of it, {} per step, is allocated by {operator}{stack}", size(growth))
        },
    );
    let evidence = format!(
        "memory_growth over {}: between {} and {} per step (95 %), Mann-Kendall z {:.1}; {most}; thresholds {} per step, and z {MIN_Z} \
         or all steps within {:.0} % of a step's growth of one line (this program's)",
        plural(usize::try_from(row.steps).unwrap_or(0), "step"),
        size(row.growth_low_bytes),
        size(row.growth_high_bytes),
        row.z,
        size(MIN_GROWTH_BYTES),
        100.0 * MAX_SCATTER
    );
    let claim = Claim::new(Quantity::MemoryGrowth, Relation::Exceeds, "memory_growth").of(row.rank, row.device_id);
    let claim = claim.value(Value::Bytes(row.growth_bytes));
    Some(finding(
        Claim { interval: Some((row.growth_low_bytes, row.growth_high_bytes)), ..claim },
        Severity::Warning,
        title,
        evidence,
        "look for tensors that stay referenced, such as losses summed without .item(), lists of outputs, or growing caches",
    ))
}

/// The capacity of a row's device.
fn capacity_of(row: &MemoryPeakRow, context: &Context<'_>) -> Option<i64> {
    context.ranks.memory_bytes.get(&(row.rank, row.device_id?)).copied().filter(|capacity| *capacity > 0)
}

fn peak(context: &Context<'_>) -> Option<Found> {
    let limits = context.limits();
    let share = |row: &MemoryPeakRow| Some(100.0 * row.peak_bytes as f64 / capacity_of(row, context)? as f64);
    let peaks = context.analysis.tables.memory_peaks.iter().filter_map(|row| Some((row, share(row)?)));
    // No device holds more than it has: such a sum of allocations lacks releases, and is no peak.
    let (row, pct) = peaks.filter(|(_, pct)| *pct <= 100.0).max_by(|(_, a), (_, b)| a.total_cmp(b))?;
    (pct > limits.memory_pct).then(|| {
        let claim = Claim::new(Quantity::Memory, Relation::Exceeds, "memory_peaks").of(row.rank, row.device_id);
        finding(
            claim.value(Value::Pct(pct)),
            Severity::Warning,
            format!("rank {} uses {pct:.0} % of its device's memory", row.rank),
            format!("peak {}; threshold {} % (TensorBoard plugin)", bytes(row.peak_bytes), limits.memory_pct),
            "the next allocation may fail; memory_at_peak lists the blocks that are in use at the peak",
        )
    })
}

fn fragmentation(context: &Context<'_>) -> Option<Found> {
    let limits = context.limits();
    let matters = |row: &&MemoryPeakRow| {
        let reserved_pct =
            row.reserved_bytes.zip(capacity_of(row, context)).map(|(held, all)| 100.0 * held as f64 / all as f64);
        reserved_pct.is_some_and(|pct| pct > limits.memory_pct)
            && row.fragmentation_pct.is_some_and(|pct| pct > limits.fragmentation_pct)
    };
    let rows = context.analysis.tables.memory_peaks.iter().filter(matters);
    let row = rows.max_by_key(|row| row.fragmentation_bytes)?;
    let (unused, pct) = row.fragmentation_bytes.zip(row.fragmentation_pct)?;
    let claim = Claim::new(Quantity::Fragmentation, Relation::Exceeds, "memory_peaks").of(row.rank, row.device_id);
    Some(finding(
        claim.value(Value::Pct(pct)),
        Severity::Warning,
        format!(
            "the allocator of {} holds {} more than is in use at the peak, {pct:.0} % of what it holds",
            place(row.rank, row.device_id),
            bytes(unused)
        ),
        format!(
            "reserved {}, in use {}; thresholds {} % of the reserved memory, and {} % of the device reserved (this program's)",
            bytes(row.reserved_bytes.unwrap_or(0)),
            bytes(row.peak_bytes),
            limits.fragmentation_pct,
            limits.memory_pct
        ),
        "an allocation may fail although memory is free in pieces: try PYTORCH_ALLOC_CONF=expandable_segments:True, or fewer distinct sizes",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rank_facts::OfRanks;
    use model::analysis::Analysis;
    use model::options::Options;

    const GIB: i64 = 1 << 30;

    fn titles(analysis: &Analysis) -> Vec<String> {
        let memory_bytes = [((0, 0), 80 * GIB), ((1, 0), 80 * GIB)].into();
        let ranks = OfRanks { memory_bytes, ..OfRanks::default() };
        let options = Options::default();
        let context = Context::new(analysis, &options, &ranks);
        let found =
            [&MEMORY_GROWTH, &MEMORY_PEAK, &MEMORY_FRAGMENTATION].into_iter().flat_map(|kind| kind.found(&context));
        found.map(|found| found.row.title.to_string()).collect()
    }

    fn peak_row(rank: i32, peak_gib: i64, reserved_gib: i64) -> MemoryPeakRow {
        MemoryPeakRow {
            rank,
            device_id: Some(0),
            peak_bytes: peak_gib * GIB,
            reserved_bytes: Some(reserved_gib * GIB),
            fragmentation_bytes: Some((reserved_gib - peak_gib) * GIB),
            fragmentation_pct: Some(100.0 * (reserved_gib - peak_gib) as f64 / reserved_gib as f64),
            ..MemoryPeakRow::default()
        }
    }

    #[test]
    fn fragmentation_matters_when_the_device_is_full() {
        let mut analysis = Analysis::default();
        analysis.tables.memory_peaks = vec![peak_row(0, 40, 60), peak_row(1, 70, 76)];
        assert_eq!(titles(&analysis), [""; 0]);
        analysis.tables.memory_peaks.push(peak_row(1, 60, 75));
        assert_eq!(
            titles(&analysis),
            [
                "the allocator of device 0 of rank 1 holds 15.0 GiB more than is in use at the peak, 20 % of what it holds"
            ]
        );
        analysis.tables.memory_peaks = vec![peak_row(0, 75, 76)];
        assert_eq!(titles(&analysis), ["rank 0 uses 94 % of its device's memory"]);
    }

    #[test]
    fn growth_names_its_place_its_error_and_its_operator() {
        let row = |rank, grows, growth_bytes: f64| MemoryGrowthRow {
            rank,
            steps: 19,
            grows,
            growth_bytes,
            growth_low_bytes: growth_bytes - 1024.0,
            growth_high_bytes: growth_bytes + 1024.0,
            z: 6.2,
            operator: Some("aten::randn".into()),
            stack: Some("a.py(1): <module>;train.py(9): main;train.py(7): step;leak.py(3): keep".into()),
            operator_growth_bytes: Some(growth_bytes),
            ..MemoryGrowthRow::default()
        };
        let mut analysis = Analysis::default();
        analysis.tables.memory_growth = vec![row(0, false, 9e9), row(1, true, 1_048_576.0), row(2, true, 1e5)];
        let found = MEMORY_GROWTH.in_tables(&analysis);
        assert_eq!(found.len(), 1);
        assert_eq!(
            &*found[0].title,
            "the host memory of rank 1 grows by 1.00 MiB per step, and on 1 more place, as a leak does"
        );
        let evidence = &*found[0].evidence;
        assert!(
            evidence.starts_with("memory_growth over 19 steps: between 1023 KiB and 1.00 MiB per step (95 %)"),
            "{evidence}"
        );
        assert!(
            evidence.contains("most of it, 1.00 MiB per step, is allocated by aten::randn in train.py(9): main > train.py(7): step > leak.py(3): keep;"),
            "{evidence}"
        );
    }
}
