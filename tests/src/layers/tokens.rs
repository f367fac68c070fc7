//! Rust source as words and signs, without comments and literals.

/// A word or a sign, and its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) text: String,
    pub(super) line: usize,
}

/// Splits a source text. `::` is one token; comments, strings, characters, numbers and lifetimes are none.
pub(super) fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let mut lexer = Lexer { chars: &chars, at: 0, line: 1 };
    let mut found = Vec::new();
    while let Some(token) = lexer.next() {
        found.push(token);
    }
    found
}

struct Lexer<'a> {
    chars: &'a [char],
    at: usize,
    line: usize,
}

fn begins_word(c: char) -> bool {
    c.is_alphabetic() || c == '_'
}

impl Lexer<'_> {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    fn step(&mut self) {
        if self.peek(0) == Some('\n') {
            self.line += 1;
        }
        self.at += 1;
    }

    fn step_while(&mut self, keep: impl Fn(char) -> bool) {
        while self.peek(0).is_some_and(&keep) {
            self.step();
        }
    }

    fn next(&mut self) -> Option<Token> {
        loop {
            let c = self.peek(0)?;
            match c {
                '/' if self.peek(1) == Some('/') => self.step_while(|c| c != '\n'),
                '/' if self.peek(1) == Some('*') => self.block_comment(),
                '"' => self.string(),
                '\'' => self.character(),
                c if c.is_ascii_digit() => self.step_while(|c| c.is_alphanumeric() || c == '_'),
                c if begins_word(c) => {
                    if let Some(token) = self.word() {
                        return Some(token);
                    }
                }
                ':' if self.peek(1) == Some(':') => {
                    self.at += 2;
                    return Some(Token { text: "::".into(), line: self.line });
                }
                c if c.is_whitespace() => self.step(),
                c => {
                    self.step();
                    return Some(Token { text: c.into(), line: self.line });
                }
            }
        }
    }

    /// A word; none if it was the prefix of a string.
    fn word(&mut self) -> Option<Token> {
        let (start, line) = (self.at, self.line);
        self.step_while(|c| c.is_alphanumeric() || c == '_');
        let text: String = self.chars[start..self.at].iter().collect();
        match (text.as_str(), self.peek(0)) {
            ("r" | "br" | "cr", Some('"' | '#')) if self.raw_string() => return None,
            // `r#word` is the word itself.
            ("r", Some('#')) if self.peek(1).is_some_and(begins_word) => {
                self.step();
                return self.word();
            }
            ("b" | "c", Some('"')) => {
                self.string();
                return None;
            }
            ("b", Some('\'')) => {
                self.character();
                return None;
            }
            _ => {}
        }
        Some(Token { text, line })
    }

    fn raw_string(&mut self) -> bool {
        let hashes = (0..).take_while(|n| self.peek(*n) == Some('#')).count();
        if self.peek(hashes) != Some('"') {
            return false;
        }
        self.at += hashes + 1;
        while let Some(c) = self.peek(0) {
            self.step();
            if c == '"' && (0..hashes).all(|n| self.peek(n) == Some('#')) {
                self.at += hashes;
                break;
            }
        }
        true
    }

    fn string(&mut self) {
        self.step();
        while let Some(c) = self.peek(0) {
            self.step();
            match c {
                '"' => break,
                '\\' => self.step(),
                _ => {}
            }
        }
    }

    /// A character's literal, or a lifetime.
    fn character(&mut self) {
        self.step();
        if self.peek(0) == Some('\\') {
            self.at += 2;
            self.step_while(|c| c != '\'');
            self.step();
        } else if self.peek(1) == Some('\'') {
            self.step();
            self.step();
        } else {
            self.step_while(|c| c.is_alphanumeric() || c == '_');
        }
    }

    fn block_comment(&mut self) {
        let mut depth = 0;
        while self.peek(0).is_some() {
            match (self.peek(0), self.peek(1)) {
                (Some('/'), Some('*')) => {
                    depth += 1;
                    self.at += 2;
                }
                (Some('*'), Some('/')) => {
                    depth -= 1;
                    self.at += 2;
                    if depth == 0 {
                        break;
                    }
                }
                _ => self.step(),
            }
        }
    }
}
