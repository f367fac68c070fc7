//! The reference documentation of the tables and views, from their declarations.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::{
    ColumnInfo, KEY_BOOT_ID, KEY_CLOCK_DOMAIN, KEY_HOST, KEY_PID, KEY_RANK, KEY_RUN_ID, KEY_SCHEMA_VERSION,
    KEY_SESSION, SCHEMA_VERSION, Table, View, VocabularyInfo, Writer, analysis_tables, part_tables, rank_tables, views,
};

const INTRODUCTION: &str = "\
Every table and column. A run is a directory:

```text
RUN/run.json                                  manifest
RUN/<table>/rank-00003-0000.parquet           written by each rank: rank, then part number
RUN/analysis/<table>.parquet                  written by the analysis
PARTS/<table>/0123456789abcdef.parquet        written by `map`: named by its content
```

- Times are integers in nanoseconds. The last part of a name is its unit: `_ns`, `_bytes`, `_gbs` (10⁹ bytes per second),
  `_ppb` (parts per 10⁹), `_pct` (percent).
- Times of rank tables and of parts are in the rank's own clock. Times of analysis tables are in global time, the clock of the
  reference rank; `clock_fit` maps one to the other.
- Types are DuckDB's. Columns marked * are never null.
- Ids are `BIGINT`; a 64-bit unsigned id is stored by its bits.
- Words are text from a vocabulary; the vocabularies stand at the end. Files of other programs and of newer versions may
  hold other words.
";

/// The data dictionary: every table, column and vocabulary.
pub fn describe() -> String {
    let mut out = String::new();
    let mut vocabularies = BTreeMap::new();
    let _ = writeln!(
        out,
        "# Tables\n\n<!-- Generated from the declarations in trace/src/tables and trace/src/views.rs. Do not edit. -->\n"
    );
    let _ = writeln!(out, "{INTRODUCTION}- This page describes schema version {SCHEMA_VERSION}.\n");
    let groups = [
        ("Tables of the ranks", "Each rank writes them while it records.", rank_tables()),
        ("Tables of the analysis", "`--json` prints the same tables, under the same names.", analysis_tables()),
        ("Tables of the parts", ABOUT_PARTS, part_tables()),
    ];
    for (title, about, tables) in groups {
        let _ = writeln!(out, "## {title}\n\n{about}\n");
        for table in tables {
            describe_table(&mut out, &table, &mut vocabularies);
        }
    }
    describe_views(&mut out, &mut vocabularies);
    describe_vocabularies(&mut out, &vocabularies);
    describe_metadata(&mut out);
    out
}

fn describe_table(out: &mut String, table: &Table, vocabularies: &mut BTreeMap<&'static str, VocabularyInfo>) {
    let sorted = table.sorted_by.map_or(String::new(), |column| format!(" Each part is sorted by `{column}`."));
    let _ = writeln!(out, "### {}\n\n{}{sorted}\n", table.name, table.doc);
    describe_columns(out, &table.columns, vocabularies);
}

const ABOUT_PARTS: &str = "\
`map` writes them, and `reduce` reads them. Beside them, parts hold tables of the ranks (`collectives`, `steps`, `comms`,
`clock_samples`, `buckets`, `devices`, `counters`) and those tables of the analysis that one rank alone decides.";

const ABOUT_VIEWS: &str = "\
`analysis/views.sql` defines a view for each table, and those below. A view with the name of a table counts each thing once
and holds one kind of rows; where the files hold more, the view `<table>_raw` has all their rows:
";

fn describe_views(out: &mut String, vocabularies: &mut BTreeMap<&'static str, VocabularyInfo>) {
    let _ = writeln!(out, "## Views\n\n{ABOUT_VIEWS}\n| view | difference from its table |\n|---|---|");
    let views = views();
    for View { name, note, .. } in &views {
        note.map(|note| writeln!(out, "| `{name}` | {note} |"));
    }
    out.push('\n');
    for View { name, doc, columns, .. } in views.iter().filter(|view| is_own(view)) {
        let _ = writeln!(out, "### {name}\n\n{doc}\n");
        let part_of = name.strip_suffix("_gaps").or(name.strip_suffix("_total"));
        match (name.as_str(), part_of) {
            ("global_events_utc", _) => describe_added(out, "global_events", columns, &views),
            ("global_events", _) => describe_added(out, "events", columns, &views),
            (_, Some(table)) => describe_left_out(out, table, columns, &views),
            _ => describe_columns(out, columns, vocabularies),
        }
    }
}

/// Describes the columns that a view adds to another.
fn describe_added(out: &mut String, base: &str, columns: &[ColumnInfo], views: &[View]) {
    let known = views.iter().find(|view| view.name == base).map_or(0, |view| view.columns.len());
    let _ = writeln!(out, "The columns of `{base}`, and:\n");
    describe_columns(out, &columns[known.min(columns.len())..], &mut BTreeMap::new());
}

/// Names the columns of another view that a view leaves out.
fn describe_left_out(out: &mut String, base: &str, columns: &[ColumnInfo], views: &[View]) {
    let of_base = views.iter().filter(|view| view.name == base).flat_map(|view| &view.columns);
    let left_out = of_base.filter(|column| columns.iter().all(|c| c.name != column.name));
    let names: Vec<String> = left_out.map(|column| format!("`{}`", column.name)).collect();
    let _ = writeln!(out, "The columns of `{base}` without {}.\n", names.join(", "));
}

/// Whether a view is neither a table nor all rows of one.
fn is_own(view: &View) -> bool {
    let is_table = |name: &str| rank_tables().iter().chain(&analysis_tables()).any(|table| table.name == name);
    !is_table(&view.name) && !view.name.strip_suffix("_raw").is_some_and(is_table)
}

/// A table or a view, documented.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The name.
    pub name: String,
    /// `table of the ranks`, `table of the analysis`, `table of the parts` or `view`.
    pub kind: &'static str,
    /// One row, in a sentence.
    pub doc: String,
    /// The difference between the table and the view of the same name, where there is one.
    pub view_note: Option<&'static str>,
    /// The columns in order.
    pub columns: Vec<ColumnInfo>,
}

/// Every table, then every view that is not a table's.
pub fn entries() -> Vec<Entry> {
    let views = views();
    let note = |name: &str| views.iter().find(|view| view.name == name).and_then(|view| view.note);
    let of_table = |table: Table| Entry {
        name: table.name.into(),
        kind: match table.writer {
            Writer::Rank => "table of the ranks",
            Writer::Aggregator => "table of the analysis",
            Writer::Map => "table of the parts",
        },
        doc: table.doc.into(),
        view_note: note(table.name),
        columns: table.columns,
    };
    let declared = [rank_tables(), analysis_tables(), part_tables()];
    let tables: Vec<Entry> = declared.into_iter().flatten().map(of_table).collect();
    let of_view = |view: &View| Entry {
        name: view.name.clone(),
        kind: "view",
        doc: view.doc.clone(),
        view_note: None,
        columns: view.columns.clone(),
    };
    let own: Vec<Entry> =
        views.iter().filter(|view| !tables.iter().any(|table| table.name == view.name)).map(of_view).collect();
    tables.into_iter().chain(own).collect()
}

fn describe_columns(
    out: &mut String,
    columns: &[ColumnInfo],
    vocabularies: &mut BTreeMap<&'static str, VocabularyInfo>,
) {
    let _ = writeln!(out, "| column | type | meaning |\n|---|---|---|");
    for ColumnInfo { name, type_name, nullable, doc, vocabulary, .. } in columns {
        let star = if *nullable { "" } else { "*" };
        let words = vocabulary.as_ref().map_or(String::new(), |vocabulary| {
            format!(" Words: [{}](#{}).", vocabulary.name, vocabulary.name.to_lowercase())
        });
        let _ = writeln!(out, "| `{name}`{star} | {type_name} | {}{words} |", doc.replace('|', "\\|"));
        vocabularies.extend(vocabulary.iter().map(|vocabulary| (vocabulary.name, vocabulary.clone())));
    }
    out.push('\n');
}

fn describe_vocabularies(out: &mut String, vocabularies: &BTreeMap<&'static str, VocabularyInfo>) {
    if vocabularies.is_empty() {
        return;
    }
    let _ = writeln!(out, "## Vocabularies\n");
    for vocabulary in vocabularies.values() {
        let _ = writeln!(out, "### {}\n\n| word | meaning |\n|---|---|", vocabulary.name);
        for (word, doc) in &vocabulary.words {
            let _ = writeln!(out, "| `{word}` | {doc} |");
        }
        out.push('\n');
    }
}

fn describe_metadata(out: &mut String) {
    let _ = writeln!(
        out,
        "## Metadata of the files\n\nKey-value metadata of each Parquet file of a rank. The files of the analysis have the first two.\n\nThe fields of the Arrow schema have `description` and, where the column has one, `unit`: in the files of the analysis, and\nin the first shard of each table (rank 0, part 0), from which readers of many files take the schema.\n"
    );
    let _ = writeln!(out, "| key | meaning |\n|---|---|");
    for (key, doc) in [
        (KEY_SCHEMA_VERSION, "Schema version, decimal."),
        (KEY_RUN_ID, "Run id, as in the manifest."),
        (KEY_RANK, "Global rank, decimal."),
        (KEY_HOST, "Host name."),
        (KEY_PID, "Process id, decimal."),
        (KEY_BOOT_ID, "Boot id of the host; empty if unknown."),
        (KEY_CLOCK_DOMAIN, "Clock domain of every time in the file."),
        (KEY_SESSION, "Recording session; only where several processes record one rank together."),
    ] {
        let _ = writeln!(out, "| `{key}` | {doc} |");
    }
}
