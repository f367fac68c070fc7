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
    /// Element type of each input; `None` where an input is no tensor of numbers. Only `least_bytes` needs it.
    pub types: Vec<Option<Dtype>>,
    /// Strides of each input, in elements. Empty in traces before PyTorch 2.2. Only `least_bytes` needs them.
    pub strides: Vec<Option<Vec<i64>>>,
}

impl Inputs {
    /// Parses `Input Dims` and `Concrete Inputs`, both JSON. Malformed JSON counts as absent.
    pub fn parse(dims: Option<&[u8]>, concrete: Option<&[u8]>) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
        Self {
            dims: list(dims).iter().map(integers).collect(),
            concrete: list(concrete).iter().map(text).collect(),
            ..Self::default()
        }
    }

    /// Adds `Input type` and `Input Strides`, both JSON.
    pub fn with_elements(self, types: Option<&[u8]>, strides: Option<&[u8]>) -> Self {
        let dtype = |value: &Value| dtype_of(value.as_str()?);
        Self {
            types: list(types).iter().map(dtype).collect(),
            strides: list(strides).iter().map(integers).collect(),
            ..self
        }
    }

    pub(super) fn dims(&self, at: usize) -> Option<&[i64]> {
        self.dims.get(at)?.as_deref().filter(|dims| !dims.is_empty())
    }

    fn integers(&self, at: usize) -> Option<Vec<i64>> {
        serde_json::from_str(self.concrete.get(at)?).ok()
    }

    /// A truth value or a list of them, as Python prints it.
    pub(super) fn truths(&self, at: usize) -> Option<Vec<bool>> {
        let text = self.concrete.get(at)?.trim_start_matches('[').trim_end_matches(']');
        text.split(',').map(|word| word.trim().to_ascii_lowercase().parse().ok()).collect()
    }
}

fn list(raw: Option<&[u8]>) -> Vec<Value> {
    raw.and_then(|raw| serde_json::from_slice(raw).ok()).unwrap_or_default()
}

fn integers(input: &Value) -> Option<Vec<i64>> {
    input.as_array()?.iter().map(Value::as_i64).collect()
}

/// The type that torch names so, such as `c10::BFloat16`.
fn dtype_of(word: &str) -> Option<Dtype> {
    match word.strip_prefix("c10::").unwrap_or(word) {
        "Float8_e4m3fn" | "Float8_e4m3fnuz" => Some(Dtype::F8E4M3),
        "Float8_e5m2" | "Float8_e5m2fnuz" => Some(Dtype::F8E5M2),
        word => Dtype::from_word(&word.to_ascii_lowercase()),
    }
}

/// The element type of the first input that is a tensor. `types` is torch's `Input type`: JSON such as
/// `["c10::BFloat16", "Scalar"]`.
pub fn element_type(types: &[u8]) -> Option<Dtype> {
    let words: Vec<String> = serde_json::from_slice(types).ok()?;
    words.iter().find_map(|word| dtype_of(word))
}

/// How an operator's FLOPs follow from its inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Formula {
    /// Two matrices, or two batches of as many; the left one is the input of this number.
    Product(usize),
    /// Products whose shapes are given by offsets within one dimension.
    GroupedProduct,
    /// Stride, padding and dilation are the inputs of these numbers; without a dilation it is 1.
    Convolution([usize; 2], Option<usize>),
    /// The same, unless the flag after the dilation says that it is transposed.
    AnyConvolution,
    ConvolutionBackward,
    Attention(Heads),
    /// The gradient of the output comes first.
    AttentionBackward(Heads),
    /// An operator that calls another one with a formula in most cases, and counts only where it calls none.
    Composite,
}

/// Where query, key and value have their heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heads {
    /// (batch, heads, length, dimension).
    BeforeLength,
    /// (batch, length, heads, dimension). If the input of this number is a tensor, it holds offsets: sequences of
    /// different lengths are in one tensor, so their lengths are unknown.
    AfterLength { offsets: usize },
}

/// All operators that count. Torch's `FlopCounterMode` has no formula for those marked with a star.
const FORMULAS: [(&str, Formula); 34] = [
    ("mm", Formula::Product(0)),
    ("bmm", Formula::Product(0)),
    ("addmm", Formula::Product(1)),
    ("baddbmm", Formula::Product(1)),
    ("_scaled_mm", Formula::Product(0)),
    ("addmm_", Formula::Product(1)),                    // *
    ("baddbmm_", Formula::Product(1)),                  // *
    ("_addmm_activation", Formula::Product(1)),         // *
    ("_scaled_mm_v2", Formula::Product(0)),             // *
    ("_grouped_mm", Formula::GroupedProduct),           // *
    ("_scaled_grouped_mm", Formula::GroupedProduct),    // *
    ("_scaled_grouped_mm_v2", Formula::GroupedProduct), // *
    ("linear", Formula::Composite),                     // *
    ("matmul", Formula::Composite),                     // *
    ("convolution", Formula::AnyConvolution),
    ("_convolution", Formula::AnyConvolution),
    ("convolution_overrideable", Formula::AnyConvolution),
    ("cudnn_convolution", Formula::Convolution([3, 2], Some(4))),
    ("_slow_conv2d_forward", Formula::Convolution([4, 5], None)),
    ("convolution_backward", Formula::ConvolutionBackward),
    ("_scaled_dot_product_flash_attention", Formula::Attention(Heads::BeforeLength)),
    ("_scaled_dot_product_flash_attention_for_cpu", Formula::Attention(Heads::BeforeLength)),
    ("_scaled_dot_product_efficient_attention", Formula::Attention(Heads::BeforeLength)),
    ("_scaled_dot_product_cudnn_attention", Formula::Attention(Heads::BeforeLength)),
    ("_scaled_dot_product_fused_attention_overrideable", Formula::Attention(Heads::BeforeLength)), // *
    ("_flash_attention_forward", Formula::Attention(Heads::AfterLength { offsets: 3 })),
    ("_efficient_attention_forward", Formula::Attention(Heads::AfterLength { offsets: 4 })),
    ("_scaled_dot_product_flash_attention_backward", Formula::AttentionBackward(Heads::BeforeLength)),
    ("_scaled_dot_product_flash_attention_for_cpu_backward", Formula::AttentionBackward(Heads::BeforeLength)),
    ("_scaled_dot_product_efficient_attention_backward", Formula::AttentionBackward(Heads::BeforeLength)),
    ("_scaled_dot_product_cudnn_attention_backward", Formula::AttentionBackward(Heads::BeforeLength)),
    ("_scaled_dot_product_fused_attention_overrideable_backward", Formula::AttentionBackward(Heads::BeforeLength)), // *
    ("_flash_attention_backward", Formula::AttentionBackward(Heads::AfterLength { offsets: 6 })),
    ("_efficient_attention_backward", Formula::AttentionBackward(Heads::AfterLength { offsets: 6 })),
];

pub(super) fn formula(name: &[u8]) -> Option<Formula> {
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
        Formula::Convolution(_, _) | Formula::AnyConvolution => Convolution::forward(name, inputs)?.flops(),
        Formula::ConvolutionBackward => {
            // The gradients of the input and of the weight cost as much as the forward pass each.
            let wanted = inputs.truths(10)?.into_iter().take(2).filter(|wanted| *wanted).count();
            Convolution::backward(inputs)?.flops()?.checked_mul(i64::try_from(wanted).ok()?)
        }
        Formula::Attention(heads) => Attention::of(inputs, 0, heads)?.flops(1, 1),
        // The scores again, and two products for each of their two factors.
        Formula::AttentionBackward(heads) => Attention::of(inputs, 1, heads)?.flops(3, 2),
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
        "aten::conv2d" if inputs.dims(0)?.len() == 4 => Convolution::plain(inputs, [3, 4], Some(5))?.flops(),
        _ => None,
    }
}

/// The FLOPs of the rows, such that their sum counts each operation once. Rows inside of a row that counts get none, and so do composite
/// operators that contain such a row. torch's `FlopCounterMode` counts the same, because it sees no call inside of a call that it counts.
///
/// ```text
/// linear            ──────────────      composite, contains a count: none
///   addmm             ──────────        counts
/// _scaled_mm                        ────────────     counts
///   matmul                           ──────────      inside: none
///     mm                              ────────       inside: none
/// ```
pub fn counted_once(events: &Events, names: &[Text], mut flops: Vec<i64>) -> Vec<i64> {
    if flops.iter().all(|flops| *flops == NONE) {
        return flops;
    }
    let is_composite: Vec<bool> =
        names.iter().map(|name| formula(name.as_bytes()) == Some(Formula::Composite)).collect();
    let composite = |row: usize| is_composite[events.name[row] as usize];
    let counts = |flops: &[i64], row: usize| events.kind[row] == Kind::CpuOp && flops[row] != NONE;
    let mut inside = vec![false; events.len()];
    // Rows are sorted by start, the longest first, so a parent comes before its children.
    for row in 0..events.len() {
        if let Some(parent) = enclosing(events, row) {
            inside[row] = inside[parent] || (counts(&flops, parent) && !composite(parent));
        }
        if inside[row] && counts(&flops, row) {
            flops[row] = NONE;
        }
    }
    let mut contains = vec![false; events.len()];
    for row in (0..events.len()).rev() {
        if contains[row] && counts(&flops, row) && composite(row) {
            flops[row] = NONE;
        }
        if let Some(parent) = enclosing(events, row) {
            contains[parent] |= contains[row] || counts(&flops, row);
        }
    }
    flops
}

pub(super) fn product(dims: &[i64]) -> Option<i64> {
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

/// Query and key give the scores, scores and value the output.
pub(super) struct Attention {
    pub(super) batch: i64,
    /// Heads of the query. Keys and values may have fewer, which several heads of the query share.
    pub(super) heads: i64,
    pub(super) query_length: i64,
    key_length: i64,
    query_dimension: i64,
    pub(super) value_dimension: i64,
}

impl Attention {
    /// Query, key and value are the inputs from `first` on.
    pub(super) fn of(inputs: &Inputs, first: usize, heads: Heads) -> Option<Self> {
        let (query, key, value) = (inputs.dims(first)?, inputs.dims(first + 1)?, inputs.dims(first + 2)?);
        let (&[batch, b, c, query_dimension], &[_, d, e, _], &[_, _, _, value_dimension]) = (query, key, value) else {
            return None;
        };
        let (heads, query_length, key_length) = match heads {
            Heads::BeforeLength => (b, c, e),
            Heads::AfterLength { offsets } if inputs.dims(offsets).is_none() => (c, b, d),
            Heads::AfterLength { .. } => return None,
        };
        Some(Self { batch, heads, query_length, key_length, query_dimension, value_dimension })
    }

    /// 2·b·h·s·t·(products with the query's dimension · d + products with the value's · e).
    fn flops(&self, by_query: i64, by_value: i64) -> Option<i64> {
        let dimensions =
            self.query_dimension.checked_mul(by_query)?.checked_add(self.value_dimension.checked_mul(by_value)?)?;
        product(&[2, self.batch, self.heads, self.query_length, self.key_length, dimensions])
    }
}

/// A convolution of any number of dimensions. Each of `places` in each sample is multiplied by the whole weight: the
/// places of the output, or those of the input if it is transposed.
pub(super) struct Convolution<'a> {
    pub(super) samples: i64,
    /// Shape: (out, in / groups, kernel…), or (in, out / groups, kernel…) if transposed.
    pub(super) weight: &'a [i64],
    pub(super) places: Vec<i64>,
    pub(super) transposed: bool,
}

impl<'a> Convolution<'a> {
    /// input, weight, …
    pub(super) fn forward(name: &[u8], inputs: &'a Inputs) -> Option<Self> {
        match formula(name)? {
            Formula::Convolution(at, dilation) => Self::plain(inputs, at, dilation),
            // input, weight, bias, stride, padding, dilation, transposed, …
            _ if *inputs.truths(6)?.first()? => {
                let [samples, _, places @ ..] = inputs.dims(0)? else { return None };
                Some(Self { samples: *samples, weight: inputs.dims(1)?, places: places.to_vec(), transposed: true })
            }
            _ => Self::plain(inputs, [3, 4], Some(5)),
        }
    }

    /// As [`Convolution::forward`], but never transposed. Serves any number of dimensions.
    fn plain(inputs: &'a Inputs, [stride, padding]: [usize; 2], dilation: Option<usize>) -> Option<Self> {
        let ([samples, _, sizes @ ..], weight) = (inputs.dims(0)?, inputs.dims(1)?) else { return None };
        let kernel = weight.get(2..).filter(|kernel| kernel.len() == sizes.len())?;
        let [stride, padding] = [inputs.integers(stride)?, inputs.integers(padding)?];
        let dilation = dilation.map_or(Some(vec![1]), |at| inputs.integers(at))?;
        // One number serves all dimensions.
        let of = |list: &[i64], at: usize| list.get(if list.len() == 1 { 0 } else { at }).copied();
        let place = |(at, (size, kernel)): (usize, (&i64, &i64))| {
            let reach = of(&dilation, at)?.checked_mul(kernel.checked_sub(1)?)?.checked_add(1)?;
            let room = size.checked_add(of(&padding, at)?.checked_mul(2)?)?.checked_sub(reach)?;
            room.checked_div(of(&stride, at)?)?.checked_add(1)
        };
        let places = sizes.iter().zip(kernel).enumerate().map(place).collect::<Option<_>>()?;
        Some(Self { samples: *samples, weight, places, transposed: false })
    }

    /// gradient of the output, input, weight, bias sizes, stride, padding, dilation, transposed, …
    pub(super) fn backward(inputs: &'a Inputs) -> Option<Self> {
        let transposed = *inputs.truths(7)?.first()?;
        let [samples, _, places @ ..] = inputs.dims(usize::from(transposed))? else { return None };
        Some(Self { samples: *samples, weight: inputs.dims(2)?, places: places.to_vec(), transposed })
    }

    /// 2 · samples · places · weight. A weight of `groups` groups is smaller by that factor, and so is the number.
    fn flops(&self) -> Option<i64> {
        product(&[2, self.samples, product(&self.places)?, product(self.weight)?])
    }
}

#[cfg(test)]
mod tests;
