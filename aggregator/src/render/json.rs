//! Writes the analysis as JSON.
//!
//! ```text
//! {
//!   "format": "rankscope.analysis",
//!   "version": 1,                      raised if a key is removed or changes its meaning; new keys may appear
//!   "facts":   { the input: ranks, steps, rows read, rows lost },
//!   "verdict": { "kind": "cause" | "undecided" | "balanced" | "nothing", "rank", "step_delay_ns", …, "sentence" },
//!   "tables":  { "<table>": [ { "<column>": value, … }, … ], … }
//! }
//! ```
//!
//! `trace::analysis_tables` documents the names, units and meaning of tables and columns; `analysis/*.parquet` has the
//! same ones. Absent values are `null`. Times are integers in ns. Readers must parse them as integers, because times of
//! some clocks exceed 2⁵³.

use std::io::Write;

use serde::Serialize;

use crate::error::Error;
use crate::model::analysis::{Analysis, Facts, Tables, Verdict};

/// Version of the document.
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

#[cfg(test)]
mod tests {
    use expect_test::expect_file;

    use super::*;
    use crate::model::analysis::VerdictKind;

    /// An analysis with one empty row in every table, so that every key appears.
    fn shape() -> Analysis {
        let mut tables = Tables::default();
        tables.all_mut().into_iter().for_each(|rows| rows.push_default());
        Analysis {
            facts: Facts { run_id: "run".into(), ranks: vec![0, 1], ..Facts::default() },
            verdict: Verdict { kind: VerdictKind::Balanced, ..Verdict::default() },
            tables,
        }
    }

    #[test]
    fn the_shape_changes_only_with_the_version() {
        let mut out = Vec::new();
        render(&shape(), &mut out).unwrap();
        expect_file!["tests/shape.json"].assert_eq(&String::from_utf8(out).unwrap());
    }

    #[test]
    fn the_document_has_every_declared_table() {
        let mut out = Vec::new();
        render(&shape(), &mut out).unwrap();
        let value: serde_json::Value = serde_json::from_slice(&out).unwrap();
        let mut found: Vec<&str> = value["tables"].as_object().unwrap().keys().map(String::as_str).collect();
        found.sort_unstable();
        let mut declared: Vec<&str> = trace::analysis_tables().iter().map(|t| t.name).collect();
        declared.sort_unstable();
        assert_eq!(found, declared);
    }

    #[test]
    fn nan_is_null() {
        let mut analysis = shape();
        analysis.tables.kernel_stats[0].mean_ns = f64::NAN;
        let mut out = Vec::new();
        render(&analysis, &mut out).unwrap();
        let value: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert!(value["tables"]["kernel_stats"][0]["mean_ns"].is_null());
    }
}
