//! The types of cells, and how a cell enters and leaves an Arrow array.
//!
//! A cell is an `i32`, `i64`, `f64`, `bool`, [`Text`], [`Word`] or `Vec<i32>`, `Vec<i64>`, or an `Option` of these. The Rust type
//! alone decides the Arrow type and the nullability, so a schema cannot disagree with the code that fills it.

use std::ops::Deref;
use std::sync::Arc;

use arrow_array::builder::{
    ArrayBuilder, BooleanBuilder, Float64Builder, Int32Builder, Int64Builder, ListBuilder, StringDictionaryBuilder,
};
use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int32Type, Int64Type};
use arrow_array::{Array, ArrayRef, BooleanArray, Float64Array, Int32Array, Int64Array, ListArray, StringArray};
use arrow_schema::{DataType, Field};

use crate::word::shortened;
use crate::{Text, Vocabulary, Word};

/// One word of a vocabulary, with its sentence.
pub type DocumentedWord = (&'static str, &'static str);

/// The vocabulary of a column, for its documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VocabularyInfo {
    /// Name of the vocabulary.
    pub name: &'static str,
    /// Its words, in the order of declaration.
    pub words: Vec<DocumentedWord>,
}

/// A value that can stand in a column.
pub trait Cell: Sized {
    /// Whether the column may hold nulls.
    const NULLABLE: bool;
    /// The type's name in the documentation.
    const TYPE_NAME: &'static str;
    /// Collects cells.
    type Builder;
    /// Reads cells.
    type Column: Clone + std::fmt::Debug;
    /// The Arrow type.
    fn data_type() -> DataType;
    /// The vocabulary, where the type has one.
    fn vocabulary() -> Option<VocabularyInfo> {
        None
    }
    /// An empty builder.
    fn builder() -> Self::Builder;
    /// Adds one cell.
    fn append(&self, builder: &mut Self::Builder);
    /// Ends the column.
    fn finish(builder: &mut Self::Builder) -> ArrayRef;
    /// Opens an array for reading; `None` if it has another type, or nulls where there may be none.
    fn open(array: &dyn Array) -> Option<Self::Column>;
    /// The cell at `row`.
    ///
    /// # Panics
    /// If `row` is beyond the column.
    fn get(column: &Self::Column, row: usize) -> Self;
}

macro_rules! primitive_cell {
    ($rust:ty, $name:literal, $data_type:expr, $builder:ty, $array:ty, $open:expr) => {
        impl Cell for $rust {
            const NULLABLE: bool = false;
            const TYPE_NAME: &'static str = $name;
            type Builder = $builder;
            type Column = $array;
            fn data_type() -> DataType {
                $data_type
            }
            fn builder() -> Self::Builder {
                <$builder>::new()
            }
            fn append(&self, builder: &mut Self::Builder) {
                builder.append_value(*self);
            }
            fn finish(builder: &mut Self::Builder) -> ArrayRef {
                ArrayBuilder::finish(builder)
            }
            fn open(array: &dyn Array) -> Option<Self::Column> {
                <Option<$rust>>::open(array).filter(|a| a.null_count() == 0)
            }
            fn get(column: &Self::Column, row: usize) -> Self {
                column.value(row)
            }
        }

        impl Cell for Option<$rust> {
            const NULLABLE: bool = true;
            const TYPE_NAME: &'static str = $name;
            type Builder = $builder;
            type Column = $array;
            fn data_type() -> DataType {
                $data_type
            }
            fn builder() -> Self::Builder {
                <$builder>::new()
            }
            fn append(&self, builder: &mut Self::Builder) {
                builder.append_option(*self);
            }
            fn finish(builder: &mut Self::Builder) -> ArrayRef {
                ArrayBuilder::finish(builder)
            }
            fn open(array: &dyn Array) -> Option<Self::Column> {
                let open: fn(&dyn Array) -> Option<$array> = $open;
                open(array)
            }
            fn get(column: &Self::Column, row: usize) -> Self {
                column.is_valid(row).then(|| column.value(row))
            }
        }
    };
}

primitive_cell!(i32, "INTEGER", DataType::Int32, Int32Builder, Int32Array, |a| {
    a.as_primitive_opt::<Int32Type>().cloned()
});
primitive_cell!(i64, "BIGINT", DataType::Int64, Int64Builder, Int64Array, |a| {
    a.as_primitive_opt::<Int64Type>().cloned()
});
primitive_cell!(f64, "DOUBLE", DataType::Float64, Float64Builder, Float64Array, |a| {
    a.as_primitive_opt::<Float64Type>().cloned()
});
primitive_cell!(bool, "BOOLEAN", DataType::Boolean, BooleanBuilder, BooleanArray, |a| { a.as_boolean_opt().cloned() });

/// A column of strings, opened for reading. Cells with the same key share one string. Strings longer than
/// [`MAX_TEXT_BYTES`](crate::MAX_TEXT_BYTES) are shortened; [`Shard::read`](crate::Shard::read) counts them.
#[derive(Clone, Debug)]
pub struct TextColumn {
    keys: Int32Array,
    values: Vec<Text>,
}

impl TextColumn {
    /// The dictionary, in the order of its keys.
    pub fn values(&self) -> &[Text] {
        &self.values
    }

    /// The position in [`values`](Self::values) of the cell at `row`; `None` for null.
    pub fn key(&self, row: usize) -> Option<usize> {
        self.keys.is_valid(row).then(|| self.keys.value(row) as usize)
    }

    /// Whether any cell is not null.
    pub fn has_values(&self) -> bool {
        self.keys.null_count() < self.keys.len()
    }

    fn cell(&self, row: usize) -> Option<Text> {
        self.key(row).map(|key| self.values[key].clone())
    }

    fn open(array: &dyn Array) -> Option<Self> {
        if let Some(strings) = array.as_string_opt::<i32>() {
            return Some(Self::of_plain(strings));
        }
        let dictionary = array.as_dictionary_opt::<Int32Type>()?;
        let strings = dictionary.values().as_string_opt::<i32>()?;
        let value = |at: usize| if strings.is_valid(at) { shortened(strings.value(at)) } else { "" };
        let values: Vec<Text> = (0..strings.len()).map(|at| value(at).into()).collect();
        let keys = dictionary.keys().clone();
        // A hostile file may hold keys beyond its dictionary; refuse it here so that every later look-up is in bounds.
        let in_bounds = keys.iter().flatten().all(|key| key >= 0 && (key as usize) < values.len());
        in_bounds.then_some(Self { keys, values })
    }

    /// A column without a dictionary: every cell has a value of its own.
    fn of_plain(strings: &StringArray) -> Self {
        if strings.null_count() == strings.len() {
            return Self { keys: Int32Array::new_null(strings.len()), values: Vec::new() };
        }
        let mut next = 0..;
        let keys = strings.iter().map(|cell| cell.and_then(|_| next.next())).collect();
        Self { keys, values: strings.iter().flatten().map(|text| shortened(text).into()).collect() }
    }
}

fn dictionary_type() -> DataType {
    DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8))
}

impl Cell for Text {
    const NULLABLE: bool = false;
    const TYPE_NAME: &'static str = "VARCHAR";
    type Builder = StringDictionaryBuilder<Int32Type>;
    type Column = TextColumn;
    fn data_type() -> DataType {
        dictionary_type()
    }
    fn builder() -> Self::Builder {
        StringDictionaryBuilder::new()
    }
    fn append(&self, builder: &mut Self::Builder) {
        builder.append_value(self);
    }
    fn finish(builder: &mut Self::Builder) -> ArrayRef {
        ArrayBuilder::finish(builder)
    }
    fn open(array: &dyn Array) -> Option<Self::Column> {
        TextColumn::open(array).filter(|c| c.keys.null_count() == 0)
    }
    fn get(column: &Self::Column, row: usize) -> Self {
        column.values[column.keys.value(row) as usize].clone()
    }
}

impl Cell for Option<Text> {
    const NULLABLE: bool = true;
    const TYPE_NAME: &'static str = "VARCHAR";
    type Builder = StringDictionaryBuilder<Int32Type>;
    type Column = TextColumn;
    fn data_type() -> DataType {
        dictionary_type()
    }
    fn builder() -> Self::Builder {
        StringDictionaryBuilder::new()
    }
    fn append(&self, builder: &mut Self::Builder) {
        builder.append_option(self.as_deref());
    }
    fn finish(builder: &mut Self::Builder) -> ArrayRef {
        ArrayBuilder::finish(builder)
    }
    fn open(array: &dyn Array) -> Option<Self::Column> {
        TextColumn::open(array)
    }
    fn get(column: &Self::Column, row: usize) -> Self {
        column.cell(row)
    }
}

/// A column of words opened for reading: its dictionary is decoded once.
#[derive(Clone, Debug)]
pub struct WordColumn<V: Vocabulary> {
    text: TextColumn,
    words: Vec<Word<V>>,
}

impl<V: Vocabulary> WordColumn<V> {
    /// The dictionary, in the order of its keys.
    pub fn words(&self) -> &[Word<V>] {
        &self.words
    }

    fn new(text: TextColumn) -> Self {
        let words = text.values.iter().cloned().map(Word::from).collect();
        Self { text, words }
    }
}

impl<V: Vocabulary> Deref for WordColumn<V> {
    type Target = TextColumn;
    fn deref(&self) -> &TextColumn {
        &self.text
    }
}

fn vocabulary_info<V: Vocabulary>() -> VocabularyInfo {
    VocabularyInfo { name: V::NAME, words: V::ALL.iter().map(|word| (word.as_str(), word.doc())).collect() }
}

impl<V: Vocabulary> Cell for Word<V> {
    const NULLABLE: bool = false;
    const TYPE_NAME: &'static str = "VARCHAR";
    type Builder = StringDictionaryBuilder<Int32Type>;
    type Column = WordColumn<V>;
    fn data_type() -> DataType {
        dictionary_type()
    }
    fn vocabulary() -> Option<VocabularyInfo> {
        Some(vocabulary_info::<V>())
    }
    fn builder() -> Self::Builder {
        StringDictionaryBuilder::new()
    }
    fn append(&self, builder: &mut Self::Builder) {
        builder.append_value(self.as_str());
    }
    fn finish(builder: &mut Self::Builder) -> ArrayRef {
        ArrayBuilder::finish(builder)
    }
    fn open(array: &dyn Array) -> Option<Self::Column> {
        <Text as Cell>::open(array).map(WordColumn::new)
    }
    fn get(column: &Self::Column, row: usize) -> Self {
        column.words[column.keys.value(row) as usize].clone()
    }
}

impl<V: Vocabulary> Cell for Option<Word<V>> {
    const NULLABLE: bool = true;
    const TYPE_NAME: &'static str = "VARCHAR";
    type Builder = StringDictionaryBuilder<Int32Type>;
    type Column = WordColumn<V>;
    fn data_type() -> DataType {
        dictionary_type()
    }
    fn vocabulary() -> Option<VocabularyInfo> {
        Some(vocabulary_info::<V>())
    }
    fn builder() -> Self::Builder {
        StringDictionaryBuilder::new()
    }
    fn append(&self, builder: &mut Self::Builder) {
        builder.append_option(self.as_ref().map(Word::as_str));
    }
    fn finish(builder: &mut Self::Builder) -> ArrayRef {
        ArrayBuilder::finish(builder)
    }
    fn open(array: &dyn Array) -> Option<Self::Column> {
        TextColumn::open(array).map(WordColumn::new)
    }
    fn get(column: &Self::Column, row: usize) -> Self {
        column.key(row).map(|key| column.words[key].clone())
    }
}

/// Lists of numbers.
macro_rules! list_cell {
    ($($item:ty, $name:literal, $data:ident, $type:ident, $builder:ident;)*) => {$(
        impl Cell for Option<Vec<$item>> {
            const NULLABLE: bool = true;
            const TYPE_NAME: &'static str = $name;
            type Builder = ListBuilder<$builder>;
            type Column = ListArray;
            fn data_type() -> DataType {
                DataType::List(Arc::new(Field::new("item", DataType::$data, true)))
            }
            fn builder() -> Self::Builder {
                ListBuilder::new($builder::new())
            }
            fn append(&self, builder: &mut Self::Builder) {
                match self {
                    Some(items) => {
                        builder.values().append_slice(items);
                        builder.append(true);
                    }
                    None => builder.append(false),
                }
            }
            fn finish(builder: &mut Self::Builder) -> ArrayRef {
                ArrayBuilder::finish(builder)
            }
            fn open(array: &dyn Array) -> Option<Self::Column> {
                let list = array.as_list_opt::<i32>()?;
                list.values().as_primitive_opt::<$type>()?;
                Some(list.clone())
            }
            fn get(column: &Self::Column, row: usize) -> Self {
                column
                    .is_valid(row)
                    .then(|| column.value(row).as_primitive::<$type>().iter().map(Option::unwrap_or_default).collect())
            }
        }
    )*};
}

list_cell! {
    i32, "INTEGER[]", Int32, Int32Type, Int32Builder;
    i64, "BIGINT[]", Int64, Int64Type, Int64Builder;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_read_with_and_without_a_dictionary() {
        let cells = [Some("a"), None, Some(""), Some("a")];
        let mut builder = <Option<Text> as Cell>::builder();
        cells.iter().for_each(|cell| cell.map(Text::from).append(&mut builder));
        let dictionary = <Option<Text> as Cell>::finish(&mut builder);
        let plain: ArrayRef = Arc::new(StringArray::from(cells.to_vec()));
        for array in [dictionary, plain] {
            let column = <Option<Text> as Cell>::open(array.as_ref()).unwrap();
            let read: Vec<Option<Text>> = (0..4).map(|row| Cell::get(&column, row)).collect();
            assert_eq!(read, cells.map(|cell| cell.map(Text::from)));
            assert!(column.has_values() && <Text as Cell>::open(array.as_ref()).is_none(), "it has a null");
        }
        let nothing = StringArray::new_null(3);
        let column = <Option<Text> as Cell>::open(&nothing).unwrap();
        assert!(!column.has_values() && column.values().is_empty() && column.key(2).is_none());
    }
}
