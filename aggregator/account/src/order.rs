//! The order in which a replay can follow its nodes: each after all that it depends on.

use crate::nodes::{Leave, NONE, Node};

/// Puts nodes in an order in which each comes after those that it depends on, and after all arrivals at a collective that it
/// waits for. The nodes of one rank stay in their order. `None` if no such order exists.
pub(super) fn in_order(nodes: Vec<Node>) -> Option<Vec<Node>> {
    let ranks = nodes.iter().map(|node| node.rank as usize + 1).max().unwrap_or(0);
    let instances = nodes.iter().map(|node| node.instance as usize + 1).max().unwrap_or(0);
    let mut waiting: Vec<std::collections::VecDeque<u32>> = vec![Default::default(); ranks];
    let mut missing = vec![0_u32; instances];
    for (at, node) in nodes.iter().enumerate() {
        waiting[node.rank as usize].push_back(at as u32);
        missing[node.instance as usize] += 1;
    }
    let mut place_of = vec![NONE; nodes.len()];
    let mut order: Vec<u32> = Vec::with_capacity(nodes.len());
    while order.len() < nodes.len() {
        let before = order.len();
        for rank in &mut waiting {
            while let Some(at) = rank.front().copied() {
                let node = &nodes[at as usize];
                // A collective that was left early is left after one arrival alone.
                let is_left = |of: u32| match nodes.get(of as usize).map(|of| (of.leave, of.instance)) {
                    None => true,
                    Some((Leave::AfterLast(_), instance)) => missing[instance as usize] == 0,
                    Some((Leave::After(other, _), _)) => place_of[other as usize] != NONE,
                };
                if !is_left(node.waited) || !is_left(node.before) {
                    break;
                }
                rank.pop_front();
                place_of[at as usize] = order.len() as u32;
                missing[node.instance as usize] -= 1;
                order.push(at);
            }
        }
        if order.len() == before {
            return None;
        }
    }
    let placed = |at: u32| place_of.get(at as usize).copied().unwrap_or(NONE);
    let moved = |at: &u32| {
        let node = nodes[*at as usize];
        let leave = match node.leave {
            Leave::After(of, ns) => Leave::After(placed(of), ns),
            last => last,
        };
        Node { entered: placed(node.entered), waited: placed(node.waited), before: placed(node.before), leave, ..node }
    };
    Some(order.iter().map(moved).collect())
}
