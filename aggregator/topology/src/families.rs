//! Families of communicators: those of one shape that have no rank in common, as those of one dimension of a job.

use std::collections::{BTreeMap, BTreeSet};

/// A family, and the ranks of its members.
struct Family<T> {
    ranks: BTreeSet<usize>,
    members: Vec<T>,
}

/// Divides communicators into families, at most `most` of one shape. Each communicator has a shape and its ranks, and belongs to the
/// first family of its shape in which no other has one of its ranks. Returns the families of two members or more, and the number of
/// communicators beyond `most`.
pub fn families<S: Ord, T>(
    communicators: impl Iterator<Item = (S, BTreeSet<usize>, T)>,
    most: usize,
) -> (Vec<Vec<T>>, usize) {
    let mut by_shape: BTreeMap<S, Vec<Family<T>>> = BTreeMap::new();
    let mut left_out = 0;
    for (shape, ranks, member) in communicators {
        let alike = by_shape.entry(shape).or_default();
        let at = alike.iter().position(|family| family.ranks.is_disjoint(&ranks)).unwrap_or(alike.len());
        if at == most {
            left_out += 1;
            continue;
        }
        if at == alike.len() {
            alike.push(Family { ranks: BTreeSet::new(), members: Vec::new() });
        }
        alike[at].ranks.extend(ranks);
        alike[at].members.push(member);
    }
    let all = by_shape.into_values().flatten().map(|family| family.members);
    (all.filter(|members| members.len() > 1).collect(), left_out)
}
