//! The input of the analyses of devices.

use regex::Regex;
use trace::rank::Launches;

use crate::breakdown::{Activity, Parts};
use model::RankData;
use model::intervals::IntervalSet;
use model::scope::Scope;

/// The data of a rank, and the part of it that is analysed.
pub(crate) struct View<'a> {
    pub(crate) data: &'a RankData,
    /// Whether a row is in the analysed part.
    pub(crate) keep: &'a (dyn Fn(usize) -> bool + Sync),
    /// The time and steps of the analysed part.
    pub(crate) scope: &'a Scope,
    /// The host call that launched each device row.
    pub(crate) launches: &'a Launches,
    /// The operators whose kernel sequences are counted; `None` means the outermost operators.
    pub(crate) sequences_of: Option<&'a Regex>,
    /// The time in which devices may have worked: the rows of launches before it are lost.
    pub(crate) unknown: &'a IntervalSet,
    /// The activity of each device, including steps that are not chosen.
    pub(crate) parts: &'a [(Activity, Parts)],
    /// The activity of each device in the chosen steps only.
    pub(crate) chosen: &'a [(Activity, Parts)],
}
