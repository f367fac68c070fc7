//! The ranks that hold a job up, where a run has operations that never ended.

use std::collections::BTreeSet;

use trace::{OmissionRow, Text};

use crate::string_pool::visible_sentence;
use hang::report::Hang;
use model::Error;
use model::analysis::Analysis;
use report_text::hang::picture::picture;
use report_text::hang::write_hang;

/// Characters of a line of text.
const WIDTH: usize = 100;

/// The answer of `hang` for a run.
#[derive(Debug)]
pub(crate) struct Hung {
    /// As in a terminal.
    pub(crate) lines: Vec<String>,
    /// Markup: the output of a template, which escapes all strings.
    pub(crate) picture: String,
}

impl Hung {
    /// The answer, and the data that were not read for it. There is no answer if no rank waits.
    ///
    /// # Errors
    /// [`Error::Output`].
    pub(crate) fn of(
        hang: Result<Option<&Hang>, &OmissionRow>,
        analysis: &Analysis,
    ) -> Result<(Option<Self>, Vec<OmissionRow>), Error> {
        let hang = match hang {
            Ok(Some(hang)) => hang,
            Ok(None) => return Ok((None, Vec::new())),
            Err(omission) => return Ok((None, vec![omission.clone()])),
        };
        let mut text = Vec::new();
        write_hang(hang, WIDTH, &mut text)?;
        let lines = String::from_utf8_lossy(&text).lines().map(visible_sentence).collect();
        let hung = picture(hang)?.map(|picture| Self { lines, picture });
        let listed: BTreeSet<_> = analysis.tables.omissions.iter().map(said).collect();
        let omissions = hang.omissions.iter().filter(|row| !listed.contains(&said(row))).cloned().collect();
        Ok((hung, omissions))
    }
}

/// The content of an omission without its place.
pub(crate) fn said(row: &OmissionRow) -> (Option<i32>, Text, Text) {
    (row.rank, row.what.clone(), row.why.clone())
}
