//! A stand-in for libcupti in tests: the functions that rankscope calls, and records with the layouts of the headers of
//! CUDA 12.4 to 13.5. The layouts are declared here as C structs, independently of the offsets in rankscope, so that each
//! checks the other.
//!
//! `STAND_IN_CUPTI` selects its behaviour, as words separated by commas:
//!
//! * `version=130001`: the result of `cuptiGetVersion`, which determines the records.
//! * `busy`: another profiler is subscribed. It refuses: `no_clock` the timestamp callback, `no_iterator`
//!   `cuptiActivityGetNextRecord`, `no_driver_calls` single driver calls, `no_runtime_calls` single
//!   runtime calls, `no_external` external correlation ids.
//! * `hold`: it hands full buffers back only with the next flush.
//! * `truncate`: it hands every buffer back without its last four bytes.

mod ffi;
pub mod records;
mod state;
