//! How a source follows the scopes of the program.
//!
//! ```text
//!  thread:   scope begins ──► push(id) ──►  launches of this thread carry the id  ──► scope ends ──► pop()
//! ```

/// Functions of a source that a thread calls when a linked scope begins and ends.
#[derive(Clone, Copy, Debug)]
pub struct ScopeHook {
    /// Work that this thread launches from now on carries `id`. Returns `false` if the source did not take the id;
    /// then `pop` is not called.
    pub push: fn(id: i64) -> bool,
    /// Work that this thread launches from now on carries the previous id.
    pub pop: fn(),
}
