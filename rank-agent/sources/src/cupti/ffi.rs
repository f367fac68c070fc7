//! The interface to CUPTI: its library, functions, callbacks and memory. All `unsafe` code of the source is here.

#![expect(unsafe_code, reason = "functions and memory of a C library")]

mod buffer;
mod callbacks;
mod calls;
mod library;

pub(crate) use buffer::{Buffer, Lent};
pub(crate) use callbacks::{Callbacks, at_exit, watch_process};
pub(crate) use calls::{EXTERNAL_KIND, Subscription, domain};
pub(crate) use library::Cupti as Library;
