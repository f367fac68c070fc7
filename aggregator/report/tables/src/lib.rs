//! The analysis as Parquet files, JSON and SQL views.

pub mod json;
pub mod parquet;
pub mod views;
