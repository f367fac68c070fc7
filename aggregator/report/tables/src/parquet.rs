//! Writes `analysis/`: one Parquet file per table, and `views.sql`.
//!
//! The directory is written beside the old one and then renamed, so that readers see one analysis or the other, never a
//! mixture. Empty tables are written too, so that queries over them return no rows instead of an error.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};

use trace::files::{replace, replace_directory};
use trace::{ANALYSIS_DIR, TableRows, place, write_table};

use crate::views;
use measure::reduced::Reduced;
use model::analysis::{Analysis, Facts, Tables};
use model::error::Error;

/// The DuckDB views over the run and its analysis.
const VIEWS_FILE: &str = "views.sql";
/// The table of the omissions.
const OMISSIONS: &str = "omissions";

/// Writes `analysis/` into `directory` and returns its path. `run` is the directory of the run that was analyzed, whose shards get
/// views; `None` for traces.
///
/// # Errors
/// [`Error::Trace`] if `analysis/` exists and holds files that are no analysis's, or cannot be written; [`Error::Io`].
/// After an error, an older analysis is still in place.
pub fn write(analysis: &Analysis, directory: &Path, run: Option<&Path>) -> Result<PathBuf, Error> {
    let write_tables = |fresh: &Path| {
        let mut tables = analysis.tables.all().into_iter();
        tables.try_for_each(|rows| write_rows(rows, fresh, &analysis.facts.run_id))
    };
    write_all(write_tables, &analysis.facts, directory, run)
}

/// As [`write()`]. Reads each table that is not read yet before it writes it, and drops it afterwards. The omissions stay.
///
/// # Errors
/// The errors of [`write()`].
pub fn write_away(reduced: &mut Reduced<'_>, directory: &Path, run: Option<&Path>) -> Result<PathBuf, Error> {
    let facts = reduced.analysis.facts.clone();
    let write_tables = |fresh: &Path| {
        // Rows that cannot be read are added to the omissions, so these are written last.
        for name in names().filter(|name| *name != OMISSIONS).chain([OMISSIONS]) {
            reduced.read(name);
            for rows in reduced.analysis.tables.all_mut().into_iter().filter(|rows| rows.table().name == name) {
                write_rows(rows, fresh, &facts.run_id)?;
                if name != OMISSIONS {
                    rows.clear();
                }
            }
        }
        Ok(())
    };
    write_all(write_tables, &facts, directory, run)
}

/// Writes `analysis/` with the tables that `write_tables` writes.
fn write_all(
    write_tables: impl FnOnce(&Path) -> Result<(), Error>,
    facts: &Facts,
    directory: &Path,
    run: Option<&Path>,
) -> Result<PathBuf, Error> {
    let target = directory.join(ANALYSIS_DIR);
    replace_directory(&target, foreign_entry, |fresh| {
        let written = write_tables(fresh).and_then(|()| write_views(facts, fresh, &target, run));
        written.map_err(|error| error.moved(fresh, &target))
    })?;
    Ok(target)
}

/// The reason for which a directory must not be replaced: the first entry that no analysis writes.
fn foreign_entry(directory: &Path) -> std::io::Result<Option<String>> {
    let mut entries = fs::read_dir(directory)?.collect::<std::io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let (name, path) = (entry.file_name(), entry.path());
        let name = name.to_string_lossy();
        let is_ours = entry.file_type()?.is_file()
            && match name.strip_suffix(".parquet") {
                Some(_) => trace::is_written_by_rankscope(&path)?,
                None => name == VIEWS_FILE || views::is_marker(&name),
            };
        if !is_ours {
            return Ok(Some(format!("{name} in it is not a file of an analysis")));
        }
    }
    Ok(None)
}

fn write_views(facts: &Facts, fresh: &Path, target: &Path, run: Option<&Path>) -> Result<(), Error> {
    let absolute = |path: &Path| place::canonical(path).map_err(|source| Error::Io { path: path.into(), source });
    let analysis_path = absolute(fresh)?.with_file_name(target.file_name().unwrap_or_default());
    let run = match run {
        Some(run) => Some(views::RunFiles::list(absolute(run)?, &facts.left_out_files)?),
        None => None,
    };
    let directory = analysis_path.parent().unwrap_or(&analysis_path);
    let fingerprint = fingerprint(fresh, &facts.run_id, run.as_ref())?;
    let views_place = views::Place { root: directory, fingerprint: &fingerprint, run_id: &facts.run_id };
    let sql = views::sql(run.as_ref(), &views_place);
    let write = |name: &str, text: &str| -> Result<(), Error> {
        let path = fresh.join(name);
        let io = |source| Error::Io { path: path.clone(), source };
        replace(&path, |file| file.write_all(text.as_bytes()).map_err(io)).map(drop)
    };
    // Tools that copy files leave out empty ones only rarely, but some do.
    write(&views::marker(&fingerprint), "Marks the analysis that views.sql is of.\n")?;
    write(VIEWS_FILE, &sql)
}

/// A hash of everything that the views read: the tables in `fresh`, and the names and sizes of the shards.
fn fingerprint(fresh: &Path, run_id: &str, run: Option<&views::RunFiles<'_>>) -> Result<String, Error> {
    let mut hasher = DefaultHasher::new();
    run_id.hash(&mut hasher);
    for name in names() {
        let path = fresh.join(format!("{name}.parquet"));
        fs::read(&path).map_err(|source| Error::Io { path, source })?.hash(&mut hasher);
    }
    if let Some(run) = run {
        for table in trace::rank_tables() {
            run.of_table(table.name).for_each(|file| (table.name, file).hash(&mut hasher));
        }
    }
    Ok(format!("{:016x}", hasher.finish()))
}

/// The names of all tables.
fn names() -> impl Iterator<Item = &'static str> {
    Tables::default().all().into_iter().map(|rows| rows.table().name).collect::<Vec<_>>().into_iter()
}

fn write_rows(rows: &dyn TableRows, directory: &Path, run_id: &str) -> Result<(), Error> {
    Ok(write_table(&directory.join(format!("{}.parquet", rows.table().name)), run_id, rows).map(drop)?)
}
