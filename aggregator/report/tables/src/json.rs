//! Writes the analysis as JSON.
//!
//! ```text
//! {
//!   "format": "rankscope.analysis",
//!   "version": 1,                      raised if a key is removed or changes its meaning; new keys may appear
//!   "facts":   { the input: ranks, steps, rows read, rows lost },
//!   "verdict": { "kind": "cause" | "undecided" | "balanced" | "hung" | "nothing", "rank", "step_delay_ns", …, "sentence" },
//!   "claims":  [ { what the verdict and a finding say, as data }, … ],
//!   "summarised": null, or the ranks that are shown and the tables that do not have all rows
//!   "tables":  { "<table>": [ { "<column>": value, … }, … ], … }
//! }
//! ```
//!
//! `trace::analysis_tables` documents the names, units and meaning of tables and columns; `analysis/*.parquet` has the
//! same ones. Absent values are `null`. Times are integers in ns. Readers must parse them as integers, because times of
//! some clocks exceed 2⁵³.

use std::io::Write;

use serde::Serialize;
use trace::Shortened;

use model::analysis::{Analysis, Facts, Tables, Verdict};
use model::claim::Claim;
use model::error::Error;
use model::shown_ranks::ShownRanks;

/// Version of the document.
pub const VERSION: u32 = 1;

#[derive(Serialize)]
struct Document<'a> {
    format: &'static str,
    version: u32,
    facts: &'a Facts,
    verdict: &'a Verdict,
    claims: &'a [Claim],
    summarised: Option<Summarised>,
    tables: &'a Tables,
}

/// Rows of no rank that a table has at most in a shortened document, such as collectives.
const MOST_ROWS: usize = 10_000;

/// The choice of a shortened document.
#[derive(Serialize)]
struct Summarised {
    sentence: String,
    ranks: Vec<i32>,
    tables: Vec<Shortened>,
}

/// Writes the document and a final newline. Of a job with more ranks than `most`, it has the rows of the worst and of typical
/// ranks, and counts the others.
///
/// # Errors
/// [`Error::Json`] or [`Error::Output`].
pub fn render(analysis: &Analysis, most: usize, out: impl Write) -> Result<(), Error> {
    let shown = ShownRanks::of(analysis, most);
    let (Some(sentence), Some(only)) = (shown.sentence(), shown.only()) else {
        return write(analysis, None, out);
    };
    let (mut tables, mut shortened) = analysis.tables.excerpt(&|rank| shown.has(rank), MOST_ROWS);
    // These are about ranks that matter, whether they are read or not.
    tables.omissions.clone_from(&analysis.tables.omissions);
    tables.unfinished_collectives.clone_from(&analysis.tables.unfinished_collectives);
    shortened.retain(|table| !["omissions", "unfinished_collectives"].contains(&table.table));
    let mut facts = analysis.facts.clone();
    facts.identities.retain(|identity| shown.has(identity.rank));
    let sentence = format!("{sentence} --full prints all rows, and the Parquet tables of analysis/ have them.");
    let summarised = Summarised { sentence, ranks: only.iter().copied().collect(), tables: shortened };
    let excerpt = Analysis { facts, verdict: analysis.verdict.clone(), claims: analysis.claims.clone(), tables };
    write(&excerpt, Some(summarised), out)
}

fn write(analysis: &Analysis, summarised: Option<Summarised>, mut out: impl Write) -> Result<(), Error> {
    let Analysis { facts, verdict, claims, tables } = analysis;
    let document =
        Document { format: "rankscope.analysis", version: VERSION, facts, verdict, claims, summarised, tables };
    serde_json::to_writer_pretty(&mut out, &document)?;
    writeln!(out)?;
    out.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use trace::{OmissionRow, StragglerRow};

    use super::*;
    use model::analysis::VerdictKind;
    use model::claim::{Quantity, Relation};

    /// An analysis with one empty row in every table, so that every key appears.
    fn shape() -> Analysis {
        let mut tables = Tables::default();
        tables.all_mut().into_iter().for_each(|rows| rows.push_default());
        Analysis {
            facts: Facts { run_id: "run".into(), ranks: vec![0, 1], ..Facts::default() },
            verdict: Verdict { kind: VerdictKind::Balanced, ..Verdict::default() },
            claims: vec![Claim::new(Quantity::Balance, Relation::Is, "stragglers")],
            tables,
        }
    }

    #[test]
    fn the_shape_changes_only_with_the_version() {
        let mut out = Vec::new();
        render(&shape(), 2, &mut out).unwrap();
        insta::assert_snapshot!("shape", String::from_utf8(out).unwrap());
    }

    #[test]
    fn the_document_has_every_declared_table() {
        let mut out = Vec::new();
        render(&shape(), 2, &mut out).unwrap();
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
        render(&analysis, 2, &mut out).unwrap();
        let value: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert!(value["tables"]["kernel_stats"][0]["mean_ns"].is_null());
    }

    #[test]
    fn a_job_of_many_ranks_is_shortened_and_nothing_is_left_out_unsaid() {
        let mut analysis = shape();
        analysis.facts.ranks = (0..9).collect();
        let row = |rank, own_excess_ns| StragglerRow { rank, own_excess_ns, ..StragglerRow::default() };
        analysis.tables.stragglers = (0..9).map(|rank| row(rank, i64::from(rank))).collect();
        analysis.tables.omissions = (0..9).map(|rank| OmissionRow::lost("rank", "missing").rank(rank)).collect();
        let text = |most| {
            let mut out = Vec::new();
            render(&analysis, most, &mut out).unwrap();
            serde_json::from_slice::<serde_json::Value>(&out).unwrap()
        };
        let (short, whole) = (text(4), text(9));
        assert_eq!(short["summarised"]["ranks"], serde_json::json!([0, 6, 7, 8]));
        assert!(
            short["summarised"]["tables"]
                .as_array()
                .unwrap()
                .contains(&serde_json::json!({"table": "stragglers", "rows": 4, "of": 9}))
        );
        for (table, rows) in whole["tables"].as_object().unwrap() {
            let all = rows.as_array().unwrap().len();
            let listed = short["summarised"]["tables"].as_array().unwrap().iter().find(|t| t["table"] == **table);
            let shown = listed.map_or(all, |t| t["rows"].as_u64().unwrap() as usize);
            assert_eq!(short["tables"][table].as_array().unwrap().len(), shown, "{table}");
        }
        assert_eq!(short["tables"]["omissions"].as_array().unwrap().len(), 9);
        assert!(whole["summarised"].is_null());
    }
}
