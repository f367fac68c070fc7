//! Loads real traces for the tests, with the same reader as the commands.

use std::path::Path;

use align::matching::match_collectives;
use formats::kineto::KinetoSource;
use model::source::Source;
use model::{Instance, RankData, RankOutline};

/// Loads all ranks of a folder.
pub(super) fn load(folder: &Path) -> Vec<RankData> {
    let source = KinetoSource::open(&[folder.to_path_buf()]).unwrap();
    source.ranks().iter().map(|rank| source.load(*rank).unwrap()).collect()
}

/// The matched collectives of `ranks`.
pub(super) fn matched(ranks: &[RankData]) -> Vec<Instance> {
    matched_of(ranks.iter().map(|rank| &rank.outline))
}

/// The same, of outlines.
pub(super) fn matched_of<'a>(outlines: impl Iterator<Item = &'a RankOutline>) -> Vec<Instance> {
    match_collectives(&outlines.collect::<Vec<_>>()).0
}
