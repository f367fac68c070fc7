//! Builds the page around the data: escaping templates, one script, one style, and a security policy that allows only
//! these.

use std::io::Write;

use askama::Template;
use base64::Engine;
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::hung::Hung;
use crate::section_texts::{FindingView, Section, Uncovered};
use model::Error;
use model::units::plural;

/// The modules of the page. They become one script, so each must come before the modules that import it.
const MODULES: [(&str, &str); 27] = [
    ("format.js", include_str!("../templates/report/format.js")),
    ("rows.js", include_str!("../templates/report/rows.js")),
    ("dom.js", include_str!("../templates/report/dom.js")),
    ("axes.js", include_str!("../templates/report/axes.js")),
    ("table.js", include_str!("../templates/report/table.js")),
    ("bars.js", include_str!("../templates/report/bars.js")),
    ("lines.js", include_str!("../templates/report/lines.js")),
    ("scatter.js", include_str!("../templates/report/scatter.js")),
    ("strip.js", include_str!("../templates/report/strip.js")),
    ("heat.js", include_str!("../templates/report/heat.js")),
    ("timeline_data.js", include_str!("../templates/report/timeline_data.js")),
    ("timeline_pen.js", include_str!("../templates/report/timeline_pen.js")),
    ("timeline_details.js", include_str!("../templates/report/timeline_details.js")),
    ("timeline_search.js", include_str!("../templates/report/timeline_search.js")),
    ("timeline.js", include_str!("../templates/report/timeline.js")),
    ("buckets.js", include_str!("../templates/report/buckets.js")),
    ("tables.js", include_str!("../templates/report/tables.js")),
    ("modules.js", include_str!("../templates/report/modules.js")),
    ("proof.js", include_str!("../templates/report/proof.js")),
    ("roles.js", include_str!("../templates/report/roles.js")),
    ("steps.js", include_str!("../templates/report/steps.js")),
    ("collectives.js", include_str!("../templates/report/collectives.js")),
    ("devices.js", include_str!("../templates/report/devices.js")),
    ("intervals.js", include_str!("../templates/report/intervals.js")),
    ("diff.js", include_str!("../templates/report/diff.js")),
    ("run.js", include_str!("../templates/report/run.js")),
    ("page.js", include_str!("../templates/report/page.js")),
];

const STYLE: &str = include_str!("../templates/report/style.css");

/// A tab of the page. A page with one tab shows no tab bar.
#[derive(Debug)]
pub(super) struct Tab {
    /// Id of the element.
    pub(super) id: &'static str,
    /// Name on the tab bar.
    pub(super) title: String,
    /// Body: the output of a template, which escapes all strings.
    pub(super) html: String,
}

/// The tab of a run.
#[derive(Debug, Template)]
#[template(path = "report/run.html")]
pub(super) struct RunPage {
    pub(super) kind: &'static str,
    pub(super) word: String,
    /// The verdict as a sentence, where no lines say it.
    pub(super) headline: Option<String>,
    /// Which machine, what it costs, where the time goes, what to do.
    pub(super) answers: Vec<(&'static str, String)>,
    pub(super) tiles: Vec<(String, String)>,
    pub(super) facts: Vec<(&'static str, String)>,
    /// The ranks that hold the job up, if it hangs.
    pub(super) hung: Option<Hung>,
    pub(super) uncovered: Vec<Uncovered>,
    pub(super) findings: Vec<FindingView>,
    /// The sections that show what the verdict stands on.
    pub(super) proof: Vec<Section>,
    /// The sections after the findings.
    pub(super) details: Vec<Section>,
    /// The sections without data.
    pub(super) absent: Vec<Section>,
    /// Output of [`script_json`].
    pub(super) data: String,
}

impl RunPage {
    /// Renders the run as a tab.
    pub(super) fn into_tab(self, title: &str) -> Result<Tab, Error> {
        Ok(Tab { id: "run", title: title.into(), html: self.render().map_err(template_error)? })
    }

    /// The number of uncovered items: those that were lost or left out, and the rest.
    fn uncovered_in_short(&self) -> String {
        let of = |kind: &str| self.uncovered.iter().filter(|item| item.kind == kind).count();
        let (lost, left_out) = (of("lost"), of("left out"));
        let remarks = self.uncovered.len() - lost - left_out;
        let mut counts = Vec::new();
        counts.extend((lost > 0).then(|| format!("{lost} lost")));
        counts.extend((left_out > 0).then(|| format!("{left_out} left out")));
        counts.extend((remarks > 0).then(|| plural(remarks, "remark")));
        if counts.is_empty() { "nothing".into() } else { counts.join(", ") }
    }
}

/// The tab of a comparison.
#[derive(Debug, Template)]
#[template(path = "report/diff.html")]
pub(super) struct ComparePage {
    pub(super) kind: &'static str,
    pub(super) word: &'static str,
    pub(super) sentence: String,
    pub(super) tiles: Vec<(&'static str, String)>,
    pub(super) sides: Vec<(String, String)>,
    pub(super) uncovered: Vec<(&'static str, String)>,
    pub(super) method: Vec<String>,
    /// The kernels and launches of a step; `None` if neither run has kernels.
    pub(super) kernels: Option<String>,
    pub(super) has_kernels: bool,
    pub(super) has_rows: bool,
    pub(super) one_sided: bool,
    /// Output of [`script_json`].
    pub(super) data: String,
}

impl ComparePage {
    /// Renders the comparison as a tab.
    pub(super) fn into_tab(self) -> Result<Tab, Error> {
        Ok(Tab { id: "diff", title: "Comparison".into(), html: self.render().map_err(template_error)? })
    }
}

/// The parts that all tabs of a page share.
#[derive(Debug)]
pub(super) struct Frame {
    /// Title of the window.
    pub(super) title: String,
    /// Letter, name and path of each input.
    pub(super) inputs: Vec<(&'static str, String, String)>,
    /// The command that made the page; empty if it is unknown.
    pub(super) command: String,
}

#[derive(Template)]
#[template(path = "report/page.html")]
struct Page<'a> {
    frame: &'a Frame,
    version: &'static str,
    policy: String,
    style: &'a str,
    script: &'a str,
    tabs: &'a [Tab],
}

/// Writes the page and returns its length in bytes.
pub(super) fn write_page(frame: &Frame, tabs: &[Tab], mut out: impl Write) -> Result<u64, Error> {
    let script = script();
    let policy = format!(
        "default-src 'none'; script-src {}; style-src {}; img-src data:; base-uri 'none'; form-action 'none'",
        hash_source(&script),
        hash_source(STYLE),
    );
    let page = Page { frame, version: env!("CARGO_PKG_VERSION"), policy, style: STYLE, script: &script, tabs };
    let html = page.render().map_err(template_error)?;
    out.write_all(html.as_bytes())?;
    out.flush()?;
    Ok(html.len() as u64)
}

fn template_error(error: askama::Error) -> Error {
    Error::Output(std::io::Error::other(error))
}

/// Joins the modules into one script. They share one scope, so imports and the word `export` are removed.
fn script() -> String {
    let mut script = String::from("\"use strict\";\n");
    for (name, text) in MODULES {
        script.push_str(&format!("\n// {name}\n"));
        for line in text.lines().filter(|line| !line.starts_with("import ")) {
            script.push_str(line.strip_prefix("export ").unwrap_or(line));
            script.push('\n');
        }
    }
    script
}

/// The hash by which a security policy identifies a script or style.
fn hash_source(text: &str) -> String {
    let hash = base64::engine::general_purpose::STANDARD.encode(Sha256::digest(text.as_bytes()));
    format!("'sha256-{hash}'")
}

/// Serializes JSON so that it contains neither HTML markup nor line separators of JavaScript.
pub(super) fn script_json(value: &impl Serialize) -> Result<String, Error> {
    let json = serde_json::to_string(value)?;
    let mut safe = String::with_capacity(json.len() + json.len() / 64);
    for c in json.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => safe.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => safe.push(c),
        }
    }
    Ok(safe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_cannot_end_its_element() {
        let hostile = "</script><script>alert(1)</script><!--\u{2028}\u{2029}&amp;\"'";
        let json = script_json(&[hostile]).unwrap();
        assert!(!json.contains(['<', '>', '&', '\u{2028}', '\u{2029}']), "{json}");
        let back: Vec<String> = serde_json::from_str(&json).unwrap();
        assert_eq!(back, [hostile]);
    }

    #[test]
    fn modules_become_one_script() {
        let script = script();
        for (number, line) in script.lines().enumerate() {
            let starts = ["import ", "export ", "import{"].iter().any(|word| line.trim_start().starts_with(word));
            assert!(!starts, "line {number} of the script: {line}");
        }
        // One scope: two modules that declare one name would be a syntax error in the browser.
        let mut declared: Vec<&str> = script.lines().filter_map(declaration).collect();
        let all = declared.len();
        declared.sort_unstable();
        declared.dedup();
        assert_eq!(declared.len(), all);
        assert!(all > 40, "{all} declarations");
    }

    fn declaration(line: &str) -> Option<&str> {
        let words = ["function ", "const ", "let ", "class ", "async function "];
        let rest = words.iter().find_map(|word| line.strip_prefix(word))?;
        rest.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '$').next().filter(|name| !name.is_empty())
    }

    /// The scripts set text as text: they call no function that parses markup or code.
    #[test]
    fn scripts_make_no_markup_of_text() {
        let sinks = [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "DOMParser",
            "eval(",
            "Function(",
            "setTimeout(\"",
            "fetch(",
            "XMLHttpRequest",
            "WebSocket",
            "import(",
            "srcdoc",
            "http://",
            "https://",
        ];
        for (name, text) in MODULES {
            for sink in sinks {
                // Names of XML namespaces look like addresses.
                let text = text.replace("http://www.w3.org/2000/svg", "");
                assert!(!text.contains(sink), "{name} has {sink}");
            }
        }
        assert!(!STYLE.contains("url(") && !STYLE.contains("@import"));
    }

    #[test]
    fn imports_name_modules_that_come_before() {
        for (at, (name, text)) in MODULES.iter().enumerate() {
            for line in text.lines().filter(|line| line.starts_with("import ")) {
                let file = line.split("\"./").nth(1).and_then(|rest| rest.split('"').next());
                let before = MODULES[..at].iter().any(|(n, _)| Some(*n) == file);
                assert!(before && line.ends_with(';'), "{name}: {line}");
            }
        }
    }
}
