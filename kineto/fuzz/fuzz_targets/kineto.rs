//! Fuzzes the reader: no input may make it panic, and the sizes of the blocks in which it reads may not change the
//! result.
//!
//! ```console
//! $ cd kineto && cargo +nightly fuzz run --features libfuzzer kineto
//! ```
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| kineto::check_any_blocks(bytes, &[16, 100, 1000]));
