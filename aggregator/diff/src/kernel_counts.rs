//! Kernels and launches per step on both sides. Fusing, a compiler and CUDA graphs make them fewer.

use std::collections::BTreeMap;

use serde::Serialize;
use trace::Text;

use crate::rank_kernels::RankKernels;
use crate::sample::Sample;
use crate::series::Series;

/// Kernels per step on both sides: means over ranks and steps, then over the runs of a side.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct KernelCounts {
    /// Side A.
    pub a: SideKernels,
    /// Side B.
    pub b: SideKernels,
    /// Names that both sides have and whose count differs, the largest difference first.
    pub changes: Vec<NameCount>,
}

/// Kernels of one side, per rank and step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct SideKernels {
    /// Number of kernels.
    pub kernels_per_step: f64,
    /// Number of host calls that launched them; `None` if no call was recorded.
    pub launches_per_step: Option<f64>,
}

/// Kernels of one name, per rank and step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NameCount {
    /// Name of the kernel.
    pub name: Text,
    /// Number in A.
    pub a_per_step: f64,
    /// Number in B.
    pub b_per_step: f64,
}

/// Compares the kernels of both sides; `None` if neither has any.
pub(super) fn kernel_counts(a: &[Sample<'_>], b: &[Sample<'_>]) -> Option<KernelCounts> {
    let (names_a, launches_a) = side(a);
    let (names_b, launches_b) = side(b);
    if names_a.is_empty() && names_b.is_empty() {
        return None;
    }
    let total = |names: &BTreeMap<&Text, f64>, launches: f64| SideKernels {
        kernels_per_step: names.values().sum(),
        launches_per_step: (launches > 0.0 || names.is_empty()).then_some(launches),
    };
    let of_both = |(name, a_per_step): (&&Text, &f64)| {
        let b_per_step = *names_b.get(*name)?;
        Some(NameCount { name: (*name).clone(), a_per_step: *a_per_step, b_per_step })
    };
    let mut changes: Vec<NameCount> = names_a.iter().filter_map(of_both).filter(|one| one.change() != 0.0).collect();
    changes.sort_by(|x, y| y.change().abs().total_cmp(&x.change().abs()).then_with(|| x.name.cmp(&y.name)));
    Some(KernelCounts { a: total(&names_a, launches_a), b: total(&names_b, launches_b), changes })
}

impl NameCount {
    /// B's count minus A's.
    pub fn change(&self) -> f64 {
        self.b_per_step - self.a_per_step
    }
}

/// The kernels of each name and the launches of one side.
fn side<'a>(runs: &[Sample<'a>]) -> (BTreeMap<&'a Text, f64>, f64) {
    let mut names: BTreeMap<&Text, f64> = BTreeMap::new();
    let mut launches = 0.0;
    for run in runs {
        let ranks: Vec<(&'a RankKernels, &[usize])> = run.kernels().collect();
        let share = 1.0 / (ranks.len() * run.steps() * runs.len()).max(1) as f64;
        let sum = |counts: &Series, steps: &[usize]| counts.within(steps).map(|(_, count)| count).sum::<f64>() + 0.0;
        for (kernels, steps) in ranks {
            launches += share * sum(&kernels.launches, steps);
            for (name, counts) in &kernels.by_name {
                *names.entry(name).or_default() += share * sum(counts, steps);
            }
        }
    }
    // A name may occur in other steps only.
    names.retain(|_, count| *count > 0.0);
    (names, launches)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::profile::{RankProfile, RunProfile};
    use drawn::Drawn;
    use model::{Kind, RankData};

    /// A run of ranks with the steps 1 and 2.
    fn run(ranks: Vec<RankData>) -> RunProfile {
        let profile = |data: &RankData| RankProfile {
            rank: data.outline.info.rank,
            steps: vec![1, 2],
            kernels: RankKernels::of(data, &[1, 2]),
            ..RankProfile::default()
        };
        RunProfile { ranks: ranks.iter().map(profile).collect(), ..RunProfile::default() }
    }

    fn compared(a: &RunProfile, b: &RunProfile) -> Option<KernelCounts> {
        let common = BTreeSet::from([0, 1]);
        kernel_counts(&[Sample::new(a, &common)], &[Sample::new(b, &common)])
    }

    /// Each kernel has its launch, and the kernel between the steps does not count.
    fn eager(rank: i32) -> RankData {
        Drawn::rank(rank)
            .steps("########..########")
            .launches(1, "#.#.#.#.#.#.#.....")
            .device(Kind::Kernel, "mul", (0, 7), 1, ".#...#...........")
            .device(Kind::Kernel, "add", (0, 7), 3, ".....#.#.#.......")
            .device(Kind::Kernel, "gemm", (0, 7), 6, "...........#.#...")
            .data()
    }

    /// One call launches all kernels of a step.
    fn graph(rank: i32) -> RankData {
        Drawn::rank(rank)
            .steps("########..########")
            .launches(1, "#.........#.......")
            .device(Kind::Kernel, "fused", (0, 7), 1, ".#.........#......")
            .device(Kind::Kernel, "gemm", (0, 8), 1, "..#.#.......#.....")
            .device(Kind::GpuMemcpy, "Memcpy HtoD", (0, 9), 1, "...#.............")
            .data()
    }

    #[test]
    fn kernels_and_launches_per_step_are_counted() {
        let (a, b) = (run(vec![eager(0), eager(1)]), run(vec![graph(0), graph(1)]));
        let found = compared(&a, &b).unwrap();
        // Rank by rank: mul 2, add 2 and gemm 2 in two steps. Only one side has mul, add and fused.
        assert_eq!(found.a, SideKernels { kernels_per_step: 3.0, launches_per_step: Some(3.0) });
        assert_eq!(found.b, SideKernels { kernels_per_step: 2.5, launches_per_step: Some(1.0) });
        let changes: Vec<_> = found.changes.iter().map(|c| (&*c.name, c.a_per_step, c.b_per_step)).collect();
        assert_eq!(changes, [("gemm", 1.0, 1.5)]);
        assert_eq!(compared(&a, &a).unwrap().changes, []);
    }

    #[test]
    fn without_kernels_there_is_nothing_to_count() {
        let cpu = || Drawn::rank(0).steps("####.####").host(Kind::CpuOp, "mm", 1, "##...##").data();
        assert_eq!(compared(&run(vec![cpu()]), &run(vec![cpu()])), None);
        let orphan = Drawn::rank(0).steps("####.####").device(Kind::Kernel, "gemm", (0, 7), 1, ".#...##").data();
        let found = compared(&run(vec![cpu()]), &run(vec![orphan])).unwrap();
        assert_eq!(found.b, SideKernels { kernels_per_step: 1.0, launches_per_step: None });
        assert_eq!(found.a, SideKernels { kernels_per_step: 0.0, launches_per_step: Some(0.0) });
    }
}
