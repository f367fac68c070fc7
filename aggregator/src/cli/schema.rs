//! `aggregator schema`.

use std::fmt::Write as _;
use std::io::Write;

use clap::Args;
use serde_json::{Value, json};
use trace::terminal::{self, Form};
use trace::{ColumnInfo, Entry, SCHEMA_VERSION};

use crate::cli::output::Outcome;
use model::Error;

/// Print the tables of a run and the views of its analysis, or the columns of one of them, with types and units.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Table or view. [default: list all]
    #[arg(value_name = "TABLE")]
    table: Option<String>,
    /// Print JSON, with the columns of every table and view.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(super) fn run(arguments: Arguments) -> Result<Outcome, Error> {
    let mut entries = trace::entries();
    if let Some(name) = &arguments.table {
        entries.retain(|entry| entry.name == *name);
        if entries.is_empty() {
            return Err(Error::UnknownTable { name: name.clone() });
        }
    }
    let text = match (arguments.json, &arguments.table, entries.first()) {
        (true, ..) => serde_json::to_string_pretty(&to_json(&entries))? + "\n",
        (false, Some(_), Some(entry)) => one(entry),
        _ => list(&entries),
    };
    let mut out = terminal::stdout(if arguments.json { Form::Json } else { Form::Text });
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(Outcome::Done)
}

/// One line per table or view.
fn list(entries: &[Entry]) -> String {
    let width = entries.iter().map(|entry| entry.name.len()).max().unwrap_or_default();
    let mut text = String::new();
    let mut kind = "";
    for entry in entries {
        if kind != entry.kind {
            let gap = if kind.is_empty() { "" } else { "\n" };
            let title = entry.kind.replacen("table", "tables", 1).replacen("view", "views", 1);
            let _ = writeln!(text, "{gap}{title}:");
            kind = entry.kind;
        }
        let sentence = entry.doc.split_inclusive(". ").next().unwrap_or_default().trim_end();
        let _ = writeln!(text, "  {:width$}  {sentence}", entry.name);
    }
    text
}

/// A table or view with its columns.
fn one(entry: &Entry) -> String {
    let mut text = format!("{} ({}): {}\n", entry.name, entry.kind, entry.doc);
    if let Some(note) = entry.view_note {
        let _ = writeln!(text, "The view `{0}`: {note} The view `{0}_raw` has all rows.", entry.name);
    }
    let widest = |length: fn(&ColumnInfo) -> usize| entry.columns.iter().map(length).max().unwrap_or_default();
    let (name, kind) = (widest(|c| c.name.len() + 1), widest(|c| c.type_name.len()));
    let unit = widest(|c| c.unit().map_or(0, |unit| unit.chars().count()));
    let _ = writeln!(text, "* = never null\n");
    for c in &entry.columns {
        let star = format!("{}{}", c.name, if c.nullable { "" } else { "*" });
        let words = c.vocabulary.as_ref().map_or(String::new(), |vocabulary| {
            let words: Vec<&str> = vocabulary.words.iter().map(|(word, _)| *word).collect();
            format!(" Words: {}.", words.join(", "))
        });
        let _ = writeln!(
            text,
            "  {star:name$}  {:kind$}  {:unit$}  {}{words}",
            c.type_name,
            c.unit().unwrap_or_default(),
            c.doc
        );
    }
    text
}

fn to_json(entries: &[Entry]) -> Value {
    let words = |c: &ColumnInfo| {
        let words = c.vocabulary.as_ref().map(|vocabulary| vocabulary.words.clone());
        words.map(|words| words.into_iter().map(|(word, doc)| json!({ "word": word, "description": doc })).collect())
    };
    let column = |c: &ColumnInfo| {
        let words: Option<Vec<Value>> = words(c);
        json!({
            "name": c.name, "type": c.type_name, "nullable": c.nullable, "unit": c.unit(), "description": c.doc,
            "words": words,
        })
    };
    let entry = |entry: &Entry| {
        let columns: Vec<Value> = entry.columns.iter().map(column).collect();
        json!({
            "name": entry.name, "kind": entry.kind, "description": entry.doc, "view": entry.view_note,
            "columns": columns,
        })
    };
    let tables: Vec<Value> = entries.iter().map(entry).collect();
    json!({ "format": "rankscope.schema", "version": 1, "schema_version": SCHEMA_VERSION, "tables": tables })
}
