//! The ranks that an output of limited size shows: the worst and the most typical ones. All are in the Parquet tables.

use std::collections::BTreeSet;

use trace::StragglerRow;

use crate::analysis::Analysis;
use crate::rank_order::by_prominence;
use crate::units::count;

/// Ranks in the JSON and in the report. A job of so many ranks is shown as a whole.
pub const MOST_RANKS: usize = 512;
/// One in so many of the shown ranks is typical; the others are the worst.
const TYPICAL: usize = 4;

/// The shown ranks.
#[derive(Clone, Debug, Default)]
pub struct ShownRanks {
    /// `None`: all.
    only: Option<BTreeSet<i32>>,
    worst: usize,
    all: usize,
}

impl ShownRanks {
    /// At most so many ranks of an analysis.
    pub fn of(analysis: &Analysis, most: usize) -> Self {
        let ranks = &analysis.facts.ranks;
        if ranks.len() <= most {
            return Self::default();
        }
        let order = by_prominence(&analysis.tables.stragglers);
        let worst = order.len().min(most - most / TYPICAL);
        let (first, rest) = order.split_at(worst);
        let mut rest: Vec<&StragglerRow> = rest.to_vec();
        rest.sort_by_key(|row| (row.own_excess_ns.saturating_abs(), row.rank));
        let rows = first.iter().chain(&rest).map(|row| row.rank);
        let mut only: BTreeSet<i32> = rows.take(most).collect();
        // Ranks that were not compared with others.
        for rank in ranks {
            if only.len() == most {
                break;
            }
            only.insert(*rank);
        }
        Self { only: Some(only), worst, all: ranks.len() }
    }

    /// Whether a rank is shown.
    pub fn has(&self, rank: i32) -> bool {
        self.only.as_ref().is_none_or(|only| only.contains(&rank))
    }

    /// The ranks; `None` if all are shown.
    pub fn only(&self) -> Option<&BTreeSet<i32>> {
        self.only.as_ref()
    }

    /// A sentence about the choice; `None` if all ranks are shown.
    pub fn sentence(&self) -> Option<String> {
        let only = self.only.as_ref()?;
        let (all, worst, typical) = (count(self.all as u64), self.worst, only.len() - self.worst);
        Some(format!(
            "Of {all} ranks, the {worst} with the largest delay or excess and {typical} typical ones are shown."
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::{Facts, Tables};

    #[test]
    fn the_worst_and_the_most_typical_ranks_are_shown() {
        let row = |rank: i32| StragglerRow {
            rank,
            own_excess_ns: i64::from((rank - 6).abs() * 10),
            verdict: if rank == 3 { "cause" } else { "ok" }.into(),
            ..StragglerRow::default()
        };
        let analysis = Analysis {
            facts: Facts { ranks: (0..12).collect(), ..Facts::default() },
            // Ranks 10 and 11 were not compared.
            tables: Tables { stragglers: (0..10).map(row).collect(), ..Tables::default() },
            ..Analysis::default()
        };
        let shown = ShownRanks::of(&analysis, 4);
        assert_eq!(shown.only().unwrap().iter().copied().collect::<Vec<_>>(), [0, 1, 3, 6]);
        assert!(shown.has(6) && !shown.has(7));
        let sentence = "Of 12 ranks, the 3 with the largest delay or excess and 1 typical ones are shown.";
        assert_eq!(shown.sentence().as_deref(), Some(sentence));
        let most = ShownRanks::of(&analysis, 11);
        assert!(most.has(10) && !most.has(11));
        assert_eq!((ShownRanks::of(&analysis, 12).sentence(), shown.has(11)), (None, false));
    }
}
