//! Limits the part of a rank to the selected steps.

use crate::measure::own_time::OwnTime;
use crate::measure::part::RankPart;
use crate::model::scope::{Scope, narrow_to_steps, retain};

/// Removes the steps that are not selected from a part. The part must be made from all steps, because the first
/// selected step begins when the device has finished the step before it.
pub(crate) fn select_steps(part: &mut RankPart, scope: &Scope) {
    if scope.steps.is_none() {
        return;
    }
    let kept = narrow_to_steps(&mut part.outline, scope);
    select_stretches(&mut part.straggler, &kept, scope);
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
    for stretch in &mut part.stretches {
        stretch.previous = stretch.previous.and_then(|at| new_positions.get(at as usize).copied().flatten());
    }
    let in_steps: Vec<bool> = part.steps.iter().map(|s| scope.has_step(s.step)).collect();
    retain(&mut part.steps, &in_steps);
    part.ranges.iter_mut().for_each(|range| retain(&mut range.self_ns, &in_steps));
}
