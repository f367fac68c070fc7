//! Interned strings: the hot path carries a number, and the writer looks up the string.

use std::sync::Mutex;

use rustc_hash::FxHashMap;
use trace::{Text, lock};

/// An interned string of one [`Recorder`](crate::Recorder). It has no meaning for another recorder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NameId(pub(crate) u32);

/// Interned input shapes and element types of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShapeId(pub(crate) u32);

/// The most different names. Without a limit, a program with a number in every name would fill the memory.
const MAX_NAMES: usize = if cfg!(miri) { 1 << 8 } else { 1 << 18 };
/// Name of all strings beyond the limit.
const ONE_TOO_MANY: &str = "(one name too many)";

/// Stands for unknown shapes.
pub(crate) const NO_SHAPE: u32 = u32::MAX;

/// Strings by their number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Strings {
    pub(crate) names: Vec<Text>,
    /// Input dimensions and types.
    pub(crate) shapes: Vec<(Text, Text)>,
}

#[derive(Debug, Default)]
struct Tables {
    strings: Strings,
    name_ids: FxHashMap<Text, u32>,
    shape_ids: FxHashMap<(Text, Text), u32>,
}

/// Interns strings behind a lock that the hot path never takes.
#[derive(Debug, Default)]
pub(crate) struct Names(Mutex<Tables>);

impl Names {
    pub(crate) fn intern(&self, name: &str) -> NameId {
        let mut tables = lock(&self.0);
        if let Some(id) = tables.name_ids.get(name) {
            return NameId(*id);
        }
        let id = tables.strings.names.len() as u32;
        if tables.strings.names.len() > MAX_NAMES {
            // The last number stands for all later names.
            return NameId(id - 1);
        }
        let name = Text::from(if tables.strings.names.len() == MAX_NAMES { ONE_TOO_MANY } else { name });
        tables.strings.names.push(name.clone());
        tables.name_ids.insert(name, id);
        NameId(id)
    }

    pub(crate) fn intern_shapes(&self, dims: &[&[i64]], types: &[&str]) -> ShapeId {
        let key: (Text, Text) = (print_dims(dims).into(), print_types(types).into());
        let mut tables = lock(&self.0);
        if let Some(id) = tables.shape_ids.get(&key) {
            return ShapeId(*id);
        }
        let id = tables.strings.shapes.len() as u32;
        tables.strings.shapes.push(key.clone());
        tables.shape_ids.insert(key, id);
        ShapeId(id)
    }

    /// Adds to `known` the strings that were interned since the last call.
    pub(crate) fn refresh(&self, known: &mut Strings) {
        let tables = lock(&self.0);
        known.names.extend_from_slice(&tables.strings.names[known.names.len()..]);
        known.shapes.extend_from_slice(&tables.strings.shapes[known.shapes.len()..]);
    }
}

/// Prints `[[64, 1024], [1024, 1024]]`, as Python prints a list of lists.
fn print_dims(dims: &[&[i64]]) -> String {
    format!("{dims:?}")
}

/// Prints the element types of the inputs: `["float", "float"]`.
fn print_types(types: &[&str]) -> String {
    format!("{types:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_strings_have_equal_ids() {
        let names = Names::default();
        let (gemm, bias) = (names.intern("gemm"), names.intern("bias"));
        assert_eq!(names.intern("gemm"), gemm);
        assert_ne!(gemm, bias);
        let shape = names.intern_shapes(&[&[64, 1024], &[]], &["float", "float"]);
        assert_eq!(names.intern_shapes(&[&[64, 1024], &[]], &["float", "float"]), shape);
        assert_ne!(names.intern_shapes(&[&[64, 1024], &[]], &["float", "int"]), shape);

        let mut strings = Strings::default();
        names.refresh(&mut strings);
        names.intern("late");
        names.refresh(&mut strings);
        names.refresh(&mut strings);
        assert_eq!(strings.names, ["gemm".into(), "bias".into(), Text::from("late")]);
        assert_eq!(&*strings.shapes[0].0, "[[64, 1024], []]");
        assert_eq!(&*strings.shapes[0].1, r#"["float", "float"]"#);
    }

    #[test]
    fn names_beyond_the_limit_share_one_name() {
        let (names, mut strings) = (Names::default(), Strings::default());
        let first = names.intern("0");
        (1..MAX_NAMES).for_each(|n| {
            names.intern(&n.to_string());
        });
        let beyond = ["more", "still more", "more"].map(|name| names.intern(name));
        assert!(beyond.iter().all(|id| *id == beyond[0]) && names.intern("0") == first);
        names.refresh(&mut strings);
        assert_eq!((strings.names.len(), &*strings.names[MAX_NAMES]), (MAX_NAMES + 1, ONE_TOO_MANY));
    }
}
