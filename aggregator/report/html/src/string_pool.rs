//! Strings of a trace: made visible, shortened, and stored once each.
//!
//! The templates, the JSON writer and the scripts of the page escape strings where they use them. This module handles
//! the problems that escaping does not solve: invisible characters, characters that reverse the direction of the text,
//! and names of ten thousand letters.

use rustc_hash::FxHashMap;
use serde::Serialize;

/// Maximum length of a shown name. Both ends are kept, because they distinguish names.
const NAME_LETTERS: usize = 300;

/// Maximum length of a shown sentence, which may contain names.
const SENTENCE_LETTERS: usize = 1200;

/// Strings by number.
#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub(crate) struct StringPool {
    texts: Vec<String>,
    #[serde(skip)]
    ids: FxHashMap<String, usize>,
}

impl StringPool {
    /// Returns the number of a name. Names that look alike after shortening keep different numbers.
    pub(crate) fn id(&mut self, name: &str) -> usize {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        let id = self.texts.len();
        self.texts.push(visible_name(name));
        self.ids.insert(name.to_string(), id);
        id
    }
}

/// Makes a name visible and shortens it.
pub(crate) fn visible_name(name: &str) -> String {
    visible(&short(name, NAME_LETTERS))
}

/// Makes a sentence that may contain names visible and shortens it.
pub(crate) fn visible_sentence(text: &str) -> String {
    visible(&short(text, SENTENCE_LETTERS))
}

/// Removes the middle of a long text and inserts the number of removed characters.
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

/// Replaces control characters, characters without width, and characters that change the writing direction by their
/// code points.
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
    fn invisible_characters_are_shown_as_code_points() {
        assert_eq!(visible("gemm\u{202e}cod.exe"), "gemm⟨U+202E⟩cod.exe");
        assert_eq!(visible("a\u{1b}[31m\u{2028}\u{200b}\u{0}"), "a⟨U+001B⟩[31m⟨U+2028⟩⟨U+200B⟩⟨U+0000⟩");
        assert_eq!(visible("Übergröße ∂x 核"), "Übergröße ∂x 核");
    }

    #[test]
    fn a_long_name_keeps_its_ends_and_counts_removed_characters() {
        let name = format!("start{}end", "x".repeat(10_000));
        let shown = visible_name(&name);
        assert!(shown.starts_with("start") && shown.ends_with("end"), "{shown}");
        assert!(shown.contains("[… 9708 more characters …]"), "{shown}");
    }

    #[test]
    fn names_that_look_alike_keep_two_numbers() {
        let mut names = StringPool::default();
        let long = |middle: &str| format!("{}{middle}{}", "a".repeat(400), "b".repeat(400));
        let (one, two) = (names.id(&long("1")), names.id(&long("2")));
        assert_ne!(one, two);
        assert_eq!(names.id(&long("1")), one);
    }
}
