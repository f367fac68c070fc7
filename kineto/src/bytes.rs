//! Bytes of a file to JSON tokens, numbers and strings. Nothing here knows what an event means.

#[cfg(test)]
pub(crate) mod any_json;
pub(crate) mod gunzip;
pub(crate) mod input;
pub(crate) mod json;
pub(crate) mod layout;
pub(crate) mod memory;
pub(crate) mod number;
pub mod pickle;
pub(crate) mod text;
pub(crate) mod value;
pub mod visit;
