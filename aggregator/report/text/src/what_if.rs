//! The results of what-if for a terminal.

use std::io::Write;

use crate::grid::Grid;
use model::error::Error;
use model::units::{ns, plural};
use what_if::changes::{Prediction, WhatIf};
use what_if::wia::{Ordered, Slowdown};

/// The rows of each part that are printed.
const MAX_ROWS: usize = 10;

/// Prints what slows a pipelined job.
///
/// # Errors
/// [`Error::Output`].
pub fn write_slowdown(slowdown: &Slowdown, width: usize, colour: bool, out: &mut dyn Write) -> Result<(), Error> {
    let job = &slowdown.job_meta;
    writeln!(
        out,
        "{}: {} steps of {} ranks (data {} × pipeline {} × tensor {}). With operations of usual length a step takes {:.3} s \
         instead of {:.3} s: {:.3} times as long.",
        job.trial_name,
        slowdown.step_t_base.0.len(),
        job.world_size,
        job.dp_size,
        job.pp_size,
        job.tp_size,
        slowdown.ms.tideal,
        slowdown.ms.tori,
        slowdown.blocking_slowdown
    )?;
    writeln!(
        out,
        "The replay with nothing changed is {:+.2} % off the measured steps; {:.2} % of them are delays that it leaves out.",
        100.0 * slowdown.replay_error,
        100.0 * (slowdown.launch_slowdown - 1.0)
    )?;
    for (title, parts) in [
        ("Types of operations: times as long if only these are as measured", &slowdown.blocking_decompose_by_optype),
        ("Data-parallel ranks", &slowdown.blocking_decompose_by_dp_rank),
        ("Stages", &slowdown.blocking_decompose_by_stage),
        ("Ranks (the smaller one of both)", &slowdown.blocking_decompose_by_rank),
    ] {
        let Some(Ordered(parts)) = parts else { continue };
        let shown = &parts[..parts.len().min(MAX_ROWS)];
        let names = shown.iter().map(|(name, _)| name.clone()).collect();
        let ratios = shown.iter().map(|(_, ratio)| format!("{ratio:.4}")).collect();
        writeln!(out, "\n{title}")?;
        write!(out, "{}", Grid::new().text("", 0, names).number("slowdown", 0, ratios).render(width, colour))?;
        if parts.len() > shown.len() {
            writeln!(out, "  … {} more in --json", parts.len() - shown.len())?;
        }
    }
    if slowdown.blocking_decompose_by_stage.is_none() {
        writeln!(out, "\nThe slowdown is below 3 %: it is not divided.")?;
    }
    writeln!(out)?;
    if let Some(mw) = &slowdown.mw {
        writeln!(
            out,
            "Usual lengths on the slowest 3 % of the ranks remove {:.1} % of the slowdown (M_W).",
            100.0 * mw.rem
        )?;
    }
    writeln!(out, "Usual lengths on the last stage remove {:.1} % of it (M_S).", 100.0 * slowdown.ms.rem)?;
    Ok(())
}

/// Prints predictions.
///
/// # Errors
/// [`Error::Output`].
pub fn write_predictions(found: &WhatIf, width: usize, colour: bool, out: &mut dyn Write) -> Result<(), Error> {
    writeln!(
        out,
        "A step takes {} (mean of {}). {} of it begins later than anything recorded explains; all intervals (95 %) hold that.",
        ns(found.step_ns),
        plural(found.steps, "step"),
        ns(found.replay_error_ns)
    )?;
    if found.changes.is_empty() {
        writeln!(out, "No change that the replay knows would make it shorter.")?;
        return Ok(());
    }
    let column = |of: fn(&Prediction) -> Option<i64>| -> Vec<Option<i64>> { found.changes.iter().map(of).collect() };
    let largest = found.changes.iter().map(|p| p.step_ns.unsigned_abs()).max().unwrap_or(0);
    let grid = Grid::new()
        .text("change", 0, found.changes.iter().map(|p| p.change.clone()).collect())
        .time_beside("saves", 0, column(|p| Some(p.saved_ns)), largest)
        .time_beside("from", 2, column(|p| p.saved_low_ns), largest)
        .time_beside("to", 2, column(|p| p.saved_high_ns), largest)
        .time_beside("step", 1, column(|p| Some(p.step_ns)), largest)
        .time_beside("from", 3, column(|p| p.step_low_ns), largest)
        .time_beside("to", 3, column(|p| p.step_high_ns), largest);
    write!(out, "{}", grid.render(width, colour))?;
    writeln!(out, "Savings of several changes do not add up: much of them is the same time.")?;
    Ok(())
}
