//! What decides that a row communicates (`events.is_comm`). No other file writes this column, but for what a user counts
//! (`--comm`) and for what a recorder states of its own rows.
//!
//! | reason | function |
//! |---|---|
//! | its name and kind, or the statement of its writer | [`communicates`] |
//! | a collective refers to it | [`mark_rows`] |
//! | a communicating operator launched it | [`mark_below_operators`] |
//!
//! The nearest operator around a launch that is known decides: one of a communication library makes its kernels
//! communication, one of ATen does not.
//!
//! ```text
//!  thread   [vllm::all_reduce                                   ]
//!             [aten::copy_ ]   [symm_mem::multimem_all_reduce_ ]
//!               [launch 1]         [launch 2]
//!  device        [k1: a copy of ATen]  [k2: communication]
//! ```

use rustc_hash::{FxHashMap, FxHashSet};

use crate::Text;
use crate::name_rules::{Launched, NameClass, is_known_compute};
use crate::rank::{Events, Kind, Launches, enclosing};

/// Whether a row communicates by its name and kind, or because its writer says so. A writer that denies it does not know all names.
#[inline]
pub fn communicates(name: NameClass, kind: Kind, stated: Option<bool>) -> bool {
    name.is_comm(kind) || stated == Some(true)
}

/// Marks rows that a collective refers to as communication, whatever their names.
pub fn mark_rows(events: &mut Events, rows: impl IntoIterator<Item = usize>) {
    for row in rows {
        events.is_comm[row] = true;
    }
}

/// For each row, whether it lies in a communicating operator, and in no operator of ATen inside of that.
#[derive(Clone, Debug)]
pub struct BelowOperators {
    below: Vec<bool>,
}

impl BelowOperators {
    /// Examines the rows of a rank. `None` if no operator communicates.
    pub fn find(events: &Events, names: &[Text]) -> Option<Self> {
        // By kind, because a name may be that of an operator and of a range.
        let launched = |kind| names.iter().map(|name| Launched::of(name, kind)).collect::<Vec<_>>();
        let (of_ops, of_ranges) = (launched(Kind::CpuOp), launched(Kind::UserAnnotation));
        if !of_ops.iter().chain(&of_ranges).any(|launched| *launched == Some(Launched::Communication)) {
            return None;
        }
        let mut below = vec![false; events.len()];
        for row in 0..events.len() {
            let own = match events.kind[row] {
                Kind::CpuOp => of_ops[events.name[row] as usize],
                Kind::UserAnnotation => of_ranges[events.name[row] as usize],
                _ => None,
            };
            below[row] = match own {
                Some(launched) => launched == Launched::Communication,
                None => enclosing(events, row).is_some_and(|parent| below[parent]),
            };
        }
        Some(Self { below })
    }

    /// Whether a communicating operator launched the kernel in `row`.
    pub fn launched(&self, events: &Events, launches: &Launches, row: usize) -> bool {
        events.kind[row] == Kind::Kernel
            && launches.of(events.correlation[row]).is_some_and(|launch| self.below[launch as usize])
    }
}

/// Marks the kernels that communicating operators launched, whatever their names. Launches that are not given are collected.
///
/// A kernel that is known to compute is left if another kernel has its correlation: a profiler that gives one correlation to two
/// launches does not tell which of them was the operator's.
pub fn mark_below_operators(events: &mut Events, names: &[Text], launches: Option<&Launches>) {
    let Some(below) = BelowOperators::find(events, names) else { return };
    let collected = launches.is_none().then(|| Launches::collect(events));
    if let Some(launches) = launches.or(collected.as_ref()) {
        let mut rows: Vec<usize> = (0..events.len()).filter(|row| below.launched(events, launches, *row)).collect();
        let ambiguous = ambiguous(events, names, &rows);
        rows.retain(|row| !ambiguous.contains(row));
        mark_rows(events, rows);
    }
}

/// Those of `rows` that are known to compute and share their correlation with another kernel.
fn ambiguous(events: &Events, names: &[Text], rows: &[usize]) -> FxHashSet<usize> {
    let mut known: FxHashMap<u32, bool> = FxHashMap::default();
    let mut computes = |row: &usize| {
        let name = events.name[*row];
        *known.entry(name).or_insert_with(|| is_known_compute(&names[name as usize]))
    };
    let mut found: FxHashSet<usize> = rows.iter().copied().filter(|row| computes(row)).collect();
    if found.is_empty() {
        return found;
    }
    let mut kernels: FxHashMap<i64, usize> = found.iter().map(|row| (events.correlation[*row], 0)).collect();
    for row in (0..events.len()).filter(|row| events.kind[*row] == Kind::Kernel) {
        if let Some(count) = kernels.get_mut(&events.correlation[row]) {
            *count += 1;
        }
    }
    found.retain(|row| kernels.get(&events.correlation[*row]).is_some_and(|count| *count > 1));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rank::{NO_PARENT, NONE};

    /// Rows as `(kind, name, parent, correlation)`; returns the marked ones.
    fn marked(rows: &[(Kind, &str, Option<u32>, i64)]) -> Vec<usize> {
        let names: Vec<Text> = rows.iter().map(|row| row.1.into()).collect();
        let n = rows.len();
        let mut events = Events {
            kind: rows.iter().map(|row| row.0).collect(),
            name: (0..n as u32).collect(),
            parent: rows.iter().map(|row| row.2.unwrap_or(NO_PARENT)).collect(),
            correlation: rows.iter().map(|row| row.3).collect(),
            is_comm: vec![false; n],
            ts_ns: vec![0; n],
            ..Events::default()
        };
        mark_below_operators(&mut events, &names, None);
        (0..n).filter(|row| events.is_comm[*row]).collect()
    }

    /// Invariant (numbers): A kernel counts as communication by its function or by its operator.
    #[test]
    fn the_nearest_known_operator_decides() {
        use Kind::{CpuOp, GpuMemcpy, Kernel, Runtime, UserAnnotation};
        let rows = [
            (CpuOp, "vllm::all_reduce", None, NONE),
            (CpuOp, "aten::copy_", Some(0), NONE),
            (Runtime, "cudaLaunchKernel", Some(1), 1),
            (CpuOp, "symm_mem::multimem_all_reduce_", Some(0), NONE),
            (UserAnnotation, "my range", Some(3), NONE),
            (Runtime, "cudaLaunchKernel", Some(4), 2),
            (Runtime, "cudaMemcpyAsync", Some(3), 3),
            (CpuOp, "my_op", None, NONE),
            (Runtime, "cudaLaunchKernel", Some(7), 4),
            (Runtime, "cudaLaunchKernel", None, 5),
            (UserAnnotation, "nccl:all_reduce", None, NONE),
            (Runtime, "cudaLaunchKernel", Some(10), 6),
            (Kernel, "copy", None, 1),
            (Kernel, "unknown", None, 2),
            (GpuMemcpy, "Memcpy PtoP", None, 3),
            (Kernel, "mine", None, 4),
            (Kernel, "alone", None, 5),
            (Kernel, "of the back end", None, 6),
            (Kernel, "not launched", None, NONE),
        ];
        assert_eq!(marked(&rows), [13, 17]);
        // Two kernels of one launch: the product is not known to be its work.
        let alone = [
            (CpuOp, "vllm::all_reduce", None, NONE),
            (Runtime, "cudaLaunchKernel", Some(0), 1),
            (Kernel, "ampere_sgemm", None, 1),
        ];
        assert_eq!(marked(&alone), [2]);
        let [op, launch, product] = alone;
        assert_eq!(marked(&[op, launch, product, (Kernel, "ncclDevKernel", None, 1)]), [3]);
        // Without communicating operators nothing is examined.
        assert!(BelowOperators::find(&Events::default(), &["aten::mm".into(), "nccl".into()]).is_none());
    }
}
