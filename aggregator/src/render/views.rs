//! Writes `views.sql`: DuckDB views of a run, one for each table, and `global_events`.
//!
//! Paths are absolute, so that DuckDB can be started in any directory: `duckdb -init RUN/analysis/views.sql`, or
//! `.read` in a session. After a run was moved, `SET VARIABLE rankscope_run = '…';` before that sets its new path.

use std::fmt::Write as _;
use std::path::Path;

use trace::{Problem, Run, Table, Writer};

/// Returns the views over a run and its analysis at `analysis`; both paths are absolute. Without a run, only the tables
/// of the analysis have views.
pub fn sql(run: Option<(&Run, &Path)>, analysis: &Path) -> String {
    let mut sql = String::new();
    let _ = writeln!(
        sql,
        "-- Every table of the run as a DuckDB view, and global_events on the clock of the reference rank.\n\
         -- From anywhere: duckdb -init {} (or .read it in a session).\n\
         -- After moving it: SET VARIABLE rankscope_run = '/where/it/is'; before reading this file.",
        plain(&analysis.join("views.sql")),
    );
    if let Some((_, path)) = run {
        set(&mut sql, "rankscope_run", &quote(&path.display().to_string()));
    }
    let inside = run.is_some_and(|(_, path)| analysis == path.join(trace::ANALYSIS_DIR));
    let path =
        if inside { format!("{RUN} || '/{}'", trace::ANALYSIS_DIR) } else { quote(&analysis.display().to_string()) };
    set(&mut sql, "rankscope_analysis", &path);
    sql.push('\n');
    for table in trace::analysis_tables() {
        view(&mut sql, &table, &format!("{ANALYSIS} || '/{}.parquet'", table.name));
    }
    let Some((run, _)) = run else { return sql };
    for table in trace::rank_tables() {
        match files(run, &table) {
            Some(files) => view(&mut sql, &table, &files),
            None => empty_view(&mut sql, &table),
        }
    }
    sql.push_str(GLOBAL_EVENTS);
    sql.push_str(LAUNCHES);
    sql
}

const RUN: &str = "getvariable('rankscope_run')";
const ANALYSIS: &str = "getvariable('rankscope_analysis')";

/// Sets a variable unless the session has set it before.
fn set(sql: &mut String, variable: &str, value: &str) {
    let _ = writeln!(sql, "SET VARIABLE {variable} = coalesce(getvariable('{variable}'), {value});");
}

/// Device rows use the fit of the device, if there is one.
const GLOBAL_EVENTS: &str = "\
CREATE OR REPLACE VIEW global_events AS
SELECT
    e.*,
    e.ts_ns + c.offset_ns + CAST(round(coalesce(c.drift_ppb, 0) * (e.ts_ns - c.origin_ns) / 1e9) AS BIGINT) AS global_ts_ns,
    c.error_ns AS global_error_ns
FROM events e
JOIN clock_fit c
  ON c.rank = e.rank
 AND c.clock = CASE
         WHEN e.device_id IS NOT NULL
          AND e.kind IN ('kernel', 'gpu_memcpy', 'gpu_memset', 'gpu_user_annotation', 'cuda_sync')
          AND EXISTS (SELECT 1 FROM clock_fit d WHERE d.rank = e.rank AND d.clock = 'device')
         THEN 'device' ELSE 'host' END;
";

/// One row per launch, as in HTA's launch statistics; `launch_stats` summarizes them.
const LAUNCHES: &str = "
-- From launch to kernel: the call, what it launched, and the delay between.
CREATE OR REPLACE VIEW launches AS
SELECT
    g.rank, g.device_id, g.stream_id, g.step, g.correlation_id, h.name AS api_call, g.name,
    h.ts_ns, h.dur_ns AS cpu_dur_ns, g.dur_ns AS gpu_dur_ns,
    greatest(0, g.ts_ns - h.ts_ns - h.dur_ns) AS launch_delay_ns
FROM flows f
JOIN events h ON h.rank = f.rank AND h.id = f.src_id
JOIN events g ON g.rank = f.rank AND g.id = f.dst_id
WHERE f.kind = 'launch';
";

fn view(sql: &mut String, table: &Table, files: &str) {
    let union = if table.writer == Writer::Rank { ", union_by_name = true" } else { "" };
    let _ = writeln!(
        sql,
        "-- {}\nCREATE OR REPLACE VIEW {} AS SELECT * FROM read_parquet({files}{union});\n",
        table.doc, table.name
    );
}

/// Adds a view with columns but no rows for a table that no rank wrote, so that queries over it work.
fn empty_view(sql: &mut String, table: &Table) {
    let columns: Vec<String> =
        table.columns.iter().map(|c| format!("NULL::{} AS {}", c.type_name, identifier(c.name))).collect();
    let _ = writeln!(
        sql,
        "-- {} (No rank wrote any.)\nCREATE OR REPLACE VIEW {} AS SELECT {} WHERE false;\n",
        table.doc,
        table.name,
        columns.join(", ")
    );
}

/// The files of a table: a pattern for all shards, or a list of the good shards if some are bad; `None` without shards.
fn files(run: &Run, table: &Table) -> Option<String> {
    let shards: Vec<_> = run.ranks().into_iter().flat_map(|rank| run.shards(rank, table.name).iter()).collect();
    if shards.is_empty() {
        return None;
    }
    let concerns_table = |p: &Problem| {
        let path = p.path.as_ref().filter(|p| p.extension().is_some_and(|e| e == "parquet"));
        path.and_then(|p| p.parent()?.file_name()?.to_str()).is_some_and(|directory| directory == table.name)
    };
    if !run.problems.iter().any(concerns_table) {
        return Some(format!("{RUN} || '/{}/*.parquet'", table.name));
    }
    let name = |path: &Path| path.file_name().and_then(|n| n.to_str()).unwrap_or_default().to_string();
    let list: Vec<String> =
        shards.iter().map(|s| format!("{RUN} || {}", quote(&format!("/{}/{}", table.name, name(&s.path))))).collect();
    Some(format!("[{}]", list.join(", ")))
}

fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// A path for a comment: control characters must not end the line.
fn plain(path: &Path) -> String {
    crate::base::units::plain(&path.display().to_string())
}

fn identifier(name: &str) -> String {
    format!("\"{name}\"")
}
