//! The columns of Parquet and Arrow files that other programs wrote, whatever types they chose.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, DurationNanosecondType, Int8Type, Int16Type, Int32Type, Int64Type, TimestampNanosecondType,
    UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, Int64Array};
use arrow_schema::{DataType, TimeUnit};
use trace::RecordBatch;

/// A column of a batch.
pub(crate) enum Column {
    /// Of no type that is read, or not in the file.
    Absent,
    Integers(Int64Array),
    /// Texts or bytes.
    Bytes(ArrayRef),
    /// Texts or bytes by their numbers in a dictionary, and the rows without a value.
    Dictionary {
        keys: Vec<usize>,
        rows: ArrayRef,
        values: ArrayRef,
    },
}

impl Column {
    /// A column by its name.
    pub(crate) fn of(batch: &RecordBatch, name: &str) -> Self {
        let Some(array) = batch.column_by_name(name) else { return Self::Absent };
        if let Some(integers) = integers(array) {
            return Self::Integers(integers);
        }
        match array.data_type() {
            DataType::Dictionary(..) => {
                let dictionary = array.as_any_dictionary();
                if dictionary.values().is_empty() {
                    return Self::Absent;
                }
                let (keys, values) = (dictionary.normalized_keys(), dictionary.values().clone());
                Self::Dictionary { keys, rows: array.clone(), values }
            }
            kind if is_bytes(kind) => Self::Bytes(array.clone()),
            _ => Self::Absent,
        }
    }

    /// Whether a row has no value.
    pub(crate) fn is_null(&self, row: usize) -> bool {
        match self {
            Self::Absent => true,
            Self::Integers(integers) => integers.is_null(row),
            Self::Bytes(array) => array.is_null(row),
            Self::Dictionary { rows, .. } => rows.is_null(row),
        }
    }

    /// The number of a row; `None` for other types too.
    pub(crate) fn integer(&self, row: usize) -> Option<i64> {
        match self {
            Self::Integers(integers) if integers.is_valid(row) => Some(integers.value(row)),
            _ => None,
        }
    }

    /// The bytes of a text, or bytes.
    pub(crate) fn bytes(&self, row: usize) -> Option<&[u8]> {
        if self.is_null(row) {
            return None;
        }
        match self {
            Self::Absent | Self::Integers(_) => None,
            Self::Bytes(array) => value(array, row),
            Self::Dictionary { keys, values, .. } => value(values, *keys.get(row)?),
        }
    }

    /// Whether its values are texts.
    pub(crate) fn is_text(&self) -> bool {
        match self {
            Self::Absent | Self::Integers(_) => false,
            Self::Bytes(array) | Self::Dictionary { values: array, .. } => is_text(array.data_type()),
        }
    }
}

fn is_text(kind: &DataType) -> bool {
    matches!(kind, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

fn is_bytes(kind: &DataType) -> bool {
    is_text(kind)
        || matches!(
            kind,
            DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_)
        )
}

fn value(array: &ArrayRef, row: usize) -> Option<&[u8]> {
    if array.is_null(row) {
        return None;
    }
    Some(match array.data_type() {
        DataType::Utf8 => array.as_string::<i32>().value(row).as_bytes(),
        DataType::LargeUtf8 => array.as_string::<i64>().value(row).as_bytes(),
        DataType::Utf8View => array.as_string_view().value(row).as_bytes(),
        DataType::Binary => array.as_binary::<i32>().value(row),
        DataType::LargeBinary => array.as_binary::<i64>().value(row),
        DataType::BinaryView => array.as_binary_view().value(row),
        DataType::FixedSizeBinary(_) => array.as_fixed_size_binary().value(row),
        _ => return None,
    })
}

/// A column of numbers as those that SQLite holds: unsigned ones of 64 bits keep their bits.
fn integers(array: &ArrayRef) -> Option<Int64Array> {
    fn wide<T: ArrowPrimitiveType>(array: &ArrayRef) -> Int64Array
    where
        i64: From<T::Native>,
    {
        array.as_primitive::<T>().unary(i64::from)
    }
    Some(match array.data_type() {
        DataType::Int8 => wide::<Int8Type>(array),
        DataType::Int16 => wide::<Int16Type>(array),
        DataType::Int32 => wide::<Int32Type>(array),
        DataType::Int64 => array.as_primitive::<Int64Type>().clone(),
        DataType::UInt8 => wide::<UInt8Type>(array),
        DataType::UInt16 => wide::<UInt16Type>(array),
        DataType::UInt32 => wide::<UInt32Type>(array),
        DataType::UInt64 => array.as_primitive::<UInt64Type>().unary(u64::cast_signed),
        DataType::Boolean => array.as_boolean().iter().map(|value| value.map(i64::from)).collect(),
        DataType::Timestamp(TimeUnit::Nanosecond, _) => {
            array.as_primitive::<TimestampNanosecondType>().reinterpret_cast::<Int64Type>()
        }
        DataType::Duration(TimeUnit::Nanosecond) => {
            array.as_primitive::<DurationNanosecondType>().reinterpret_cast::<Int64Type>()
        }
        _ => return None,
    })
}
