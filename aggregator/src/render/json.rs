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
//! Tables and columns have the names, units and meaning that `trace::analysis_tables` documents; they are the same as
//! those of `analysis/*.parquet`. Absent values are `null`. Times are integers in ns, beyond 2⁵³ for some clocks: read
//! them as integers.

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

#[cfg(test)]
mod tests {
    use expect_test::expect_file;

    use super::*;
    use crate::analysis::VerdictKind;

    /// One empty row in every table shows every key.
    fn shape() -> Analysis {
        Analysis {
            facts: Facts { run_id: "run".into(), ranks: vec![0, 1], ..Facts::default() },
            verdict: Verdict { kind: VerdictKind::Balanced, ..Verdict::default() },
            tables: Tables {
                clock_fit: vec![Default::default()],
                step_breakdown: vec![Default::default()],
                idle_breakdown: vec![Default::default()],
                collective_instances: vec![Default::default()],
                collective_waits: vec![Default::default()],
                bucket_timing: vec![Default::default()],
                stragglers: vec![Default::default()],
                kernel_stats: vec![Default::default()],
                op_stats: vec![Default::default()],
                annotation_stats: vec![Default::default()],
                critical_path: vec![Default::default()],
                memory_peaks: vec![Default::default()],
                hta_temporal_breakdown: vec![Default::default()],
                kernel_breakdown: vec![Default::default()],
                launch_stats: vec![Default::default()],
                queue_length: vec![Default::default()],
                memcpy_bandwidth: vec![Default::default()],
                gpu_utilization: vec![Default::default()],
                kernel_sequences: vec![Default::default()],
                sync_stalls: vec![Default::default()],
                data_loading: vec![Default::default()],
                memory_curve: vec![Default::default()],
                unfinished_collectives: vec![Default::default()],
                omissions: vec![Default::default()],
                findings: vec![Default::default()],
            },
        }
    }

    #[test]
    fn the_shape_changes_only_with_the_version() {
        let mut out = Vec::new();
        render(&shape(), &mut out).unwrap();
        expect_file!["tests/shape.json"].assert_eq(&String::from_utf8(out).unwrap());
    }

    #[test]
    fn tables_are_those_of_the_run() {
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
    fn numbers_that_json_lacks_are_null() {
        let mut analysis = shape();
        analysis.tables.kernel_stats[0].mean_ns = f64::NAN;
        let mut out = Vec::new();
        render(&analysis, &mut out).unwrap();
        let value: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert!(value["tables"]["kernel_stats"][0]["mean_ns"].is_null());
    }
}
