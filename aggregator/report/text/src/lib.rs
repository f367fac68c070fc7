//! Text for a terminal: every function takes values and writes them.

pub mod diff;
pub mod grid;
pub mod hang;
pub mod key_averages;
pub mod summary;
pub mod watch;
pub mod what_if;
