//! A kind of finding, and the input of all kinds. This module imports no finding; `FINDINGS` lists them.

/// Declares a kind of finding beside the function that finds it: its documentation, its name, its id and that function.
macro_rules! kind {
    ($(#[doc = $doc:literal])+ $name:ident: $id:literal, by $find:path) => {
        kind! { @ $($doc)+ $name: $id, $find, false }
    };
    ($(#[doc = $doc:literal])+ $name:ident: $id:literal, makes numbers invalid, by $find:path) => {
        kind! { @ $($doc)+ $name: $id, $find, true }
    };
    (@ $($doc:literal)+ $name:ident: $id:literal, $find:path, $invalidates:literal) => {
        $(#[doc = $doc])+
        pub(crate) static $name: $crate::FindingKind = $crate::FindingKind {
            id: $id,
            doc: concat!($($doc, "\n"),+),
            invalidates: $invalidates,
            find: |context| Vec::from_iter($find(context)),
        };
    };
}

#[cfg(test)]
use trace::FindingRow;

use crate::devices::{Devices, devices_of};
use crate::finding::Found;
use crate::rank_facts::OfRanks;
use model::analysis::Analysis;
use model::limits::Limits;
use model::options::Options;

/// A kind of finding.
#[derive(Debug)]
pub struct FindingKind {
    /// Its name in kebab case, which never changes: the column `id`, by which programs know the finding.
    pub id: &'static str,
    /// Its documentation: what it says, and after an empty line the bound of its saving if it predicts one.
    pub doc: &'static str,
    /// Whether it makes other numbers invalid. Such findings come first.
    pub(crate) invalidates: bool,
    /// Looks for it.
    pub(crate) find: fn(&Context<'_>) -> Vec<Found>,
}

/// The data that every finding reads.
pub(crate) struct Context<'a> {
    pub(crate) analysis: &'a Analysis,
    pub(crate) options: &'a Options,
    pub(crate) ranks: &'a OfRanks,
    /// The time of each device in its steps.
    pub(crate) devices: Devices,
}

impl<'a> Context<'a> {
    pub(crate) fn new(analysis: &'a Analysis, options: &'a Options, ranks: &'a OfRanks) -> Self {
        Self { analysis, options, ranks, devices: devices_of(analysis) }
    }

    pub(crate) fn limits(&self) -> &'a Limits {
        &self.options.limits
    }
}

impl FindingKind {
    /// The findings of this kind.
    pub(crate) fn found(&self, context: &Context<'_>) -> Vec<Found> {
        let mut all = (self.find)(context);
        for found in &mut all {
            found.claim.by = self.id;
            found.row.id = self.id.into();
            // The named device may have longer steps than the median one.
            let step_ns = context.analysis.verdict.step_ns;
            found.row.saving_ns = found.row.saving_ns.map(|ns| ns.min(step_ns.unwrap_or(ns)));
        }
        all
    }

    /// The findings in tables alone, with the default options.
    #[cfg(test)]
    pub(crate) fn in_tables(&self, analysis: &Analysis) -> Vec<FindingRow> {
        self.within(analysis, &Options::default())
    }

    #[cfg(test)]
    pub(crate) fn within(&self, analysis: &Analysis, options: &Options) -> Vec<FindingRow> {
        let found = self.found(&Context::new(analysis, options, &OfRanks::default()));
        found.into_iter().map(|found| found.row).collect()
    }
}
