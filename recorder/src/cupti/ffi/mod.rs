//! CUPTI's own side: its library, its functions, its callbacks, its memory. Everything that is not safe is here.

#![expect(unsafe_code, reason = "functions and memory of a C library")]

mod buffer;
mod callbacks;
mod calls;
mod library;

pub(crate) use buffer::{Buffer, Lent};
pub(crate) use callbacks::watch_process;
pub(crate) use calls::{EXTERNAL_KIND, Subscription, domain};
pub(crate) use library::Cupti as Library;
