//! FLOPs of an operator's call, from the shapes of its inputs. No other file has a formula.
//!
//! [`flops`] follows `torch.utils.flop_counter` (`FlopCounterMode`): a multiplication and an addition count as two,
//! only products of matrices, convolutions and attention count, and attention counts without its mask. `table` prints
//! what torch.profiler prints, so it uses [`profiler_flops`].

use serde_json::Value;

use crate::rank::{Events, Kind, NONE, enclosing};
use crate::{Dtype, Text, Vocabulary};

/// The inputs of a call, as torch.profiler records them with `record_shapes=True`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inputs {
    /// Dimensions of each input; `None` where an input is a list of tensors.
    pub dims: Vec<Option<Vec<i64>>>,
    /// Values of the inputs that are not tensors. Empty in traces before PyTorch 2.0.
    pub concrete: Vec<String>,
}

impl Inputs {
    /// Parses `Input Dims` and `Concrete Inputs`, both JSON. Malformed JSON counts as absent.
    pub fn parse(dims: Option<&[u8]>, concrete: Option<&[u8]>) -> Self {
        let list = |raw: Option<&[u8]>| serde_json::from_slice::<Vec<Value>>(raw?).ok();
        let integers = |input: &Value| input.as_array()?.iter().map(Value::as_i64).collect();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
        Self {
            dims: list(dims).unwrap_or_default().iter().map(integers).collect(),
            concrete: list(concrete).unwrap_or_default().iter().map(text).collect(),
        }
    }

    fn dims(&self, at: usize) -> Option<&[i64]> {
        self.dims.get(at)?.as_deref().filter(|dims| !dims.is_empty())
    }

    fn integers(&self, at: usize) -> Option<Vec<i64>> {
        serde_json::from_str(self.concrete.get(at)?).ok()
    }

    /// A truth value or a list of them, as Python prints it.
    fn truths(&self, at: usize) -> Option<Vec<bool>> {
        let text = self.concrete.get(at)?.trim_start_matches('[').trim_end_matches(']');
        text.split(',').map(|word| word.trim().to_ascii_lowercase().parse().ok()).collect()
    }
}

/// The element type of the first input that is a tensor. `types` is torch's `Input type`: JSON such as
/// `["c10::BFloat16", "Scalar"]`.
pub fn element_type(types: &[u8]) -> Option<Dtype> {
    let words: Vec<String> = serde_json::from_slice(types).ok()?;
    words.iter().find_map(|word| match word.strip_prefix("c10::").unwrap_or(word) {
        "Float8_e4m3fn" | "Float8_e4m3fnuz" => Some(Dtype::F8E4M3),
        "Float8_e5m2" | "Float8_e5m2fnuz" => Some(Dtype::F8E5M2),
        word => Dtype::from_word(&word.to_ascii_lowercase()),
    })
}

/// How an operator's FLOPs follow from its inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Formula {
    /// Two matrices, or two batches of as many; the left one is the input of this number.
    Product(usize),
    /// Products whose shapes are given by offsets within one dimension.
    GroupedProduct,
    Convolution,
    ConvolutionBackward,
    /// Query, key and value: (batch, heads, length, dimension).
    Attention,
    /// The gradient of the output, then the inputs of [`Formula::Attention`].
    AttentionBackward,
    /// An operator that calls another one with a formula in most cases, and counts only where it calls none.
    Composite,
}

/// All operators that count. Torch's `FlopCounterMode` has no formula for those marked with a star.
const FORMULAS: [(&str, Formula); 21] = [
    ("mm", Formula::Product(0)),
    ("bmm", Formula::Product(0)),
    ("addmm", Formula::Product(1)),
    ("baddbmm", Formula::Product(1)),
    ("_scaled_mm", Formula::Product(0)),
    ("_addmm_activation", Formula::Product(1)),      // *
    ("_grouped_mm", Formula::GroupedProduct),        // *
    ("_scaled_grouped_mm", Formula::GroupedProduct), // *
    ("linear", Formula::Composite),                  // *
    ("matmul", Formula::Composite),                  // *
    ("convolution", Formula::Convolution),
    ("_convolution", Formula::Convolution),
    ("convolution_backward", Formula::ConvolutionBackward),
    ("_scaled_dot_product_flash_attention", Formula::Attention),
    ("_scaled_dot_product_flash_attention_for_cpu", Formula::Attention),
    ("_scaled_dot_product_efficient_attention", Formula::Attention),
    ("_scaled_dot_product_cudnn_attention", Formula::Attention),
    ("_scaled_dot_product_flash_attention_backward", Formula::AttentionBackward),
    ("_scaled_dot_product_flash_attention_for_cpu_backward", Formula::AttentionBackward),
    ("_scaled_dot_product_efficient_attention_backward", Formula::AttentionBackward),
    ("_scaled_dot_product_cudnn_attention_backward", Formula::AttentionBackward),
];

fn formula(name: &[u8]) -> Option<Formula> {
    let name = name.strip_prefix(b"aten::")?;
    FORMULAS.iter().find(|(operator, _)| operator.as_bytes() == name).map(|(_, formula)| *formula)
}

/// Whether calls of this operator have FLOPs, so that its shapes are read.
pub fn has_formula(name: &[u8]) -> bool {
    formula(name).is_some()
}

/// Whether every call of this operator has FLOPs. (`linear` and `matmul` have none where they call another operator that
/// has, or where they multiply no matrices.)
pub fn always_counts(name: &[u8]) -> bool {
    formula(name).is_some_and(|formula| formula != Formula::Composite)
}

/// The FLOPs of one call. `None` for operators without a formula, or if the recorded inputs do not determine them.
pub fn flops(name: &[u8], inputs: &Inputs) -> Option<i64> {
    match formula(name)? {
        Formula::Product(left) => product_of_matrices(inputs.dims(left)?, inputs.dims(left + 1)?),
        Formula::GroupedProduct => grouped_product(inputs.dims(0)?, inputs.dims(1)?),
        Formula::Convolution => Convolution::forward(inputs)?.flops(),
        Formula::ConvolutionBackward => {
            // The gradients of the input and of the weight cost as much as the forward pass each.
            let wanted = inputs.truths(10)?.into_iter().take(2).filter(|wanted| *wanted).count();
            Convolution::backward(inputs)?.flops()?.checked_mul(i64::try_from(wanted).ok()?)
        }
        Formula::Attention => attention(inputs, 0, |query, value| query.checked_add(value)),
        // The scores again, and two products for each of their two factors.
        Formula::AttentionBackward => {
            attention(inputs, 1, |query, value| query.checked_mul(3)?.checked_add(value.checked_mul(2)?))
        }
        Formula::Composite => composite(name, inputs.dims(0)?, inputs.dims(1)?),
    }
}

/// The FLOPs of a call as torch.profiler counts them with `with_flops=True` (`computeFlops` in
/// torch/csrc/profiler/util.cpp). It has no formula for gradients of convolutions and for attention, it counts additions
/// and multiplications of elements, and convolutions in two dimensions at `aten::conv2d`.
pub fn profiler_flops(name: &str, inputs: &Inputs) -> Option<i64> {
    match name {
        "aten::mm" | "aten::bmm" | "aten::addmm" | "aten::baddbmm" => flops(name.as_bytes(), inputs),
        "aten::add" | "aten::mul" => product(inputs.dims.first()?.as_deref()?),
        "aten::conv2d" if inputs.dims(0)?.len() == 4 => Convolution::two_dimensional(inputs)?.flops(),
        _ => None,
    }
}

/// Removes the FLOPs of rows inside of rows that count, and of composite operators that contain such a row. What is left
/// can be summed. This is what torch's `FlopCounterMode` sees, because it sees no call inside of a call that it counts.
///
/// ```text
/// linear            ──────────────      composite, contains a count: none
///   addmm             ──────────        counts
/// _scaled_mm                        ────────────     counts
///   matmul                           ──────────      inside: none
///     mm                              ────────       inside: none
/// ```
pub fn count_once(events: &mut Events, names: &[Text]) {
    if events.flops.iter().all(|flops| *flops == NONE) {
        return;
    }
    let is_composite: Vec<bool> =
        names.iter().map(|name| formula(name.as_bytes()) == Some(Formula::Composite)).collect();
    let composite = |events: &Events, row: usize| is_composite[events.name[row] as usize];
    let counts = |events: &Events, row: usize| events.kind[row] == Kind::CpuOp && events.flops[row] != NONE;
    let mut inside = vec![false; events.len()];
    // Rows are sorted by start, the longest first, so a parent comes before its children.
    for row in 0..events.len() {
        if let Some(parent) = enclosing(events, row) {
            inside[row] = inside[parent] || (counts(events, parent) && !composite(events, parent));
        }
        if inside[row] && counts(events, row) {
            events.flops[row] = NONE;
        }
    }
    let mut contains = vec![false; events.len()];
    for row in (0..events.len()).rev() {
        if contains[row] && counts(events, row) && composite(events, row) {
            events.flops[row] = NONE;
        }
        if let Some(parent) = enclosing(events, row) {
            contains[parent] |= contains[row] || counts(events, row);
        }
    }
}

fn product(dims: &[i64]) -> Option<i64> {
    dims.iter().try_fold(1_i64, |product, dim| product.checked_mul(*dim))
}

/// (…, m, k) × (…, k, n): 2·…·m·k·n.
fn product_of_matrices(left: &[i64], right: &[i64]) -> Option<i64> {
    if left.len() < 2 || left.len() != right.len() {
        return None;
    }
    product(left)?.checked_mul(*right.last()?)?.checked_mul(2)
}

/// The offsets are data, which no trace has. Rows beyond the last offset count too.
fn grouped_product(left: &[i64], right: &[i64]) -> Option<i64> {
    match (left, right) {
        // Groups of rows, of columns or of both; or groups of the summed dimension, whose products add up.
        (&[rows, inner], &[_, _, columns] | &[_, columns]) | (&[_, rows, inner], &[_, columns]) => {
            product(&[2, rows, inner, columns])
        }
        (&[groups, rows, inner], &[_, _, columns]) => product(&[2, groups, rows, inner, columns]),
        _ => None,
    }
}

fn composite(name: &[u8], left: &[i64], right: &[i64]) -> Option<i64> {
    if name == b"aten::linear" {
        // The weight is (out, in), and every other dimension of the input is one of the batch.
        let &[out, _] = right else { return None };
        return product(left)?.checked_mul(out)?.checked_mul(2);
    }
    let ([left_batch @ .., rows, inner], [right_batch @ .., _, columns]) = (left, right) else { return None };
    let batch = |dims: &[i64], at: usize| dims.len().checked_sub(at + 1).map_or(1, |at| dims[at]);
    let batches: Vec<i64> = (0..left_batch.len().max(right_batch.len()))
        .map(|at| batch(left_batch, at).max(batch(right_batch, at)))
        .collect();
    product(&batches)?.checked_mul(product(&[2, *rows, *inner, *columns])?)
}

/// Query and key give the scores, scores and value the output: 2·b·h·s·t·(d + e), with s and t the lengths of query and
/// key, d and e the dimensions of query and value. `dimensions` is the last factor.
fn attention(inputs: &Inputs, first: usize, dimensions: fn(i64, i64) -> Option<i64>) -> Option<i64> {
    let (query, key, value) = (inputs.dims(first)?, inputs.dims(first + 1)?, inputs.dims(first + 2)?);
    let (&[batch, heads, length, query], &[_, _, other, _], &[_, _, _, value]) = (query, key, value) else {
        return None;
    };
    product(&[2, batch, heads, length, other, dimensions(query, value)?])
}

/// A convolution of any number of dimensions. Each of `places` in each sample is multiplied by the whole weight: the
/// places of the output, or those of the input if it is transposed.
struct Convolution<'a> {
    samples: i64,
    /// Shape: (out, in / groups, kernel…), or (in, out / groups, kernel…) if transposed.
    weight: &'a [i64],
    places: Vec<i64>,
}

impl<'a> Convolution<'a> {
    /// input, weight, bias, stride, padding, dilation, transposed, …
    fn forward(inputs: &'a Inputs) -> Option<Self> {
        if *inputs.truths(6)?.first()? {
            let [samples, _, places @ ..] = inputs.dims(0)? else { return None };
            return Some(Self { samples: *samples, weight: inputs.dims(1)?, places: places.to_vec() });
        }
        Self::two_dimensional(inputs)
    }

    /// As [`Convolution::forward`], but never transposed. Serves any number of dimensions.
    fn two_dimensional(inputs: &'a Inputs) -> Option<Self> {
        let ([samples, _, sizes @ ..], weight) = (inputs.dims(0)?, inputs.dims(1)?) else { return None };
        let kernel = weight.get(2..).filter(|kernel| kernel.len() == sizes.len())?;
        let [stride, padding, dilation] = [inputs.integers(3)?, inputs.integers(4)?, inputs.integers(5)?];
        // One number serves all dimensions.
        let of = |list: &[i64], at: usize| list.get(if list.len() == 1 { 0 } else { at }).copied();
        let place = |(at, (size, kernel)): (usize, (&i64, &i64))| {
            let reach = of(&dilation, at)?.checked_mul(kernel.checked_sub(1)?)?.checked_add(1)?;
            let room = size.checked_add(of(&padding, at)?.checked_mul(2)?)?.checked_sub(reach)?;
            room.checked_div(of(&stride, at)?)?.checked_add(1)
        };
        let places = sizes.iter().zip(kernel).enumerate().map(place).collect::<Option<_>>()?;
        Some(Self { samples: *samples, weight, places })
    }

    /// gradient of the output, input, weight, bias sizes, stride, padding, dilation, transposed, …
    fn backward(inputs: &'a Inputs) -> Option<Self> {
        let places = if *inputs.truths(7)?.first()? { inputs.dims(1)? } else { inputs.dims(0)? };
        let [samples, _, places @ ..] = places else { return None };
        Some(Self { samples: *samples, weight: inputs.dims(2)?, places: places.to_vec() })
    }

    /// 2 · samples · places · weight. A weight of `groups` groups is smaller by that factor, and so is the number.
    fn flops(&self) -> Option<i64> {
        product(&[2, self.samples, product(&self.places)?, product(self.weight)?])
    }
}

#[cfg(test)]
mod tests;
