//! Kernels that take longer on one device than on the other devices of its model: the device of a slow rank is slow itself.

use std::collections::BTreeMap;

use trace::{KernelStatsRow, Reason, StandsOn, StragglerRow, Word, WorkType};

use measure::by_name::usual;
use model::analysis::Facts;

/// Kernels are the same work if their grids have as many blocks, within this share.
const SAME_BLOCKS: f64 = 0.01;

/// How much longer the kernels of a rank take than the same kernels elsewhere.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SlowKernels<'a> {
    /// The time of all of its kernels beyond that of the same kernels elsewhere, per step.
    pub(crate) excess_ns: f64,
    /// The kernel with most of that time, and the ratio of its mean to that elsewhere.
    pub(crate) kernel: &'a KernelStatsRow,
    pub(crate) ratio: f64,
    /// The devices that were compared, in words: `the median GPU of its model (H100)`.
    pub(crate) compared_with: String,
}

/// Gives ranks whose kernels explain the excess the reason `device`.
pub fn name_slow_devices(rows: &mut [StragglerRow], kernels: &[KernelStatsRow], facts: &Facts) {
    for row in rows.iter_mut().filter(|row| row.reason.as_ref().is_some_and(|reason| *reason == Reason::Compute)) {
        let by_range = row.stands_on.as_ref().is_some_and(|basis| *basis == StandsOn::Range);
        let excess_ns = row.evidence_excess_ns.filter(|_| by_range).unwrap_or(row.own_excess_ns);
        let slow = slow_kernels(row.rank, kernels, facts);
        if slow.is_some_and(|slow| 2.0 * slow.excess_ns >= excess_ns as f64) {
            row.reason = Some(Word::from(Reason::Device));
        }
    }
}

/// The kernels of a rank, compared with those of devices of the same model, or of all devices if it has the only one.
/// `None` if no kernel takes longer than elsewhere.
pub(crate) fn slow_kernels<'a>(rank: i32, kernels: &'a [KernelStatsRow], facts: &Facts) -> Option<SlowKernels<'a>> {
    let models: BTreeMap<i32, &str> =
        facts.identities.iter().filter_map(|i| Some((i.rank, i.device_name.as_deref()?))).collect();
    let model = models.get(&rank).copied();
    let is_alone = !models.iter().any(|(other, name)| *other != rank && Some(*name) == model);
    let model = model.filter(|_| !is_alone);
    let is_compared = |row: &&KernelStatsRow| {
        row.work != WorkType::Communication
            && (row.rank == rank || model.is_none() || models.get(&row.rank).copied() == model)
    };
    let mut by_name: BTreeMap<&str, Vec<&KernelStatsRow>> = BTreeMap::new();
    for row in kernels.iter().filter(is_compared) {
        by_name.entry(&row.name).or_default().push(row);
    }
    let mut sum_ns = 0.0;
    let mut most: Option<(&KernelStatsRow, f64, f64, usize)> = None;
    for same in by_name.values() {
        for kernel in same.iter().filter(|kernel| kernel.rank == rank) {
            let mut means: Vec<f64> =
                same.iter().filter(|row| is_same_work(row, kernel)).map(|row| row.mean_ns).collect();
            means.sort_by(f64::total_cmp);
            let Some(usual_ns) = usual(&means).filter(|usual_ns| *usual_ns > 0.0) else { continue };
            let excess_ns = (kernel.mean_ns - usual_ns) * kernel.calls as f64;
            sum_ns += excess_ns;
            if excess_ns > most.map_or(0.0, |(_, most_ns, ..)| most_ns) {
                most = Some((*kernel, excess_ns, kernel.mean_ns / usual_ns, means.len()));
            }
        }
    }
    let (kernel, _, ratio, devices) = most?;
    let which = if devices == 2 { "the other" } else { "the median" };
    let compared_with =
        model.map_or_else(|| format!("{which} device"), |model| format!("{which} GPU of its model ({model})"));
    Some(SlowKernels { excess_ns: sum_ns / facts.steps.len().max(1) as f64, kernel, ratio, compared_with })
}

/// Whether two kernels of one name have grids of the same size. A larger grid is more work, not a slower device.
fn is_same_work(a: &KernelStatsRow, b: &KernelStatsRow) -> bool {
    match (a.mean_blocks, b.mean_blocks) {
        (Some(a), Some(b)) => (a - b).abs() <= SAME_BLOCKS * a.max(b),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::analysis::RankIdentity;

    const MS: i64 = 1_000_000;

    /// Ranks 0 to 3 with H100s, rank 4 with an A100; each runs `gemm` ten times in one step, with these means in ms.
    fn job(means_ms: &[i64], blocks: &[f64]) -> (Vec<KernelStatsRow>, Facts) {
        let kernel = |(rank, (mean_ms, blocks)): (i32, (&i64, &f64))| KernelStatsRow {
            rank,
            device_id: Some(0),
            name: "gemm".into(),
            calls: 10,
            mean_ns: (mean_ms * MS) as f64,
            mean_blocks: Some(*blocks),
            ..KernelStatsRow::default()
        };
        let identity = |rank| RankIdentity {
            rank,
            device_name: Some(if rank == 4 { "A100" } else { "H100" }.into()),
            ..RankIdentity::default()
        };
        let ranks: Vec<i32> = (0..means_ms.len() as i32).collect();
        let facts =
            Facts { steps: vec![1], identities: ranks.iter().map(|r| identity(*r)).collect(), ..Facts::default() };
        ((0..).zip(means_ms.iter().zip(blocks)).map(kernel).collect(), facts)
    }

    #[test]
    fn a_device_is_slow_against_others_of_its_model() {
        let (kernels, facts) = job(&[5, 8, 5, 5, 20], &[64.0; 5]);
        let slow = slow_kernels(1, &kernels, &facts).unwrap();
        assert_eq!((slow.excess_ns, slow.ratio), (30.0 * MS as f64, 1.6));
        assert_eq!(slow.compared_with, "the median GPU of its model (H100)");
        assert_eq!(slow_kernels(0, &kernels, &facts), None);
        let other = slow_kernels(4, &kernels, &facts).unwrap();
        assert_eq!((other.ratio, &*other.compared_with), (4.0, "the median device"), "no other device is of its model");
    }

    #[test]
    fn more_blocks_are_more_work_and_no_slow_device() {
        let row = |rank| StragglerRow {
            rank,
            own_excess_ns: 30 * MS,
            reason: Some("compute".into()),
            stands_on: Some("stretch".into()),
            ..StragglerRow::default()
        };
        let reason = |means: &[i64], blocks: &[f64], excess_ms: i64| {
            let (kernels, facts) = job(means, blocks);
            let mut rows = [StragglerRow { own_excess_ns: excess_ms * MS, ..row(1) }];
            name_slow_devices(&mut rows, &kernels, &facts);
            rows[0].reason.as_deref().map(String::from)
        };
        assert_eq!(reason(&[5, 8, 5], &[64.0; 3], 30).as_deref(), Some("device"));
        assert_eq!(reason(&[5, 8, 5], &[64.0, 96.0, 64.0], 30).as_deref(), Some("compute"), "a larger grid");
        assert_eq!(reason(&[5, 8, 5], &[64.0; 3], 61).as_deref(), Some("compute"), "less than half of the excess");
    }
}
