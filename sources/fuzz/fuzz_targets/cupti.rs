//! The parser of CUPTI's records: no bytes may make it panic or read outside of them.
//!
//! ```console
//! $ cd sources && cargo +nightly fuzz run --features libfuzzer cupti
//! ```
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| sources::cupti::record::check_any_bytes(bytes));
