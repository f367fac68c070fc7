//! One file: its `use` lines, the paths in its code, its items and its inline modules.

use super::tokens::{Token, tokens};

/// One name that a `use` line brings into a module; a glob has no name.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Import {
    /// Inline module of the file that the line stands in; empty for the file's own.
    pub(super) module: Vec<String>,
    pub(super) name: Option<String>,
    pub(super) path: Vec<String>,
}

/// What a file holds outside its tests.
#[derive(Debug, Default)]
pub(super) struct Scanned {
    pub(super) imports: Vec<Import>,
    /// `(inline module, path, line)` of each path, those of `use` lines included.
    pub(super) paths: Vec<(Vec<String>, Vec<String>, usize)>,
    /// `(inline module, name)` of each item.
    pub(super) defined: Vec<(Vec<String>, String)>,
    pub(super) inline_modules: Vec<Vec<String>>,
    /// Modules that a `mod` line under `#[cfg(test)]` declares.
    pub(super) test_modules: Vec<Vec<String>>,
    pub(super) exported_macros: Vec<String>,
}

/// Scans a source text.
pub(super) fn scan(text: &str) -> Scanned {
    let tokens = tokens(text);
    let mut scanner = Scanner { tokens: &tokens, at: 0, depth: 0, open: Vec::new(), found: Scanned::default() };
    scanner.run();
    scanner.found
}

struct Scanner<'a> {
    tokens: &'a [Token],
    at: usize,
    depth: usize,
    /// Inline modules that are open, each with the depth of its braces.
    open: Vec<(String, usize)>,
    found: Scanned,
}

fn is_word(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

impl Scanner<'_> {
    fn text(&self, ahead: usize) -> &str {
        self.tokens.get(self.at + ahead).map_or("", |t| t.text.as_str())
    }

    fn module(&self) -> Vec<String> {
        self.open.iter().map(|(name, _)| name.clone()).collect()
    }

    fn run(&mut self) {
        while self.at < self.tokens.len() {
            match self.text(0) {
                "#" => self.attribute(),
                "use" if self.text(1) != "<" => self.use_line(),
                "mod" if is_word(self.text(1)) && self.text(2) == "{" => {
                    let name = self.text(1).to_string();
                    self.depth += 1;
                    self.open.push((name, self.depth));
                    self.found.inline_modules.push(self.module());
                    self.at += 3;
                }
                "{" => {
                    self.depth += 1;
                    self.at += 1;
                }
                "}" => {
                    if self.open.last().is_some_and(|(_, depth)| *depth == self.depth) {
                        self.open.pop();
                    }
                    self.depth = self.depth.saturating_sub(1);
                    self.at += 1;
                }
                "::" => self.skip_path(),
                word if is_word(word) => self.word(),
                _ => self.at += 1,
            }
        }
    }

    /// A path that begins with `::` names another crate, and one behind `>` an item of a type.
    fn skip_path(&mut self) {
        while self.text(0) == "::" && is_word(self.text(1)) {
            self.at += 2;
        }
        if self.text(0) == "::" {
            self.at += 1;
        }
    }

    fn word(&mut self) {
        let item = matches!(self.text(0), "fn" | "struct" | "enum" | "trait" | "type" | "const" | "static" | "union");
        if item && is_word(self.text(1)) {
            let skip = usize::from(self.text(1) == "mut");
            let entry = (self.module(), self.text(1 + skip).to_string());
            self.found.defined.push(entry);
            self.at += 1;
            return;
        }
        if self.text(0) == "macro_rules" && self.text(1) == "!" {
            let entry = (self.module(), self.text(2).to_string());
            self.found.defined.push(entry);
            self.at += 3;
            return;
        }
        let line = self.tokens[self.at].line;
        let mut path = vec![self.text(0).to_string()];
        self.at += 1;
        while self.text(0) == "::" && is_word(self.text(1)) {
            path.push(self.text(1).to_string());
            self.at += 2;
        }
        if path.len() > 1 {
            self.found.paths.push((self.module(), path, line));
        }
    }

    /// `#[…]` or `#![…]`; the item behind `#[cfg(test)]` is left out.
    fn attribute(&mut self) {
        self.at += 1;
        let inner = self.text(0) == "!";
        if inner {
            self.at += 1;
        }
        if self.text(0) != "[" {
            return;
        }
        let start = self.at;
        self.skip_group();
        let words: Vec<&str> = self.tokens[start..self.at].iter().map(|t| t.text.as_str()).collect();
        if words.get(1) == Some(&"macro_export") {
            let name = self.tokens[self.at..].iter().skip_while(|t| t.text != "!").nth(1);
            self.found.exported_macros.extend(name.map(|t| t.text.clone()));
        }
        // `any(test, …)` is compiled without tests too, and `not(test)` only then.
        let test = words.get(1) == Some(&"cfg")
            && words.contains(&"test")
            && !words.contains(&"any")
            && !words.windows(3).any(|w| w == ["not", "(", "test"]);
        if test && !inner {
            self.skip_item();
        } else if test {
            self.at = self.tokens.len();
        }
    }

    /// Goes behind the bracket that closes the one here.
    fn skip_group(&mut self) {
        let mut depth = 0_usize;
        while self.at < self.tokens.len() {
            match self.text(0) {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth = depth.saturating_sub(1),
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return;
            }
        }
    }

    fn skip_item(&mut self) {
        while self.text(0) == "#" {
            self.at += 1;
            self.skip_group();
        }
        while self.at < self.tokens.len() {
            match self.text(0) {
                "mod" if is_word(self.text(1)) => {
                    let mut path = self.module();
                    path.push(self.text(1).to_string());
                    self.found.test_modules.push(path);
                    self.at += 2;
                }
                ";" | "," => {
                    self.at += 1;
                    return;
                }
                "{" => return self.skip_group(),
                // The end of what holds the item: a field or an expression without a comma.
                "}" | ")" => return,
                "(" | "[" => self.skip_group(),
                _ => self.at += 1,
            }
        }
    }

    fn use_line(&mut self) {
        self.at += 1;
        if self.text(0) == "::" {
            // Another crate.
            while !matches!(self.text(0), ";" | "") {
                self.at += 1;
            }
            return;
        }
        self.use_tree(&[]);
    }

    /// One tree of a `use` line: a path, and then nothing, a new name, `*` or a group of trees.
    fn use_tree(&mut self, before: &[String]) {
        let line = self.tokens.get(self.at).map_or(0, |t| t.line);
        let mut path = before.to_vec();
        loop {
            match self.text(0) {
                "{" => {
                    self.at += 1;
                    while !matches!(self.text(0), "}" | "") {
                        self.use_tree(&path);
                        if self.text(0) == "," {
                            self.at += 1;
                        }
                    }
                    self.at += 1;
                    return;
                }
                "*" => {
                    self.at += 1;
                    return self.import(None, path, line);
                }
                word if is_word(word) => {
                    path.push(word.to_string());
                    self.at += 1;
                }
                _ => return,
            }
            if self.text(0) != "::" {
                break;
            }
            self.at += 1;
        }
        // `a::{self}` is `a`.
        if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
            path.pop();
        }
        let mut name = path.last().cloned();
        if self.text(0) == "as" {
            name = Some(self.text(1).to_string());
            self.at += 2;
        }
        self.import(name, path, line);
    }

    fn import(&mut self, name: Option<String>, path: Vec<String>, line: usize) {
        let module = self.module();
        self.found.paths.push((module.clone(), path.clone(), line));
        if name.as_deref() != Some("_") {
            self.found.imports.push(Import { module, name, path });
        }
    }
}
