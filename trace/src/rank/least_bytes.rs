//! The least bytes that a call with FLOPs must move between the device and its memory: each factor is read once, and the
//! result is written once.
//!
//! This is a lower bound for a device whose caches hold nothing of the inputs. A call moves more if a factor does not
//! fit into the caches, for its bias and for its workspace.

use crate::Dtype;
use crate::rank::flops::{Attention, Convolution, Formula, Heads, Inputs, formula, product};

/// The least bytes that the call moves. `None` if the operator has no FLOPs, if its inputs do not determine them, for
/// transposed convolutions, and for groups of rows by offsets, because a group without rows is not read.
pub fn least_bytes(name: &[u8], inputs: &Inputs) -> Option<i64> {
    match formula(name)? {
        Formula::Product(left) => of_product(inputs, left, inputs.dims(left + 1)?.last().copied()?),
        Formula::GroupedProduct => match (inputs.dims(0)?, inputs.dims(1)?) {
            ([_, _, _], [_, _, columns]) => of_product(inputs, 0, *columns),
            _ => None,
        },
        // The weight is (out, in).
        Formula::Composite if name == b"aten::linear" => of_product(inputs, 0, inputs.dims(1)?.first().copied()?),
        Formula::Composite => of_product(inputs, 0, inputs.dims(1)?.last().copied()?),
        Formula::Convolution(_, _) | Formula::AnyConvolution => {
            let convolution = Convolution::forward(name, inputs).filter(|convolution| !convolution.transposed)?;
            let out = product(&[convolution.samples, *convolution.weight.first()?, product(&convolution.places)?])?;
            sum([of_places(inputs, 0, &convolution), inputs.bytes(1), scaled(out, inputs.size(0))])
        }
        Formula::ConvolutionBackward => {
            let convolution = Convolution::backward(inputs).filter(|convolution| !convolution.transposed)?;
            let wanted = inputs.truths(10)?;
            let zero_unless = |wanted: Option<&bool>, bytes| if wanted == Some(&true) { bytes } else { Some(0) };
            let of_input = sum([inputs.bytes(2), inputs.dense_bytes(1)]);
            let of_weight = sum([of_places(inputs, 1, &convolution), inputs.dense_bytes(2)]);
            sum([inputs.bytes(0), zero_unless(wanted.first(), of_input), zero_unless(wanted.get(1), of_weight)])
        }
        Formula::Attention(heads) => of_attention(inputs, 0, heads),
        // The gradient of the output is read, those of query, key and value are written.
        Formula::AttentionBackward(heads) => {
            Attention::of(inputs, 1, heads)?;
            let factors = (0..4).map(|at| inputs.bytes(at));
            sum(factors.chain((1..4).map(|at| inputs.dense_bytes(at))))
        }
    }
}

/// Two factors, and a result that has `columns` instead of the left one's last dimension.
fn of_product(inputs: &Inputs, left: usize, columns: i64) -> Option<i64> {
    let (dims, right) = (inputs.dims(left)?, inputs.dims(left + 1)?);
    let batch = dims.len().checked_sub(2)?;
    // A batch of matrices times one matrix, or the other way round, has the larger batch.
    let batches = product(&dims[..batch])?.max(product(&right[..right.len().saturating_sub(2)])?);
    let out = product(&[batches, dims[batch], columns])?;
    sum([inputs.bytes(left), inputs.bytes(left + 1), scaled(out, inputs.size(left))])
}

fn of_attention(inputs: &Inputs, first: usize, heads: Heads) -> Option<i64> {
    let attention = Attention::of(inputs, first, heads)?;
    let out = [attention.batch, attention.heads, attention.query_length, attention.value_dimension];
    let factors = (first..first + 3).map(|at| inputs.bytes(at));
    sum(factors.chain([scaled(product(&out)?, inputs.size(first))]))
}

/// The part of a convolution's input that its places read: a stride beyond the kernel leaves gaps.
fn of_places(inputs: &Inputs, at: usize, convolution: &Convolution<'_>) -> Option<i64> {
    let [samples, channels, sizes @ ..] = inputs.dims(at)? else { return None };
    let kernel = convolution.weight.get(2..)?;
    let read = sizes.iter().zip(convolution.places.iter().zip(kernel));
    let read: Option<Vec<i64>> =
        read.map(|(size, (places, kernel))| Some(*size.min(&places.checked_mul(*kernel)?))).collect();
    scaled(product(&[*samples, *channels, product(&read?)?])?, inputs.size(at)).map(|read| {
        // An input that repeats its elements is smaller.
        inputs.bytes(at).map_or(read, |bytes| bytes.min(read))
    })
}

fn sum(parts: impl IntoIterator<Item = Option<i64>>) -> Option<i64> {
    parts.into_iter().try_fold(0_i64, |sum, bytes| sum.checked_add(bytes?))
}

fn scaled(elements: i64, size_bytes: Option<i64>) -> Option<i64> {
    elements.checked_mul(size_bytes?).filter(|bytes| *bytes >= 0)
}

impl Inputs {
    /// Size of an element.
    fn size(&self, at: usize) -> Option<i64> {
        Some(match (*self.types.get(at)?)? {
            Dtype::F8E4M3 | Dtype::F8E5M2 | Dtype::I8 | Dtype::U8 | Dtype::Bool => 1,
            Dtype::F16 | Dtype::Bf16 | Dtype::I16 => 2,
            Dtype::F32 | Dtype::I32 | Dtype::U32 => 4,
            Dtype::F64 | Dtype::I64 | Dtype::U64 => 8,
        })
    }

    /// Bytes of an input's distinct elements. An expanded tensor repeats its elements: their stride is 0.
    fn bytes(&self, at: usize) -> Option<i64> {
        let dims = self.dims(at)?;
        let all = product(dims)?;
        let strides = self.strides.get(at).and_then(Option::as_deref).filter(|strides| strides.len() == dims.len());
        let distinct = match strides {
            Some(strides) if all > 0 => {
                let used = dims.iter().zip(strides).filter(|(_, stride)| **stride != 0);
                let reach = used.clone().try_fold(1_i64, |reach, (dim, stride)| {
                    reach.checked_add((dim - 1).checked_mul(stride.checked_abs()?)?)
                })?;
                product(&used.map(|(dim, _)| *dim).collect::<Vec<_>>())?.min(reach)
            }
            _ => all,
        };
        scaled(distinct, self.size(at))
    }

    /// Bytes of a new tensor of an input's shape and type.
    fn dense_bytes(&self, at: usize) -> Option<i64> {
        scaled(product(self.dims(at)?)?, self.size(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, dims: &str, concrete: &str, types: &str, strides: &str) -> Option<i64> {
        let bytes = |text: &str| Some(text.as_bytes().to_vec()).filter(|bytes| !bytes.is_empty());
        let inputs = Inputs::parse(bytes(dims).as_deref(), bytes(concrete).as_deref());
        least_bytes(name.as_bytes(), &inputs.with_elements(bytes(types).as_deref(), bytes(strides).as_deref()))
    }

    const HALVES: &str = r#"["c10::Half", "c10::Half", "c10::Half", "c10::Half", "c10::Half"]"#;
    const FLOATS: &str = r#"["float", "float", "float"]"#;

    #[test]
    fn a_product_reads_both_factors_and_writes_the_result() {
        assert_eq!(of("aten::mm", "[[3, 4], [4, 5]]", "", FLOATS, ""), Some(4 * (12 + 20 + 15)));
        assert_eq!(of("aten::addmm", "[[5], [3, 4], [4, 5]]", "", HALVES, ""), Some(2 * (12 + 20 + 15)));
        assert_eq!(of("aten::bmm", "[[2, 3, 4], [2, 4, 5]]", "", HALVES, ""), Some(2 * 2 * (12 + 20 + 15)));
        assert_eq!(of("aten::linear", "[[7, 3, 4], [5, 4]]", "", HALVES, ""), Some(2 * (84 + 20 + 105)));
        assert_eq!(of("aten::matmul", "[[7, 3, 4], [4, 5]]", "", HALVES, ""), Some(2 * (84 + 20 + 105)));
        let fp8 = r#"["c10::Float8_e4m3fn", "c10::Float8_e4m3fn", "float", "float"]"#;
        assert_eq!(of("aten::_scaled_mm", "[[16, 32], [32, 8], [], []]", "", fp8, ""), Some(512 + 256 + 128));
        assert_eq!(of("aten::_grouped_mm", "[[4, 8, 16], [4, 16, 8]]", "", HALVES, ""), Some(2 * 4 * (128 + 128 + 64)));
    }

    /// Keys of grouped-query attention are expanded to the heads of the query, and windows of a signal overlap.
    #[test]
    fn elements_that_a_tensor_repeats_are_read_once() {
        let expanded = "[[2, 3, 4], [2, 4, 5]]";
        assert_eq!(of("aten::bmm", expanded, "", FLOATS, "[[12, 4, 1], [0, 5, 1]]"), Some(4 * (24 + 20 + 30)));
        assert_eq!(of("aten::mm", "[[6, 4], [4, 5]]", "", FLOATS, "[[1, 1], [5, 1]]"), Some(4 * (9 + 20 + 30)));
        // A transposed matrix has all its elements.
        assert_eq!(of("aten::mm", "[[3, 4], [4, 5]]", "", FLOATS, "[[1, 3], [5, 1]]"), Some(4 * (12 + 20 + 15)));
    }

    #[test]
    fn attention_reads_three_tensors_and_its_gradient_four() {
        let (query, key, value) = ("[2, 8, 16, 32]", "[2, 2, 64, 32]", "[2, 2, 64, 48]");
        let (q, k, v, out) = (2 * 8 * 16 * 32, 2 * 2 * 64 * 32, 2 * 2 * 64 * 48, 2 * 8 * 16 * 48);
        let name = "aten::_scaled_dot_product_flash_attention";
        assert_eq!(of(name, &format!("[{query}, {key}, {value}]"), "", HALVES, ""), Some(2 * (q + k + v + out)));
        let gradient = format!("[[2, 8, 16, 48], {query}, {key}, {value}]");
        let expected = 2 * (out + 2 * (q + k + v));
        assert_eq!(of(&format!("{name}_backward"), &gradient, "", HALVES, ""), Some(expected));
    }

    #[test]
    fn a_convolution_reads_what_its_places_cover() {
        let one = |stride: i64| {
            format!(r#"["", "", "", "[{stride}, {stride}]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1"]"#)
        };
        let dims = "[[2, 3, 8, 8], [5, 3, 1, 1], []]";
        let of = |name: &str, dims: &str, concrete: &str| of(name, dims, concrete, FLOATS, "");
        assert_eq!(of("aten::convolution", dims, &one(1)), Some(4 * (2 * 3 * 64 + 15 + 2 * 5 * 64)));
        // Of a stride of 2 and a kernel of 1, every fourth element is read.
        assert_eq!(of("aten::convolution", dims, &one(2)), Some(4 * (2 * 3 * 16 + 15 + 2 * 5 * 16)));
        let backward = |mask: &str| {
            format!(r#"["", "", "", "[0]", "[2, 2]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1", "{mask}"]"#)
        };
        let dims = "[[2, 5, 4, 4], [2, 3, 8, 8], [5, 3, 1, 1]]";
        let (gradient, of_input, of_weight) = (2 * 5 * 16, 15 + 2 * 3 * 64, 2 * 3 * 16 + 15);
        for (mask, expected) in [
            ("[True, True, False]", gradient + of_input + of_weight),
            ("[False, True, False]", gradient + of_weight),
            ("[True, False, True]", gradient + of_input),
        ] {
            assert_eq!(of("aten::convolution_backward", dims, &backward(mask)), Some(4 * expected), "{mask}");
        }
    }

    #[test]
    fn bytes_that_the_inputs_do_not_tell_are_unknown() {
        assert_eq!(of("aten::mm", "[[3, 4], [4, 5]]", "", "", ""), None);
        assert_eq!(of("aten::mm", "[[3, 4], [4, 5]]", "", r#"["c10::complex<float>", "float"]"#, ""), None);
        assert_eq!(of("aten::relu", "[[3, 4]]", "", FLOATS, ""), None);
        assert_eq!(of("aten::_grouped_mm", "[[32, 16], [4, 16, 8], [4]]", "", HALVES, ""), None);
        let transposed = r#"["", "", "", "[2, 2]", "[0, 0]", "[1, 1]", "True", "[0, 0]", "1"]"#;
        assert_eq!(of("aten::convolution", "[[2, 8, 4, 4], [8, 6, 3, 3], []]", transposed, FLOATS, ""), None);
    }

    proptest::proptest! {
        /// Sizes of any sign and magnitude.
        #[test]
        fn any_shape_is_survived(dims in proptest::collection::vec(proptest::num::i64::ANY, 16), parts in 1_usize..5) {
            let shapes: Vec<&[i64]> = dims.chunks(parts).collect();
            let json = serde_json::to_string(&shapes).unwrap();
            let types = serde_json::to_string(&vec!["float"; shapes.len()]).unwrap();
            for name in ["mm", "addmm", "linear", "matmul", "_flash_attention_forward", "_scaled_dot_product_flash_attention_backward"] {
                let found = of(&format!("aten::{name}"), &json, "", &types, &json);
                proptest::prop_assert!(found.is_none_or(|bytes| bytes >= 0), "{name} {found:?}");
            }
        }
    }
}
