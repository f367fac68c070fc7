//! Strings of a trace, made harmless to look at and kept once each.
//!
//! Escaping is the business of whoever writes them into a page: the template does, JSON does, and the scripts of the
//! page set text, never markup. What is left to do here is what no escaping mends: characters that are invisible or turn
//! the text around them about, and names of ten thousand letters.

use rustc_hash::FxHashMap;
use serde::Serialize;

/// Letters of a name that are shown; the ends are kept, because they tell names apart.
const NAME_LETTERS: usize = 300;

/// Letters of a sentence that may hold names.
const SENTENCE_LETTERS: usize = 1200;

/// Texts by number.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub(super) struct Names {
    texts: Vec<String>,
    #[serde(skip)]
    ids: FxHashMap<String, usize>,
}

impl Names {
    /// The number of a name. Names that look alike once shortened stay two names.
    pub(super) fn id(&mut self, name: &str) -> usize {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        let id = self.texts.len();
        self.texts.push(visible_name(name));
        self.ids.insert(name.to_string(), id);
        id
    }
}

/// A name as it is shown.
pub(super) fn visible_name(name: &str) -> String {
    visible(&short(name, NAME_LETTERS))
}

/// A sentence, which may hold names, as it is shown.
pub(super) fn visible_sentence(text: &str) -> String {
    visible(&short(text, SENTENCE_LETTERS))
}

/// The text without its middle, if it is long; says how much is not there.
fn short(text: &str, letters: usize) -> String {
    let length = text.chars().count();
    if length <= letters {
        return text.to_string();
    }
    let (head, tail) = (letters * 2 / 3, letters / 3);
    let start: String = text.chars().take(head).collect();
    let end: String = text.chars().skip(length - tail).collect();
    format!("{start}[… {} more characters …]{end}", length - head - tail)
}

/// Controls, characters without width and those that change the direction of writing are shown by their numbers.
fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || is_format(c) {
            shown.push_str(&format!("⟨U+{:04X}⟩", u32::from(c)));
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Unicode's format characters (category Cf) that occur outside of scripts which need them, and its line separators.
fn is_format(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_seen_is_shown() {
        assert_eq!(visible("gemm\u{202e}cod.exe"), "gemm⟨U+202E⟩cod.exe");
        assert_eq!(visible("a\u{1b}[31m\u{2028}\u{200b}\u{0}"), "a⟨U+001B⟩[31m⟨U+2028⟩⟨U+200B⟩⟨U+0000⟩");
        assert_eq!(visible("Übergröße ∂x 核"), "Übergröße ∂x 核");
    }

    #[test]
    fn a_long_name_keeps_its_ends_and_says_what_is_missing() {
        let name = format!("start{}end", "x".repeat(10_000));
        let shown = visible_name(&name);
        assert!(shown.starts_with("start") && shown.ends_with("end"), "{shown}");
        assert!(shown.contains("[… 9708 more characters …]"), "{shown}");
    }

    #[test]
    fn names_that_look_alike_stay_two() {
        let mut names = Names::default();
        let long = |middle: &str| format!("{}{middle}{}", "a".repeat(400), "b".repeat(400));
        let (one, two) = (names.id(&long("1")), names.id(&long("2")));
        assert_ne!(one, two);
        assert_eq!(names.id(&long("1")), one);
    }
}
