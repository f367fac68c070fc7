//! The ranks that hold a job up, where a run has operations that never ended.

use std::collections::BTreeSet;

use trace::OmissionRow;

use crate::Error;
use crate::hang::report::Hang;
use crate::hang::run::stalled;
use crate::ingest::source::{RunSource, Source};
use crate::model::analysis::Analysis;
use crate::render::hang::picture::picture;
use crate::render::hang::write_hang;
use crate::render::html::said;
use crate::render::html::string_pool::visible_sentence;

/// Characters of a line of text.
const WIDTH: usize = 100;

/// What `hang` says of a run.
#[derive(Debug)]
pub(super) struct Hung {
    /// As in a terminal.
    pub(super) lines: Vec<String>,
    /// Markup: the output of a template, which escapes all strings.
    pub(super) picture: String,
}

impl Hung {
    /// The answer for a run with an operation that never ended or a rank that was stalled, and what was not read for it; no answer if no rank waits.
    ///
    /// # Errors
    /// [`Error::Output`].
    pub(super) fn of(source: &dyn Source, analysis: &Analysis) -> Result<(Option<Self>, Vec<OmissionRow>), Error> {
        let is_hung = |run: &&RunSource| {
            !analysis.tables.unfinished_collectives.is_empty() || !matches!(stalled(&run.info().path), Ok(None))
        };
        let Some(run) = source.as_run().filter(is_hung) else { return Ok((None, Vec::new())) };
        let hang = match Hang::of_run(run) {
            Ok(hang) => hang,
            Err(error) => return Ok((None, vec![OmissionRow::lost("ranks that hold the job up", error.to_string())])),
        };
        let mut text = Vec::new();
        write_hang(&hang, WIDTH, &mut text)?;
        let lines = String::from_utf8_lossy(&text).lines().map(visible_sentence).collect();
        let hung = picture(&hang)?.map(|picture| Self { lines, picture });
        let listed: BTreeSet<_> = analysis.tables.omissions.iter().map(said).collect();
        let omissions = hang.omissions.into_iter().filter(|row| !listed.contains(&said(row))).collect();
        Ok((hung, omissions))
    }
}
