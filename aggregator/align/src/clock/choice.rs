//! Restricts the fits to the evidence that the user chose.

use trace::{ClockMethod, ClockSide, OmissionRow};

use crate::clock::clocks::Clocks;
use model::RankOutline;
use model::clock_choice::Choice;

/// Whether this choice permits a fit by `method`.
pub(super) fn allows(choice: Choice, method: ClockMethod) -> bool {
    match choice {
        Choice::Auto => true,
        Choice::Ping => method == ClockMethod::Ping,
        Choice::SameHost => method == ClockMethod::SameHost,
        Choice::Collective => matches!(method, ClockMethod::Collective | ClockMethod::CollectiveWeak),
        Choice::Utc => method == ClockMethod::Utc,
    }
}

/// The chosen evidence, worded for a message.
fn evidence(choice: Choice) -> &'static str {
    match choice {
        Choice::Auto => "evidence",
        Choice::Ping => "round trips between ranks (rank-agent records them)",
        Choice::SameHost => "equal clock domains that no collective contradicts",
        Choice::Collective => "synchronising collectives of several ranks",
        Choice::Utc => "wall-clock readings",
    }
}

impl Clocks {
    /// The reason why `choice` fitted no rank to another; `None` if it fitted some, or if there is nothing to fit.
    pub fn impossible(&self, choice: Choice) -> Option<String> {
        let mut others =
            self.rows().iter().filter(|r| r.rank != r.reference_rank && r.clock == ClockSide::Host).peekable();
        others.peek()?;
        let all = choice != Choice::Auto && others.all(|r| r.method == ClockMethod::None);
        all.then(|| format!("this needs {}, and no two ranks have them here; try --clock auto", evidence(choice)))
    }

    /// An omission for each rank that `choice` left on its own clock.
    pub(super) fn left_alone(&self, choice: Choice, ranks: &[&RankOutline]) -> Vec<OmissionRow> {
        let alone = |rank: i32| self.row(rank, false).is_some_and(|r| r.method == ClockMethod::None);
        let ranks = ranks.iter().map(|r| r.info.rank).filter(|rank| choice != Choice::Auto && alone(*rank));
        let why = |rank: i32| {
            let reference = self.reference_rank().unwrap_or(rank);
            format!(
                "no {} connect it to reference rank {reference}, and --clock {} allows no other evidence: its times stay on \
                 its own clock",
                evidence(choice),
                choice.as_str(),
            )
        };
        ranks.map(|rank| OmissionRow::left_out("clock fit", why(rank)).rank(rank).amount(1)).collect()
    }
}
