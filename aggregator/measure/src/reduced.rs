//! An analysis of parts. The tables that no verdict and no finding reads are read when they are written, one after the other: for
//! thousands of ranks, all of them take as much memory as the rest.

use std::sync::LazyLock;

use crate::by_name::compare_ops;
use crate::part::Waiting;
use model::analysis::Analysis;

/// The tables whose declarations say that neither the verdict, nor a finding, nor the short summary reads them; by name.
static NOT_JUDGED: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    let tables = trace::analysis_tables();
    let mut names: Vec<&str> = tables.iter().filter(|table| !table.judged).map(|table| table.name).collect();
    names.sort_unstable();
    names
});

/// Whether the verdict, a finding or the short summary may read a table.
pub fn is_judged(table: &str) -> bool {
    !NOT_JUDGED.contains(&table)
}

/// An analysis, and its tables that are not read yet.
pub struct Reduced<'a> {
    /// The analysis.
    pub analysis: Analysis,
    /// Reads the other tables; `None` if all are read.
    unread: Option<Box<dyn Waiting + 'a>>,
}

impl<'a> Reduced<'a> {
    /// An analysis without the tables that are not judged.
    pub fn new(analysis: Analysis, unread: Box<dyn Waiting + 'a>) -> Self {
        Self { analysis, unread: Some(unread) }
    }

    /// Reads a table if it is not read yet. Rows that cannot be read are added to the omissions.
    pub fn read(&mut self, table: &str) {
        if is_judged(table) {
            return;
        }
        if let Some(unread) = &mut self.unread {
            let tables = unread.tables(&|name| name == table, &mut self.analysis.tables.omissions);
            self.analysis.tables.append(tables);
            if table == "op_stats" {
                compare_ops(&mut self.analysis.tables.op_stats);
            }
        }
    }

    /// The analysis with all tables.
    pub fn whole(&mut self) -> &mut Analysis {
        NOT_JUDGED.iter().for_each(|table| self.read(table));
        self.unread = None;
        &mut self.analysis
    }
}

impl From<Analysis> for Reduced<'_> {
    fn from(analysis: Analysis) -> Self {
        Self { analysis, unread: None }
    }
}
