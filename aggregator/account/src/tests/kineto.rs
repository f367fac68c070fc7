//! Loads real traces for the tests, with the same reader as the commands.

use std::path::Path;

use align::matching::match_collectives;
use formats::kineto::KinetoSource;
use model::source::Source;
use model::{Instance, RankData};

/// Loads all ranks of a folder.
pub(super) fn load(folder: &Path) -> Vec<RankData> {
    let source = KinetoSource::open(&[folder.to_path_buf()]).unwrap();
    source.ranks().iter().map(|rank| source.load(*rank).unwrap()).collect()
}

/// The matched collectives of `ranks`.
pub(super) fn matched(ranks: &[RankData]) -> Vec<Instance> {
    match_collectives(&ranks.iter().map(|rank| &rank.outline).collect::<Vec<_>>()).0
}
