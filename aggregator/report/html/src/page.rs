//! Builds the page around the data: escaping templates, one script, one style, and a security policy that allows only
//! these.

use std::io::Write;

use askama::Template;
use base64::Engine;
use sha2::{Digest, Sha256};

use crate::findings::FindingView;
use crate::hung::Hung;
use crate::section::Script;
use crate::sections::{SECTIONS, SectionView};
use crate::uncovered::Uncovered;
use model::Error;
use model::units::plural;

/// A module of `templates/report`.
macro_rules! shared {
    ($file:literal) => {
        Script { name: $file, text: include_str!(concat!("../templates/report/", $file)) }
    };
}

/// The modules that sections share. All modules become one script, so each must come before the modules that import it.
static BEFORE_SECTIONS: &[Script] = &[
    shared!("format.js"),
    shared!("rows.js"),
    shared!("ranks.js"),
    shared!("dom.js"),
    shared!("axes.js"),
    shared!("table.js"),
    shared!("names.js"),
    shared!("bars.js"),
    shared!("lines.js"),
    shared!("scatter.js"),
    shared!("strip.js"),
    shared!("heat.js"),
];

/// The modules that draw a tab.
static AFTER_SECTIONS: &[Script] =
    &[shared!("intervals.js"), shared!("diff.js"), shared!("run.js"), shared!("page.js")];

const STYLE: &str = include_str!("../templates/report/style.css");

/// A tab of the page. A page with one tab shows no tab bar.
#[derive(Debug)]
pub(crate) struct Tab {
    /// Id of the element.
    pub(crate) id: &'static str,
    /// Name on the tab bar.
    pub(crate) title: String,
    /// Body: the output of a template, which escapes all strings.
    pub(crate) html: String,
}

/// The tab of a run.
#[derive(Debug, Template)]
#[template(path = "report/run.html")]
pub(crate) struct RunPage {
    pub(crate) kind: &'static str,
    pub(crate) word: String,
    /// The verdict as a sentence, where no lines say it.
    pub(crate) headline: Option<String>,
    /// Which machine, what it costs, where the time goes, what to do.
    pub(crate) answers: Vec<(&'static str, String)>,
    pub(crate) tiles: Vec<(String, String)>,
    /// The account of lost time.
    pub(crate) parts: Vec<BarPart>,
    pub(crate) facts: Vec<(&'static str, String)>,
    /// The ranks that hold the job up, if it hangs.
    pub(crate) hung: Option<Hung>,
    pub(crate) uncovered: Vec<Uncovered>,
    pub(crate) findings: Vec<FindingView>,
    /// The sections that show what the verdict stands on.
    pub(crate) proof: Vec<SectionView>,
    /// The sections after the findings.
    pub(crate) details: Vec<SectionView>,
    /// The sections without data.
    pub(crate) absent: Vec<SectionView>,
    /// Output of [`script_json`].
    pub(crate) data: String,
}

/// A part of the bar of a step.
#[derive(Debug)]
pub(crate) struct BarPart {
    pub(crate) kind: &'static str,
    pub(crate) words: String,
    /// `15.0 ms, 42 %`.
    pub(crate) amount: String,
    /// Begin and length in thousandths of the bar.
    pub(crate) from: f64,
    pub(crate) length: f64,
    /// The section with its evidence.
    pub(crate) link: &'static str,
}

impl RunPage {
    /// Renders the run as a tab.
    pub(crate) fn into_tab(self, title: &str) -> Result<Tab, Error> {
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
pub(crate) struct ComparePage {
    pub(crate) kind: &'static str,
    pub(crate) word: &'static str,
    pub(crate) sentence: String,
    pub(crate) tiles: Vec<(&'static str, String)>,
    pub(crate) sides: Vec<(String, String)>,
    pub(crate) uncovered: Vec<(&'static str, String)>,
    pub(crate) method: Vec<String>,
    /// The kernels and launches of a step; `None` if neither run has kernels.
    pub(crate) kernels: Option<String>,
    pub(crate) has_kernels: bool,
    pub(crate) has_rows: bool,
    pub(crate) one_sided: bool,
    /// Output of [`script_json`].
    pub(crate) data: String,
}

impl ComparePage {
    /// Renders the comparison as a tab.
    pub(crate) fn into_tab(self) -> Result<Tab, Error> {
        Ok(Tab { id: "diff", title: "Comparison".into(), html: self.render().map_err(template_error)? })
    }
}

/// The parts that all tabs of a page share.
#[derive(Debug)]
pub(crate) struct Frame {
    /// Title of the window.
    pub(crate) title: String,
    pub(crate) inputs: Vec<Input>,
    /// The command that made the page; empty if it is unknown.
    pub(crate) command: String,
}

/// An input of the page.
#[derive(Debug)]
pub(crate) struct Input {
    /// `A` and `B` of a comparison; empty for one run.
    pub(crate) letter: &'static str,
    pub(crate) name: String,
    pub(crate) path: String,
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
pub(crate) fn write_page(frame: &Frame, tabs: &[Tab], mut out: impl Write) -> Result<u64, Error> {
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

/// All modules of the script.
fn modules() -> impl Iterator<Item = &'static Script> {
    BEFORE_SECTIONS.iter().chain(SECTIONS.iter().flat_map(|section| section.scripts)).chain(AFTER_SECTIONS)
}

/// The function by which the script draws a section: `drawSteps`.
fn draw_function(id: &str) -> String {
    let (first, rest) = id.split_at(1);
    format!("draw{}{rest}", first.to_uppercase())
}

/// Joins the modules into one script. They share one scope, so imports and the word `export` are removed.
fn script() -> String {
    let mut script = String::from("\"use strict\";\n");
    for Script { name, text } in modules() {
        script.push_str(&format!("\n// {name}\n"));
        for line in text.lines().filter(|line| !line.starts_with("import ")) {
            script.push_str(line.strip_prefix("export ").unwrap_or(line));
            script.push('\n');
        }
    }
    let draw = SECTIONS.iter().map(|section| format!("  {}: {},\n", section.id, draw_function(section.id)));
    script.push_str(&format!("\ndrawPage({{\n{}}});\n", draw.collect::<String>()));
    script
}

/// The hash by which a security policy identifies a script or style.
fn hash_source(text: &str) -> String {
    let hash = base64::engine::general_purpose::STANDARD.encode(Sha256::digest(text.as_bytes()));
    format!("'sha256-{hash}'")
}

/// Escapes JSON so that it contains neither HTML markup nor line separators of JavaScript.
pub(crate) fn script_json(json: &str) -> String {
    let mut safe = String::with_capacity(json.len() + json.len() / 64);
    for c in json.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => safe.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_cannot_end_its_element() {
        let hostile = "</script><script>alert(1)</script><!--\u{2028}\u{2029}&amp;\"'";
        let json = script_json(&serde_json::to_string(&[hostile]).unwrap());
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
        for Script { name, text } in modules() {
            for sink in sinks {
                // Names of XML namespaces look like addresses.
                let text = text.replace("http://www.w3.org/2000/svg", "");
                assert!(!text.contains(sink), "{name} has {sink}");
            }
        }
        assert!(!STYLE.contains("url(") && !STYLE.contains("@import"));
    }

    /// A section may import what all sections share, and its own modules.
    #[test]
    fn imports_name_modules_that_come_before() {
        for (at, Script { name, text }) in modules().enumerate() {
            let section = SECTIONS.iter().find(|section| section.scripts.iter().any(|script| script.name == *name));
            for line in text.lines().filter(|line| line.starts_with("import ")) {
                let path = line.split('"').nth(1).unwrap_or_default();
                let (folder, file) = path.rsplit_once('/').unwrap_or_default();
                let before = modules().take(at).any(|module| module.name == file);
                let is_own = section.is_none_or(|section| section.scripts.iter().any(|script| script.name == file));
                let expected = if is_own { "." } else { "../../../templates/report" };
                let is_shared = BEFORE_SECTIONS.iter().any(|module| module.name == file);
                assert!(before && line.ends_with(';'), "{name} imports {file}, which does not come before it: {line}");
                assert!(is_own || is_shared, "{name} imports a module of another section: {line}");
                assert_eq!(folder, expected, "{name}: {line}");
            }
        }
    }

    #[test]
    fn every_section_has_a_function_that_draws_it() {
        for section in SECTIONS {
            let (id, function) = (section.id, format!("export function {}(data) {{", draw_function(section.id)));
            let defined = section.scripts.iter().filter(|script| script.text.contains(&function)).count();
            assert_eq!(defined, 1, "a script of the section {id} must have the line: {function}");
            let title = SECTIONS.iter().filter(|other| other.id == id).count();
            assert_eq!(title, 1, "two sections are called {id}");
        }
    }
}
