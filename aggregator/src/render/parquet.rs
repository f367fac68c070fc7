//! `analysis/`: one Parquet file for each table, and `views.sql`.
//!
//! The directory is written beside the old one and then takes its place, so that a reader sees one analysis or the
//! other, never a mixture. Empty tables are written too: a query over a table of which there is nothing returns no rows
//! instead of an error.

use std::fs;
use std::path::{Path, PathBuf};

use trace::{ANALYSIS_DIR, Row, batch_from_rows, write_table};

use super::views;
use crate::analysis::{Analysis, Tables};
use crate::error::Error;

/// Writes `analysis/` into `directory`, for the shards of the run at `run`, if the analysis is one of a run. Returns
/// where it is.
///
/// # Errors
/// [`Error::Io`] or [`Error::Trace`]; an analysis that was there before then still is.
pub fn write(analysis: &Analysis, directory: &Path, run: Option<&trace::Run>) -> Result<PathBuf, Error> {
    let target = directory.join(ANALYSIS_DIR);
    let fresh = directory.join(format!("{ANALYSIS_DIR}.{}.tmp", std::process::id()));
    let old = directory.join(format!("{ANALYSIS_DIR}.{}.old", std::process::id()));
    let result = write_all(analysis, &fresh, &target, run).and_then(|()| replace(&fresh, &target, &old));
    if result.is_err() {
        // What is left of a failed attempt helps nobody; the error that matters is the first one.
        let _ = fs::remove_dir_all(&fresh);
    }
    result.map(|()| target)
}

fn write_all(analysis: &Analysis, fresh: &Path, target: &Path, run: Option<&trace::Run>) -> Result<(), Error> {
    fs::create_dir_all(fresh).map_err(|source| Error::Io { path: fresh.into(), source })?;
    write_tables(&analysis.tables, fresh, &analysis.facts.run_id)?;
    let absolute = |path: &Path| path.canonicalize().map_err(|source| Error::Io { path: path.into(), source });
    let analysis = absolute(fresh)?.with_file_name(target.file_name().unwrap_or_default());
    let root = run.map(|run| absolute(&run.path)).transpose()?;
    let sql = views::sql(run.zip(root.as_deref()), &analysis);
    let path = fresh.join("views.sql");
    fs::write(&path, sql).map_err(|source| Error::Io { path, source })
}

fn replace(fresh: &Path, target: &Path, old: &Path) -> Result<(), Error> {
    let io = |path: &Path| {
        let path = path.to_path_buf();
        move |source| Error::Io { path, source }
    };
    let replaces = target.exists();
    if replaces {
        fs::rename(target, old).map_err(io(target))?;
    }
    if let Err(source) = fs::rename(fresh, target) {
        if replaces {
            fs::rename(old, target).map_err(io(old))?;
        }
        return Err(Error::Io { path: target.into(), source });
    }
    if replaces {
        fs::remove_dir_all(old).map_err(io(old))?;
    }
    Ok(())
}

fn write_tables(tables: &Tables, directory: &Path, run_id: &str) -> Result<(), Error> {
    let Tables {
        clock_fit,
        step_breakdown,
        idle_breakdown,
        collective_instances,
        collective_waits,
        bucket_timing,
        stragglers,
        kernel_stats,
        op_stats,
        annotation_stats,
        critical_path,
        memory_peaks,
        hta_temporal_breakdown,
        kernel_breakdown,
        launch_stats,
        queue_length,
        memcpy_bandwidth,
        gpu_utilization,
        kernel_sequences,
        sync_stalls,
        data_loading,
        memory_curve,
        unfinished_collectives,
        omissions,
        findings,
    } = tables;
    write_one(clock_fit, directory, run_id)?;
    write_one(step_breakdown, directory, run_id)?;
    write_one(idle_breakdown, directory, run_id)?;
    write_one(collective_instances, directory, run_id)?;
    write_one(collective_waits, directory, run_id)?;
    write_one(bucket_timing, directory, run_id)?;
    write_one(stragglers, directory, run_id)?;
    write_one(kernel_stats, directory, run_id)?;
    write_one(op_stats, directory, run_id)?;
    write_one(annotation_stats, directory, run_id)?;
    write_one(critical_path, directory, run_id)?;
    write_one(memory_peaks, directory, run_id)?;
    write_one(hta_temporal_breakdown, directory, run_id)?;
    write_one(kernel_breakdown, directory, run_id)?;
    write_one(launch_stats, directory, run_id)?;
    write_one(queue_length, directory, run_id)?;
    write_one(memcpy_bandwidth, directory, run_id)?;
    write_one(gpu_utilization, directory, run_id)?;
    write_one(kernel_sequences, directory, run_id)?;
    write_one(sync_stalls, directory, run_id)?;
    write_one(data_loading, directory, run_id)?;
    write_one(memory_curve, directory, run_id)?;
    write_one(unfinished_collectives, directory, run_id)?;
    write_one(omissions, directory, run_id)?;
    write_one(findings, directory, run_id)
}

fn write_one<R: Row>(rows: &[R], directory: &Path, run_id: &str) -> Result<(), Error> {
    let table = R::table();
    let path = directory.join(format!("{}.parquet", table.name));
    write_table(&path, &table, run_id, &[batch_from_rows(rows)?])?;
    Ok(())
}
