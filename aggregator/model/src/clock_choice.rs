//! The user's choice of evidence for the clocks.

/// The evidence that clocks are fitted by. rankscope uses the chosen evidence or fails; it never substitutes another
/// one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Choice {
    /// The best available evidence, rank by rank.
    #[default]
    Auto,
    /// Round trips between ranks (runs of rank-agent).
    Ping,
    /// Ranks of one host share its clock, unless their collectives contradict that.
    SameHost,
    /// No rank leaves a collective before all ranks have entered it, and all leave it nearly together. Host names are
    /// ignored.
    Collective,
    /// Wall clocks without correction; their error is unknown.
    Utc,
}

impl Choice {
    /// The word on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Ping => "ping",
            Self::SameHost => "same_host",
            Self::Collective => "collective",
            Self::Utc => "utc",
        }
    }
}
