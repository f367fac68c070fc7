//! libFuzzer's target of the check `rocprof`; see `rankscope_fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rankscope_fuzz::rocprof(bytes));
