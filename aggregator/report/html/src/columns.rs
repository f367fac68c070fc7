//! Tables as the page holds them: an object with one array for each column. The scripts make rows of them.
//!
//! Names and types of columns come from the declarations in `trace`.

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int32Type, Int64Type};
use serde::{Serialize, Serializer};
use serde_json::Value;
use trace::{Row, RowBuilder, Text};

use crate::string_pool::StringPool;
use model::Error;

/// The names of columns of a row type. A name that its table does not declare is an error of the compiler.
macro_rules! columns {
    ($row:ty: $($column:ident)+) => {{
        let _ = |row: &$row| { $( let _ = &row.$column; )+ };
        &[$( stringify!($column) ),+] as &[&str]
    }};
}
pub(crate) use columns;

/// Columns of a table, in the order of the page.
#[derive(Debug)]
pub(crate) struct Columns(Vec<(String, Column)>);

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Column {
    Values(Vec<Value>),
    /// Numbers of strings in the pool; `null` for no text.
    Texts {
        texts: Vec<Option<usize>>,
    },
}

impl Columns {
    /// The wanted columns of these rows.
    ///
    /// # Errors
    /// [`Error::Trace`], if the table lacks a wanted column, or if a wanted column holds lists.
    pub(crate) fn of<'a, R: Row>(
        rows: impl IntoIterator<Item = &'a R>,
        wanted: &[&str],
        names: &mut StringPool,
    ) -> Result<Self, Error> {
        let mut builder = R::Builder::default();
        rows.into_iter().for_each(|row| builder.push(row));
        let (batch, table) = (builder.finish()?, R::table());
        let column = |name: &&str| {
            let name = *name;
            if let Some(values) = batch.column_by_name(name).and_then(values) {
                return Ok((name.to_string(), Column::Values(values)));
            }
            let column = trace::column::<Option<Text>>(&batch, table.name, name)?;
            let ids: Vec<usize> = column.values().iter().map(|text| names.id(text)).collect();
            let texts = (0..batch.num_rows()).map(|row| column.key(row).map(|key| ids[key])).collect();
            Ok((name.to_string(), Column::Texts { texts }))
        };
        Ok(Self(wanted.iter().map(column).collect::<Result<_, Error>>()?))
    }

    /// Adds a column that the table does not declare, with one value for each row.
    pub(crate) fn with(mut self, name: &str, values: impl IntoIterator<Item = impl Into<Value>>) -> Self {
        self.0.push((name.into(), Column::Values(values.into_iter().map(Into::into).collect())));
        self
    }

    /// Makes text of integers beyond 2⁵³, which JavaScript rounds.
    pub(crate) fn exact(mut self) -> Self {
        for (_, column) in &mut self.0 {
            let Column::Values(values) = column else { continue };
            for value in values.iter_mut().filter(|v| v.as_i64().is_some_and(|n| n.unsigned_abs() > 1 << 53)) {
                *value = value.to_string().into();
            }
        }
        self
    }
}

impl Serialize for Columns {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, column)| (name, column)))
    }
}

/// The cells of a column of numbers or truth values; `None` for other types.
fn values(array: &arrow_array::ArrayRef) -> Option<Vec<Value>> {
    if let Some(array) = array.as_primitive_opt::<Int32Type>() {
        Some(array.iter().map(Value::from).collect())
    } else if let Some(array) = array.as_primitive_opt::<Int64Type>() {
        Some(array.iter().map(Value::from).collect())
    } else if let Some(array) = array.as_primitive_opt::<Float64Type>() {
        Some(array.iter().map(|n| n.map(five_digits).into()).collect())
    } else {
        Some(array.as_boolean_opt()?.iter().map(Value::from).collect())
    }
}

/// Rounds a value to five digits, because further digits are noise and cost bytes.
pub(crate) fn five_digits(value: f64) -> f64 {
    if !value.is_finite() || value == 0.0 {
        return value;
    }
    let scale = 10f64.powi(4 - value.abs().log10().floor() as i32);
    let rounded = (value * scale).round() / scale;
    if rounded.is_finite() { rounded } else { value }
}

#[cfg(test)]
mod tests {
    use trace::StragglerRow;

    use super::*;

    #[test]
    fn wanted_columns_have_their_declared_names_and_exact_values() {
        let row = StragglerRow {
            rank: 3,
            own_excess_ns: (1 << 53) + 1,
            z: Some(f64::INFINITY),
            slowdown: Some(1.234_567),
            evidence_range: Some("a\u{202e}b".into()),
            ..Default::default()
        };
        let mut names = StringPool::default();
        let wanted = columns!(StragglerRow: slowdown z rank own_excess_ns evidence_range);
        let rows = [row, StragglerRow::default()];
        let columns = Columns::of(&rows, wanted, &mut names).unwrap().with("more", [1, 2]);
        assert_eq!(
            serde_json::to_string(&columns.exact()).unwrap(),
            "{\"slowdown\":[1.2346,null],\"z\":[null,null],\"rank\":[3,0],\"own_excess_ns\":[\"9007199254740993\",0],\
             \"evidence_range\":{\"texts\":[0,null]},\"more\":[1,2]}"
        );
        assert_eq!(serde_json::to_string(&names).unwrap(), "[\"a⟨U+202E⟩b\"]");
        let error = Columns::of(&rows, &["no_such_column"], &mut names).unwrap_err();
        assert_eq!(error.to_string(), "table stragglers has no column no_such_column");
    }

    #[test]
    fn rates_keep_five_digits() {
        assert_eq!(five_digits(123.456_789), 123.46);
        assert_eq!(five_digits(0.000_123_456_789), 0.000_123_46);
        assert_eq!(five_digits(0.0), 0.0);
        assert!(five_digits(f64::NAN).is_nan());
        assert_eq!(five_digits(f64::MIN_POSITIVE), f64::MIN_POSITIVE);
    }
}
