//! A stand-in for a disk that fails. A command that loads this library before the C library (`LD_PRELOAD`) makes its calls
//! on files through it. The calls on files below one directory are counted, over all processes of the command, and one
//! of them fails.
//!
//! | variable                  | value                                                                       |
//! |---------------------------|-----------------------------------------------------------------------------|
//! | `STAND_IN_DISK_DIRECTORY` | the directory, as an absolute path without links                            |
//! | `STAND_IN_DISK_REPORT`    | a file of at least [`REPORT_BYTES`] zeros, outside of the directory          |
//! | `STAND_IN_DISK_FAULT`     | `once N`, `lasting N`, `short N` or `interrupted N`; no call has number 0     |
//!
//! `once` lets call N fail, and `lasting` also all calls after it: a write with ENOSPC, other calls with EIO. The others
//! count reads and writes only: `short` lets call N transfer half of its bytes, `interrupted` lets it fail with EINTR.
//!
//! The report holds two numbers of 64 bits in the order of the machine's bytes, the calls so far and the number of
//! failed calls, and then a text of [`TEXT_BYTES`] at most, ended by a zero: the function that failed and its path.

pub mod ffi;

/// Size of the report.
pub const REPORT_BYTES: usize = 16 + TEXT_BYTES;
/// The longest text in it.
pub const TEXT_BYTES: usize = 1024;
