//! The analysis as JSON.
//!
//! ```text
//! {
//!   "format": "rankscope.analysis",
//!   "version": 1,                      raised when a key goes away or changes its meaning; new keys may appear
//!   "facts":   { what was analysed: ranks, steps, rows read, rows lost },
//!   "verdict": { "kind": "cause" | "undecided" | "balanced" | "nothing", "rank", "step_delay_ns", …, "sentence" },
//!   "tables":  { "<table>": [ { "<column>": value, … }, … ], … }
//! }
//! ```
//!
//! Tables and columns have the names, units and meaning that `trace::analysis_tables` documents; they are the same as those of
//! `analysis/*.parquet`. Absent values are `null`. Times are integers in ns, beyond 2⁵³ for some clocks: read them as integers.

use std::io::Write;

use serde::Serialize;

use crate::analysis::{Analysis, Facts, Tables, Verdict};
use crate::error::Error;

/// Version of the shape.
pub const VERSION: u32 = 1;

#[derive(Serialize)]
struct Document<'a> {
    format: &'static str,
    version: u32,
    facts: &'a Facts,
    verdict: &'a Verdict,
    tables: &'a Tables,
}

/// Writes the document and a final newline.
///
/// # Errors
/// [`Error::Json`] or [`Error::Output`].
pub fn render(analysis: &Analysis, mut out: impl Write) -> Result<(), Error> {
    let Analysis { facts, verdict, tables } = analysis;
    let document = Document { format: "rankscope.analysis", version: VERSION, facts, verdict, tables };
    serde_json::to_writer_pretty(&mut out, &document)?;
    writeln!(out)?;
    out.flush()?;
    Ok(())
}
