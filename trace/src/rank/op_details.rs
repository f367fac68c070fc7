//! Details of host rows that few analyses need: shapes, types and values of inputs, stacks, modules. They are loaded on request only.

use crate::Text;
use rustc_hash::FxHashMap;

use crate::rank::flops::{Inputs, has_formula, profiler_flops};
use crate::rank::{Events, NONE};

/// Details by row of [`Events`]. Each distinct text is stored once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Details {
    texts: Vec<Text>,
    ids: FxHashMap<Text, u32>,
    /// For each [`Field`] and row: index of the text plus one, or 0 for none. Empty if no row has a text.
    columns: [Vec<u32>; Field::ALL.len()],
    /// Whether the device rows are from an Intel GPU.
    pub is_xpu: bool,
}

/// A text that a row may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// Shapes of its inputs.
    Shape,
    /// Element types of its inputs, as a JSON list.
    Types,
    /// Values of its inputs that are not tensors, as a JSON list with an empty text for each tensor.
    Values,
    /// Python stack.
    Stack,
    /// Module hierarchy.
    Module,
    /// Blocks of a kernel's grid in x, y and z.
    Grid,
    /// Threads of a kernel's block in x, y and z.
    Block,
}

impl Field {
    /// All fields, in their order.
    pub const ALL: [Self; 7] =
        [Self::Shape, Self::Types, Self::Values, Self::Stack, Self::Module, Self::Grid, Self::Block];
}

impl Details {
    /// Index of a text, plus one.
    fn id(&mut self, text: Text) -> u32 {
        if let Some(id) = self.ids.get(&text) {
            return *id;
        }
        self.texts.push(text.clone());
        let id = self.texts.len() as u32;
        self.ids.insert(text, id);
        id
    }

    fn set(column: &mut Vec<u32>, row: usize, rows: usize, id: u32) {
        if column.is_empty() {
            column.resize(rows, 0);
        }
        column[row] = id;
    }

    /// The text of a field of a row, and its number. Equal texts have equal numbers, from 0.
    pub fn text(&self, field: Field, row: usize) -> Option<(u32, &Text)> {
        let id = self.columns[field as usize].get(row)?.checked_sub(1)?;
        Some((id, self.texts.get(id as usize)?))
    }

    /// The number of different texts.
    pub fn texts(&self) -> usize {
        self.texts.len()
    }

    /// Appends the details of `rows` later rows to those of `before` rows.
    pub fn append(&mut self, later: &Self, before: usize, rows: usize) {
        let ids: Vec<u32> = later.texts.iter().map(|text| self.id(text.clone())).collect();
        for (column, later) in self.columns.iter_mut().zip(&later.columns) {
            if column.is_empty() && later.is_empty() {
                continue;
            }
            column.resize(before, 0);
            column.extend(later.iter().map(|id| id.checked_sub(1).map_or(0, |id| ids[id as usize])));
            column.resize(before + rows, 0);
        }
        self.is_xpu |= later.is_xpu;
    }

    /// Shapes of a row's inputs, formatted as torch's `str(event.input_shapes)`. Lists of tensors appear as `[]`.
    pub fn shape(&self, row: usize) -> Option<&Text> {
        self.text(Field::Shape, row).map(|(_, text)| text)
    }

    /// Element types of a row's inputs, as a JSON list.
    pub fn types(&self, row: usize) -> Option<&Text> {
        self.text(Field::Types, row).map(|(_, text)| text)
    }

    /// Values of a row's inputs that are not tensors, as a JSON list with an empty text for each tensor.
    pub fn values(&self, row: usize) -> Option<&Text> {
        self.text(Field::Values, row).map(|(_, text)| text)
    }

    /// Python stack of a row, outermost first, frames separated by `;`.
    pub fn stack(&self, row: usize) -> Option<&Text> {
        self.text(Field::Stack, row).map(|(_, text)| text)
    }

    /// Module hierarchy of a row, with TorchScript's names.
    pub fn module(&self, row: usize) -> Option<&Text> {
        self.text(Field::Module, row).map(|(_, text)| text)
    }
}

/// The details of one row, as indices of texts. Rows with equal arguments share it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Detail {
    ids: [u32; Field::ALL.len()],
    inputs: Inputs,
}

/// The texts of a row as a trace or a run stores them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Written<'a> {
    /// `Input Dims`, JSON.
    pub dims: Option<&'a str>,
    /// `Input type`, JSON.
    pub types: Option<&'a str>,
    /// `Concrete Inputs`, JSON.
    pub concrete: Option<&'a str>,
    /// Python stack, outermost frame first.
    pub stack: Option<&'a str>,
    /// Module hierarchy, with TorchScript's names.
    pub module: Option<&'a str>,
    /// `grid`, JSON.
    pub grid: Option<&'a str>,
    /// `block`, JSON.
    pub block: Option<&'a str>,
}

impl Details {
    /// Parses the row's arguments. Malformed JSON counts as absent.
    pub fn read(&mut self, written: Written<'_>) -> Detail {
        let inputs = Inputs::parse(written.dims.map(str::as_bytes), written.concrete.map(str::as_bytes));
        let shape = (!inputs.dims.is_empty()).then(|| shape_text(&inputs.dims));
        let values = written.concrete.filter(|_| inputs.concrete.iter().any(|value| !value.is_empty()));
        let Written { types, stack, module, grid, block, .. } = written;
        let ids = [shape.as_deref(), types, values, stack, module, grid, block]
            .map(|text| text.filter(|text| !text.is_empty()).map_or(0, |text| self.id(text.into())));
        Detail { ids, inputs }
    }

    /// Sets the details of a row. If it has shapes, its FLOPs become those that torch.profiler counts.
    pub fn put(&mut self, row: usize, detail: &Detail, name: &str, events: &mut Events) {
        let rows = events.len();
        for (column, id) in self.columns.iter_mut().zip(detail.ids) {
            if id != 0 {
                Self::set(column, row, rows, id);
            }
        }
        if detail.inputs.dims.is_empty() {
            return;
        }
        match profiler_flops(name, &detail.inputs) {
            Some(flops) => events.flops[row] = flops,
            None if has_formula(name.as_bytes()) => events.flops[row] = NONE,
            None => {}
        }
    }
}

fn shape_text(inputs: &[Option<Vec<i64>>]) -> String {
    let input = |dims: &Option<Vec<i64>>| {
        let numbers: Vec<String> = dims.iter().flatten().map(i64::to_string).collect();
        format!("[{}]", numbers.join(", "))
    };
    format!("[{}]", inputs.iter().map(input).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_written_as_torch_writes_them() {
        let mut details = Details::default();
        let mut shape = |dims: &str| {
            let detail = details.read(Written { dims: Some(dims), ..Written::default() });
            detail.ids[Field::Shape as usize].checked_sub(1).map(|id| details.texts[id as usize].to_string())
        };
        assert_eq!(shape("[[3,4], [], [[2, 2], [1]]]").as_deref(), Some("[[3, 4], [], []]"));
        assert_eq!(shape("[]"), None);
        assert_eq!(shape("[[3,"), None);
    }

    #[test]
    fn values_are_kept_if_an_input_is_no_tensor() {
        let mut details = Details::default();
        let mut texts = |types: &'static str, concrete: &'static str| {
            let written = Written { types: Some(types), concrete: Some(concrete), ..Written::default() };
            let detail = details.read(written);
            let text = |id: u32| id.checked_sub(1).map(|id| details.texts[id as usize].to_string());
            (text(detail.ids[Field::Types as usize]), text(detail.ids[Field::Values as usize]))
        };
        let kept = texts(r#"["float", "Scalar"]"#, r#"["", "2"]"#);
        assert_eq!(kept, (Some(r#"["float", "Scalar"]"#.into()), Some(r#"["", "2"]"#.into())));
        assert_eq!(texts(r#"["float"]"#, r#"[""]"#).1, None);
        assert_eq!(texts("", "[").1, None);
    }
}
