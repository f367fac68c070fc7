//! Renderers: every one prints the same [`Analysis`](crate::Analysis).

pub mod grid;
pub mod json;
pub mod parquet;
pub mod perfetto;
pub mod summary;
pub mod text;
pub mod views;
