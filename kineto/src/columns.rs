//! JSON to columns: the header of the document, and one row for each complete event.

pub(crate) mod args;
pub(crate) mod batch;
mod by_text;
pub(crate) mod event;
pub(crate) mod header;
mod order;
mod piece;
pub(crate) mod processes;
pub(crate) mod rows;
pub(crate) mod stream;
pub(crate) mod unknown;
pub(crate) mod wanted_args;
