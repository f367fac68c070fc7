//! Facts that follow from texts which many events share. Each worker finds them once for each distinct text.

use rustc_hash::FxHashMap;
use trace::Dtype;
use trace::name_rules::{MTIA_CATEGORY, is_communication_kernel_in_traces, is_host_communication_in_traces, kind_of};
use trace::rank::flops::{Inputs, flops, has_formula};
use trace::rank::{Kind, least_bytes};

/// The rules that follow from the name of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NameRules {
    /// Calls of this operator have FLOPs.
    pub(crate) has_formula: bool,
    /// The kind of a row of this name in MTIA's category, and of a kernel's row of this name.
    pub(crate) on_mtia: Kind,
    pub(crate) as_kernel_kind: Kind,
    as_host_row: bool,
    as_kernel: bool,
}

impl NameRules {
    pub(crate) fn of(name: &[u8]) -> Self {
        Self {
            has_formula: has_formula(name),
            on_mtia: kind_of(MTIA_CATEGORY, name),
            as_kernel_kind: kind_of("kernel", name),
            as_host_row: is_host_communication_in_traces(name),
            as_kernel: is_communication_kernel_in_traces(name),
        }
    }

    /// Whether the arguments of such a row may describe a collective.
    #[inline]
    pub(crate) fn may_be_collective(self, kind: Kind) -> bool {
        match kind {
            Kind::CpuOp | Kind::UserAnnotation => self.as_host_row,
            Kind::Kernel => self.as_kernel,
            _ => false,
        }
    }
}

/// The arguments of an operator that its FLOPs and bytes follow from, as JSON.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RawInputs<'a> {
    pub(crate) dims: Option<&'a [u8]>,
    pub(crate) concrete: Option<&'a [u8]>,
    pub(crate) types: Option<&'a [u8]>,
    pub(crate) strides: Option<&'a [u8]>,
}

/// The FLOPs of a call, the type of its elements, and its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) flops: i64,
    pub(crate) dtype: Option<Dtype>,
    /// See [`least_bytes`].
    pub(crate) min_bytes: Option<i64>,
}

/// FLOPs of the calls so far, by operator and inputs.
#[derive(Debug, Default)]
pub(crate) struct KnownFlops {
    calls: FxHashMap<Box<[u8]>, Option<Call>>,
    /// The key under construction.
    key: Vec<u8>,
}

impl KnownFlops {
    /// Most calls that are kept. Bounds the memory where every call has other inputs.
    const MAX: usize = 1 << 14;
    /// Longest key that is kept, in bytes.
    const MAX_KEY: usize = 1 << 12;

    /// The FLOPs of a call; `None` if the inputs do not determine them.
    pub(crate) fn of(&mut self, name: &[u8], inputs: RawInputs<'_>) -> Option<Call> {
        self.key.clear();
        for part in [Some(name), inputs.dims, inputs.concrete, inputs.types, inputs.strides] {
            // The length comes first, so that different parts never give one key.
            let length = part.map_or(u64::MAX, |part| part.len() as u64);
            self.key.extend_from_slice(&length.to_le_bytes());
            self.key.extend_from_slice(part.unwrap_or_default());
        }
        if let Some(call) = self.calls.get(self.key.as_slice()) {
            return *call;
        }
        let inputs = Inputs::parse(inputs.dims, inputs.concrete).with_elements(inputs.types, inputs.strides);
        let call = flops(name, &inputs).map(|flops| Call {
            flops,
            dtype: inputs.types.iter().flatten().next().copied(),
            min_bytes: least_bytes(name, &inputs),
        });
        if self.calls.len() < Self::MAX && self.key.len() <= Self::MAX_KEY {
            self.calls.insert(self.key.as_slice().into(), call);
        }
        call
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_with_equal_inputs_are_computed_once_and_others_apart() {
        let mut known = KnownFlops::default();
        let mut of = |name: &str, dims: &str, types: Option<&str>| {
            let (dims, types) = (Some(dims.as_bytes()), types.map(str::as_bytes));
            let inputs = RawInputs { dims, types, ..RawInputs::default() };
            known.of(name.as_bytes(), inputs).map(|call| (call.flops, call.dtype))
        };
        let types = Some(r#"["c10::BFloat16", "c10::BFloat16"]"#);
        for _ in 0..2 {
            assert_eq!(of("aten::mm", "[[2, 3], [3, 4]]", types), Some((48, Some(Dtype::Bf16))));
            assert_eq!(of("aten::mm", "[[2, 3], [3, 4]]", None), Some((48, None)));
            assert_eq!(of("aten::mm", "[[2, 3], [3, 5]]", None), Some((60, None)));
            assert_eq!(of("aten::mm", "[[2, 3]]", None), None);
            assert_eq!(of("aten::bmm", "[[2, 3, 4], [2, 4, 5]]", None), Some((240, None)));
        }
        assert_eq!(known.calls.len(), 5);
    }

    #[test]
    fn the_memory_for_ever_new_inputs_is_bounded() {
        let mut known = KnownFlops::default();
        let mut of =
            |dims: &str| known.of(b"aten::mm", RawInputs { dims: Some(dims.as_bytes()), ..RawInputs::default() });
        for k in 0..KnownFlops::MAX as i64 + 9 {
            assert_eq!(of(&format!("[[1, {k}], [{k}, 1]]")).map(|call| call.flops), Some(2 * k));
        }
        let long = format!("[[1, 2], [2, 1]{}]", " ".repeat(KnownFlops::MAX_KEY));
        assert_eq!(of(&long).map(|call| call.flops), Some(4));
        assert_eq!(known.calls.len(), KnownFlops::MAX);
    }
}
