//! Renderers: every one prints the same [`Analysis`](crate::Analysis).

pub mod chrome;
pub mod diff;
pub mod grid;
pub(crate) mod hang;
pub mod html;
pub mod json;
pub mod key_averages;
pub mod parquet;
pub mod perfetto;
mod rank_order;
pub mod shown_ranks;
pub mod summary;
pub mod views;
pub(crate) mod watch;
pub(crate) mod what_if;
