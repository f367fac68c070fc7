//! What the name of a kernel says about its work. Whether it communicates is decided by [`name_rules`](crate::name_rules).

use crate::words::KernelCategory;

/// Parts of names, in lower case, by category. The first category with a part of the name counts, so a product comes
/// before the reduction of its parts, and a copy before the elementwise kernel that copies.
const PARTS: [(KernelCategory, &[&str]); 7] = [
    (KernelCategory::Attention, &["flash", "fmha", "attention", "attn", "_mha_", "sdpa"]),
    (
        KernelCategory::Convolution,
        &[
            "conv2d",
            "conv1d",
            "conv3d",
            "convolve",
            "convolution",
            "conv1x1",
            "_conv_",
            "::conv::",
            "4conv6kernel",
            "scudnn",
            "hcudnn",
            "fprop",
            "dgrad",
            "wgrad",
            "winograd",
            "fft2d",
            "im2col",
            "col2im",
            "implicit_gemm",
            "3dconv",
            "miopensp3asmconv",
            "naive_conv",
            "gridwise_convolution",
            "xdl_cshuffle_conv",
        ],
    ),
    // `Cijk_` begins the kernels of hipBLAS's Tensile, `nvjet` those of cuBLAS since Hopper.
    (
        KernelCategory::Gemm,
        &["gemm", "gemv", "nvjet", "cijk_", "matmul", "splitkreduce", "dot_kernel", "bmm_", "_mm_", "cublaslt"],
    ),
    (
        KernelCategory::Normalization,
        &[
            "layer_norm",
            "layernorm",
            "rms_norm",
            "rmsnorm",
            "batch_norm",
            "batchnorm",
            "group_norm",
            "groupnorm",
            "instance_norm",
            "bn_fw",
            "bn_bw",
            "softmax",
            "gammabeta",
            "rowwisemoments",
        ],
    ),
    (
        KernelCategory::Copy,
        &[
            "copy",
            "fillfunctor",
            "memcpy",
            "memset",
            "transpose",
            "permute",
            "nchwtonhwc",
            "nhwctonchw",
            "gather",
            "scatter",
            "index_select",
            "indexselect",
            "index_kernel",
            "index_put",
        ],
    ),
    // Inductor's kernels begin with `triton_red` and `triton_per` (reductions) or `triton_poi` (elementwise).
    (
        KernelCategory::Reduction,
        &["reduce", "reduction", "lpnorm", "scan", "argmax", "argmin", "triton_red", "triton_per", "l2norm"],
    ),
    (
        KernelCategory::Elementwise,
        &["elementwise", "multi_tensor_apply", "triton_poi", "foreach", "dropout", "pointwise", "adam", "activation"],
    ),
];

/// Parts of the names of kernels that compute on tensor cores, in lower case. The first two rows are the list of the
/// TensorBoard plugin (`TC_Allowlist` in torch_tb_profiler/profiler/tensor_core.py); the others are newer: CUTLASS,
/// instructions since Hopper, and fused attention.
const TENSOR_CORE_PARTS: [&str; 27] = [
    "h884",
    "s884",
    "h1688",
    "s1688",
    "hmma",
    "i8816",
    "16816",
    "dgrad_1x1_stride_2x2",
    "first_layer_wgrad_kernel",
    "conv1x1",
    "conv2d_c1_k1",
    "direct_group",
    "xmma_implicit_gemm",
    "xmma_sparse_conv",
    "xmma_gemm",
    "c1_k1",
    "tensorop",
    "wmma",
    "gmma",
    "umma",
    "tcgen05",
    "nvjet",
    "16832",
    "_tensor16x8x",
    "flash_fwd",
    "flash_bwd",
    "flashattn",
];

/// The category of a kernel; never that of communication.
pub fn kernel_category(name: &str) -> KernelCategory {
    // FBGEMM is a library, and most of its kernels on devices are no products.
    let name = name.to_ascii_lowercase().replace("fbgemm", "");
    let names_one = |parts: &&(KernelCategory, &[&str])| parts.1.iter().any(|part| name.contains(part));
    PARTS.iter().find(names_one).map_or(KernelCategory::Other, |(category, _)| *category)
}

/// Whether the name says that a kernel computes on tensor cores. Other kernels may use them too.
pub fn names_tensor_cores(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    TENSOR_CORE_PARTS.iter().any(|part| name.contains(part))
}

/// Whether the name says that a kernel computes products of 32-bit numbers in TF32: `tf32`, or the shape 16×8×8 of an
/// instruction that takes 32-bit inputs.
pub fn computes_in_tf32(name: &str) -> bool {
    name.contains("tf32") || name.contains("s1688gemm")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names from real traces.
    #[test]
    fn kernels_have_a_category_and_may_use_tensor_cores() {
        use KernelCategory::{Attention, Convolution, Copy, Elementwise, Gemm, Normalization, Other, Reduction};
        for (name, category, tensor_cores) in [
            ("volta_sgemm_128x64_tn", Gemm, false),
            ("volta_fp16_s884gemm_fp16_64x64_ldg8_f2f_tn", Gemm, true),
            ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn", Gemm, true),
            ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_tn_align1>(Params)", Gemm, true),
            ("void cutlass::device_kernel<dpsk::grouped_gemm::cuda::fp8_ptp128c::GemmKernel>(Params)", Gemm, false),
            ("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT", Gemm, true),
            ("void cublasLt::splitKreduce_kernel<32, 16, int, float, float>(Params)", Gemm, false),
            ("Cijk_Alik_Bljk_BBS_BH_MT128x128x32_MI32x32x8x1_SE", Gemm, false),
            ("void flash::compute_attn_ws<Flash_fwd_kernel_traits<192, 128>>(Params)", Attention, true),
            ("fmha_cutlassF_f16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::Params)", Attention, false),
            ("volta_scudnn_128x64_relu_medium_nn_v1", Convolution, false),
            ("sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_nhwckrsc_nchw_tensor16x8x8_kernel", Convolution, true),
            ("void cudnn::cnn::wgrad_alg0_engine<float, 128, 6, 7>(int, int)", Convolution, false),
            ("void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>(Params)", Convolution, false),
            ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1>(Tensor)", Normalization, false),
            ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>(int)", Normalization, false),
            ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 7>(float*)", Normalization, false),
            (
                "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>(int)",
                Elementwise,
                false,
            ),
            ("void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>>(int)", Elementwise, false),
            ("triton_poi_fused_silu_mul_0", Elementwise, false),
            ("void fbgemm_gpu::permute_2D_data_kernel<false, int>(int, int)", Copy, false),
            ("void split_embedding_codegen_forward(fbgemm_gpu::Accessor<float>)", Other, false),
            ("void fft2d_c2r_32x32<float, false>(float*, float2 const*, cudnn::reduced_divisor)", Convolution, false),
            ("triton_red_fused_sum_1", Reduction, false),
            ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, sum_functor>>(int)", Reduction, false),
            ("void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>(int)", Copy, false),
            (
                "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 2>(float*)",
                Copy,
                false,
            ),
            ("void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>(float)", Copy, false),
            ("void cuda::per_token_convert_to_fp8<__nv_bfloat16>(int)", Other, false),
        ] {
            assert_eq!((kernel_category(name), names_tensor_cores(name)), (category, tensor_cores), "{name}");
        }
    }
}
