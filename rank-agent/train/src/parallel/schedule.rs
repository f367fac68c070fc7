//! The order of microbatches on a stage: one forward, one backward (1F1B; PipeDream-Flush, Narayanan et al. 2021).
//!
//! ```text
//! 3 stages, 4 microbatches
//! stage 0   F0 F1 F2          B0 F3 B1    B2    B3
//! stage 1      F0 F1       B0 F2 B1 F3 B2    B3
//! stage 2         F0    B0 F1 B1 F2 B2 F3 B3
//! ```
//!
//! With equal stages, a stage is idle for (p − 1) / (m + p − 1) of the pass of m microbatches through p stages.

/// A pass of a microbatch through a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// The forward pass of a microbatch.
    Forward(usize),
    /// Its backward pass.
    Backward(usize),
}

/// The passes of a stage in their order.
pub fn one_forward_one_backward(stage: usize, stages: usize, microbatches: usize) -> Vec<Pass> {
    let ahead = stages.saturating_sub(stage + 1).min(microbatches);
    let mut passes: Vec<Pass> = (0..ahead).map(Pass::Forward).collect();
    for next in ahead..microbatches {
        passes.extend([Pass::Forward(next), Pass::Backward(next - ahead)]);
    }
    passes.extend((microbatches - ahead..microbatches).map(Pass::Backward));
    passes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(stage: usize, stages: usize, expected: &str) {
        let text = |pass: &Pass| match pass {
            Pass::Forward(i) => format!("F{i}"),
            Pass::Backward(i) => format!("B{i}"),
        };
        let passes: Vec<String> = one_forward_one_backward(stage, stages, 4).iter().map(text).collect();
        assert_eq!(passes.join(" "), expected);
    }

    #[test]
    fn a_stage_runs_ahead_by_the_stages_behind_it() {
        check(0, 3, "F0 F1 F2 B0 F3 B1 B2 B3");
        check(1, 3, "F0 F1 B0 F2 B1 F3 B2 B3");
        check(2, 3, "F0 B0 F1 B1 F2 B2 F3 B3");
        check(0, 1, "F0 B0 F1 B1 F2 B2 F3 B3");
        check(0, 9, "F0 F1 F2 F3 B0 B1 B2 B3");
    }
}
