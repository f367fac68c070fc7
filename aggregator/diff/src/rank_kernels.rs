//! The kernels and launches of one rank, by step.

use std::collections::BTreeMap;

use model::{Kind, RankData};
use trace::Text;
use trace::rank::Launches;

use crate::series::Series;

/// The kernels of one rank, for each of its steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RankKernels {
    /// Number of kernels of each name.
    pub by_name: BTreeMap<Text, Series>,
    /// Number of host calls that launched kernels.
    pub launches: Series,
}

impl RankKernels {
    /// Counts the kernels in `steps`, which ascend.
    pub(crate) fn of(data: &RankData, steps: &[i32]) -> Self {
        let events = &data.events;
        let calls = Launches::collect(events);
        let mut counted = vec![false; events.len()];
        let mut by_name: BTreeMap<u32, Series> = BTreeMap::new();
        let mut launches = Series::default();
        for row in (0..events.len()).filter(|row| events.kind[*row] == Kind::Kernel) {
            let Ok(at) = steps.binary_search(&events.step[row]) else { continue };
            by_name.entry(events.name[row]).or_default().add(at, 1.0);
            // A call of a CUDA graph launches many kernels.
            if let Some(call) = calls.of(events.correlation[row])
                && !std::mem::replace(&mut counted[call as usize], true)
            {
                launches.add(at, 1.0);
            }
        }
        by_name.values_mut().for_each(Series::settle);
        launches.settle();
        let named = |(name, counts): (u32, Series)| (data.names[name as usize].clone(), counts);
        Self { by_name: by_name.into_iter().map(named).collect(), launches }
    }
}
