//! Tests of every section.

use std::collections::BTreeSet;

use serde_json::Value;
use trace::PipelineRow;

use super::*;
use crate::by_name::{kernels, operators};
use crate::page_limits::Limits;
use crate::tests::Gone;
use align::aligned::Analyzed;
use align::clock::Clocks;
use model::analysis::{Analysis, Facts, Tables};
use model::options::Options;
use model::shown_ranks::ShownRanks;

/// The data that one section puts into a page, as the script gets it.
pub(super) fn filled(section: &Section, analysis: Analysis, limits: &Limits) -> (Value, PageData) {
    let mut page = PageData::default();
    page.section = section.id;
    let analyzed = Analyzed {
        analysis,
        clocks: Clocks::default(),
        time: Default::default(),
        devices: Vec::new(),
        recorded_ns: None,
    };
    let run = ReportInput {
        source: &Gone,
        options: &Options::default(),
        analyzed: &analyzed,
        limits,
        timeline_step: None,
        shown: &ShownRanks::of(&analyzed.analysis, limits.ranks),
        kernels: &kernels(&analyzed.analysis.tables, limits),
        operators: &operators(&analyzed.analysis.tables, limits),
    };
    (section.data)(&run, &mut page).unwrap();
    (serde_json::from_str(&page.json(&analyzed.analysis).unwrap()).unwrap(), page)
}

/// A pipeline of two ranks, with a row in every table.
fn analysis() -> Analysis {
    let mut tables = Tables::default();
    tables.all_mut().into_iter().for_each(|table| table.push_default());
    tables.pipeline = vec![PipelineRow::default(), PipelineRow { rank: 1, stage: 1, ..PipelineRow::default() }];
    Analysis { facts: Facts { ranks: vec![0, 1], steps: vec![0], ..Facts::default() }, tables, ..Analysis::default() }
}

fn add_keys(value: &Value, keys: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(key, value)| {
            keys.insert(key.clone());
            add_keys(value, keys);
        }),
        Value::Array(values) => values.iter().for_each(|value| add_keys(value, keys)),
        _ => {}
    }
}

/// The names that stand behind `before` in a script.
fn names_behind<'a>(script: &'a str, before: &'a str) -> impl Iterator<Item = &'a str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    script.split(before).skip(1).map(move |rest| rest.split(|c| !is_name(c)).next().unwrap_or_default())
}

/// A name that the data lack is no error of JavaScript: the browser draws nothing, or "undefined".
#[test]
fn a_script_reads_only_what_its_section_puts_into_the_page() {
    for section in SECTIONS {
        let (json, _) = filled(section, analysis(), &Limits::default());
        let mut keys = BTreeSet::new();
        add_keys(&json, &mut keys);
        let fields: Vec<&str> = json
            .as_object()
            .unwrap()
            .keys()
            .chain(json["tables"].as_object().unwrap().keys())
            .map(String::as_str)
            .collect();
        let main = section.scripts.last().unwrap();
        let unknown = |name: &&str| !fields.contains(name) && *name != "slowRanks";
        let wrong: BTreeSet<&str> =
            names_behind(main.text, " data.").chain(names_behind(main.text, "(data.")).filter(unknown).collect();
        assert!(
            wrong.is_empty(),
            "{} reads {wrong:?} of data; `data` of the section {} adds {fields:?}",
            main.name,
            section.id
        );
        let is_column = |name: &&str| name.contains('_') && !keys.contains(*name);
        let wrong: BTreeSet<&str> = names_behind(main.text, ".").filter(is_column).collect();
        assert!(
            wrong.is_empty(),
            "{} reads the columns {wrong:?}, which the section {} does not add",
            main.name,
            section.id
        );
    }
}

#[test]
fn a_table_is_shown_by_one_section() {
    let mut all: Vec<&str> = SECTIONS.iter().flat_map(|section| section.tables).map(|table| table().name).collect();
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count, "two sections name one table, so a finding does not know which has its evidence");
    assert_eq!((section_of("stragglers"), section_of("launch_stats")), ("steps", "tables"));
}
