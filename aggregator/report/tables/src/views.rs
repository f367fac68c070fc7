//! Writes `views.sql`: DuckDB views of a run, in a schema named after its directory.
//!
//! SQL does not know the file that it stands in, so the directory of the run is found when `views.sql` is read: by the
//! variable `rankscope_run`, near the current directory, or where the analysis was written. A directory counts only if
//! it holds the file `analysis/id-<fingerprint>` of the same analysis, and each query checks that again. Two such
//! directories are an error. So a copied or moved run never reads the files of another, and two runs in one session
//! have different variables.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use trace::{ANALYSIS_DIR, Run, Table, View, ViewSource, Writer, rank_tables};

use model::Error;

/// The files of a run, which its views read.
#[derive(Debug)]
pub struct RunFiles<'a> {
    /// The absolute path of the run.
    directory: PathBuf,
    /// The Parquet files of each table with their sizes, in the order of their names.
    tables: BTreeMap<&'static str, Vec<(String, u64)>>,
    /// Files that the views leave out, by their paths in the run.
    left_out: &'a BTreeSet<String>,
}

impl<'a> RunFiles<'a> {
    /// Lists the files of the run in `directory`, an absolute path.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn list(directory: PathBuf, left_out: &'a BTreeSet<String>) -> Result<Self, Error> {
        let mut tables = BTreeMap::new();
        for table in rank_tables() {
            let files = Run::list_files(&directory, table.name)?.into_iter().filter_map(|(path, bytes)| {
                let name = path.file_name()?.to_string_lossy();
                name.ends_with(".parquet").then(|| (name.into_owned(), bytes))
            });
            tables.insert(table.name, files.collect());
        }
        Ok(Self { directory, tables, left_out })
    }

    /// The names and sizes of the files of a table that the views read.
    pub fn of_table(&self, table: &str) -> impl Iterator<Item = &(String, u64)> {
        let is_read = move |(name, _): &&(String, u64)| !self.left_out.contains(&format!("{table}/{name}"));
        self.tables.get(table).into_iter().flatten().filter(is_read)
    }
}

/// The place and the identity of an analysis.
pub struct Place<'a> {
    /// The absolute path of the directory that holds `analysis/`.
    pub root: &'a Path,
    /// A hash of the content of the analysis and of the names and sizes of the shards, in hexadecimal.
    pub fingerprint: &'a str,
    /// The run's id; empty for traces.
    pub run_id: &'a str,
}

/// Returns the name of the file that marks an analysis.
pub fn marker(fingerprint: &str) -> String {
    format!("{MARKER}{fingerprint}")
}

/// Whether a file of this name marks an analysis.
pub fn is_marker(name: &str) -> bool {
    name.strip_prefix(MARKER).is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

const MARKER: &str = "id-";

/// Returns the views over an analysis and over the files of its run. Without a run, only the tables of the analysis have views.
pub fn sql(run: Option<&RunFiles<'_>>, place: &Place<'_>) -> String {
    let writer = Sql { run, place, schema: schema_name(place.root) };
    let mut sql = writer.preamble();
    writer.this_run(&mut sql);
    for view in trace::views() {
        writer.view(&mut sql, &view);
    }
    let _ = writeln!(sql, "RESET VARIABLE rankscope_run;\nSET search_path = 'main,{}';", writer.schema);
    sql
}

/// A failed reading must not leave unqualified names that answer with the run read before, so these come first.
const FIND: &str = r#"-- Views of every table of the run, in the schema {schema}. Names without a schema are those of the run read last.
-- Read this with duckdb -init, with .read, or as text from a program. A copied or moved run is found near the current
-- directory. To name its directory, before: SET VARIABLE rankscope_run = 'DIR';
SET search_path = 'main';
CREATE SCHEMA IF NOT EXISTS "{schema}";
SET VARIABLE {variable} = NULL;
SET VARIABLE {variable} = (
WITH near AS (
    SELECT DISTINCT coalesce(nullif(regexp_extract(file, '^(?:\./)?(.*?)/?{marker}$', 1), ''), '.') AS directory
    FROM glob(['{marker}', '../{marker}', '*/{marker}', '*/*/{marker}'])
), named AS (
    SELECT CAST(getvariable('rankscope_run') AS VARCHAR) AS named
), known AS (
    SELECT count(*) AS known
    FROM glob({known} || '/{marker}')
), found AS (
    SELECT count(*) AS found, min(directory) AS directory, string_agg(directory, ', ' ORDER BY directory) AS directories FROM near
)
SELECT CASE
    WHEN named IS NOT NULL AND known = 0 THEN error('rankscope: ' || named || ' does not hold the analysis of this views.sql.'
        || ' SET VARIABLE rankscope_run = ''DIR''; names its directory, RESET VARIABLE rankscope_run; forgets it.')
    WHEN named IS NOT NULL THEN named
    WHEN found > 1 THEN error('rankscope: several directories hold this analysis: ' || directories
        || '. Choose one: SET VARIABLE rankscope_run = ''DIR''; then read views.sql again.')
    WHEN found = 1 THEN directory
    WHEN known > 0 THEN {recorded}
    ELSE error('rankscope: this analysis is neither near the current directory nor at ' || {recorded}
        || '. Name its directory: SET VARIABLE rankscope_run = ''DIR''; then read views.sql again.')
END FROM named, known, found);

"#;

struct Sql<'a> {
    run: Option<&'a RunFiles<'a>>,
    place: &'a Place<'a>,
    schema: String,
}

impl Sql<'_> {
    /// The variable that holds the directory; each analysis has its own.
    fn variable(&self) -> String {
        format!("rankscope_{}", self.place.fingerprint)
    }

    /// The directory that holds `analysis/`, as an expression; [`literally`] reads files in it.
    fn root(&self) -> String {
        // DuckDB prints the path in its error, so the text stands where a path is missing.
        format!(
            "coalesce(getvariable('{}'), 'this connection has not read views.sql of {}')",
            self.variable(),
            self.schema
        )
    }

    /// Whether the shards lie in the directory that holds `analysis/`.
    fn is_inside(&self) -> bool {
        self.run.is_some_and(|run| run.directory == self.place.root)
    }

    /// The statements that find the directory.
    fn preamble(&self) -> String {
        let marker = format!("{ANALYSIS_DIR}/{}", marker(self.place.fingerprint));
        // The path comes last, because it may hold anything.
        FIND.replace("{schema}", &self.schema)
            .replace("{variable}", &self.variable())
            .replace("{marker}", &marker)
            .replace("{known}", &literally("coalesce(CAST(getvariable('rankscope_run') AS VARCHAR), {recorded})"))
            .replace("{recorded}", &quote(&self.place.root.display().to_string()))
    }

    /// A view that says what the others read.
    fn this_run(&self, sql: &mut String) {
        let _ = writeln!(
            sql,
            "CREATE OR REPLACE VIEW \"{0}\".this_run AS SELECT {1} AS directory, {2} AS run_id;\n\
             COMMENT ON VIEW \"{0}\".this_run IS 'One row: the run that the views read.';\n\
             COMMENT ON COLUMN \"{0}\".this_run.directory IS 'Directory that holds the analysis.';\n\
             COMMENT ON COLUMN \"{0}\".this_run.run_id IS 'Id of the run; empty for traces.';\n",
            self.schema,
            self.root(),
            quote(self.place.run_id)
        );
    }

    fn view(&self, sql: &mut String, view: &View) {
        let query = match &view.source {
            ViewSource::Files(table) if table.writer == Writer::Aggregator => {
                let file = format!("{} || '/{ANALYSIS_DIR}/{}.parquet'", literally(&self.root()), table.name);
                self.checked(&format!("read_parquet({file})"))
            }
            ViewSource::Files(table) => match self.run {
                None => return,
                Some(run) => match self.files(run, table) {
                    Some(files) => self.checked_shards(&format!("read_parquet({files}, union_by_name = true)")),
                    None => empty(table),
                },
            },
            ViewSource::Query { of_ranks: true, .. } if self.run.is_none() => return,
            ViewSource::Query { sql, .. } => sql.replace("$.", &format!("\"{}\".", self.schema)),
        };
        let name = format!("\"{}\".{}", self.schema, view.name);
        let _ = writeln!(
            sql,
            "CREATE OR REPLACE VIEW {name} AS\n{query};\nCOMMENT ON VIEW {name} IS {};",
            quote(&view.doc)
        );
        for column in &view.columns {
            let _ = writeln!(sql, "COMMENT ON COLUMN {name}.\"{}\" IS {};", column.name, quote(column.doc));
        }
        sql.push('\n');
    }

    /// A query of `files` that fails if the directory does not hold this analysis any more.
    fn checked(&self, files: &str) -> String {
        let marker = marker(self.place.fingerprint);
        let why =
            quote("rankscope: the files of this analysis are gone, or were replaced by another. Read views.sql again.");
        format!(
            "SELECT * FROM {files}\nWHERE (SELECT count(*) FROM glob({} || '/{ANALYSIS_DIR}/{marker}')) > 0 OR error({why})",
            literally(&self.root())
        )
    }

    /// A query of shards. If the analysis is in another directory, it fails if their directory holds another run.
    fn checked_shards(&self, files: &str) -> String {
        let Some(RunFiles { directory: path, .. }) = self.run.filter(|_| !self.is_inside()) else {
            return self.checked(files);
        };
        let manifest = literally(&quote(&path.join(trace::MANIFEST_FILE).display().to_string()));
        let id = quote(&format!("\"{}\"", self.place.run_id));
        let why = quote(&format!("rankscope: {} holds another run than the one that was analysed.", path.display()));
        format!(
            "SELECT * FROM {files}\nWHERE (SELECT count(*) FROM read_text({manifest}) WHERE contains(content, {id})) > 0 OR error({why})"
        )
    }

    /// The files of a table: a pattern for all shards, or a list of the good shards if some are bad or no pattern can
    /// name them; `None` without shards.
    fn files(&self, run: &RunFiles<'_>, table: &Table) -> Option<String> {
        let shards: Vec<&str> = run.of_table(table.name).map(|(name, _)| name.as_str()).collect();
        if shards.is_empty() {
            return None;
        }
        let directory = &run.directory;
        let root = literally(&if self.is_inside() { self.root() } else { quote(&directory.display().to_string()) });
        let all = run.tables.get(table.name).map_or(0, Vec::len);
        // In a pattern, DuckDB takes a backslash for a separator of directories.
        if shards.len() == all && !directory.to_string_lossy().contains('\\') {
            return Some(format!("{root} || '/{}/*.parquet'", table.name));
        }
        let file = |name: &&str| format!("{root} || {}", quote(&format!("/{}/{name}", table.name)));
        let list: Vec<String> = shards.iter().map(file).collect();
        Some(format!("[{}]", list.join(", ")))
    }
}

/// A path as DuckDB reads it literally, though it may hold characters of patterns.
fn literally(path: &str) -> String {
    format!("regexp_replace({path}, '([*?[])', '[\\1]', 'g')")
}

/// A query with the columns of a table but no rows, so that queries over a table that no rank wrote work.
fn empty(table: &Table) -> String {
    let columns: Vec<String> =
        table.columns.iter().map(|c| format!("NULL::{} AS \"{}\"", c.type_name, c.name)).collect();
    format!("SELECT {} WHERE false", columns.join(", "))
}

/// The schema's name: the directory's name, with `_` for characters that an unquoted name cannot hold.
fn schema_name(root: &Path) -> String {
    let name = root.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    let is_free = !["main", "temp", "system", "memory", "pg_catalog", "information_schema"]
        .contains(&name.to_ascii_lowercase().as_str());
    let begins_well = name.starts_with(|c: char| c.is_ascii_alphabetic());
    if is_free && begins_well { name } else { format!("run_{name}") }
}

fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_is_named_after_the_directory() {
        let name = |path: &str| schema_name(Path::new(path));
        assert_eq!(name("/runs/slow-5 (again)"), "slow_5__again_");
        assert_eq!(name("/runs/2026"), "run_2026");
        assert_eq!(name("/runs/Main"), "run_Main");
        assert_eq!(name("/"), "run_");
    }

    #[test]
    fn a_file_that_is_left_out_makes_a_list_of_the_others() {
        let run = tempfile::tempdir().unwrap();
        std::fs::create_dir(run.path().join("events")).unwrap();
        for name in ["rank-00000-0000.parquet", "rank-00000-0001.parquet", "rank-00001-0000.parquet.tmp"] {
            std::fs::write(run.path().join("events").join(name), "").unwrap();
        }
        let read = |left_out: &[&str]| {
            let left_out = left_out.iter().map(ToString::to_string).collect();
            let files = RunFiles::list(run.path().into(), &left_out).unwrap();
            let place = Place { root: run.path(), fingerprint: "0", run_id: "id" };
            let sql = sql(Some(&files), &place);
            let view = sql.split("CREATE OR REPLACE VIEW ").find(|view| view.contains(".events_raw AS\n")).unwrap();
            let names = view.split('\'').filter(|text| text.starts_with("/events/")).map(String::from);
            names.collect::<Vec<String>>()
        };
        assert_eq!(read(&[]), ["/events/*.parquet"]);
        assert_eq!(read(&["events/rank-00000-0001.parquet"]), ["/events/rank-00000-0000.parquet"]);
        assert_eq!(read(&["events/rank-00000-0000.parquet", "events/rank-00000-0001.parquet"]), [""; 0]);
    }

    #[test]
    fn every_analysis_has_its_own_variable_and_an_absolute_path_stands_only_where_it_is_found() {
        let place = |fingerprint| Place { root: Path::new("/it's/here"), fingerprint, run_id: "id" };
        let [first, second] = ["0000000000000001", "0000000000000002"].map(|f| sql(None, &place(f)));
        assert!(first.contains("getvariable('rankscope_0000000000000001')") && !first.contains("0000000000000002"));
        assert_eq!(first.replace("0000000000000001", "0000000000000002"), second);
        let lines: Vec<&str> = first.lines().filter(|line| line.contains("/it''s/here")).collect();
        assert!(!lines.is_empty() && lines.iter().all(|line| !line.contains("read_parquet")), "{lines:?}");
        // No directory is a pattern.
        assert_eq!(literally("'/it''s/here'"), r"regexp_replace('/it''s/here', '([*?[])', '[\1]', 'g')");
        let read = first.lines().filter(|line| line.contains("read_parquet(") || line.contains("glob("));
        assert!(read.clone().all(|line| line.contains("regexp_replace(") || line.contains("glob(['")), "{first}");
        assert!(read.count() > 20, "{first}");
        // Without a run, the tables of ranks have no views.
        assert!(first.contains("\"here\".stragglers AS") && !first.contains("\"here\".events"), "{first}");
    }
}
