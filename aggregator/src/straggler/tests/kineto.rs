//! Real traces as oracles, by the reader that users have.

use std::path::{Path, PathBuf};

use crate::kineto::KinetoSource;
use crate::matching::{RankCollectives, match_collectives};
use crate::model::{Instance, RankData};
use crate::source::Source;

/// A folder of real traces, where this machine has it: in `$RANKSCOPE_DATA/kineto`, `examples/traces`, or beside the
/// workspace.
pub(super) fn folder(name: &str) -> Option<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let places = [
        std::env::var_os("RANKSCOPE_DATA").map(|data| PathBuf::from(data).join("kineto")),
        Some(workspace.join("examples/traces")),
        workspace.parent().map(|p| p.join("shared/data/kineto")),
    ];
    let found = places.into_iter().flatten().map(|p| p.join(name)).find(|p| p.is_dir());
    if found.is_none() {
        eprintln!("skipped: no traces `{name}` here; set RANKSCOPE_DATA to a folder that holds kineto/");
    }
    found
}

/// All ranks of a directory.
pub(super) fn load(folder: &Path) -> Vec<RankData> {
    let source = KinetoSource::open(&[folder.to_path_buf()]).unwrap();
    source.ranks().iter().map(|rank| source.load(*rank).unwrap()).collect()
}

/// Their collectives matched.
pub(super) fn matched(ranks: &[RankData]) -> Vec<Instance> {
    match_collectives(&ranks.iter().map(RankCollectives::of).collect::<Vec<_>>()).0
}
