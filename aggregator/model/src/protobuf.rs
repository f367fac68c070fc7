//! Protobuf's wire format, read and written field by field (<https://protobuf.dev/programming-guides/encoding>).
//!
//! ```text
//!  field     tag = number << 3 | type, as a varint, then its value
//!  type 0    varint: 7 bits a byte, the lowest first      1  8 bytes      2  length as a varint, then bytes      5  4 bytes
//! ```
//!
//! Profiles of XLA are read and traces of Perfetto are written. Both have a dozen types of messages, so that the numbers of their fields are
//! written by hand instead of generated.

pub mod read;
pub mod write;
