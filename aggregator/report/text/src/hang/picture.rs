//! The waits of a hung job as a picture in SVG: ranks that are waited for above those that wait.

use askama::Template;

use crate::hang::{MAX_DEPTH, MAX_ROWS, depths, headline, name, named, size};
use hang::report::{Fault, Hang, Wait};
use model::error::Error;

const ROW: usize = 56;
const BOX: [usize; 2] = [440, 44];
const INDENT: usize = 40;
const MARGIN: usize = 12;
/// Characters that fit into a box; the whole text is its title.
const MAX_CHARS: usize = 64;

/// Ranks of the picture.
#[derive(Debug)]
struct Group {
    /// `host`, `device`, `unread`, `circle` or `waits`.
    class: &'static str,
    x: usize,
    y: usize,
    /// The ranks, and what they do not do or wait in.
    lines: [String; 2],
    title: String,
    /// Where an arrow to the ranks that they wait for bends and ends.
    arrow: Option<[usize; 2]>,
}

#[derive(Template)]
#[template(path = "hang.svg", escape = "html")]
struct Picture {
    label: String,
    width: usize,
    height: usize,
    r#box: [usize; 2],
    margin: usize,
    groups: Vec<Group>,
    /// The number of waits that are not drawn.
    more: usize,
}

/// Draws the waits; `None` if no rank waits. Not more than 20 of them are drawn, and the picture says how many are not.
///
/// # Errors
/// [`Error::Output`].
pub fn picture(hang: &Hang) -> Result<Option<String>, Error> {
    if hang.waits.is_empty() {
        return Ok(None);
    }
    let groups = Layout::of(hang).groups;
    let right = groups.iter().map(|group| group.x + BOX[0]).max().unwrap_or(0);
    let more = hang.waits.len().saturating_sub(MAX_ROWS);
    let picture = Picture {
        label: headline(hang),
        width: right + MARGIN,
        height: ROW * (groups.len() + usize::from(more > 0)) + 2 * MARGIN,
        r#box: BOX,
        margin: MARGIN,
        groups,
        more,
    };
    let drawn = picture.render().map_err(|error| Error::Output(std::io::Error::other(error)))?;
    Ok(Some(well_formed(&drawn)))
}

/// Replaces the characters that XML has no way to write. XML 1.0, production 2.
fn well_formed(drawn: &str) -> String {
    let is_of_xml =
        |c: char| matches!(c, '\t' | '\n' | '\r' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..);
    drawn.chars().map(|c| if is_of_xml(c) { c } else { char::REPLACEMENT_CHARACTER }).collect()
}

/// The groups from top to bottom, each below the one that it waits for.
struct Layout<'a> {
    hang: &'a Hang,
    depths: Vec<usize>,
    groups: Vec<Group>,
}

impl<'a> Layout<'a> {
    fn of(hang: &'a Hang) -> Self {
        let mut layout = Self { hang, depths: depths(&hang.waits), groups: Vec::new() };
        let mut roots: Vec<&Wait> = Vec::new();
        for wait in drawn(hang).filter(|wait| wait.behind.is_none()) {
            if !roots.iter().any(|root| root.late == wait.late) {
                roots.push(wait);
            }
        }
        for root in roots {
            let at = layout.groups.len();
            layout.add_root(root);
            for (number, wait) in drawn(hang).enumerate() {
                if wait.behind.is_none() && wait.late == root.late {
                    layout.add(number, at);
                }
            }
        }
        layout
    }

    /// The ranks that a chain of waits ends at.
    fn add_root(&mut self, wait: &Wait) {
        let hang = self.hang;
        let of_these = |evidence: &&hang::report::Evidence| wait.late.binary_search(&evidence.rank).is_ok();
        let evidence = hang.evidence.iter().find(of_these);
        let is_stuck = |rank: &i32| hang.device_stuck.binary_search(rank).is_ok();
        let (class, why) = match evidence.map(|evidence| evidence.fault) {
            Some(Fault::Host) => ("host", "did not call what the others wait in"),
            Some(Fault::Order) => ("host", "called operations in another order than the others"),
            Some(Fault::Device) => ("device", "called it, and the device does not end it"),
            Some(Fault::NotRead) => ("unread", "no dump and no last rows"),
            None if wait.late.iter().any(is_stuck) => ("device", "called it, and the device does not end it"),
            None if hang.deadlocks.iter().any(|circle| circle.iter().any(|rank| wait.late.contains(rank))) => {
                ("circle", "wait in a circle")
            }
            None => ("waits", "called something else first"),
        };
        self.push(class, 0, [named(&wait.late), why.into()], None);
    }

    /// The ranks of a wait below those of the group that they wait for, and below them those that stand behind.
    fn add(&mut self, number: usize, behind: usize) {
        let wait = &self.hang.waits[number];
        let mut what = name(&wait.operation);
        if let Some(size) = size(&wait.operation) {
            what = format!("{what}, {size}");
        }
        let at = self.groups.len();
        let depth = 1 + self.depths[number].min(MAX_DEPTH);
        self.push("waits", depth, [named(&wait.waiting), format!("in {what}")], Some(behind));
        for (next, _) in drawn(self.hang).enumerate().filter(|(_, next)| next.behind == Some(number)) {
            self.add(next, at);
        }
    }

    fn push(&mut self, class: &'static str, depth: usize, lines: [String; 2], behind: Option<usize>) {
        let arrow = behind.map(|at| [self.groups[at].x + INDENT / 2, self.groups[at].y + BOX[1]]);
        let (x, y) = (MARGIN + INDENT * depth, MARGIN + ROW * self.groups.len());
        let title = lines.join(" ");
        self.groups.push(Group { class, x, y, lines: lines.map(shortened), title, arrow });
    }
}

fn drawn(hang: &Hang) -> impl Iterator<Item = &Wait> {
    hang.waits.iter().take(MAX_ROWS)
}

fn shortened(text: String) -> String {
    if text.chars().count() <= MAX_CHARS {
        return text;
    }
    text.chars().take(MAX_CHARS - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Invariant (output): A picture is well-formed, whatever the names of the trace.
    #[test]
    fn names_with_control_characters_leave_a_well_formed_picture() {
        assert_eq!(
            well_formed("<text>a\u{1b}[31m\u{0}\u{ffff}\tb\u{202e}</text>"),
            "<text>a\u{fffd}[31m\u{fffd}\u{fffd}\tb\u{202e}</text>"
        );
    }
}
