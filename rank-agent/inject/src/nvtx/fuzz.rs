//! For fuzzing: ranges with any messages, nested in any way.

use std::ffi::CStr;

use recorder::{Clock, Recorder};

use super::{MAX_DEPTH, MAX_NAMES, Mark, Marker, ffi};
use crate::steps;

/// For fuzzing: no sequence of NVTX's calls makes the marker panic or grow, and every range that begins ends.
///
/// ```text
/// call │ 48 bytes of attributes, or a text that ends with a zero byte │ call …
/// ```
///
/// # Panics
/// If a check fails.
pub fn check_any_ranges(bytes: &[u8]) {
    let recorder = Recorder::disabled(Clock::system());
    let mut marker = Marker::new(&recorder);
    let (mut rest, mut depth) = (bytes, 0_usize);
    while let Some((call, after)) = rest.split_first() {
        rest = after;
        if matches!(call % 8, 0 | 1) {
            marker.pop(&recorder);
            depth = depth.saturating_sub(1);
        } else {
            marker.push(&recorder, mark(call % 8, &mut rest));
            depth += 1;
        }
        assert_eq!(marker.open.len() + marker.deeper, depth, "each end belongs to one beginning");
        assert!(marker.open.len() <= MAX_DEPTH && marker.open.capacity() <= 2 * MAX_DEPTH);
        assert!(marker.names.len() <= MAX_NAMES && marker.registered.len() <= MAX_NAMES);
    }
    for _ in 0..depth {
        marker.pop(&recorder);
    }
    assert!(steps::begin_step(&recorder, None, true), "every step has ended");
    steps::end_step(&recorder);
}

/// The name of a range that begins.
fn mark<'a>(call: u8, rest: &mut &'a [u8]) -> Mark<'a> {
    match call {
        2 => Mark::Unnamed,
        3 | 4 => {
            let mut attributes = [0; 48];
            let (given, after) = rest.split_at(rest.len().min(attributes.len()));
            attributes[..given.len()].copy_from_slice(given);
            *rest = after;
            ffi::message_of(&attributes, text(rest))
        }
        5 => {
            let name = text(rest).to_bytes();
            assert!(steps::step_of(name).flatten().is_none_or(|step| step >= 0));
            Mark::Registered(usize::from(name.first().copied().unwrap_or(0)))
        }
        _ => Mark::Text(text(rest).to_bytes()),
    }
}

/// The next string, which ends with a zero byte.
fn text<'a>(rest: &mut &'a [u8]) -> &'a CStr {
    let bytes: &'a [u8] = rest;
    match CStr::from_bytes_until_nul(bytes) {
        Ok(text) => {
            *rest = bytes.get(text.count_bytes() + 1..).unwrap_or_default();
            text
        }
        Err(_) => {
            *rest = &[];
            c"ProfilerStep#7"
        }
    }
}
