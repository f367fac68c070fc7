//! Where in a training step a block of memory is allocated and released, and what it is for.

use trace::name_rules::{TrainingPhase, is_step};
use trace::rank::{enclosing, innermost, innermost_at, outermost};
use trace::{MemoryCategory, MemoryRow};

use crate::memory::blocks::Block;
use model::{Events, Kind, NO_PARENT, NONE, RankData};

/// A block that is neither a parameter nor state outlives at most so many starts of backward passes: its own, that of
/// the next step (a loss that the next one replaces), and one more (a batch that was loaded one step ahead).
const PASSES: usize = 2;

/// The phases of a rank's training steps.
#[derive(Debug)]
pub(super) struct Phases<'a> {
    events: &'a Events,
    rows: &'a [MemoryRow],
    /// For each row of `memory`, the innermost row of `events` around it, or [`NO_PARENT`].
    around: Vec<u32>,
    /// Phase of each name.
    phase_of_name: Vec<Option<TrainingPhase>>,
    /// For each row of `events`, the innermost row that begins a phase and the innermost frame of a stack, itself included;
    /// and the outermost operator around it. Without such rows, [`NO_PARENT`].
    in_phase: Vec<u32>,
    in_frame: Vec<u32>,
    in_operator: Vec<u32>,
    /// Starts of rows outside of the backward pass, on the threads that train; ascending.
    outside: Vec<i64>,
    /// Starts of the backward passes, ascending.
    passes: Vec<i64>,
}

impl<'a> Phases<'a> {
    pub(super) fn find(data: &'a RankData) -> Self {
        let (events, rows) = (&data.events, data.memory.as_slice());
        let phase_of_name: Vec<_> = data.names.iter().map(|name| TrainingPhase::of(name)).collect();
        let is_step_name: Vec<bool> = data.names.iter().map(|name| is_step(name)).collect();
        let phase = |row: usize| phase_of_name[events.name[row] as usize];
        let in_backward = backward_rows(events, &phase);
        let is_host = |row: &usize| matches!(events.kind[*row], Kind::CpuOp | Kind::UserAnnotation);
        let marks = |row: &usize| {
            let name = events.name[*row] as usize;
            is_step_name[name] || phase_of_name[name] == Some(TrainingPhase::OptimizerStep)
        };
        // Threads of data loaders run operators at any time, so they do not tell where a pass ends.
        let mut threads: Vec<i64> =
            (0..events.len()).filter(is_host).filter(marks).map(|row| events.thread[row]).collect();
        threads.sort_unstable();
        threads.dedup();
        let trains = |row: &usize| threads.is_empty() || threads.binary_search(&events.thread[*row]).is_ok();
        let is_outside = |row: &usize| is_host(row) && !in_backward[*row] && trains(row);
        let outside: Vec<i64> = (0..events.len()).filter(is_outside).map(|row| events.ts_ns[row]).collect();

        let mut passes: Vec<i64> = Vec::new();
        let mut last = None;
        for ts_ns in (0..events.len()).filter(|row| in_backward[*row]).map(|row| events.ts_ns[row]) {
            let goes_on = last.is_some_and(|last| first_after(&outside, last).is_none_or(|next| next >= ts_ns));
            if !goes_on {
                passes.push(ts_ns);
            }
            last = Some(ts_ns);
        }
        // Steps are no frames, because each has its own name.
        let is_frame = |row: usize| match events.kind[row] {
            Kind::PythonFunction => true,
            Kind::UserAnnotation => !is_step_name[events.name[row] as usize],
            _ => false,
        };
        // Old traces have ranges, such as steps, as operators; the names of real ones have a namespace.
        let has_namespace: Vec<bool> = data.names.iter().map(|name| name.contains("::")).collect();
        let is_operator = |row: usize| events.kind[row] == Kind::CpuOp && has_namespace[events.name[row] as usize];
        let in_operator = || {
            let mut in_operator = outermost(events, &is_operator);
            for (row, operator) in in_operator.iter_mut().enumerate() {
                *operator = if *operator == NO_PARENT && is_operator(row) { row as u32 } else { *operator };
            }
            in_operator
        };
        let places = rows.iter().map(|row| (row.ts_ns, row.thread_id.unwrap_or(NONE)));
        let ((in_phase, in_frame), (in_operator, around)) = rayon::join(
            || (innermost(events, &|row| phase(row).is_some()), innermost(events, &is_frame)),
            || (in_operator(), innermost_at(events, places)),
        );
        Self { events, rows, around, phase_of_name, in_phase, in_frame, in_operator, outside, passes }
    }

    /// The innermost row of `events` around a row of `memory`.
    fn innermost_row(&self, row: u32) -> Option<usize> {
        self.around.get(row as usize).copied().and_then(place)
    }

    /// The frames of the stack around a row of `memory`, as rows of `events`, from the innermost.
    pub(super) fn frames(&self, row: u32) -> impl Iterator<Item = usize> + use<'_> {
        let frame = |row: usize| place(self.in_frame[row]);
        let innermost = self.innermost_row(row).and_then(frame);
        std::iter::successors(innermost, move |row| enclosing(self.events, *row).and_then(frame))
    }

    /// The nearest phase around a row of `memory`, and the end of the row that begins it.
    fn phase(&self, row: u32) -> Option<(TrainingPhase, i64)> {
        let at = place(self.in_phase[self.innermost_row(row)?])?;
        Some((self.phase_of_name[self.events.name[at] as usize]?, self.events.end_ns(at)))
    }

    /// The end of the outermost operator around a row of `memory`.
    fn operator_end_ns(&self, row: u32) -> Option<i64> {
        place(self.in_operator[self.innermost_row(row)?]).map(|at| self.events.end_ns(at))
    }

    fn ts_ns(&self, row: u32) -> i64 {
        self.rows[row as usize].ts_ns
    }

    /// The category of a block. docs/method/memory.md states the rule and its limits, and compares it with torch's.
    ///
    /// ```text
    ///               forward     backward      optimizer     forward     backward
    /// temporary     ##..................................................             inside of one operator
    /// activations   .######..............................................            a value of the forward pass
    /// activations   ....###############.................................             needed by the backward pass
    /// temporary     ..............####..................................             gradient of an activation
    /// gradients     ..................#############################.....             outlives its pass
    /// optimizer     .................................###################>            outlives its step
    /// parameters   ####################################################>             made before the first pass
    /// ```
    pub(super) fn category(&self, block: &Block) -> MemoryCategory {
        let released = block.released.map(|row| (self.ts_ns(row), self.phase(row).map(|(phase, _)| phase)));
        let released_by = released.and_then(|(_, phase)| phase);
        let Some(allocated) = block.allocated else {
            return match released_by {
                Some(TrainingPhase::ZeroGradients | TrainingPhase::StoreGradient) => MemoryCategory::Gradients,
                Some(TrainingPhase::Backward) => MemoryCategory::Activations,
                Some(TrainingPhase::OptimizerStep) | None => MemoryCategory::Unknown,
            };
        };
        // torch allocates in operators, so without any row around it the thread or its operators were not recorded.
        if self.innermost_row(allocated).is_none() {
            return MemoryCategory::Unknown;
        }
        let ts_ns = self.ts_ns(allocated);
        let outlives = |limit_ns: i64| released.is_none_or(|(released_ns, _)| released_ns > limit_ns);
        match (self.phase(allocated), released_by) {
            (Some((TrainingPhase::Backward | TrainingPhase::StoreGradient, _)), Some(TrainingPhase::StoreGradient)) => {
                MemoryCategory::Gradients
            }
            (Some((TrainingPhase::Backward | TrainingPhase::StoreGradient, _)), _) => {
                match first_after(&self.outside, ts_ns) {
                    Some(next) if outlives(next) => MemoryCategory::Gradients,
                    None if released.is_none() => MemoryCategory::Unknown,
                    _ => MemoryCategory::Temporary,
                }
            }
            // An optimizer may call the passes itself (`step(closure)`).
            (_, Some(TrainingPhase::Backward | TrainingPhase::StoreGradient)) => MemoryCategory::Activations,
            (_, Some(TrainingPhase::ZeroGradients)) => MemoryCategory::Gradients,
            (Some((TrainingPhase::OptimizerStep, end_ns)), _) if outlives(end_ns) => MemoryCategory::OptimizerState,
            (Some(_), _) if released.is_some() => MemoryCategory::Temporary,
            (Some(_), _) => MemoryCategory::Unknown,
            (None, _) => self.outside_of_phases(allocated, block, released.map(|(released_ns, _)| released_ns)),
        }
    }

    /// The category of a block that no phase allocated or released: of the forward pass, of input, of a model.
    fn outside_of_phases(&self, allocated: u32, block: &Block, released_ns: Option<i64>) -> MemoryCategory {
        let ts_ns = self.ts_ns(allocated);
        let last_ns = self.ts_ns(block.alive.end.saturating_sub(1).max(block.alive.start));
        let until_ns = released_ns.unwrap_or(last_ns);
        let before = |t_ns: i64| self.passes.partition_point(|start| *start <= t_ns);
        let outlived = before(until_ns).saturating_sub(before(ts_ns));
        let before_all = before(ts_ns) == 0;
        match (outlived, released_ns) {
            (0, Some(released_ns)) if self.operator_end_ns(allocated) >= Some(released_ns) => MemoryCategory::Temporary,
            // Old traces do not mark the backward pass, so its values look like those of the forward pass.
            (0..=PASSES, Some(_)) if self.passes.is_empty() => MemoryCategory::Unknown,
            (0..=PASSES, Some(_)) => MemoryCategory::Activations,
            // It may be the last batch or loss, or something that stays.
            (0..=PASSES, None) => MemoryCategory::Unknown,
            _ if before_all => MemoryCategory::Parameters,
            _ => MemoryCategory::Unknown,
        }
    }
}

/// A row of `events`, unless it is [`NO_PARENT`].
fn place(row: u32) -> Option<usize> {
    (row != NO_PARENT).then_some(row as usize)
}

/// Whether each row is in the backward pass.
fn backward_rows(events: &Events, phase: &dyn Fn(usize) -> Option<TrainingPhase>) -> Vec<bool> {
    let mut in_backward = vec![false; events.len()];
    for row in 0..events.len() {
        let itself = matches!(phase(row), Some(TrainingPhase::Backward | TrainingPhase::StoreGradient));
        in_backward[row] = itself || enclosing(events, row).is_some_and(|parent| in_backward[parent]);
    }
    in_backward
}

/// The first of the ascending times that is later than `t_ns`.
fn first_after(times: &[i64], t_ns: i64) -> Option<i64> {
    times.get(times.partition_point(|time| *time <= t_ns)).copied()
}

#[cfg(test)]
mod tests {
    use trace::name_rules::EVALUATES;

    use super::*;
    use crate::memory::blocks::blocks;
    use drawn::Drawn;
    use model::windows::Windows;

    /// Categories of the blocks of drawn lines. Each run of `#` is a block on thread 1, at the line's own address; `>` as
    /// its last character: it is not released; `<` as its first: it was allocated before the recording.
    fn categories(drawn: Drawn, lines: &[&str]) -> Vec<String> {
        let mut data = drawn.data();
        for (address, line) in (1..).zip(lines) {
            let chars: Vec<char> = line.chars().collect();
            let mut row = |ts_ns: usize, delta_bytes| {
                let (ts_ns, address, thread_id) = (ts_ns as i64, Some(address), Some(1));
                data.memory.push(MemoryRow { ts_ns, address, delta_bytes, thread_id, ..MemoryRow::default() });
            };
            for (at, what) in chars.iter().enumerate().filter(|(_, what)| **what != '.') {
                let before = at.checked_sub(1).map_or('.', |at| chars[at]);
                let after = chars.get(at + 1).copied().unwrap_or('.');
                if *what == '#' && before == '.' {
                    row(at, 8);
                }
                if *what != '>' && after == '.' {
                    row(at, -8);
                }
            }
        }
        data.memory.sort_by_key(|row| row.ts_ns);
        let all: Vec<u32> = (0..data.memory.len() as u32).collect();
        let phases = Phases::find(&data);
        let mut found: Vec<(Option<i64>, usize, MemoryCategory)> = Vec::new();
        for block in blocks(&data.memory, &all, &Windows::default()) {
            let row = block.allocated.or(block.released).unwrap() as usize;
            found.push((data.memory[row].address, row, phases.category(&block)));
        }
        found.sort_by_key(|(address, row, _)| (*address, *row));
        found.into_iter().map(|(_, _, category)| category.as_str().to_string()).collect()
    }

    /// Two steps: forward, backward with two nodes, the step of the optimizer, and the release of the gradients.
    fn steps() -> Drawn {
        let annotation = Kind::UserAnnotation;
        Drawn::rank(0)
            .host(Kind::CpuOp, "aten::empty", 1, "##....................................................")
            .host(Kind::CpuOp, "aten::linear", 1, "..##................##................##................")
            .host(
                Kind::CpuOp,
                &format!("{EVALUATES}AddmmBackward0"),
                1,
                "......###...............###...............###...........",
            )
            .host(
                Kind::CpuOp,
                &format!("{EVALUATES}torch::autograd::AccumulateGrad"),
                1,
                ".........##...............##...............##..........",
            )
            .host(annotation, "Optimizer.step#SGD.step", 1, "...........####..............####..............####....")
            .host(
                annotation,
                "Optimizer.zero_grad#SGD.zero_grad",
                1,
                "................##................##................##.",
            )
    }

    #[test]
    fn the_life_of_a_block_tells_what_it_is_for() {
        let lines = [
            //.linear.. back acc optimizer zero
            "#####################################################>", // a weight
            "..##..................................................", // inside of one operator
            "...###................................................", // between operators of the forward pass
            "...#####..............................................", // needed by the backward pass
            "...####################..............................",  // a loss that the next one replaces
            "......###.............................................", // the gradient of an activation
            ".......##########.....................................", // a gradient, released by zero_grad
            ".......###............................................", // a gradient, added to one that exists
            "............########################################>",  // a momentum
            "............##........................................", // of the optimizer's step only
            "<######...............................................", // an activation from before the recording
            "<################.....................................", // a gradient from before the recording
            "<###..................................................", // released by the forward pass
            "......................................##>.............", // too late to tell
            "...............................................##.....", // of the last optimizer's step only
        ];
        assert_eq!(
            categories(steps(), &lines),
            [
                "parameters",
                "temporary",
                "activations",
                "activations",
                "activations",
                "temporary",
                "gradients",
                "gradients",
                "optimizer_state",
                "temporary",
                "activations",
                "gradients",
                "unknown",
                "unknown",
                "temporary"
            ]
        );
    }

    #[test]
    fn without_phases_kept_blocks_are_unknown() {
        let lines = ["###>", ".##.", "<##."];
        let drawn = Drawn::rank(0).host(Kind::CpuOp, "aten::empty", 1, "##..");
        assert_eq!(categories(drawn, &lines), ["unknown", "temporary", "unknown"]);
        assert_eq!(categories(Drawn::rank(0), &lines), ["unknown"; 3]);
    }
}
