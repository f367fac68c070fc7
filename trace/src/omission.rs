//! Rows of `omissions`, built from the parts that are known.

use crate::{OmissionRow, Text};

/// Files beside the traces, such as a README or TensorBoard's event files.
pub const OTHER_FILES: &str = "files without traces";
/// Windows of a profiler that were put together.
pub const SEVERAL_WINDOWS: &str = "windows of the profiler";

impl OmissionRow {
    /// States that `what` was left out, and why. Its amount, rank and file are unknown.
    pub fn new(what: impl Into<Text>, why: impl Into<Text>) -> Self {
        Self { what: what.into(), why: why.into(), ..Self::default() }
    }

    /// Whether data was lost or could not be read. Otherwise the row is a remark on the input.
    pub fn is_loss(&self) -> bool {
        !matches!(&*self.what, OTHER_FILES | SEVERAL_WINDOWS)
    }

    /// Names the rank.
    #[must_use]
    pub fn rank(self, rank: impl Into<Option<i32>>) -> Self {
        Self { rank: rank.into(), ..self }
    }

    /// Names the file.
    #[must_use]
    pub fn file(self, file: impl Into<Option<Text>>) -> Self {
        Self { file: file.into(), ..self }
    }

    /// States the amount, in the unit that `what` names.
    #[must_use]
    pub fn amount(self, amount: impl Into<Option<i64>>) -> Self {
        Self { amount: amount.into(), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_omission_is_built_from_the_parts_that_are_known() {
        let known = OmissionRow::new("rows", "the file is damaged").rank(3).file(Text::from("a.json")).amount(7);
        let literal = OmissionRow {
            file: Some("a.json".into()),
            rank: Some(3),
            what: "rows".into(),
            amount: Some(7),
            why: "the file is damaged".into(),
        };
        assert_eq!(known, literal);
        let unknown = OmissionRow::new("rank", "why").rank(None).amount(None);
        assert!(unknown.is_loss() && !OmissionRow::new(OTHER_FILES, "README.md").is_loss());
        assert_eq!((unknown.file, unknown.rank, unknown.amount), (None, None, None));
    }
}
