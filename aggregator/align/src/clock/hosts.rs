//! The host clocks that pings and equal clock domains join.

use std::collections::BTreeMap;

use crate::clock::affine::Affine;
use crate::clock::errors::along;
use crate::clock::tree::{Forest, Joint, Node, path};
use model::RankOutline;

pub(super) fn here(joint: &Joint) -> (i64, i64) {
    (joint.fit.map.origin_ns, joint.fit.map.origin_ns)
}

/// The shared clock that a rank belongs to, the map to it, and the uncertainty of that map.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) clock: usize,
    pub(super) map: Affine,
    /// The guaranteed error, or else the error at 95 %.
    pub(super) slack_ns: i64,
    /// The error at 95 %.
    pub(super) error_ns: i64,
}

/// The host clocks that pings and equal clock domains join, as groups.
pub(super) struct Hosts {
    pub(super) places: BTreeMap<i32, Place>,
    /// The lowest rank of each group, whose clock is that of the group.
    pub(super) roots: Vec<i32>,
}

impl Hosts {
    pub(super) fn of(forest: &Forest, ranks: &[&RankOutline]) -> Self {
        let windows: BTreeMap<Node, (i64, i64)> =
            ranks.iter().filter_map(|r| Some((Node::Rank(r.info.rank), r.recorded_ns?))).collect();
        let mut places: BTreeMap<i32, Place> = BTreeMap::new();
        let mut roots: Vec<i32> = Vec::new();
        for rank in ranks.iter().map(|r| r.info.rank) {
            if places.contains_key(&rank) {
                continue;
            }
            let reached = forest.reached(Node::Rank(rank));
            for (node, at) in &reached {
                let Node::Rank(member) = node else { continue };
                let joints = path(&reached, *node, Node::Rank(rank)).unwrap_or_default();
                let joints = || joints.iter().map(|j| &forest.joints[*j]);
                let window = |joint: &Joint| windows.get(&joint.from).copied().unwrap_or_else(|| here(joint));
                let error = |joint: &Joint| {
                    let window = window(joint);
                    joint.fit.error_ns(window).max(joint.fit.bias_ns(window))
                };
                let bounds = joints().map(|joint| joint.fit.bound_ns(window(joint)).or_else(|| error(joint)));
                let slack_ns = along(bounds).unwrap_or(0);
                let error_ns = along(joints().map(error)).unwrap_or(slack_ns);
                places.insert(*member, Place { clock: roots.len(), map: at.map, slack_ns, error_ns });
            }
            roots.push(rank);
        }
        Self { places, roots }
    }

    /// The map from a rank's clock to that of its group, and the lowest rank of the group.
    pub(super) fn root(&self, rank: i32) -> (Affine, i32) {
        self.places.get(&rank).map_or((Affine::IDENTITY, rank), |place| (place.map, self.roots[place.clock]))
    }
}
