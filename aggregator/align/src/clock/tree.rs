//! Clocks connected by fits. At most one path connects any two, so an offset does not depend on the order of additions.

use std::collections::BTreeMap;

use trace::ClockMethod;

use crate::clock::affine::Affine;
use crate::clock::fit::Fit;

/// The owner of a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Node {
    /// The host clock of a rank. The rank may be loaded, or only appear as a peer of others.
    Rank(i32),
    /// Coordinated universal time.
    Utc,
}

/// A fit from one node's clock to another's.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Joint {
    pub(crate) from: Node,
    pub(crate) to: Node,
    pub(crate) fit: Fit,
}

/// A forest of nodes: fits connect them without cycles.
#[derive(Clone, Debug, Default)]
pub(crate) struct Forest {
    pub(crate) joints: Vec<Joint>,
    neighbours: BTreeMap<Node, Vec<usize>>,
    /// For a connected node, a node nearer to the representative of its tree.
    toward: BTreeMap<Node, Node>,
}

/// The path from the root of a tree to one of its nodes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reached {
    /// Map from the node's clock to the root's clock.
    pub(crate) map: Affine,
    pub(crate) depth: usize,
    /// The next node toward the root, and the joint to it; `None` at the root.
    pub(crate) up: Option<(Node, usize)>,
}

impl Forest {
    /// Connects two nodes, unless a path connects them already. Returns whether it did.
    pub(crate) fn join(&mut self, joint: Joint) -> bool {
        let (from, to) = (self.tree_of(joint.from), self.tree_of(joint.to));
        let apart = from != to;
        if apart {
            self.toward.insert(from.max(to), from.min(to));
            for node in [joint.from, joint.to] {
                self.neighbours.entry(node).or_default().push(self.joints.len());
            }
            self.joints.push(joint);
        }
        apart
    }

    /// The representative of a node's tree.
    pub(crate) fn tree_of(&mut self, node: Node) -> Node {
        let mut root = node;
        while let Some(next) = self.toward.get(&root) {
            root = *next;
        }
        // Shorten the path for the next query.
        if root != node {
            self.toward.insert(node, root);
        }
        root
    }

    /// All nodes that a path from `root` reaches, with their maps to its clock.
    pub(crate) fn reached(&self, root: Node) -> BTreeMap<Node, Reached> {
        let mut reached = BTreeMap::from([(root, Reached { map: Affine::IDENTITY, depth: 0, up: None })]);
        let mut open = vec![root];
        while let Some(node) = open.pop() {
            let Some(here) = reached.get(&node).cloned() else { continue };
            for index in self.neighbours.get(&node).into_iter().flatten() {
                let joint = &self.joints[*index];
                let (next, step) =
                    if joint.from == node { (joint.to, joint.fit.map.inverse()) } else { (joint.from, joint.fit.map) };
                if reached.contains_key(&next) {
                    continue;
                }
                let up = Some((node, *index));
                reached.insert(next, Reached { map: step.then(&here.map), depth: here.depth + 1, up });
                open.push(next);
            }
        }
        reached
    }
}

/// The joints on the path between two nodes that are reached from the same root.
pub(crate) fn path(reached: &BTreeMap<Node, Reached>, a: Node, b: Node) -> Option<Vec<usize>> {
    let (mut a, mut b) = (a, b);
    let mut joints = Vec::new();
    while a != b {
        let (at_a, at_b) = (reached.get(&a)?, reached.get(&b)?);
        let deeper = if at_a.depth >= at_b.depth { &mut a } else { &mut b };
        let (next, joint) = reached.get(deeper)?.up?;
        joints.push(joint);
        *deeper = next;
    }
    Some(joints)
}

/// The least reliable method on a path; `None` for an empty path.
pub(crate) fn worst(forest: &Forest, joints: &[usize]) -> Option<ClockMethod> {
    joints.iter().map(|j| forest.joints[*j].fit.method).max()
}
