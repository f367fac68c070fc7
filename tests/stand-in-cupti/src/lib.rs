//! Stands in for libcupti in tests: the functions that rankscope calls, and records as the headers of CUDA 12.4 to 13.5
//! lay them out. The layouts are written down here as C structs, independently of the offsets that the recorder reads
//! by, so that each is a check of the other.
//!
//! `STAND_IN_CUPTI` says how it behaves, as words separated by commas:
//!
//! * `version=130001`: what `cuptiGetVersion` returns, and with it which records there are.
//! * `busy`: somebody else is subscribed. `no_clock`: the timestamp callback is refused. `no_iterator`: so is
//!   `cuptiActivityGetNextRecord`. `no_driver_calls`: so are single driver calls. `no_external`: so are external
//!   correlation ids.
//! * `hold`: full buffers are handed back with the next flush only.
//! * `truncate`: every buffer is handed back without its last four bytes.

mod ffi;
pub mod records;
mod state;
