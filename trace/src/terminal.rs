//! The door to the terminal: all that a command prints on stdout and stderr passes here.
//!
//! Text of traces, names, metadata and paths may hold commands for a terminal: escape sequences, characters that change
//! the direction of the text, line breaks that forge messages. Here such characters are shown, as in `\u{1b}[2J`, and a
//! terminal never executes them. Over-long text is shortened and says so.

use std::borrow::Cow;
use std::fmt::{Display, Write as _};
use std::io::{self, BufWriter, StdoutLock, Write};

/// Longest line of one message or cell, in characters. A path has at most 4096 bytes, and so fits with its message.
const MAX_LINE_CHARS: usize = 6_000;

/// Whether a terminal executes the character or lays out the text by it: C0, delete, C1 (and so every escape sequence),
/// marks, embeddings and isolates of the bidirectional algorithm, separators of lines and paragraphs, and invisible
/// characters of format.
pub fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{206f}' | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}')
}

/// The text as one line: controls and line breaks are shown, and the middle of an over-long text is replaced by its
/// length.
pub fn line(text: &str) -> Cow<'_, str> {
    let chars = text.chars().count();
    if chars > MAX_LINE_CHARS {
        let half = MAX_LINE_CHARS / 2;
        let (head, tail) = (text.chars().take(half), text.chars().skip(chars - half));
        return format!("{}… {} characters …{}", shown_line(head), chars - 2 * half, shown_line(tail)).into();
    }
    if text.chars().any(is_control) { shown_line(text.chars()).into() } else { text.into() }
}

fn shown_line(chars: impl Iterator<Item = char>) -> String {
    let mut text = String::new();
    chars.for_each(|c| push(&mut text, c, Form::Text));
    text
}

/// Appends a character as it is shown.
fn push(text: &mut String, c: char, form: Form) {
    let _ = match form {
        _ if !is_control(c) => return text.push(c),
        Form::Json => write!(text, "\\u{:04x}", u32::from(c)),
        _ => write!(text, "{}", c.escape_default()),
    };
}

/// Prints one line to stderr. If stderr is closed, the line is lost and the program goes on.
pub fn say(text: impl Display) {
    let _ = writeln!(io::stderr(), "{}", line(&text.to_string()));
}

/// Prints over the last line of a terminal on stderr, and leaves the cursor in it; an empty text clears it.
pub fn overwrite(text: &str) {
    let _ = write!(io::stderr(), "\r\x1b[K{}", line(text));
}

/// Prints an error of the command line with `print`, which may add colours. If an argument has controls (a shell takes
/// arguments from names of files), `text` is printed instead: the same error with styles, which are left out, and with
/// the controls shown. If the output is closed, the error is lost.
pub fn usage_error(text: &str, print: impl FnOnce() -> io::Result<()>) {
    let arguments = crate::command_line::texts().into_iter();
    let hostile: Vec<String> = arguments.filter(|argument| argument.chars().any(is_control)).collect();
    let _ = if hostile.is_empty() { print() } else { io::stderr().write_all(&shown_usage(text, &hostile)) };
}

fn shown_usage(text: &str, hostile: &[String]) -> Vec<u8> {
    let mut text = text.to_string();
    for argument in hostile {
        let value = argument.split_once('=').map_or(argument.as_str(), |(_, value)| value);
        for part in [argument.as_str(), value].into_iter().filter(|part| !part.is_empty()) {
            text = text.replace(part, &line(part));
        }
    }
    let mut rest = text.as_str();
    let mut plain = String::new();
    while let Some(at) = rest.find('\x1b') {
        let (before, from) = rest.split_at(at);
        plain.push_str(before);
        let style = style_bytes(from);
        plain.push_str(if style == 0 { "\x1b" } else { "" });
        rest = &from[style.max(1)..];
    }
    plain.push_str(rest);
    shown(plain.as_bytes(), Form::Text).into_owned()
}

/// What a command prints on stdout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Lines of text. Within a line, only [`line()`] shows line breaks.
    Text,
    /// Lines of text with colours of the program. Within a line, only [`line()`] shows colours of others.
    Coloured,
    /// JSON. A character is shown as JSON's own escape, so the value stays the same.
    Json,
    /// Bytes for another program, unchanged.
    Bytes,
}

/// Locks stdout and prints to it in a form. Each write must hold whole characters. The caller flushes.
pub fn stdout(form: Form) -> Printer<BufWriter<StdoutLock<'static>>> {
    Printer { out: BufWriter::new(io::stdout().lock()), form }
}

/// Shows controls in the text that is written.
#[derive(Debug)]
pub struct Printer<W> {
    out: W,
    form: Form,
}

impl<W: Write> Write for Printer<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write_all(&shown(bytes, self.form))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// The bytes with controls shown. Line breaks stay.
fn shown(bytes: &[u8], form: Form) -> Cow<'_, [u8]> {
    let is_plain = |byte: &u8| matches!(byte, b' '..=b'~' | b'\n');
    if form == Form::Bytes || bytes.iter().all(is_plain) {
        return bytes.into();
    }
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        let mut rest = chunk.valid();
        while let Some(c) = rest.chars().next() {
            let style = if form == Form::Coloured { style_bytes(rest) } else { 0 };
            let (own, after) = rest.split_at(style.max(c.len_utf8()));
            if style > 0 || c == '\n' {
                text.push_str(own);
            } else {
                push(&mut text, c, form);
            }
            rest = after;
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text.into_bytes().into()
}

/// The length of the sequence at the beginning of the text that sets a colour or another style; 0 without one.
fn style_bytes(text: &str) -> usize {
    let Some(rest) = text.strip_prefix("\x1b[") else { return 0 };
    let numbers = rest.bytes().take_while(|byte| matches!(byte, b'0'..=b'9' | b';')).count();
    if rest.as_bytes().get(numbers) == Some(&b'm') { text.len() - rest.len() + numbers + 1 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(bytes: &[u8], form: Form) -> String {
        let mut printer = Printer { out: Vec::new(), form };
        printer.write_all(bytes).unwrap();
        String::from_utf8(printer.out).unwrap()
    }

    #[test]
    fn every_control_is_shown_on_one_line() {
        let hostile = "\u{1b}]0;owned\u{7}\u{9b}31m\rrun\n\tx\u{7f}\u{202e}\u{2066}\u{61c}\u{2028}é漢";
        let expected = r"\u{1b}]0;owned\u{7}\u{9b}31m\rrun\n\tx\u{7f}\u{202e}\u{2066}\u{61c}\u{2028}é漢";
        assert_eq!(line(hostile), expected);
        for c in ('\0'..=char::MAX).filter(|c| is_control(*c)) {
            assert!(line(&c.to_string()).chars().all(|shown| shown.is_ascii_graphic()), "{c:?}");
        }
        let bidi = "\u{200e}\u{200f}\u{202a}\u{202b}\u{202c}\u{202d}\u{202e}\u{2066}\u{2067}\u{2068}\u{2069}\u{2029}";
        assert!(bidi.chars().all(is_control));
        assert!(matches!(line("aten::mm [2, 3] — µs é漢"), Cow::Borrowed(_)));
    }

    #[test]
    fn an_over_long_text_keeps_its_ends_and_states_what_is_missing() {
        let text = format!("first {}\u{1b} last", "x".repeat(1_000_000));
        let short = line(&text);
        assert!(short.starts_with("first xx") && short.ends_with(r"x\u{1b} last"), "{short}");
        assert!(short.contains("… 994012 characters …") && short.len() < 2 * MAX_LINE_CHARS, "{short}");
    }

    #[test]
    fn a_printer_keeps_lines_and_its_own_colours_only() {
        let text = "\u{1b}[1;31mCAUSE\u{1b}[0m\n\u{1b}[2J\u{1b}[31".as_bytes();
        assert_eq!(printed(text, Form::Coloured), "\u{1b}[1;31mCAUSE\u{1b}[0m\n\\u{1b}[2J\\u{1b}[31");
        assert_eq!(printed(text, Form::Text), "\\u{1b}[1;31mCAUSE\\u{1b}[0m\n\\u{1b}[2J\\u{1b}[31");
        assert_eq!(printed(b"a\xff\xc3\x28\x9b", Form::Text), r"a\xff\xc3(\x9b");
        assert_eq!(printed("\u{1b}".as_bytes(), Form::Bytes), "\u{1b}");
    }

    #[test]
    fn a_usage_error_keeps_its_lines_and_shows_those_of_an_argument() {
        let argument = "--steps=1\n\u{1b}[31mBALANCED".to_string();
        let text = "\u{1b}[31merror:\u{1b}[0m invalid value '1\n\u{1b}[31mBALANCED'\n\nUsage: a\u{9b}b\n";
        let shown = String::from_utf8(shown_usage(text, &[argument])).unwrap();
        assert_eq!(shown, "error: invalid value '1\\n\\u{1b}[31mBALANCED'\n\nUsage: a\\u{9b}b\n");
    }

    #[test]
    fn json_keeps_its_value() {
        let value = serde_json::json!({ "a\u{9b}\u{202e}": ["\u{1b}]0;x\u{7}", "\u{7f}\u{feff}é\"\\"] });
        let mut printer = Printer { out: Vec::new(), form: Form::Json };
        serde_json::to_writer_pretty(&mut printer, &value).unwrap();
        let text = String::from_utf8(printer.out).unwrap();
        assert!(text.contains(r#""a\u009b\u202e""#) && text.chars().all(|c| c == '\n' || !is_control(c)), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}
