//! What an export says of itself: its schema, its clock, and what was left out of it.
//!
//! ```text
//!  time in a row = time since the start of the session (+ UTC at the start, if normalised) (+ a shift)
//! ```

use std::collections::BTreeMap;

use trace::{OmissionRow, Text};

use crate::nsys::database::Database;
use crate::nsys::wanted::Wanted;

/// The tables of names and values about the export: of schemas from 3.0 on, and of older ones.
const ABOUT: [&str; 2] = ["META_DATA_EXPORT", "EXPORT_META_DATA"];
/// The newest schema whose tables were seen.
const NEWEST: (u32, u32) = (3, 25);
/// Characters of a text of the export that a message repeats.
const MAX_SHOWN: usize = 120;

/// The clock of an export: its times count from the start of the session.
#[derive(Clone, Debug, Default)]
pub(super) struct Session {
    pub(super) host: String,
    /// UTC at the start, in ns since 1970, as far as the host knew it.
    pub(super) utc_ns: Option<i64>,
    /// The host's steady clock at the start. Exports of one host agree in it exactly.
    pub(super) system_ns: Option<i64>,
    /// What the export added to all times; `None` if that is unknown, so that times are only comparable with each other.
    pub(super) shift_ns: Option<i64>,
}

impl Session {
    /// When the host's steady clock was zero, in UTC.
    pub(super) fn boot_ns(&self) -> Option<i64> {
        self.utc_ns?.checked_sub(self.system_ns?)
    }

    /// What is added to a time of a row to get one of the session's clock: the steady one, UTC at the start, or neither.
    pub(super) fn offset_ns(&self) -> i64 {
        let Some(shift) = self.shift_ns else { return 0 };
        self.system_ns.or(self.utc_ns).unwrap_or(0).saturating_sub(shift)
    }
}

/// Reads the clock of an export. Other remarks about it become omissions.
pub(super) fn session(database: &Database, problems: &mut Vec<OmissionRow>) -> Session {
    let mut cut = |what: &str, why: Option<String>| {
        problems.extend(why.map(|why| OmissionRow::lost(format!("rest of table {what}"), why)));
    };
    let mut about: BTreeMap<String, String> = BTreeMap::new();
    for table in ABOUT {
        let why = database.rows(
            table,
            &["name", "value"],
            &["name", "value"],
            Wanted::Beginning("name", &["EXPORT_"]),
            |cells| {
                if let (Some(name), Some(value)) = (cells.text(0), cells.text(1)) {
                    about.insert(name.into_owned(), value.into_owned());
                }
            },
        );
        cut(table, why);
    }
    let mut host = String::new();
    let table = "TARGET_INFO_SYSTEM_ENV";
    let why = database.rows(table, &["value"], &["name", "value"], Wanted::With("name", "Hostname"), |cells| {
        if host.is_empty() {
            host = cells.text(0).unwrap_or_default().into_owned();
        }
    });
    cut(table, why);
    let table = "TARGET_INFO_SESSION_START_TIME";
    let (utc_ns, why) = database.first_integer(table, "utcEpochNs");
    cut(table, why);
    let (system_ns, why) = database.first_integer(table, "systemClockNs");
    cut(table, why);
    let shift_ns = shift_ns(&about, utc_ns);
    if shift_ns.is_none() {
        let why = "the export moved the times (`--ts-shift` or `--ts-normalize`) by an amount that it does not state; they are not \
                   compared with those of other files";
        problems.push(OmissionRow::left_out("clock", why));
    }
    problems.extend(remarks(&about));
    Session { host, utc_ns, system_ns, shift_ns }
}

/// What the export added to all times; `None` if unknown.
fn shift_ns(about: &BTreeMap<String, String>, utc_ns: Option<i64>) -> Option<i64> {
    let value = |name: &str| about.get(name).map(|value| value.trim()).filter(|value| !value.is_empty());
    let number = |name: &str| value(name).map_or(Some(0), |value| value.parse::<i64>().ok());
    // The shift of the export and that of its settings: two that differ are of no known meaning.
    let shift = match (number("EXPORT_PARAM_TIME_SHIFT")?, number("EXPORT_CONFIG_TIME_SHIFT")?) {
        (shift, 0) | (0, shift) => shift,
        (a, b) => Some(a).filter(|_| a == b)?,
    };
    match value("EXPORT_PARAM_TIME_NORMALIZE") {
        None | Some("false" | "0") => Some(shift),
        Some("true" | "1") => shift.checked_add(utc_ns?),
        Some(_) => None,
    }
}

/// The remarks that the export's settings call for.
fn remarks(about: &BTreeMap<String, String>) -> Vec<OmissionRow> {
    let mut remarks = Vec::new();
    if let Some(version) = about.get("EXPORT_SCHEMA_VERSION")
        && newer_than_known(version)
    {
        let version = shown(version);
        let (major, minor) = NEWEST;
        let why = format!(
            "its version {version} is newer than {major}.{minor}; tables and columns are read by their names, and a new meaning of one \
             would not be seen"
        );
        remarks.push(OmissionRow::note("schema of the export", why));
    }
    let is_filter = |name: &str| name.ends_with("_TO_EXPORT") || name.contains("FILTER");
    for (name, value) in about.iter().filter(|(name, value)| is_filter(name) && !value.trim().is_empty()) {
        let why = format!("the export was made of a part only: {} = {}", shown(name), shown(value));
        remarks.push(OmissionRow::left_out("rows outside the export's filter", why));
    }
    remarks
}

fn newer_than_known(version: &str) -> bool {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().ok());
    match (parts.next().flatten(), parts.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor) > NEWEST,
        _ => true,
    }
}

fn shown(text: &str) -> Text {
    text.chars().take(MAX_SHOWN).collect::<String>().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| (format!("EXPORT_{name}"), (*value).to_string())).collect()
    }

    #[test]
    fn a_shift_is_read_or_unknown() {
        let shift = |pairs: &[(&str, &str)]| shift_ns(&about(pairs), Some(1_000));
        assert_eq!(shift(&[]), Some(0), "schema 2.9 has no such keys");
        assert_eq!(shift(&[("PARAM_TIME_SHIFT", "-7"), ("CONFIG_TIME_SHIFT", "0")]), Some(-7));
        assert_eq!(shift(&[("PARAM_TIME_SHIFT", "5"), ("CONFIG_TIME_SHIFT", "5")]), Some(5));
        assert_eq!(shift(&[("PARAM_TIME_SHIFT", "5"), ("CONFIG_TIME_SHIFT", "6")]), None);
        assert_eq!(shift(&[("PARAM_TIME_SHIFT", "5 s")]), None);
        assert_eq!(shift(&[("PARAM_TIME_NORMALIZE", "true"), ("PARAM_TIME_SHIFT", "2")]), Some(1_002));
        assert_eq!(shift(&[("PARAM_TIME_NORMALIZE", "maybe")]), None);
        assert_eq!(shift_ns(&about(&[("PARAM_TIME_NORMALIZE", "true")]), None), None);
    }

    #[test]
    fn filters_and_newer_schemas_are_said() {
        let said = |pairs: &[(&str, &str)]| remarks(&about(pairs)).len();
        assert_eq!(said(&[("SCHEMA_VERSION", "2.9.1"), ("PARAM_TABLES_TO_EXPORT", "")]), 0);
        assert_eq!(said(&[("SCHEMA_VERSION", "3.25.0"), ("PARAM_TIMES_TO_EXPORT", "1s/2s")]), 1);
        assert_eq!(said(&[("SCHEMA_VERSION", "4.0.0")]), 1);
    }
}
