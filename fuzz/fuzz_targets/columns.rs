//! libFuzzer's target of the check `columns`; see `rankscope_fuzz`.
#![no_main]

// A panic of the Parquet or Arrow reader is contained and becomes an error. libFuzzer's hook would end the process before that.
libfuzzer_sys::fuzz_target!(
    init: drop(std::panic::take_hook()),
    |bytes: &[u8]| rankscope_fuzz::columns(bytes)
);
