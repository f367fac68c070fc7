//! A graph of modules, and its strongly connected components: sets in which every module reaches every other.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Path of a module below its crate's root; the root's is empty.
pub type ModulePath = Vec<String>;

/// One use of another module's item.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Arrow {
    /// Module that imports.
    pub from: ModulePath,
    /// Module that defines what is imported.
    pub to: ModulePath,
    /// File of the importing module, relative to the crate's sources.
    pub file: String,
    /// Line of the import.
    pub line: usize,
}

/// A module as text, for messages: `a::b`, or `crate` for the root.
pub fn shown(path: &[String]) -> String {
    if path.is_empty() { "crate".to_string() } else { path.join("::") }
}

/// Files that reach each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Component {
    /// Its modules, in order.
    pub modules: Vec<ModulePath>,
    /// The arrows between them.
    pub arrows: Vec<Arrow>,
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.modules.iter().map(|m| shown(m)).collect();
        write!(f, "{} modules reach each other: {}", names.len(), names.join(", "))?;
        for Arrow { from, to, file, line } in &self.arrows {
            write!(f, "\n    {} -> {}  ({file}:{line})", shown(from), shown(to))?;
        }
        Ok(())
    }
}

/// The components of two modules and more, the largest first. A parent and its child count, too.
pub(super) fn circles(modules: &BTreeSet<ModulePath>, arrows: &[Arrow]) -> Vec<Component> {
    let mut found: Vec<Component> = components(modules, arrows)
        .into_iter()
        .filter(|members| members.len() > 1)
        .map(|members| {
            let inside = |a: &&Arrow| members.contains(&a.from) && members.contains(&a.to);
            Component { arrows: arrows.iter().filter(inside).cloned().collect(), modules: members }
        })
        .collect();
    found.sort_by_key(|c| (std::cmp::Reverse(c.modules.len()), c.modules.clone()));
    found
}

/// All components: modules with the same set of modules within reach in both directions. Crates have few hundred
/// modules, so a walk from each of them is quick.
fn components(modules: &BTreeSet<ModulePath>, arrows: &[Arrow]) -> Vec<Vec<ModulePath>> {
    let mut next: BTreeMap<&ModulePath, Vec<&ModulePath>> = BTreeMap::new();
    for arrow in arrows {
        next.entry(&arrow.from).or_default().push(&arrow.to);
    }
    let reach: BTreeMap<&ModulePath, BTreeSet<&ModulePath>> =
        modules.iter().map(|module| (module, reachable(module, &next))).collect();
    let mut placed: BTreeSet<&ModulePath> = BTreeSet::new();
    let mut found = Vec::new();
    for module in modules {
        if placed.contains(module) {
            continue;
        }
        let mutual = |other: &&&ModulePath| reach.get(**other).is_some_and(|r| r.contains(module));
        let mut members: BTreeSet<&ModulePath> = reach[module].iter().filter(mutual).copied().collect();
        members.insert(module);
        placed.extend(members.iter());
        found.push(members.into_iter().cloned().collect());
    }
    found
}

fn reachable<'a>(
    from: &'a ModulePath,
    next: &BTreeMap<&'a ModulePath, Vec<&'a ModulePath>>,
) -> BTreeSet<&'a ModulePath> {
    let mut seen = BTreeSet::new();
    let mut pending = vec![from];
    while let Some(module) = pending.pop() {
        for to in next.get(module).into_iter().flatten() {
            if seen.insert(*to) {
                pending.push(to);
            }
        }
    }
    seen
}
