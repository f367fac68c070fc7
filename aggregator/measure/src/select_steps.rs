//! Limits the part of a rank to the selected steps.

use std::sync::Arc;

use crate::own_time::OwnTime;
use crate::part::RankPart;
use model::scope::{Scope, narrow_to_steps, retain};

/// Removes the steps that are not selected from a part. The part must be made from all steps, because the first
/// selected step begins when the device has finished the step before it.
pub(crate) fn select_steps(part: &mut RankPart, scope: &Scope) {
    if scope.steps.is_none() {
        return;
    }
    let kept = narrow_to_steps(&mut part.outline, scope);
    if let Some(own_time) = &mut part.straggler {
        select_stretches(own_time, &kept, scope);
    }
}

/// Removes the stretches outside of the selected steps. The other stretches keep their length.
fn select_stretches(part: &mut OwnTime, kept: &[bool], scope: &Scope) {
    if let Some(by_operators) = &mut part.by_operators {
        select_stretches(by_operators, kept, scope);
    }
    let new_positions = kept.iter().scan(0, |next, kept| {
        let position = kept.then_some(*next);
        *next += u32::from(*kept);
        Some(position)
    });
    let new_positions: Vec<Option<u32>> = new_positions.collect();
    retain(&mut part.stretches, kept);
    if let Some(graph) = &mut part.graph {
        Arc::make_mut(graph).select(&new_positions, |step| scope.has_step(step));
    }
    let moved = |at: Option<u32>| new_positions.get(at? as usize).copied().flatten();
    for stretch in &mut part.stretches {
        stretch.previous = moved(stretch.previous);
        stretch.entered = moved(stretch.entered);
        stretch.waited = moved(stretch.waited);
    }
    part.path_steps.retain(|step| scope.has_step(step.step));
    let in_steps: Vec<bool> = part.steps.iter().map(|s| scope.has_step(s.step)).collect();
    retain(&mut part.steps, &in_steps);
    part.ranges.iter_mut().for_each(|range| retain(&mut range.self_ns, &in_steps));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::own_time::map_rank;
    use drawn::Drawn;
    use model::Kind;
    use model::options::Options;

    #[test]
    fn the_collectives_that_came_before_move_with_the_others() {
        let mut data = Drawn::rank(0)
            .steps("##########..##########")
            .host(Kind::CpuOp, "op", 1, "####......#####.......")
            .collectives("....##..##.....###.###")
            .data();
        data.outline.collectives.iter_mut().zip([1, 1, 2, 2]).for_each(|(row, step)| row.set_step(Some(step)));
        let mut part = map_rank(&data, &Options::default().thresholds);
        let before = |part: &OwnTime| part.stretches.iter().map(|s| (s.entered, s.waited)).collect::<Vec<_>>();
        assert_eq!(before(&part)[2..], [(Some(1), Some(1)), (Some(2), Some(2))]);
        let scope = Scope { steps: Some(2..3), ..Scope::default() };
        select_stretches(&mut part, &[false, false, true, true], &scope);
        assert_eq!(before(&part), [(None, None), (Some(0), Some(0))]);
        assert_eq!(part.path_steps.iter().map(|step| step.step).collect::<Vec<_>>(), [2]);
    }
}
