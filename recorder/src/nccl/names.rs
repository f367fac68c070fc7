//! NCCL's words in those of the tables.

/// Bytes of an element of `ncclFloat32`, …; `None` for a type that is not known.
pub(super) fn element_bytes(datatype: &str) -> Option<i64> {
    let name = datatype.strip_prefix("nccl").unwrap_or(datatype);
    match name {
        "Int8" | "Uint8" | "Char" | "Float8e4m3" | "Float8e5m2" => Some(1),
        "Float16" | "Half" | "Bfloat16" => Some(2),
        "Int32" | "Int" | "Uint32" | "Float32" | "Float" => Some(4),
        "Int64" | "Uint64" | "Float64" | "Double" => Some(8),
        _ => None,
    }
}

/// `ncclFloat32` → `float32`.
pub(super) fn datatype(name: &str) -> String {
    name.strip_prefix("nccl").unwrap_or(name).to_ascii_lowercase()
}

/// `AllReduce` → `allreduce`: the words of `collectives.op` are NCCL's in small letters.
pub(super) fn operation(func: &str) -> String {
    func.to_ascii_lowercase()
}

/// How many times the elements that NCCL counts the whole array has: it counts one rank's piece of these.
pub(super) fn pieces(operation: &str, ranks: Option<i32>) -> Option<i64> {
    match operation {
        "allgather" | "reducescatter" | "alltoall" | "gather" | "scatter" => ranks.map(i64::from),
        _ => Some(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_the_tables() {
        let known = ["Int8", "Float16", "Float32", "Float64", "Bfloat16", "Float8e4m3", "Complex"];
        let sizes = known.map(|name| element_bytes(&format!("nccl{name}")));
        assert_eq!(sizes, [Some(1), Some(2), Some(4), Some(8), Some(2), Some(1), None]);
        assert_eq!(datatype("ncclFloat32"), "float32");
        let words: Vec<String> =
            ["AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce", "AlltoAll", "Send", "Recv"]
                .map(operation)
                .into();
        let ours = ["allreduce", "allgather", "reducescatter", "broadcast", "reduce", "alltoall", "send", "recv"];
        assert_eq!(words, ours);
        assert_eq!(
            (pieces("allgather", Some(8)), pieces("allreduce", None), pieces("allgather", None)),
            (Some(8), Some(1), None)
        );
    }
}
