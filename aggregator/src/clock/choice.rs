//! Which evidence a fit may use.

use trace::OmissionRow;

use super::fit::Method;
use super::ping::note;
use super::{Clocks, RankClock};

/// The evidence that clocks are fitted by. What was chosen is used or nothing is: never silently something else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Choice {
    /// The best that there is, rank by rank.
    #[default]
    Auto,
    /// Round trips between ranks (runs of rank-agent).
    Ping,
    /// Ranks of one host share its clock, unless their collectives contradict that.
    SameHost,
    /// No rank leaves a collective before all have entered, and all leave it nearly together; hosts and names count for
    /// nothing.
    Collective,
    /// Wall clocks as they are, with an error that nobody knows.
    Utc,
}

impl Choice {
    /// Whether a fit of this method may be used.
    pub(crate) fn allows(self, method: Method) -> bool {
        match self {
            Self::Auto => true,
            Self::Ping => method == Method::Ping,
            Self::SameHost => method == Method::SameHost,
            Self::Collective => matches!(method, Method::Collective | Method::CollectiveWeak),
            Self::Utc => method == Method::Utc,
        }
    }

    /// The word on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Ping => Method::Ping.as_str(),
            Self::SameHost => Method::SameHost.as_str(),
            Self::Collective => Method::Collective.as_str(),
            Self::Utc => Method::Utc.as_str(),
        }
    }

    /// What it goes by.
    fn evidence(self) -> &'static str {
        match self {
            Self::Auto => "evidence",
            Self::Ping => "round trips between ranks (runs of rank-agent hold them)",
            Self::SameHost => "equal clock domains that no collective contradicts",
            Self::Collective => "synchronising collectives of several ranks",
            Self::Utc => "readings of a wall clock",
        }
    }
}

impl Clocks {
    /// Why no rank could be fitted to another by `choice`; `None` if some were, or if there is nothing to fit.
    pub fn impossible(&self, choice: Choice) -> Option<String> {
        let mut others = self.rows().iter().filter(|r| r.rank != r.reference_rank && &*r.clock == "host").peekable();
        others.peek()?;
        let all = choice != Choice::Auto && others.all(|r| &*r.method == Method::None.as_str());
        all.then(|| format!("no {} join any two ranks here; try --clock auto", choice.evidence()))
    }

    /// A row for every rank that `choice` left on its own clock.
    pub(super) fn left_alone(&self, choice: Choice, ranks: &[RankClock<'_>]) -> Vec<OmissionRow> {
        let alone = |rank: i32| self.row(rank, false).is_some_and(|r| &*r.method == Method::None.as_str());
        let ranks = ranks.iter().map(|r| r.info.rank).filter(|rank| choice != Choice::Auto && alone(*rank));
        let why = |rank: i32| {
            let reference = self.reference_rank().unwrap_or(rank);
            format!(
                "no {} join it to rank {reference}, whose clock is global time, and --clock {} allows nothing else: its times stay on \
                 its own clock",
                choice.evidence(),
                choice.as_str(),
            )
        };
        ranks.map(|rank| note(rank, "clock fit", 1, &why(rank))).collect()
    }
}
