//! A section of the page: its declaration, its input, the data that it puts into the page, and its words about its chart.
//!
//! ```text
//!   sections/NAME/mod.rs     SECTION: id, title, lead, tables; `data` fills the page and says what the section lacks
//!   sections/NAME/NAME.js    drawName(data) returns the elements of the section
//!   sections.rs              `mod NAME;` and a line in SECTIONS, whose order is that of the page
//! ```

use std::collections::BTreeMap;

use serde::Serialize;
use trace::{OmissionRow, Row, Table};

use crate::by_name::ByName;
use crate::columns::Columns;
use crate::page_limits::Limits;
use crate::string_pool::StringPool;
use align::aligned::Analyzed;
use model::Error;
use model::analysis::{Analysis, Tables, VerdictKind};
use model::options::Options;
use model::shown_ranks::ShownRanks;
use model::source::Source;

/// Version of the JSON in the page.
const VERSION: u32 = 2;

/// A section, declared in its folder.
#[derive(Debug)]
pub(crate) struct Section {
    /// Id of its element. The script draws the section `steps` by the function `drawSteps`.
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    /// Explains the chart.
    pub(crate) lead: &'static str,
    /// Whether it shows what the verdict stands on. The findings follow these sections.
    pub(crate) proof: bool,
    /// The tables that it shows: findings with evidence in them link here.
    pub(crate) tables: &'static [fn() -> Table],
    /// Puts what the script draws into the page. `None` is a section that the run does not miss.
    pub(crate) data: fn(&ReportInput<'_>, &mut PageData) -> Result<Option<Chart>, Error>,
    /// The modules of the script. Each comes before those that import it.
    pub(crate) scripts: &'static [Script],
}

/// A module of the page's script.
#[derive(Debug)]
pub(crate) struct Script {
    /// Name of the file.
    pub(crate) name: &'static str,
    pub(crate) text: &'static str,
}

/// A script beside the Rust file that names it.
macro_rules! script {
    ($file:literal) => {
        $crate::section::Script { name: $file, text: include_str!($file) }
    };
}
pub(crate) use script;

/// The words of a section about its chart.
#[derive(Debug, Default)]
pub(crate) struct Chart {
    /// Whether there is one. The sections without a chart are one line together.
    pub(crate) drawn: bool,
    /// Names the data that it lacks.
    pub(crate) missing: Option<String>,
    /// Instead of the declared title.
    pub(crate) title: Option<&'static str>,
    /// Instead of the declared lead.
    pub(crate) lead: Option<String>,
}

impl Chart {
    /// A chart; if something is missing, none.
    pub(crate) fn unless(missing: Option<&str>) -> Self {
        Self::drawn_if(missing.is_none(), missing)
    }

    /// A chart that may lack something.
    pub(crate) fn drawn_if(drawn: bool, missing: Option<impl Into<String>>) -> Self {
        Self { drawn, missing: missing.map(Into::into), ..Self::default() }
    }
}

/// The input of all sections.
pub(crate) struct ReportInput<'a> {
    /// Gives the rows of the timeline.
    pub(crate) source: &'a dyn Source,
    /// The selection of the analysis.
    pub(crate) options: &'a Options,
    pub(crate) analyzed: &'a Analyzed,
    pub(crate) limits: &'a Limits,
    /// The step that a user wants to see in the timeline.
    pub(crate) timeline_step: Option<i32>,
    /// The ranks with a row of their own.
    pub(crate) shown: &'a ShownRanks,
    /// Two sections list them, and the roofline draws one of them.
    pub(crate) kernels: &'a ByName,
    pub(crate) operators: &'a ByName,
}

impl ReportInput<'_> {
    pub(crate) fn analysis(&self) -> &Analysis {
        &self.analyzed.analysis
    }

    pub(crate) fn tables(&self) -> &Tables {
        &self.analyzed.analysis.tables
    }

    /// Says which ranks a section with a row for each rank of `rows` shows.
    pub(crate) fn note_ranks<R: Row>(&self, rows: &[R], page: &mut PageData) {
        if let Some(sentence) = self.shown.sentence().filter(|_| !rows.is_empty()) {
            let table = R::table().name;
            page.note(format!("{sentence} The table {table} has them all; rank_groups sums them by host and role."));
        }
    }
}

/// A sentence about data that a section does not cover.
#[derive(Debug, PartialEq)]
pub(crate) struct Remark {
    pub(crate) section: &'static str,
    /// `missing`, `undecided` or `summarised`.
    pub(crate) kind: &'static str,
    pub(crate) text: String,
}

/// The kind of remarks about data that the page shortens.
pub(crate) const SUMMARISED: &str = "summarised";

/// The data that sections put into a page.
#[derive(Debug, Default)]
pub(crate) struct PageData {
    /// The section that is filled.
    pub(crate) section: &'static str,
    /// Tables of the analysis, shortened to the limits of the page.
    tables: BTreeMap<&'static str, Columns>,
    /// Other data, as JSON.
    values: Vec<(&'static str, String)>,
    pub(crate) names: StringPool,
    pub(crate) remarks: Vec<Remark>,
    /// What could not be read again.
    pub(crate) omissions: Vec<OmissionRow>,
}

impl PageData {
    /// Adds a table with the wanted columns, under its name.
    pub(crate) fn table<'r, R: Row>(
        &mut self,
        rows: impl IntoIterator<Item = &'r R>,
        wanted: &[&str],
    ) -> Result<(), Error> {
        let columns = self.columns(rows, wanted)?;
        self.add_columns(R::table().name, columns);
        Ok(())
    }

    /// Columns that become a table of the page by [`add_columns`](Self::add_columns).
    pub(crate) fn columns<'r, R: Row>(
        &mut self,
        rows: impl IntoIterator<Item = &'r R>,
        wanted: &[&str],
    ) -> Result<Columns, Error> {
        Columns::of(rows, wanted, &mut self.names)
    }

    pub(crate) fn add_columns(&mut self, table: &'static str, columns: Columns) {
        self.tables.insert(table, columns);
    }

    /// Whether a section before has added the table, which several sections show.
    pub(crate) fn has_table(&self, table: &Table) -> bool {
        self.tables.contains_key(table.name)
    }

    /// Adds data that are no table, under a name of their own.
    pub(crate) fn value(&mut self, name: &'static str, value: &impl Serialize) -> Result<(), Error> {
        self.values.push((name, serde_json::to_string(value)?));
        Ok(())
    }

    /// Says what the section shortens.
    pub(crate) fn note(&mut self, text: String) {
        self.remark(SUMMARISED, text);
    }

    /// Says what the numbers of the section do not cover.
    pub(crate) fn remark(&mut self, kind: &'static str, text: String) {
        self.remarks.push(Remark { section: self.section, kind, text });
    }

    /// What a section shortens.
    pub(crate) fn notes_of(&self, section: &str) -> Vec<String> {
        let of_section = |remark: &&Remark| remark.section == section && remark.kind == SUMMARISED;
        self.remarks.iter().filter(of_section).map(|remark| remark.text.clone()).collect()
    }

    /// The data as one JSON object.
    pub(crate) fn json(&self, analysis: &Analysis) -> Result<String, Error> {
        #[derive(Serialize)]
        struct Head<'a> {
            format: &'static str,
            version: u32,
            verdict: VerdictKind,
            causes: &'a [i32],
            tables: &'a BTreeMap<&'static str, Columns>,
            names: &'a StringPool,
        }
        let (verdict, causes) = (analysis.verdict.kind, &analysis.verdict.causes[..]);
        let (format, version) = ("rankscope.report", VERSION);
        let head = Head { format, version, verdict, causes, tables: &self.tables, names: &self.names };
        let mut json = serde_json::to_string(&head)?;
        // The other data follow inside the same braces.
        json.pop();
        for (name, value) in &self.values {
            json.push_str(&format!(",\"{name}\":{value}"));
        }
        json.push('}');
        Ok(json)
    }
}
