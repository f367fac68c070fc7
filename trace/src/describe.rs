//! The reference documentation of the tables, as Markdown, from their declarations.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::{
    ColumnInfo, KEY_BOOT_ID, KEY_CLOCK_DOMAIN, KEY_HOST, KEY_PID, KEY_RANK, KEY_RUN_ID, KEY_SCHEMA_VERSION,
    KEY_SESSION, SCHEMA_VERSION, Table, VocabularyInfo, analysis_tables, rank_tables,
};

const INTRODUCTION: &str = "\
Every table and column. A run is a directory:

```text
RUN/run.json                                  manifest
RUN/<table>/rank-00003-0000.parquet           written by each rank: rank, then part number
RUN/analysis/<table>.parquet                  written by the analysis
```

- Times are integers in nanoseconds. The last part of a name is its unit: `_ns`, `_bytes`, `_gbs` (10⁹ bytes per second),
  `_ppb` (parts per 10⁹), `_pct` (percent).
- Times of rank tables are in the rank's own clock. Times of analysis tables are in global time, the clock of the
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
    let _ = writeln!(out, "# Tables\n\n<!-- Generated from the declarations in trace/src/tables. Do not edit. -->\n");
    let _ = writeln!(out, "{INTRODUCTION}- This page describes schema version {SCHEMA_VERSION}.\n");
    let groups = [
        ("Tables of the ranks", "Each rank writes them while it records.", rank_tables()),
        ("Tables of the analysis", "`--json` prints the same tables, under the same names.", analysis_tables()),
    ];
    for (title, about, tables) in groups {
        let _ = writeln!(out, "## {title}\n\n{about}\n");
        for table in tables {
            describe_table(&mut out, &table, &mut vocabularies);
        }
    }
    describe_vocabularies(&mut out, &vocabularies);
    describe_metadata(&mut out);
    out
}

fn describe_table(out: &mut String, table: &Table, vocabularies: &mut BTreeMap<&'static str, VocabularyInfo>) {
    let sorted = table.sorted_by.map_or(String::new(), |column| format!(" Each file is sorted by `{column}`."));
    let _ = writeln!(out, "### {}\n\n{}{sorted}\n\n| column | type | meaning |\n|---|---|---|", table.name, table.doc);
    for ColumnInfo { name, type_name, nullable, doc, vocabulary, .. } in &table.columns {
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
    let _ = writeln!(out, "## Metadata of the files\n\nKey-value metadata of each Parquet file of a rank.\n");
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
