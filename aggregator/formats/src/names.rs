//! The distinct names of a rank, numbered.

use rustc_hash::FxHashMap;
use trace::Text;
use trace::name_rules::NameClass;

/// Numbers distinct names in the order in which they are met.
#[derive(Debug, Default)]
pub(super) struct Names {
    ids: FxHashMap<Text, u32>,
    /// Each name, at its number.
    pub(super) list: Vec<Text>,
    /// The class of each name.
    pub(super) classes: Vec<NameClass>,
}

impl Names {
    /// The number of a name.
    pub(super) fn id(&mut self, name: &str) -> u32 {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        let (id, name) = (self.list.len() as u32, Text::from(name));
        self.ids.insert(name.clone(), id);
        self.classes.push(NameClass::of(&name));
        self.list.push(name);
        id
    }
}
