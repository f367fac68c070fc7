//! Names of kernels that communicate, and of kernels that are known to compute.
//!
//! A name counts by the function that it calls, not by its return type, its template arguments or its parameters:
//!
//! ```text
//!  void dpsk::ep::internode::combine<false, 8, __nv_bfloat16>(int4*, float*)
//!       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^                                           the scopes dpsk, ep, internode; the function combine
//!  void cutlass::device_kernel<flash::CollectiveMainloopBwd<2>>()
//!       ^^^^^^^^^^^^^^^^^^^^^^                                                 no template argument makes it communication
//! ```
//!
//! A kernel that fuses communication with a matrix product is not listed: most of its time is the product. Kernels that
//! fuse an all-reduce with a normalisation are listed.

/// Where a word of the table stands in a name.
#[derive(Clone, Copy)]
enum Place {
    /// The function begins with it.
    Function,
    /// These scopes (`a::b`), one directly inside the other, enclose the function.
    Scope,
}

use Place::{Function, Scope};

/// Kernels that communicate, beside those that begin with the name of a library (`nccl…`). The comments name the sources.
const COMMUNICATING: [(Place, &str); 41] = [
    // HCCL of Ascend: rows `hcom_allReduce__…` of torch_npu's trace_view.json.
    (Function, "hcom_"),
    // DeepEP: deepseek-ai/DeepEP csrc/kernels/{internode,internode_ll,intranode,layout}.cu; the traces of
    // deepseek-ai/profile-data have its predecessor.
    (Scope, "deep_ep"),
    (Scope, "dpsk::ep"),
    // NVSHMEM and rocSHMEM: NVIDIA/nvshmem, the kernels of its host library's collectives on a stream.
    (Function, "nvshmem"),
    (Function, "rocshmem"),
    (Function, "barrier_on_stream_kernel"),
    (Function, "sync_on_stream_kernel"),
    (Function, "sync_all_on_stream_kernel"),
    (Function, "alltoall_on_stream_kernel"),
    (Function, "broadcast_on_stream_kernel"),
    (Function, "fcollect_on_stream_kernel"),
    (Function, "rdxn_on_stream_kernel"),
    (Function, "reducescatter_on_stream_kernel"),
    // Symmetric memory: pytorch/pytorch torch/csrc/distributed/c10d/symm_mem/{CUDASymmetricMemory,CUDASymmetricMemoryOps,
    // nvshmem_extension,intra_node_comm}.cu.
    (Function, "multimem_"),
    (Function, "one_shot_all_reduce_"),
    (Function, "two_shot_all_reduce_"),
    (Function, "exchangeSplitAndOffset"),
    (Function, "allToAllV"),
    (Function, "hybridCubeMeshAllReduceKernel"),
    (Scope, "c10d::symmetric_memory"),
    // Custom all-reduces: vllm-project/vllm csrc/custom_all_reduce.cuh; the same names in sgl-project/sglang
    // sgl-kernel/csrc/allreduce and ROCm/aiter csrc/include/custom_all_reduce.cuh. Quick all-reduces: vllm-project/vllm
    // csrc/quickreduce. SGLang's own: sgl-project/sglang python/sglang/jit_kernel/csrc/distributed.
    (Function, "cross_device_reduce_"),
    (Function, "reduce_scatter_cross_device_store"),
    (Function, "allreduce_prototype_"),
    (Function, "all_reduce_one_shot_"),
    (Function, "all_reduce_two_shot_"),
    // NVIDIA/TensorRT-LLM cpp/tensorrt_llm/kernels/customAllReduceKernels.cu.
    (Function, "oneShotAllReduceKernel"),
    (Function, "twoShotAllReduceKernel"),
    (Function, "lamport_style_one_shot_all_reduce_norm_kernel"),
    // NVIDIA/TensorRT-LLM cpp/tensorrt_llm/kernels/communicationKernels/{allReduceFusionKernels,
    // moeAllReduceFusionKernels,mnnvlAllreduceKernels,moeAlltoAllKernels}.cu; the same names in flashinfer-ai/flashinfer
    // include/flashinfer/comm/trtllm_*.cuh.
    (Function, "allreduce_fusion_kernel_"),
    (Function, "moereduce_allreduce_fusion_kernel_"),
    (Function, "moefinalize_allreduce_fusion_kernel_"),
    (Function, "oneshotAllreduceFusionKernel"),
    (Function, "twoshotAllreduceKernel"),
    (Function, "twoshot_allreduce_kernel"),
    (Function, "moeA2ADispatchKernel"),
    (Function, "moeA2ACombineKernel"),
    // MSCCL++ and MSCCL: microsoft/mscclpp src/include/execution_kernel.hpp; ROCm/rccl src/include/msccl/msccl_kernel.h.
    (Scope, "mscclpp"),
    (Function, "mscclKernel_"),
    // UCC: openucx/ucc src/components/ec/{cuda,rocm}/kernel.
    (Function, "UCC_REDUCE_"),
    // Userbuffers: NVIDIA/TransformerEngine transformer_engine/common/comm_gemm_overlap/userbuffers/userbuffers.cu.
    (Function, "userbuffers_"),
    (Function, "kuserbuffers_"),
];

/// Words of kernels that certainly compute, in lower case: matrix products, convolutions, attention, normalisation, and
/// what PyTorch and Triton generate. Such a kernel is never suspected of communication.
#[rustfmt::skip]
const COMPUTING: [&str; 38] = [
    "gemm", "gemv", "cutlass", "cublas", "cudnn", "xmma", "nvjet", "bmm", "wgrad", "dgrad", "conv", "fft", "at::native",
    "elementwise", "triton_", "cub::", "thrust::", "splitkreduce", "softmax", "norm", "flash_", "flash::", "fmha", "attn",
    "attention", "_cast", "quant", "transpose", "rotary", "rope", "swiglu", "silu", "gelu", "embedding", "adam",
    "multi_tensor_apply", "topk", "sort",
];

/// Whether a name begins with that of a communication library: NCCL, RCCL, XCCL (Intel), HCCL (Habana, MTIA, Ascend).
pub(super) fn starts_with_library(name: &[u8]) -> bool {
    matches!(name, [b'n' | b'N' | b'r' | b'R' | b'x' | b'X' | b'h' | b'H', rest @ ..]
        if rest.get(..3).is_some_and(|three| three.eq_ignore_ascii_case(b"ccl")))
}

/// Whether the function that a kernel's name calls is one that communicates.
pub(super) fn communicates(name: &str) -> bool {
    let path = Path::of(name);
    starts_with_library(name.as_bytes())
        || path.function().is_some_and(|function| starts_with_library(function.as_bytes()))
        || COMMUNICATING.iter().any(|(place, word)| match place {
            Function => path.function().is_some_and(|function| function.starts_with(word)),
            Scope => path.is_inside(word),
        })
}

/// Whether a kernel is known to compute. `false` says nothing: few kernels are known.
pub fn is_known_compute(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    COMPUTING.iter().any(|word| lower.contains(word))
}

/// The function that a kernel's name calls, with its scopes: `dpsk::ep::internode::combine`. For sentences, where a
/// whole name is too long. The whole name, if it calls no function.
pub fn function_of(name: &str) -> String {
    let path = Path::of(name);
    if path.parts.is_empty() { name.to_string() } else { path.parts.join("::") }
}

/// The function that a kernel's name calls, without its scopes: `combine`. The whole name, if it calls no function.
pub fn called_function(name: &str) -> &str {
    Path::of(name).function().unwrap_or(name)
}

/// The scopes and the function of a name, outermost first; anonymous namespaces are left out.
struct Path<'a> {
    parts: Vec<&'a str>,
}

impl<'a> Path<'a> {
    fn of(name: &'a str) -> Self {
        let mut parts = Vec::new();
        // Open brackets. Inside parentheses, `<` and `>` compare numbers: they are no brackets.
        let mut open: Vec<u8> = Vec::new();
        let mut start = 0;
        let bytes = name.as_bytes();
        let mut at = 0;
        while let Some(byte) = bytes.get(at) {
            let outside = open.is_empty();
            match byte {
                b'(' if outside && name[at..].starts_with(ANONYMOUS) => {
                    at += ANONYMOUS.len();
                    start = at;
                    continue;
                }
                // The parameters.
                b'(' if outside => break,
                // A space ends the return type.
                b' ' if outside => {
                    parts.clear();
                    start = at + 1;
                }
                b':' if outside && bytes.get(at + 1) == Some(&b':') => {
                    push(&mut parts, &name[start..at]);
                    at += 1;
                    start = at + 1;
                }
                b'<' if outside => {
                    push(&mut parts, &name[start..at]);
                    open.push(b'<');
                }
                b'<' if open.last() == Some(&b'<') => open.push(b'<'),
                b'(' | b'{' | b'[' => open.push(*byte),
                b'>' if open.last() == Some(&b'<') => close(&mut open, &mut start, at),
                b')' | b'}' | b']' if open.last().is_some_and(|last| *last != b'<') => close(&mut open, &mut start, at),
                _ => {}
            }
            at += 1;
        }
        if open.is_empty() {
            push(&mut parts, &name[start.min(at)..at]);
        }
        Self { parts }
    }

    fn function(&self) -> Option<&'a str> {
        self.parts.last().copied()
    }

    /// Whether the function lies in these scopes.
    fn is_inside(&self, scopes: &str) -> bool {
        let wanted: Vec<&str> = scopes.split("::").collect();
        let around = self.parts.split_last().map_or(&[][..], |(_, around)| around);
        around.windows(wanted.len()).any(|window| window == wanted)
    }
}

const ANONYMOUS: &str = "(anonymous namespace)::";

fn push<'a>(parts: &mut Vec<&'a str>, part: &'a str) {
    if !part.is_empty() {
        parts.push(part);
    }
}

/// Closes the innermost bracket. The text behind the outermost one is a new part.
fn close(open: &mut Vec<u8>, start: &mut usize, at: usize) {
    open.pop();
    if open.is_empty() {
        *start = at + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names from traces and profiles of the sources above, and the functions that they call.
    #[rustfmt::skip]
    const COMMUNICATION: [(&str, &str); 38] = [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
        ("ncclSymkDevKernel_AllReduce_AGxLL_R_sum_f8e5m2(ncclSymkDevWorkArgs4K)", "ncclSymkDevKernel_AllReduce_AGxLL_R_sum_f8e5m2"),
        ("void ncclKernel_X<float>()", "ncclKernel_X"),
        ("rcclGenericKernel", "rcclGenericKernel"),
        ("hccl::all_reduce", "hccl::all_reduce"),
        ("hcom_allReduce__123_0_1", "hcom_allReduce__123_0_1"),
        ("void dpsk::ep::internode::combine<false, 8, __nv_bfloat16, 8, 2, 16, 24>(int4*, float*)", "dpsk::ep::internode::combine"),
        ("void dpsk::ep::cuda::get_dispatch_layout<256, 32, 8>(long const*, int*)", "dpsk::ep::cuda::get_dispatch_layout"),
        ("void dpsk::ep::internode::dispatch_ll<true, 3, 10, 7168>(void*, float*)", "dpsk::ep::internode::dispatch_ll"),
        ("void deep_ep::intranode::dispatch<(int)2, (int)768, (int)8192>(int4 *, float *)", "deep_ep::intranode::dispatch"),
        ("void deep_ep::internode_ll::dispatch<(bool)1, (bool)1, (int)6144>(void *)", "deep_ep::internode_ll::dispatch"),
        ("nvshmemi_init_array_kernel", "nvshmemi_init_array_kernel"),
        ("void barrier_on_stream_kernel_threadgroup<(threadgroup_t)1>(int, int)", "barrier_on_stream_kernel_threadgroup"),
        ("void rdxn_on_stream_kernel<float, (rdxn_ops)3>(int, float*)", "rdxn_on_stream_kernel"),
        (
            "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long)",
            "multimem_all_reduce_kernel",
        ),
        ("void c10d::symmetric_memory::(anonymous namespace)::barrier_kernel(unsigned int**)", "c10d::symmetric_memory::barrier_kernel"),
        ("void two_shot_all_reduce_kernel_inplace<float, 16, 8>(float**)", "two_shot_all_reduce_kernel_inplace"),
        ("allToAllV(void*, void*, long*)", "allToAllV"),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals)", "vllm::cross_device_reduce_1stage"),
        ("void sglang::cross_device_reduce_2stage<__half, 8>(sglang::RankData*)", "sglang::cross_device_reduce_2stage"),
        ("void aiter::cross_device_reduce_1stage<std::bfloat16_t, 4, false>(aiter::RankData*)", "aiter::cross_device_reduce_1stage"),
        ("void tensorrt_llm::kernels::twoShotAllReduceKernel<half, 8, true>(AllReduceParams)", "tensorrt_llm::kernels::twoShotAllReduceKernel"),
        (
            "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<(flashinfer::trtllm_allreduce_fusion::AllReduceFusionPattern)1, __nv_bfloat16, 8, false, false>(P)",
            "flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport",
        ),
        ("void flashinfer::trtllm_mnnvl_allreduce::twoshotAllreduceKernel<(unsigned char)4, float>(P)", "flashinfer::trtllm_mnnvl_allreduce::twoshotAllreduceKernel"),
        ("void ar_fusion::moe::moefinalize_allreduce_fusion_kernel_oneshot_lamport<bf16, 8>(P)", "ar_fusion::moe::moefinalize_allreduce_fusion_kernel_oneshot_lamport"),
        ("void aiter::reduce_scatter_cross_device_store<std::bfloat16_t, 8>(aiter::RankData*)", "aiter::reduce_scatter_cross_device_store"),
        (
            "void quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half, CodecQ4<__half, 4>, true>, __half>(__half const*)",
            "quickreduce::allreduce_prototype_twoshot",
        ),
        (
            "void (anonymous namespace)::all_reduce_one_shot_push_kernel<__half, 4u, true>((anonymous namespace)::AllReducePushData, device::distributed::PushController)",
            "all_reduce_one_shot_push_kernel",
        ),
        ("void (anonymous namespace)::all_reduce_two_shot_kernel<__half, 4u>((anonymous namespace)::P)", "all_reduce_two_shot_kernel"),
        (
            "void flashinfer::trtllm_mnnvl_allreduce::twoshot_allreduce_kernel<8, __nv_bfloat16>(__nv_bfloat16*)",
            "flashinfer::trtllm_mnnvl_allreduce::twoshot_allreduce_kernel",
        ),
        ("void moeA2ADispatchKernel<8, false>(int const*)", "moeA2ADispatchKernel"),
        ("void mscclpp::executionKernel<__half, mscclpp::LL16Packet>(int)", "mscclpp::executionKernel"),
        ("mscclKernel_Sum_half_Simple_false(ncclDevComm*, mscclAlgo*, mscclWork*)", "mscclKernel_Sum_half_Simple_false"),
        ("void UCC_REDUCE_CUDA_DEFAULT_SUM<float, float, false, 1>(ucc_eee_task_reduce_t)", "UCC_REDUCE_CUDA_DEFAULT_SUM"),
        ("userbuffers_fp16_sum_inplace_gpu_rw_ag(int, int)", "userbuffers_fp16_sum_inplace_gpu_rw_ag"),
        ("kuserbuffers_pushrecv(int, int)", "kuserbuffers_pushrecv"),
        ("NCCLKernel", "NCCLKernel"),
        ("one_shot_all_reduce_kernel", "one_shot_all_reduce_kernel"),
    ];

    #[rustfmt::skip]
    const OTHER: [&str; 27] = [
        "void gemm<nccl>(float*)",
        "my_nccl_copy_helper",
        "vectorized_succl",
        "all_gather_gemm",
        "void cutlass::device_kernel<dpsk::grouped_gemm::cuda::fp8_ptp128c::GemmKernel>(GemmKernel::Params)",
        "void cutlass::device_kernel<flash::FlashAttnBwd<flash::CollectiveMainloopBwd<2> > >()",
        "void cutlass::device_kernel<nvshmem::Fused<deep_ep::Layout> >()",
        "void dpsk::grouped_gemm::cuda::utils::transpose<512, 128, 4, 4>(unsigned char const*)",
        "void cuda::reduce_fused_impl<__nv_bfloat16, false, false>(int4 const*)",
        "cuda::expand_to_fused_with_scales_impl(int4 const*, int4*)",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >(at::native::ReduceOp<float>)",
        "void at::native::vectorized_gather_kernel<16, long>(char*, char*)",
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<deep_ep::X>(X)",
        "std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*)",
        "void vllm::moe::moe_align_block_size_kernel<int>(int*)",
        "fused_moe_kernel",
        "_fwd_kernel_ep_scatter_2",
        "void moe::dev::finalize::finalizeKernelVecLoad<moe::dev::finalize::KernelParams<cutlass::bfloat16_t> >(P)",
        "expert_parallel_gemm",
        "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3",
        "nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT",
        "triton_poi_fused_add_bitwise_and_0",
        "void splitKreduce_kernel<32, 16, int, float>(float*)",
        "void operator_scope::cross_product<float>(float*)",
        "void fft2d_r2c_32x32<float, false, 0u, false>(float2*)",
        "é",
        "",
    ];

    /// Invariant (numbers): A kernel counts as communication by its function or by its operator.
    #[test]
    fn kernels_communicate_by_their_function() {
        for (name, function) in COMMUNICATION {
            assert!(communicates(name), "{name}");
            assert_eq!((&*function_of(name), called_function(name)), (function, function.rsplit("::").next().unwrap()));
        }
        for name in OTHER {
            assert!(!communicates(name), "{name}");
        }
    }

    #[test]
    fn no_kernel_that_communicates_is_known_to_compute() {
        // A normalisation may be fused with an all-reduce.
        let fused = |name: &str| name.contains("_norm_");
        for (name, _) in COMMUNICATION.iter().filter(|(name, _)| !fused(name)) {
            assert!(!is_known_compute(&function_of(name)), "{name}");
        }
        for name in ["all_gather_gemm", "ampere_sgemm_128x64_tn", "void at::native::X<float>()", "triton_red_fused_1"] {
            assert!(is_known_compute(name), "{name}");
        }
        for name in ["my_exchange", "_copy_tensor_kernel", "void cuda::expand<int>()"] {
            assert!(!is_known_compute(name), "{name}");
        }
    }

    #[test]
    fn broken_names_have_functions_too() {
        for name in ["a<b", "a>b", "((", "))", "a::", "::a", " ", "f<(1>2)>(x)", "{lambda()#1}::x", "é::ü<é>"] {
            function_of(name);
        }
        assert_eq!(function_of("f<(1>2)>::g(x)"), "f::g");
        assert_eq!(function_of("unfinished<int, flo"), "unfinished");
    }
}
