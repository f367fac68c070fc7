//! libFuzzer's target of the check `flight_recorder`; see `rankscope_fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| rankscope_fuzz::flight_recorder(bytes));
