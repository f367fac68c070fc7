//! libFuzzer's target of the check `inspector`; see `rankscope_fuzz`.
#![no_main]

// A dump may be a Parquet file. A panic of its reader is contained and becomes an error. libFuzzer's hook would end the process before that.
libfuzzer_sys::fuzz_target!(
    init: drop(std::panic::take_hook()),
    |bytes: &[u8]| rankscope_fuzz::inspector(bytes)
);
