//! Operations, algorithms and element types in names of kernels, operators and arguments. `trace::name_rules` decides
//! which names are communication.

use trace::name_rules::called_function;

/// The operation, as in `collectives.op`, from a `Collective name` or the name of an operator, a range or a kernel;
/// `None` if the name contains none.
///
/// `sendrecv` is a point-to-point kernel without metadata: an all-to-all, or sends and receives.
pub fn operation(name: &str) -> Option<&'static str> {
    // Template arguments and parameters have scopes of their own.
    let has_signature = name.contains("::") && name.contains(['<', '(']);
    let name = if has_signature { called_function(name) } else { name };
    let start = name.rfind("::").map_or(0, |at| at + 2);
    let tail = &name[start..];
    let tail = tail.split_once(':').map_or(tail, |(_, rest)| rest);
    let mut flat: String = tail
        .chars()
        .take(64)
        .filter(|c| c.is_ascii_alphanumeric() || c.is_ascii_whitespace())
        .map(|c| c.to_ascii_lowercase())
        .collect();
    for kernel in ["nccldevkernel", "ncclkernel", "rccldevkernel", "rcclkernel", "nccl", "rccl"] {
        if let Some(rest) = flat.strip_prefix(kernel) {
            flat = rest.to_string();
            break;
        }
    }
    let has = |word: &str| flat.contains(word);
    Some(match () {
        // A wait for an operation, and its hand-over, are not operations themselves.
        () if has("wait") || has("enqueue") => return None,
        () if has("barrier") => "barrier",
        () if has("allreduce") => "allreduce",
        () if has("allgather") => "allgather",
        () if has("reducescatter") => "reducescatter",
        () if has("alltoall") => "alltoall",
        () if has("crossdevicereduce") => "allreduce",
        () if has("sendrecv") => "sendrecv",
        () if has("broadcast") => "broadcast",
        () if has("reduce") => "reduce",
        () if flat.starts_with("send") => "send",
        () if flat.starts_with("recv") => "recv",
        () if has("gather") => "gather",
        () if has("scatter") => "scatter",
        () => return None,
    })
}

/// Algorithm and protocol in a kernel's name: `ncclDevKernel_AllReduce_Sum_f32_RING_LL(…)`.
pub fn algorithm(kernel: &str) -> (Option<&'static str>, Option<&'static str>) {
    let word = kernel.split('(').next().unwrap_or(kernel);
    let parts: Vec<&str> = word.split('_').collect();
    let find = |known: &[&'static str]| known.iter().copied().find(|k| parts.contains(k));
    (find(&["RING", "TREE", "COLLNET", "NVLS", "PAT"]), find(&["LL128", "LL", "SIMPLE"]))
}

/// The element type in a kernel's name, in the words of `collectives.dtype`.
pub fn kernel_dtype(kernel: &str) -> Option<&'static str> {
    let word = kernel.split('(').next().unwrap_or(kernel);
    word.split('_').find_map(|part| match part {
        "f32" | "float" => Some("f32"),
        "f16" | "half" => Some("f16"),
        "bf16" | "bfloat16" => Some("bf16"),
        "f64" | "double" => Some("f64"),
        "u8" | "uint8" => Some("u8"),
        "u32" | "uint32" => Some("u32"),
        "u64" | "uint64" => Some("u64"),
        _ => None,
    })
}

/// An element type's word in `collectives.dtype` and its size in bytes, from torch's names of types.
pub(crate) fn dtype(torch: &str) -> Option<(&'static str, i64)> {
    let plain = torch.strip_prefix("c10::").unwrap_or(torch).to_ascii_lowercase();
    Some(match plain.as_str() {
        "float" | "f32" | "float32" => ("f32", 4),
        "double" | "f64" | "float64" => ("f64", 8),
        "half" | "f16" | "float16" => ("f16", 2),
        "bfloat16" | "bf16" => ("bf16", 2),
        "long" | "long int" | "int64" | "i64" => ("i64", 8),
        "int" | "int32" | "i32" => ("i32", 4),
        "short" | "short int" | "int16" | "i16" => ("i16", 2),
        "char" | "signed char" | "int8" | "i8" => ("i8", 1),
        "byte" | "unsigned char" | "uint8" | "u8" => ("u8", 1),
        "bool" => ("bool", 1),
        "uint16" | "unsigned short" | "u16" => ("u16", 2),
        "uint32" | "unsigned int" | "u32" => ("u32", 4),
        "uint64" | "unsigned long" | "u64" => ("u64", 8),
        "float8_e4m3fn" | "float8_e4m3fnuz" => ("f8e4m3", 1),
        "float8_e5m2" | "float8_e5m2fnuz" => ("f8e5m2", 1),
        "complexfloat" | "complex<float>" => ("c64", 8),
        "complexdouble" | "complex<double>" => ("c128", 16),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(names: &[&str], op: Option<&str>) {
        for name in names {
            assert_eq!(operation(name), op, "{name}");
        }
    }

    #[test]
    fn every_spelling_of_an_operation_is_known() {
        check(
            &[
                "allreduce",
                "allreduce_coalesced",
                "c10d::allreduce_",
                "nccl:all_reduce",
                "gloo:all_reduce",
                "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
                "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
                "mpi:all_reduce",
            ],
            Some("allreduce"),
        );
        check(
            &[
                "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals, vllm::Signal*)",
                "void (anonymous namespace)::all_reduce_one_shot_push_kernel<__half, 4u>((anonymous namespace)::P, c10::X)",
                "void multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long)",
                "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<(flashinfer::P)1>(flashinfer::Q)",
                "void tensorrt_llm::kernels::oneShotAllReduceKernel<half, tensorrt_llm::X>(tensorrt_llm::kernels::AllReduceParams)",
                "void quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half>, __half>(__half const*)",
            ],
            Some("allreduce"),
        );
        check(&["void aiter::reduce_scatter_cross_device_store<aiter::T, 8>(aiter::RankData*)"], Some("reducescatter"));
        check(
            &["void at::native::vectorized<at::native::allreduce>(c10::send)", "void x::f<a::send>(b::all_reduce)"],
            None,
        );
        check(
            &["_allgather_base", "c10d::_allgather_base_", "nccl:_all_gather_base", "mpi:all_gather"],
            Some("allgather"),
        );
        check(&["all_gather_into_tensor_coalesced", "c10d::allgather_into_tensor_coalesced_"], Some("allgather"));
        check(
            &["_reduce_scatter_base", "reducescatter", "nccl:reduce_scatter_tensor_coalesced"],
            Some("reducescatter"),
        );
        check(
            &["all_to_all", "all_to_allv", "c10d::alltoall_base_", "c10d_functional::all_to_all_single"],
            Some("alltoall"),
        );
        check(&["ncclDevKernel_SendRecv(ncclDevComm*, unsigned long, ncclWork*)"], Some("sendrecv"));
        check(&["nccl:send 0->1", "c10d::send"], Some("send"));
        check(&["nccl:recv 0<-1", "c10d::recv_any_source_"], Some("recv"));
        check(&["broadcast", "nccl:_broadcast_oop"], Some("broadcast"));
        check(&["barrier", "nccl:all_reduce_barrier"], Some("barrier"));
        check(
            &["wait", "mpi:all_reduce_enqueue", "record_param_comms", "aten::add", "c10d_functional::wait_tensor"],
            None,
        );
    }

    #[test]
    fn kernels_name_their_algorithm() {
        assert_eq!(algorithm("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"), (Some("RING"), Some("LL")));
        assert_eq!(algorithm("ncclKernel_AllReduce_TREE_LL128_Sum_half(x)"), (Some("TREE"), Some("LL128")));
        assert_eq!(algorithm("ncclDevKernel_SendRecv(x)"), (None, None));
        assert_eq!(kernel_dtype("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)"), Some("bf16"));
    }

    #[test]
    fn types_have_sizes() {
        assert_eq!(dtype("Float"), Some(("f32", 4)));
        assert_eq!(dtype("c10::BFloat16"), Some(("bf16", 2)));
        assert_eq!(dtype("long int"), Some(("i64", 8)));
        assert_eq!(dtype("Scalar"), None);
    }
}
