//! The reader of traces: no bytes may make it panic, and how they come in blocks may not matter.
//!
//! ```console
//! $ cd aggregator && cargo +nightly fuzz run kineto
//! ```
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| aggregator::kineto::check_any_blocks(bytes, &[16, 100, 1000]));
