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

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;

    fn add_sources(path: &Path, found: &mut Vec<PathBuf>) {
        if path.is_dir() {
            std::fs::read_dir(path).unwrap().for_each(|entry| add_sources(&entry.unwrap().path(), found));
        } else {
            found.push(path.to_path_buf());
        }
    }

    /// Under `reduce`, such a table has no rows yet when it would be read, and nothing else says so.
    #[test]
    fn what_judges_reads_no_table_that_is_read_late() {
        let mut sources = Vec::new();
        for place in ["account/src", "topology/src", "findings/src", "report/text/src/summary/brief.rs"] {
            add_sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(place), &mut sources);
        }
        for path in sources {
            let text = std::fs::read_to_string(&path).unwrap();
            let reads = |table: &&&str| {
                let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
                text.split(&format!(".{table}")).skip(1).any(ends)
            };
            let late = NOT_JUDGED.iter().find(reads);
            assert!(
                late.is_none(),
                "{} reads {late:?}: remove `judged false` from the declaration of the table",
                path.display()
            );
        }
    }
}
