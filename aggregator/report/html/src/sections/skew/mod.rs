//! How late the last rank arrives at each collective.

use trace::{InstanceRow, Row};

use crate::section::{Chart, PageData, ReportInput, Section, script};
use crate::sections::collectives::add_instances;
use model::Error;
use model::units::plural;

pub(crate) static SECTION: Section = Section {
    id: "skew",
    title: "Arrival skew",
    lead: "Last arrival minus first arrival of every collective, coloured by the rank that arrived last. The band is the clock error: \
           inside it, the order of arrival is unknown.",
    proof: false,
    tables: &[InstanceRow::table],
    data,
    scripts: &[script!("skew.js")],
};

fn data(run: &ReportInput<'_>, page: &mut PageData) -> Result<Option<Chart>, Error> {
    add_instances(run, page)?;
    let rows = &run.tables().collective_instances;
    let several = rows.iter().any(|r| r.ranks_seen > 1);
    let unknown = several && rows.iter().filter(|r| r.ranks_seen > 1).any(|r| r.error_ns.is_none());
    let missing = if !several {
        Some("No collective was recorded on several ranks.")
    } else if unknown {
        Some(
            "The clock error is unknown for some collectives. They have no band, and their skew may be wrong by any amount.",
        )
    } else {
        None
    };
    let disagree = rows.iter().filter(|row| row.clocks_disagree).count();
    if disagree > 0 {
        let text = "waits by clocks and waits by durations alone differ by more than the clock error, so ranks did not leave together";
        page.remark("undecided", format!("{}: {text}", plural(disagree, "collective")));
    }
    Ok(Some(Chart::drawn_if(several, missing)))
}
