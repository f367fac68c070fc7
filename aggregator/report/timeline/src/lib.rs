//! Timelines of all ranks for other tools: Perfetto's format, and Kineto's JSON for Chrome, HTA and TensorBoard.

pub mod chrome;
pub mod perfetto;
