//! Clocks joined by fits: at most one path between any two, so offsets never depend on the way they are added up.

use std::collections::BTreeMap;

use super::affine::Affine;
use super::fit::{Fit, Method};

/// Something with a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Node {
    /// The host clock of a rank, loaded or only spoken of by others.
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

/// Nodes joined by fits without a cycle.
#[derive(Clone, Debug, Default)]
pub(crate) struct Forest {
    pub(crate) joints: Vec<Joint>,
    neighbours: BTreeMap<Node, Vec<usize>>,
    /// For a node that was joined to another, one nearer to what stands for its tree.
    toward: BTreeMap<Node, Node>,
}

/// How a node is reached from the root of its tree.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reached {
    /// From the node's clock to the root's.
    pub(crate) map: Affine,
    pub(crate) depth: usize,
    /// The next node toward the root, and the joint in between; none at the root.
    pub(crate) up: Option<(Node, usize)>,
}

impl Forest {
    /// Joins two nodes, unless a path joins them already. Returns whether it did.
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

    /// The node that stands for a node's tree.
    pub(crate) fn tree_of(&mut self, node: Node) -> Node {
        let mut root = node;
        while let Some(next) = self.toward.get(&root) {
            root = *next;
        }
        // Next time, one step.
        if root != node {
            self.toward.insert(node, root);
        }
        root
    }

    /// All nodes that a path leads to, with their maps to the clock of `root`.
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

/// The joints between two reached nodes.
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

/// The worst method of a path; identity where there is no joint.
pub(crate) fn worst(forest: &Forest, joints: &[usize]) -> Option<Method> {
    joints.iter().map(|j| forest.joints[*j].fit.method).max()
}
