//! The formulas against torch, on shapes of real models and on small ones.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::*;
use crate::rank::NO_PARENT;

fn inputs(dims: &str, concrete: &str) -> Inputs {
    Inputs::parse(Some(dims.as_bytes()), Some(concrete.as_bytes()))
}

fn of(name: &str, dims: &str, concrete: &str) -> Option<i64> {
    flops(name.as_bytes(), &inputs(dims, concrete))
}

/// A distinct call of a model. `tests/bench/flops --keep-shapes` wrote it.
#[derive(Deserialize)]
struct Call {
    operator: String,
    calls: i64,
    input_dims: Value,
    concrete_inputs: Value,
    /// The FLOPs of one call by torch's FlopCounterMode.
    flops: i64,
}

/// Invariant (numbers): FLOPs are those of torch's `FlopCounterMode`.
#[test]
fn models_have_the_flops_of_torchs_flop_counter() {
    let models: BTreeMap<String, Vec<Call>> = serde_json::from_str(include_str!("shapes.json")).unwrap();
    assert_eq!(models.len(), 4);
    for (model, calls) in models {
        for call in &calls {
            let found = of(&call.operator, &call.input_dims.to_string(), &call.concrete_inputs.to_string());
            assert_eq!(found, Some(call.flops), "{model}: {} {}", call.operator, call.input_dims);
        }
        let total: i64 = calls.iter().map(|call| call.calls * call.flops).sum();
        // Twice the 4.1 G multiply-adds of the paper's table, for two images, forward and twice that backward.
        if model == "ResNet-50" {
            assert!((45_000_000_000..51_000_000_000).contains(&total), "{total}");
        }
    }
}

#[test]
fn products_and_attention_follow_their_formulas() {
    assert_eq!(of("aten::mm", "[[3, 4], [4, 5]]", "[]"), Some(120));
    assert_eq!(of("aten::addmm", "[[5], [3, 4], [4, 5], [], []]", "[]"), Some(120));
    assert_eq!(of("aten::bmm", "[[2, 3, 4], [2, 4, 5]]", "[]"), Some(240));
    assert_eq!(of("aten::baddbmm", "[[2, 3, 5], [2, 3, 4], [2, 4, 5]]", "[]"), Some(240));
    assert_eq!(of("aten::_addmm_activation", "[[4], [3, 5], [5, 4], [], [], []]", "[]"), Some(120));
    assert_eq!(of("aten::_scaled_mm", "[[16, 32], [32, 8], [], [], [], [], [], []]", "[]"), Some(8192));
    assert_eq!(of("aten::_scaled_mm_v2", "[[16, 32], [32, 8], [[1]], [], [], [[1]]]", "[]"), Some(8192));
    assert_eq!(of("aten::addmm_", "[[3, 5], [3, 4], [4, 5], [], []]", "[]"), Some(120));
    // Query and value differ in their dimension, and keys are longer than queries: 2·2·8·16·64·(32 + 48).
    let attention = "[2, 8, 16, 32], [2, 2, 64, 32], [2, 2, 64, 48]";
    for kind in ["flash_attention", "efficient_attention", "cudnn_attention", "fused_attention_overrideable"] {
        let name = format!("aten::_scaled_dot_product_{kind}");
        assert_eq!(of(&name, &format!("[{attention}, [], []]"), "[]"), Some(2_621_440), "{name}");
        let gradient = format!("[[2, 8, 16, 48], {attention}, []]");
        assert_eq!(of(&format!("{name}_backward"), &gradient, "[]"), Some(2 * 2 * 8 * 16 * 64 * (3 * 32 + 2 * 48)));
    }
}

/// The operators below `scaled_dot_product_attention` have the length before the heads. Offsets of sequences within one
/// tensor are data.
#[test]
fn attention_below_its_operator_has_the_length_first() {
    let attention = "[2, 16, 8, 32], [2, 64, 2, 32], [2, 64, 2, 48]";
    let forward = 2 * 2 * 8 * 16 * 64 * (32 + 48);
    let backward = 2 * 2 * 8 * 16 * 64 * (3 * 32 + 2 * 48);
    let (flash, efficient) = ("aten::_flash_attention", "aten::_efficient_attention");
    assert_eq!(of(&format!("{flash}_forward"), &format!("[{attention}, [], []]"), "[]"), Some(forward));
    assert_eq!(of(&format!("{efficient}_forward"), &format!("[{attention}, [], [], []]"), "[]"), Some(forward));
    let rest = "[2, 16, 8, 48], [2, 8, 16]";
    let gradient = format!("[[2, 16, 8, 48], {attention}, {rest}, [], []]");
    assert_eq!(of(&format!("{flash}_backward"), &gradient, "[]"), Some(backward));
    assert_eq!(of(&format!("{efficient}_backward"), &gradient, "[]"), Some(backward));
    let offsets = "[1, 16, 8, 32], [1, 64, 2, 32], [1, 64, 2, 48]";
    assert_eq!(of(&format!("{flash}_forward"), &format!("[{offsets}, [3], [3]]"), "[]"), None);
    assert_eq!(of(&format!("{efficient}_forward"), &format!("[{offsets}, [], [3], [3]]"), "[]"), None);
}

/// Groups of rows: all rows pass through one matrix each. Groups of the inner dimension: the parts sum to one product.
#[test]
fn a_grouped_product_costs_what_its_groups_cost() {
    for (dims, expected) in [
        ("[[32, 16], [4, 16, 8], [4], [], []]", 2 * 32 * 16 * 8),
        ("[[4, 8, 16], [16, 32], [4], [], []]", 2 * 8 * 16 * 32),
        ("[[4, 8, 16], [4, 16, 8], [], [], []]", 4 * 2 * 8 * 16 * 8),
        ("[[8, 32], [32, 16], [4], [], []]", 2 * 8 * 32 * 16),
    ] {
        assert_eq!(of("aten::_grouped_mm", dims, "[]"), Some(expected), "{dims}");
    }
}

#[test]
fn convolutions_count_places_times_weight() {
    let two = r#"["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "2"]"#;
    assert_eq!(of("aten::convolution", "[[3, 4, 8, 8], [6, 2, 3, 3], [6], [], [], []]", two), Some(10_368));
    // Padding comes before the stride here.
    let cudnn = r#"["", "", "[1, 1]", "[2, 2]", "[1, 1]", "2", "False", "False", "True"]"#;
    assert_eq!(of("aten::cudnn_convolution", "[[3, 4, 8, 8], [6, 2, 3, 3]]", cudnn), Some(10_368));
    let slow = r#"["", "", "[3, 3]", "", "[2, 2]", "[1, 1]"]"#;
    assert_eq!(of("aten::_slow_conv2d_forward", "[[3, 2, 8, 8], [6, 2, 3, 3], []]", slow), Some(10_368));
    let one = r#"["", "", "", "[1]", "[0]", "[1]", "False", "[0]", "1"]"#;
    assert_eq!(of("aten::convolution", "[[2, 3, 9], [4, 3, 3], []]", one), Some(2 * 2 * 7 * 4 * 3 * 3));
    let transposed = r#"["", "", "", "[2, 2]", "[0, 0]", "[1, 1]", "True", "[0, 0]", "1"]"#;
    assert_eq!(of("aten::convolution", "[[2, 8, 4, 4], [8, 6, 3, 3], []]", transposed), Some(2 * 2 * 16 * 8 * 6 * 9));
}

/// Half of the gradients cost half. Groups divide both, where FlopCounterMode divides only the gradient of the input.
#[test]
fn the_gradients_of_a_convolution_cost_as_much_as_the_forward_pass_each() {
    let backward = |transposed: &str, mask: &str| {
        format!(r#"["", "", "", "[0]", "[2, 2]", "[1, 1]", "[1, 1]", "{transposed}", "[0, 0]", "2", "{mask}"]"#)
    };
    let dims = "[[3, 6, 4, 4], [3, 4, 8, 8], [6, 2, 3, 3], [], []]";
    let of = |transposed, mask| of("aten::convolution_backward", dims, &backward(transposed, mask));
    assert_eq!(of("False", "[True, True, False]"), Some(2 * 10_368));
    assert_eq!(of("False", "[False, True, True]"), Some(10_368));
    assert_eq!(of("False", "[False, False, True]"), Some(0));
    assert_eq!(of("True", "[True, False, False]"), Some(2 * 3 * 64 * 6 * 2 * 9));
}

#[test]
fn torchs_profiler_has_formulas_of_its_own() {
    let of = |name: &str, dims: &str, concrete: &str| profiler_flops(name, &inputs(dims, concrete));
    assert_eq!(of("aten::mm", "[[3, 4], [4, 5]]", "[]"), Some(120));
    assert_eq!(of("aten::mul", "[[2, 3], []]", "[]"), Some(6));
    assert_eq!(of("aten::mul", "[[[2], [3]]]", "[]"), None);
    assert_eq!(of("aten::mul", "[[9223372036854775807, 2]]", "[]"), None);
    assert_eq!(of("aten::convolution_backward", "[[2, 2], [2, 2], [2, 2]]", "[]"), None);
    let conv = r#"["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "2"]"#;
    assert_eq!(of("aten::conv2d", "[[3, 4, 8, 8], [6, 2, 3, 3], [6], [], [], [], []]", conv), Some(10_368));
    assert_eq!(of("aten::conv2d", "[[3, 4, 8, 8], [6, 2, 3, 3]]", "[]"), None);
    let zero_stride = r#"["", "", "", "[0, 0]", "[1, 1]", "[1, 1]", "1"]"#;
    assert_eq!(of("aten::conv2d", "[[3, 4, 8, 8], [6, 4, 3, 3], [6]]", zero_stride), None);
}

#[test]
fn insufficient_shapes_have_no_flops() {
    assert_eq!(of("aten::relu", "[[3, 4]]", "[]"), None);
    assert_eq!(of("mm", "[[3, 4], [4, 5]]", "[]"), None);
    assert_eq!(of("aten::mm", "[[3, 4]]", "[]"), None);
    assert_eq!(of("aten::mm", "[[4], [4]]", "[]"), None);
    assert_eq!(of("aten::mm", "[[3, ", "[]"), None);
    assert_eq!(of("aten::matmul", "[[2, 3, 4], [4]]", "[]"), None);
    assert_eq!(of("aten::convolution", "[[2, 3, 9, 9], [4, 3, 3, 3]]", "[]"), None);
    assert_eq!(of("aten::convolution_backward", "[[2, 4, 7], [2, 3, 9], [4, 3, 3]]", "[]"), None);
    // Sequences of different lengths in one tensor: (tokens, heads, dimension).
    assert_eq!(of("aten::_scaled_dot_product_flash_attention", "[[70, 8, 16], [70, 8, 16], [70, 8, 16]]", "[]"), None);
}

/// Rows as name, FLOPs and parent.
fn counted(rows: &[(&str, i64, u32)]) -> Vec<i64> {
    let names: Vec<Text> = rows.iter().map(|(name, ..)| (*name).into()).collect();
    let flops = rows.iter().map(|(_, flops, _)| *flops).collect();
    let events = Events {
        kind: vec![Kind::CpuOp; rows.len()],
        name: (0..rows.len() as u32).collect(),
        ts_ns: vec![0; rows.len()],
        parent: rows.iter().map(|(_, _, parent)| *parent).collect(),
        ..Events::default()
    };
    counted_once(&events, &names, flops)
}

/// Invariant (numbers): No FLOPs count twice.
#[test]
fn a_call_inside_of_a_call_that_counts_does_not_count_again() {
    let root = NO_PARENT;
    let fp8 = [("aten::_scaled_mm", 7, root), ("aten::matmul", 7, 0), ("aten::mm", 7, 1), ("aten::mm", 5, root)];
    assert_eq!(counted(&fp8), [7, NONE, NONE, 5]);
    let linear = [("aten::linear", 7, root), ("aten::t", NONE, 0), ("aten::addmm", 7, 0)];
    assert_eq!(counted(&linear), [NONE, NONE, 7]);
    // No call inside of `matmul` counts, so it does itself, and only once.
    assert_eq!(counted(&[("aten::linear", 7, root), ("aten::matmul", 7, 0), ("aten::t", NONE, 1)]), [NONE, 7, NONE]);
    assert_eq!(counted(&[("ProfilerStep#1", NONE, root), ("aten::mm", 7, 0)]), [NONE, 7]);
}

#[test]
fn the_first_tensor_has_the_type() {
    let of = |types: &str| element_type(types.as_bytes());
    assert_eq!(of(r#"["c10::BFloat16", "c10::BFloat16", ""]"#), Some(Dtype::Bf16));
    assert_eq!(of(r#"["c10::Half", "float"]"#), Some(Dtype::F16));
    assert_eq!(of(r#"["", "float", "Scalar"]"#), Some(Dtype::F32));
    assert_eq!(of(r#"["c10::Float8_e4m3fn", "c10::Float8_e4m3fn", "float"]"#), Some(Dtype::F8E4M3));
    assert_eq!(of(r#"["", "Scalar"]"#), None);
    assert_eq!(of("["), None);
}
