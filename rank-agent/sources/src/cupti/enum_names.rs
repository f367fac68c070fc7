//! Names of CUPTI's enum values, as torch.profiler writes them, so that traces can be compared.

/// `Memcpy HtoD (Pageable -> Device)`.
pub(crate) fn memcpy_name(copy_kind: u8, src_kind: u8, dst_kind: u8) -> String {
    format!("Memcpy {} ({} -> {})", copy_kind_word(copy_kind), memory_word(src_kind), memory_word(dst_kind))
}

/// `Memset (Device)`.
pub(crate) fn memset_name(memory_kind: u16) -> String {
    format!("Memset ({})", memory_word(u8::try_from(memory_kind).unwrap_or(0)))
}

/// `CUpti_ActivityMemcpyKind`.
pub(crate) fn copy_kind_word(kind: u8) -> &'static str {
    match kind {
        1 => "HtoD",
        2 => "DtoH",
        3 => "HtoA",
        4 => "AtoH",
        5 => "AtoA",
        6 => "AtoD",
        7 => "DtoA",
        8 => "DtoD",
        9 => "HtoH",
        10 => "PtoP",
        _ => "Unknown",
    }
}

/// `CUpti_ActivityMemoryKind`.
pub(crate) fn memory_word(kind: u8) -> &'static str {
    match kind {
        1 => "Pageable",
        2 => "Pinned",
        3 => "Device",
        4 => "Array",
        5 => "Managed",
        6 => "Device Static",
        7 => "Managed Static",
        _ => "Unknown",
    }
}

/// `CUpti_ActivitySynchronizationType`.
pub(crate) fn sync_word(kind: u32) -> &'static str {
    match kind {
        1 => "Event Sync",
        2 => "Stream Wait Event",
        3 => "Stream Sync",
        4 => "Context Sync",
        _ => "Unknown Sync",
    }
}

/// `CUpti_ActivityOverheadKind`.
pub(crate) fn overhead_word(kind: u32) -> &'static str {
    match kind {
        0x1 => "Driver Compiler",
        0x1_0000 => "Buffer Flush",
        0x2_0000 => "Instrumentation",
        0x3_0000 => "Resource",
        0x4_0000 => "Runtime Triggered Module Loading",
        0x5_0000 => "Lazy Function Loading",
        0x6_0000 => "Command Buffer Full",
        0x7_0000 => "Activity Buffer Request",
        0x8_0000 => "UVM Activity Init",
        _ => "Unknown",
    }
}

/// Name of a call without CUPTI's version suffix and without the stream variant: `cudaLaunchKernel_ptsz_v7000` becomes
/// `cudaLaunchKernel`, but `cuMemAlloc_v2` stays.
pub(crate) fn call_name(cupti_name: &str) -> &str {
    let mut name = cupti_name;
    if name.starts_with("cuda")
        && let Some((before, version)) = name.rsplit_once("_v")
        && version.len() >= 4
        && version.bytes().all(|digit| digit.is_ascii_digit())
    {
        name = before;
    }
    ["_ptsz", "_ptds"].iter().find_map(|variant| name.strip_suffix(variant)).unwrap_or(name)
}

/// Demangles a kernel's name; other names stay unchanged.
pub(crate) fn demangle(name: &str) -> String {
    let options = cpp_demangle::DemangleOptions::default();
    let readable = || cpp_demangle::Symbol::new(name).ok()?.demangle(&options).ok();
    readable().map_or_else(|| name.into(), |readable| literals_as_torch(&readable))
}

/// Prints numbers in template arguments like `abi::__cxa_demangle`, which torch.profiler uses: `4096ul`, where
/// cpp_demangle prints `(unsigned long)4096`.
fn literals_as_torch(name: &str) -> String {
    const SUFFIXES: [(&str, &str); 5] = [
        ("(unsigned int)", "u"),
        ("(unsigned long)", "ul"),
        ("(unsigned long long)", "ull"),
        ("(long)", "l"),
        ("(long long)", "ll"),
    ];
    let mut name = name.to_string();
    for (cast, suffix) in SUFFIXES {
        let mut pieces = name.split(cast);
        let mut printed = pieces.next().unwrap_or_default().to_string();
        for piece in pieces {
            let digits = piece.find(|c: char| !c.is_ascii_digit() && c != '-').unwrap_or(piece.len());
            let (number, rest) = piece.split_at(digits);
            let (cast, suffix) = if number.is_empty() { (cast, "") } else { ("", suffix) };
            printed.extend([cast, number, suffix, rest]);
        }
        name = printed;
    }
    name
}

/// Driver calls that launch (`CUPTI_DRIVER_TRACE_CBID_…`, equal in all headers of 12.4 to 13.5): cuLaunchKernel,
/// cuLaunchCooperativeKernel, cuGraphLaunch, cuLaunchKernelEx; cuMemcpyAsync, cuMemcpyHtoDAsync_v2, …DtoHAsync_v2,
/// …DtoDAsync_v2, cuMemcpyPeerAsync; cuMemsetD8Async, …D32Async; each with its `_ptsz` variant.
pub(crate) const LAUNCH_CALLS: [u32; 22] =
    [307, 442, 477, 478, 514, 515, 652, 653, 306, 418, 277, 421, 279, 422, 281, 423, 319, 426, 216, 428, 220, 430];

/// Runtime calls that take no time and launch nothing (`CUPTI_RUNTIME_TRACE_CBID_…`, equal in all releases): cudaGetLastError,
/// cudaSetDevice, cudaGetDevice, cudaEventCreate, cudaEventCreateWithFlags, cudaEventDestroy. PyTorch makes four of them for each
/// launch. torch.profiler leaves out the same calls.
pub(crate) const QUIET_CALLS: [u32; 6] = [10, 16, 17, 133, 134, 136];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_have_the_names_of_torch_profiler() {
        assert_eq!(memcpy_name(1, 1, 3), "Memcpy HtoD (Pageable -> Device)");
        assert_eq!(memcpy_name(10, 3, 3), "Memcpy PtoP (Device -> Device)");
        assert_eq!(memcpy_name(99, 99, 2), "Memcpy Unknown (Unknown -> Pinned)");
        assert_eq!((memset_name(3), memset_name(0x103)), ("Memset (Device)".into(), "Memset (Unknown)".into()));
    }

    #[test]
    fn call_names_lose_versions_and_variants() {
        for (cupti, name) in [
            ("cudaLaunchKernel_v7000", "cudaLaunchKernel"),
            ("cudaLaunchKernel_ptsz_v7000", "cudaLaunchKernel"),
            ("cudaMemcpyAsync_v3020", "cudaMemcpyAsync"),
            ("cudaEventRecordWithFlags_v11010", "cudaEventRecordWithFlags"),
            ("cuLaunchKernel", "cuLaunchKernel"),
            ("cuLaunchKernelEx_ptsz", "cuLaunchKernelEx"),
            ("cuMemAlloc_v2", "cuMemAlloc_v2"),
            ("_v", "_v"),
            ("", ""),
        ] {
            assert_eq!(call_name(cupti), name);
        }
    }

    #[test]
    fn mangled_kernel_names_are_demangled() {
        for (mangled, name) in [
            ("_Z9bias_reluPfPKfi", "bias_relu(float*, float const*, int)"),
            ("_ZN4ours4gemmIfLi128EEEvPKT_PS1_", "void ours::gemm<float, 128>(float const*, float*)"),
            (
                "_Z39ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE",
                "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            ),
            ("sm90_xmma_gemm_f32f32_tf32f32_f32_nn_n", "sm90_xmma_gemm_f32f32_tf32f32_f32_nn_n"),
            ("_Z4copyILj4ELl3ELb1EEvPf", "void copy<4u, 3l, true>(float*)"),
            ("_Z", "_Z"),
            ("", ""),
        ] {
            assert_eq!(demangle(mangled), name);
        }
    }
}
