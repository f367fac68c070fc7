//! The size of a collective: from its metadata (torch ≥ 2.4), else from the shapes of its inputs.

use crate::bytes::value::Value;
use crate::meaning::names;

/// Elements, their type and their bytes, of the whole array.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) dtype: Option<&'static str>,
    pub(crate) count: Option<i64>,
    pub(crate) bytes: Option<i64>,
}

impl Size {
    /// From the arguments of `record_param_comms`. The whole array is the output of an all-gather and the input of a
    /// reduce-scatter.
    pub(crate) fn from_record(record: &Value, op: &str) -> Option<Self> {
        let elements = |key: &str| record.get(key).and_then(Value::integer).filter(|n| *n >= 0);
        let count = match op {
            "allgather" | "gather" => elements("Out msg nelems"),
            "recv" | "broadcast" => elements("In msg nelems").filter(|n| *n > 0).or_else(|| elements("Out msg nelems")),
            _ => elements("In msg nelems"),
        }?;
        let (dtype, size) = record.get("dtype").and_then(Value::text).and_then(names::dtype)?;
        Some(Self { dtype: Some(dtype), count: Some(count), bytes: count.checked_mul(size) })
    }

    /// From the shapes of a rank's input. The output of an all-gather has one such input of every rank of the group.
    pub(crate) fn from_shapes(args: &Value, op: &str, group_size: Option<i32>) -> Option<Self> {
        let (count, dtype) = tensors(args)?;
        let (dtype, size) = names::dtype(dtype?)?;
        let ranks = if matches!(op, "allgather" | "gather") { group_size.map(i64::from) } else { Some(1) };
        let count = ranks.and_then(|ranks| count.checked_mul(ranks));
        Some(Self { dtype: Some(dtype), count, bytes: count.and_then(|count| count.checked_mul(size)) })
    }

    /// The sum of two operations of one kernel. Type and count are `None` if the types differ.
    pub(crate) fn plus(self, other: Self) -> Self {
        let both = |a: Option<i64>, b: Option<i64>| a?.checked_add(b?);
        let alike = self.dtype == other.dtype;
        Self {
            dtype: self.dtype.filter(|_| alike),
            count: both(self.count, other.count).filter(|_| alike),
            bytes: both(self.bytes, other.bytes),
        }
    }
}

/// Elements and type of the first input that is a tensor or a list of tensors.
pub(crate) fn tensors(args: &Value) -> Option<(i64, Option<&str>)> {
    let dims = args.get("Input Dims")?.items();
    let types = args.get("Input type").map(Value::items).unwrap_or_default();
    let at = dims.iter().position(|dims| !dims.items().is_empty())?;
    let shape = &dims[at];
    let list = shape.items().iter().all(|d| matches!(d, Value::List(_)));
    let count = if list {
        shape.items().iter().try_fold(0i64, |sum, one| sum.checked_add(product(one)?))?
    } else {
        product(shape)?
    };
    Some((count, types.get(at).and_then(Value::text)))
}

fn product(dims: &Value) -> Option<i64> {
    dims.integers()?.into_iter().try_fold(1i64, i64::checked_mul)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Value {
        Value::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn the_whole_array_counts() {
        let record = value(r#"{"In msg nelems": 100, "Out msg nelems": 800, "dtype": "BFloat16"}"#);
        let bytes = |op: &str| Size::from_record(&record, op).unwrap().bytes;
        assert_eq!(
            (bytes("allreduce"), bytes("allgather"), bytes("reducescatter")),
            (Some(200), Some(1600), Some(200))
        );
        assert_eq!(Size::from_record(&value(r#"{"In msg nelems": 1}"#), "allreduce"), None);
    }

    #[test]
    fn shapes_stand_in_for_metadata() {
        let args = value(r#"{"Input Dims": [[], [394241]], "Input type": ["", "float"]}"#);
        let size = Size::from_shapes(&args, "allreduce", None).unwrap();
        assert_eq!(size, Size { dtype: Some("f32"), count: Some(394_241), bytes: Some(4 * 394_241) });
        let gather = Size::from_shapes(&args, "allgather", Some(8)).unwrap();
        assert_eq!(gather.bytes, Some(8 * 4 * 394_241));
        assert_eq!(Size::from_shapes(&args, "allgather", None).unwrap().bytes, None);
        let list = value(r#"{"Input Dims": [[[2, 3], [4]]], "Input type": ["TensorList"]}"#);
        assert_eq!(tensors(&list), Some((10, Some("TensorList"))));
        assert_eq!(Size::from_shapes(&list, "allreduce", None), None);
    }

    #[test]
    fn sums_of_different_types_have_bytes_only() {
        let float = Size { dtype: Some("f32"), count: Some(2), bytes: Some(8) };
        let half = Size { dtype: Some("f16"), count: Some(2), bytes: Some(4) };
        assert_eq!(float.plus(float).count, Some(4));
        assert_eq!(float.plus(half), Size { dtype: None, count: None, bytes: Some(12) });
    }
}
