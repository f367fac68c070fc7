//! Details of host rows that few analyses need: shapes, stacks, modules. They are loaded on request only.

use crate::Text;
use rustc_hash::FxHashMap;
use serde_json::Value;

use crate::rank::{Events, NONE};

/// Details by row of [`Events`]. Each distinct text is stored once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Details {
    texts: Vec<Text>,
    ids: FxHashMap<Text, u32>,
    /// For each row: index of the text plus one, or 0 for none. Empty if no row has a text.
    shape: Vec<u32>,
    stack: Vec<u32>,
    module: Vec<u32>,
    /// Whether the device rows are from an Intel GPU.
    pub is_xpu: bool,
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

    fn get(&self, column: &[u32], row: usize) -> Option<&Text> {
        let id = column.get(row)?.checked_sub(1)?;
        self.texts.get(id as usize)
    }

    /// Shapes of a row's inputs, formatted as torch's `str(event.input_shapes)`. Lists of tensors appear as `[]`.
    pub fn shape(&self, row: usize) -> Option<&Text> {
        self.get(&self.shape, row)
    }

    /// Python stack of a row, outermost first, frames separated by `;`.
    pub fn stack(&self, row: usize) -> Option<&Text> {
        self.get(&self.stack, row)
    }

    /// Module hierarchy of a row, with TorchScript's names.
    pub fn module(&self, row: usize) -> Option<&Text> {
        self.get(&self.module, row)
    }
}

/// The details of one row, as indices of texts. Rows with equal arguments share it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Detail {
    shape: u32,
    stack: u32,
    module: u32,
    /// Dimensions of each input; `None` where an input is a list of tensors.
    dims: Vec<Option<Vec<i64>>>,
    /// Values of the inputs that are not tensors.
    concrete: Vec<String>,
}

/// The texts of a row as a trace or a run stores them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Written<'a> {
    /// `Input Dims`, JSON.
    pub dims: Option<&'a str>,
    /// `Concrete Inputs`, JSON.
    pub concrete: Option<&'a str>,
    /// Python stack, outermost frame first.
    pub stack: Option<&'a str>,
    /// Module hierarchy, with TorchScript's names.
    pub module: Option<&'a str>,
}

impl Details {
    /// Parses the row's arguments. Malformed JSON counts as absent.
    pub fn read(&mut self, written: Written<'_>) -> Detail {
        let mut detail = Detail::default();
        if let Some(inputs) = written.dims.and_then(|text| serde_json::from_str::<Vec<Value>>(text).ok()) {
            detail.dims = inputs.iter().map(dimensions).collect();
            if !inputs.is_empty() {
                detail.shape = self.id(shape_text(&detail.dims).into());
            }
        }
        if let Some(values) = written.concrete.and_then(|text| serde_json::from_str::<Vec<Value>>(text).ok()) {
            detail.concrete = values.iter().map(|v| v.as_str().unwrap_or_default().to_string()).collect();
        }
        let nonempty = |text: Option<&str>| text.filter(|t| !t.is_empty()).map(Text::from);
        detail.stack = nonempty(written.stack).map_or(0, |text| self.id(text));
        detail.module = nonempty(written.module).map_or(0, |text| self.id(text));
        detail
    }

    /// Sets the details of a row. Also computes its FLOPs, if torch has a formula for the operator and the row has none
    /// yet.
    pub fn put(&mut self, row: usize, detail: &Detail, name: &str, events: &mut Events) {
        let rows = events.len();
        for (column, id) in
            [(&mut self.shape, detail.shape), (&mut self.stack, detail.stack), (&mut self.module, detail.module)]
        {
            if id != 0 {
                Self::set(column, row, rows, id);
            }
        }
        if events.flops[row] == NONE && !detail.dims.is_empty() {
            events.flops[row] = flops(name, &detail.dims, &detail.concrete).unwrap_or(NONE);
        }
    }
}

/// The dimensions of one input; `None` for a list of tensors.
fn dimensions(input: &Value) -> Option<Vec<i64>> {
    input.as_array()?.iter().map(Value::as_i64).collect()
}

fn shape_text(inputs: &[Option<Vec<i64>>]) -> String {
    let input = |dims: &Option<Vec<i64>>| {
        let numbers: Vec<String> = dims.iter().flatten().map(i64::to_string).collect();
        format!("[{}]", numbers.join(", "))
    };
    format!("[{}]", inputs.iter().map(input).collect::<Vec<_>>().join(", "))
}

/// The FLOPs of a call by the formulas of torch.profiler (`computeFlops` in torch/csrc/profiler/util.cpp): convolution
/// in two dimensions, matrix products, addition and multiplication. `None` for other operators, or if the inputs do not
/// determine the number.
fn flops(name: &str, dims: &[Option<Vec<i64>>], concrete: &[String]) -> Option<i64> {
    let input = |i: usize| dims.get(i)?.as_deref();
    match name {
        "aten::mm" | "aten::bmm" => product_of_matrices(input(0)?, input(1)?),
        "aten::addmm" | "aten::baddbmm" => product_of_matrices(input(1)?, input(2)?),
        "aten::add" | "aten::mul" => product(input(0)?),
        "aten::conv2d" => convolution(input(0)?, input(1)?, concrete),
        _ => None,
    }
}

fn product(dims: &[i64]) -> Option<i64> {
    dims.iter().try_fold(1_i64, |product, dim| product.checked_mul(*dim))
}

/// A multiplication and an addition count as two.
fn product_of_matrices(left: &[i64], right: &[i64]) -> Option<i64> {
    if left.len() < 2 || left.len() != right.len() {
        return None;
    }
    product(left)?.checked_mul(*right.last()?)?.checked_mul(2)
}

fn convolution(input: &[i64], weight: &[i64], concrete: &[String]) -> Option<i64> {
    let (&[batch, channels, height, width], &[out, _, kernel_height, kernel_width]) = (input, weight) else {
        return None;
    };
    let pair = |i: usize| serde_json::from_str::<[i64; 2]>(concrete.get(i)?).ok();
    let (stride, padding, dilation) = (pair(3)?, pair(4)?, pair(5)?);
    let groups: i64 = concrete.get(6)?.parse().ok().filter(|groups| *groups > 0)?;
    let extent = |size: i64, kernel: i64, at: usize| {
        let reach = dilation[at].checked_mul(kernel.checked_sub(1)?)?.checked_add(1)?;
        let room = size.checked_add(padding[at].checked_mul(2)?)?.checked_sub(reach)?;
        room.checked_div(stride[at])?.checked_add(1)
    };
    let [rows, columns] = [extent(height, kernel_height, 0)?, extent(width, kernel_width, 1)?];
    product(&[2, batch, rows, columns, kernel_height, kernel_width, channels, out])?.checked_div(groups)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, dims: &str, concrete: &str) -> Option<i64> {
        let mut details = Details::default();
        let detail = details.read(Written { dims: Some(dims), concrete: Some(concrete), stack: None, module: None });
        flops(name, &detail.dims, &detail.concrete)
    }

    #[test]
    fn flops_equal_those_of_torch() {
        assert_eq!(of("aten::mm", "[[3, 4], [4, 5]]", "[]"), Some(120));
        assert_eq!(of("aten::addmm", "[[5], [3, 4], [4, 5]]", "[]"), Some(120));
        assert_eq!(of("aten::bmm", "[[2, 3, 4], [2, 4, 5]]", "[]"), Some(240));
        assert_eq!(of("aten::mul", "[[2, 3], []]", "[]"), Some(6));
        let conv = r#"["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "2"]"#;
        assert_eq!(of("aten::conv2d", "[[3, 4, 8, 8], [6, 2, 3, 3], [6], [], [], [], []]", conv), Some(10_368));
    }

    #[test]
    fn insufficient_shapes_have_no_flops() {
        assert_eq!(of("aten::relu", "[[3, 4]]", "[]"), None);
        assert_eq!(of("aten::mm", "[[3, 4]]", "[]"), None);
        assert_eq!(of("aten::mm", "[[4], [4]]", "[]"), None);
        assert_eq!(of("aten::mul", "[[[2], [3]]]", "[]"), None);
        assert_eq!(of("aten::mul", "[[9223372036854775807, 2]]", "[]"), None);
        assert_eq!(of("aten::conv2d", "[[3, 4, 8, 8], [6, 2, 3, 3]]", "[]"), None);
        let zero_stride = r#"["", "", "", "[0, 0]", "[1, 1]", "[1, 1]", "1"]"#;
        assert_eq!(of("aten::conv2d", "[[3, 4, 8, 8], [6, 4, 3, 3], [6]]", zero_stride), None);
    }

    #[test]
    fn shapes_are_written_as_torch_writes_them() {
        let mut details = Details::default();
        let mut shape = |dims: &str| {
            let detail = details.read(Written { dims: Some(dims), ..Written::default() });
            detail.shape.checked_sub(1).map(|id| details.texts[id as usize].to_string())
        };
        assert_eq!(shape("[[3,4], [], [[2, 2], [1]]]").as_deref(), Some("[[3, 4], [], []]"));
        assert_eq!(shape("[]"), None);
        assert_eq!(shape("[[3,"), None);
    }
}
