//! The identity of a page: its input, the time and place of the recording, the job's command, and the command that made it.

use std::path::Path;

use arrow_array::temporal_conversions::timestamp_ns_to_datetime;

use crate::string_pool::{visible_name, visible_sentence};
use align::aligned::Analyzed;
use model::source::SourceInfo;
use model::units::{count, ns, ranks};

/// Times since 1970 that are earlier do not come from a calendar, but from a clock that began at the boot of a host. This is the
/// year 2001.
const FIRST_DATE_NS: i64 = 1_000_000_000_000_000_000;

/// Hosts that are listed; the others are counted.
const HOSTS: usize = 4;

/// The short name of an input: its file or directory, or its run.
pub(crate) fn name(info: &SourceInfo) -> String {
    let absolute = std::path::absolute(&info.path).unwrap_or_default();
    let file = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let named = file(&info.path).or_else(|| file(&absolute)).filter(|name| !name.is_empty());
    visible_name(&named.unwrap_or_else(|| if info.run_id.is_empty() { "traces".into() } else { info.run_id.clone() }))
}

/// The path of an input.
pub(crate) fn path(info: &SourceInfo) -> String {
    visible_name(&info.path.to_string_lossy())
}

/// The date of the recording: of the run, or else of the first row that has a date.
fn recorded(info: &SourceInfo, analyzed: &Analyzed) -> Option<String> {
    let first_ns = || analyzed.recorded_ns.map(|(first_ns, _)| first_ns);
    let utc_ns = info.created_utc_ns.or_else(first_ns).filter(|ns| *ns >= FIRST_DATE_NS)?;
    let date = timestamp_ns_to_datetime(utc_ns)?;
    Some(format!("{} UTC", date.to_string().chars().take(16).collect::<String>()))
}

/// The facts below the verdict: names and values.
pub(crate) fn facts(info: &SourceInfo, analyzed: &Analyzed) -> Vec<(&'static str, String)> {
    let facts = &analyzed.analysis.facts;
    let mut list = vec![("input", path(info))];
    let unknown = || "date not recorded".to_string();
    list.push(("recorded", recorded(info, analyzed).unwrap_or_else(unknown)));
    let hosts: Vec<String> = facts.hosts.iter().take(HOSTS).map(|h| visible_name(h)).collect();
    let more = facts.hosts.len().saturating_sub(hosts.len());
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    list.push(("hosts", if hosts.is_empty() { "not recorded".into() } else { format!("{}{more}", hosts.join(", ")) }));
    let read = match facts.world_size {
        Some(world) if world as usize != facts.ranks.len() => format!("{} of {world}", facts.ranks.len()),
        _ => facts.ranks.len().to_string(),
    };
    list.push(("ranks", read));
    let numbers = if facts.steps.len() == 1 { "number" } else { "numbers" };
    let steps = format!("{} ({numbers} {})", count(facts.steps.len() as u64), ranks(&facts.steps));
    list.push(("steps", if facts.steps.is_empty() { "none".into() } else { steps }));
    if let Some((between_ns, share)) = analyzed.analysis.between_steps() {
        list.push(("between steps", format!("{}, {:.0} % of the recording", ns(between_ns), 100.0 * share)));
    }
    if !info.command.is_empty() {
        list.push(("job", visible_name(&info.command.join(" "))));
    }
    if let Some(selection) = &facts.selection {
        list.push(("only", visible_sentence(selection)));
    }
    for words in facts.communication.iter().chain(&facts.communication_by_name) {
        list.push(("communication", visible_sentence(words)));
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use align::clock::Clocks;
    use model::analysis::Analysis;

    fn fact(info: &SourceInfo, first_ns: i64, name: &str) -> Option<String> {
        let analyzed = Analyzed {
            analysis: Analysis::default(),
            clocks: Clocks::default(),
            time: Default::default(),
            devices: Vec::new(),
            recorded_ns: Some((first_ns, first_ns + 5)),
        };
        facts(info, &analyzed).into_iter().find(|(n, _)| *n == name).map(|(_, value)| value)
    }

    #[test]
    fn the_date_is_that_of_the_run_or_of_the_first_row_with_a_date() {
        let run = SourceInfo { created_utc_ns: Some(1_795_556_195_776_417_061), ..SourceInfo::default() };
        assert_eq!(fact(&run, 7, "recorded").as_deref(), Some("2026-11-24 21:36 UTC"));
        let traces = SourceInfo::default();
        assert_eq!(fact(&traces, 1_698_955_060_095_644_000, "recorded").as_deref(), Some("2023-11-02 19:57 UTC"));
        assert_eq!(fact(&traces, 4_379_189_000_000, "recorded").as_deref(), Some("date not recorded"));
    }

    #[test]
    fn names_and_commands_are_shown_as_text() {
        let info = SourceInfo {
            path: "runs/a\u{202e}b".into(),
            command: vec!["train".into(), "x".repeat(1000)],
            ..SourceInfo::default()
        };
        assert_eq!(name(&info), "a⟨U+202E⟩b");
        let job = fact(&info, 7, "job").unwrap();
        assert!(job.starts_with("train xx") && job.contains("more characters"), "{job}");
        assert_eq!(fact(&SourceInfo::default(), 7, "job"), None);
    }
}
