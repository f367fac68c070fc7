//! Arrows between the modules of a crate, read from its sources: which module uses an item of which other module.
//!
//! ```text
//!  source text ──► tokens ──► use lines and paths ──► home of each item ──► arrows ──► components, back-arrows
//!                             (of each module)        (through re-exports)
//! ```
//!
//! An import through a re-export is an arrow to the module that defines the item: a facade such as `lib.rs` is no party
//! to it. Code under `#[cfg(test)]` and files called `tests` draw no arrows.

mod components;
mod scan;
mod tokens;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::{fs, io};

use scan::{Scanned, scan};

pub use components::{Arrow, Component, ModulePath, shown};

/// A folder (or file) directly below a crate's root, and those beside it whose items it may use.
pub type Room<'a> = (&'a str, &'a [&'a str]);

/// The modules of one crate and the arrows between them.
#[derive(Debug, Default)]
pub struct Modules {
    /// Every module that has a file of its own and is no test.
    pub modules: BTreeSet<ModulePath>,
    /// One arrow for each pair of modules: the first use in the file.
    pub arrows: Vec<Arrow>,
}

/// Reads every `.rs` file of a crate's `src`: `(path relative to src, text)`.
///
/// # Errors
/// Those of the file system.
pub fn read_sources(src: &Path) -> io::Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    let mut pending = vec![src.to_path_buf()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            if path.is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let relative = path.strip_prefix(src).unwrap_or(&path).to_string_lossy().replace('\\', "/");
                found.push((relative, fs::read_to_string(&path)?));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The module that a file of `src` holds; none for commands beside the library.
fn module_of(file: &str, has_lib: bool) -> Option<ModulePath> {
    let stem = file.strip_suffix(".rs")?;
    let mut path: ModulePath = stem.split('/').map(str::to_string).collect();
    match path[0].as_str() {
        "bin" => return None,
        "main" if path.len() == 1 => return (!has_lib).then(Vec::new),
        "lib" if path.len() == 1 => return Some(Vec::new()),
        _ => {}
    }
    if path.last().is_some_and(|last| last == "mod") {
        path.pop();
    }
    Some(path)
}

impl Modules {
    /// Finds the arrows in `(path relative to src, text)` of all files of a crate.
    pub fn parse(files: &[(String, String)]) -> Self {
        let has_lib = files.iter().any(|(file, _)| file == "lib.rs");
        let mut scanned: BTreeMap<ModulePath, (String, Scanned)> = BTreeMap::new();
        for (file, text) in files {
            if let Some(path) = module_of(file, has_lib) {
                scanned.insert(path, (file.clone(), scan(text)));
            }
        }
        // A file is a test if `tests` is in its path, or if the `mod` line that declares it or an ancestor says so.
        let tests: BTreeSet<ModulePath> = scanned
            .iter()
            .flat_map(|(path, (_, s))| s.test_modules.iter().map(move |inner| join(path, inner)))
            .collect();
        let is_test = |path: &ModulePath| {
            path.iter().any(|part| part == "tests") || (1..=path.len()).any(|n| tests.contains(&path[..n]))
        };
        scanned.retain(|path, _| !is_test(path));
        let names = Names::new(&scanned);
        let mut arrows = Vec::new();
        for (from, (file, scanned)) in &scanned {
            let mut seen = BTreeSet::new();
            for (inner, path, line) in &scanned.paths {
                let Some(to) = names.home(&join(from, inner), path) else { continue };
                if to != *from && seen.insert(to.clone()) {
                    arrows.push(Arrow { from: from.clone(), to, file: file.clone(), line: *line });
                }
            }
        }
        Self { modules: scanned.into_keys().collect(), arrows }
    }

    /// Arrows between rooms that the table does not allow, as sentences. The crate's root may use every room; every room
    /// may use the crate's `error`. A module outside the table is a sentence of its own.
    pub fn back_arrows(&self, rooms: &[Room<'_>]) -> Vec<String> {
        let allowed: BTreeMap<&str, &[&str]> = rooms.iter().copied().collect();
        let mut wrong = Vec::new();
        for module in &self.modules {
            if let [room] = module.as_slice()
                && room != "error"
                && !allowed.contains_key(room.as_str())
            {
                wrong.push(format!("{room} is in no room of the table"));
            }
        }
        for arrow in &self.arrows {
            let (Some(from), to) = (arrow.from.first(), arrow.to.first()) else { continue };
            let to_name = to.map_or("crate", String::as_str);
            let within = Some(from) == to || to_name == "error";
            let Some(may) = allowed.get(from.as_str()) else {
                if from == "error" && !within {
                    wrong.push(sentence(arrow, "error", to_name));
                }
                continue;
            };
            if !within && !may.contains(&to_name) {
                wrong.push(sentence(arrow, from, to_name));
            }
        }
        wrong
    }

    /// Circles: strongly connected components of two modules and more.
    pub fn components(&self) -> Vec<Component> {
        components::circles(&self.modules, &self.arrows)
    }
}

fn sentence(arrow: &Arrow, from: &str, to: &str) -> String {
    let Arrow { file, line, .. } = arrow;
    format!("{file}:{line}: {} uses {}; {from} may not import {to}", shown(&arrow.from), shown(&arrow.to))
}

fn join(outer: &[String], inner: &[String]) -> ModulePath {
    outer.iter().chain(inner).cloned().collect()
}

/// What each module's names stand for.
struct Names {
    files: BTreeSet<ModulePath>,
    /// Modules with or without a file of their own.
    modules: BTreeSet<ModulePath>,
    defined: BTreeMap<ModulePath, BTreeSet<String>>,
    /// Name in a module → the path after `use`, as written.
    imported: BTreeMap<ModulePath, BTreeMap<String, Vec<String>>>,
    /// Paths before `::*`.
    globs: BTreeMap<ModulePath, Vec<Vec<String>>>,
    /// Macros that `#[macro_export]` puts at the crate's root.
    macros: BTreeMap<String, ModulePath>,
}

/// Re-exports that one import may pass through.
const MAX_STEPS: usize = 32;

impl Names {
    fn new(scanned: &BTreeMap<ModulePath, (String, Scanned)>) -> Self {
        let files: BTreeSet<ModulePath> = scanned.keys().cloned().collect();
        let mut names = Self {
            modules: files.clone(),
            files,
            defined: BTreeMap::new(),
            imported: BTreeMap::new(),
            globs: BTreeMap::new(),
            macros: BTreeMap::new(),
        };
        for (path, (_, scanned)) in scanned {
            for inner in &scanned.inline_modules {
                names.modules.insert(join(path, inner));
            }
            for (inner, name) in &scanned.defined {
                names.defined.entry(join(path, inner)).or_default().insert(name.clone());
            }
            for name in &scanned.exported_macros {
                names.macros.insert(name.clone(), path.clone());
            }
            for import in &scanned.imports {
                let module = join(path, &import.module);
                match &import.name {
                    Some(name) => {
                        names.imported.entry(module).or_default().insert(name.clone(), import.path.clone());
                    }
                    None => names.globs.entry(module).or_default().push(import.path.clone()),
                }
            }
        }
        names
    }

    /// The file's module that defines what `path`, written in `module`, names; none for another crate's.
    fn home(&self, module: &ModulePath, path: &[String]) -> Option<ModulePath> {
        let (home, item) = self.resolve(module, path, MAX_STEPS)?;
        let file = (0..=home.len()).rev().map(|n| &home[..n]).find(|p| self.files.contains(*p))?;
        // A folder that is imported by name alone is not used yet: the paths through that name are.
        let is_folder = item.is_none() && self.files.iter().any(|f| f.len() > file.len() && f.starts_with(file));
        (!is_folder).then(|| file.to_vec())
    }

    /// `(module, item)`: item is none if the path names the module itself.
    fn resolve(&self, module: &ModulePath, path: &[String], steps: usize) -> Option<(ModulePath, Option<String>)> {
        let steps = steps.checked_sub(1)?;
        let (first, rest) = path.split_first()?;
        let mut at = match first.as_str() {
            "crate" => Vec::new(),
            "self" => module.clone(),
            "super" => module.split_last()?.1.to_vec(),
            name => {
                let child = join(module, &[name.to_string()]);
                if self.modules.contains(&child) {
                    child
                } else {
                    let import = self.imported.get(module)?.get(name)?;
                    // `use name;` and `use name::…` of another crate bind their own first segment.
                    if import.first().is_some_and(|f| f == name) {
                        return None;
                    }
                    return self.resolve(module, &join(import, rest), steps);
                }
            }
        };
        for (i, segment) in rest.iter().enumerate() {
            if segment == "super" {
                at.pop()?;
                continue;
            }
            let child = join(&at, std::slice::from_ref(segment));
            if self.modules.contains(&child) {
                at = child;
                continue;
            }
            let defined = self.defined.get(&at).is_some_and(|d| d.contains(segment));
            if !defined {
                if let Some(import) = self.imported.get(&at).and_then(|names| names.get(segment)) {
                    // A re-export of another crate's item has its home here, where this crate names it.
                    let through = self.resolve(&at, &join(import, &rest[i + 1..]), steps);
                    return through.or(Some((at, Some(segment.clone()))));
                }
                for glob in self.globs.get(&at).into_iter().flatten() {
                    if let Some(found) = self.through_glob(&at, glob, &rest[i..], steps) {
                        return Some(found);
                    }
                }
                if at.is_empty()
                    && let Some(home) = self.macros.get(segment)
                {
                    return Some((home.clone(), Some(segment.clone())));
                }
            }
            return Some((at, Some(segment.clone())));
        }
        Some((at, None))
    }

    fn through_glob(
        &self,
        module: &ModulePath,
        glob: &[String],
        rest: &[String],
        steps: usize,
    ) -> Option<(ModulePath, Option<String>)> {
        let (target, None) = self.resolve(module, glob, steps)? else { return None };
        let name = &rest[0];
        let has = self.defined.get(&target).is_some_and(|d| d.contains(name))
            || self.imported.get(&target).is_some_and(|names| names.contains_key(name))
            || self.globs.contains_key(&target);
        if !has {
            return None;
        }
        let absolute = join(&join(&["crate".to_string()], &target), rest);
        self.resolve(&target, &absolute, steps)
    }
}

#[cfg(test)]
mod tests;
