//! libFuzzer's target of the check `columns`; see `rankscope_fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rankscope_fuzz::columns(bytes));
