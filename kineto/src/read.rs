//! Traces of a job: which file holds which rank and window, and their files to one [`RankData`](trace::rank::RankData).

mod archive;
mod dump_begin;
mod dumps;
mod files;
mod find;
mod flight_dumps;
mod formats;
mod jobs;
pub(crate) mod join_windows;
pub(crate) mod load;
mod merged;
mod names;
mod probe;
mod replicas;
mod survey;
#[cfg(test)]
mod tests;
mod trace_file;
mod windows;

pub use files::{Plan, PlanOptions, file_name, plan};
pub use flight_dumps::{FlightDumps, flight_dumps};
pub use formats::RecognizeOther;
pub use join_windows::{load_windows, load_windows_detailed, load_windows_rows};
#[cfg(feature = "fuzzing")]
pub use load::check_any_blocks;
pub use load::{Parsed, load, load_detailed, parse_only};
pub use names::rank_of_name;
pub use trace_file::{RankSource, Replica, TraceFile, Window, WindowChoice};
