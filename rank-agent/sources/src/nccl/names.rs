//! Converts NCCL's names to the words of the tables.

/// Size of an element of `ncclFloat32`, … in bytes; `None` for an unknown type.
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

/// Converts `ncclFloat32` to `float32`.
pub(super) fn datatype(name: &str) -> String {
    name.strip_prefix("nccl").unwrap_or(name).to_ascii_lowercase()
}

/// Converts `AllReduce` to `allreduce`: `collectives.op` has NCCL's names in lower case.
pub(super) fn operation(func: &str) -> String {
    func.to_ascii_lowercase()
}

/// Number of pieces of the whole array: for some operations NCCL counts the elements of one rank's piece.
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
    fn names_become_the_words_of_the_tables() {
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
