//! Numbers that may be unknown, in half of the memory of an option: large jobs have millions of them.

/// A time that may be unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MaybeNs(i64);

impl MaybeNs {
    /// An unknown time.
    pub(crate) const UNKNOWN: Self = Self(i64::MIN);

    /// A time; `i64::MIN` is unknown.
    pub(crate) fn of(ns: Option<i64>) -> Self {
        ns.map_or(Self::UNKNOWN, Self)
    }

    /// The time.
    pub(crate) fn get(self) -> Option<i64> {
        (self != Self::UNKNOWN).then_some(self.0)
    }
}

/// A position that may be unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MaybeAt(u32);

impl MaybeAt {
    /// An unknown position.
    pub(crate) const UNKNOWN: Self = Self(u32::MAX);

    /// A position; `u32::MAX` is unknown.
    pub(crate) fn of(at: Option<u32>) -> Self {
        at.map_or(Self::UNKNOWN, Self)
    }

    /// The position.
    pub(crate) fn get(self) -> Option<u32> {
        (self != Self::UNKNOWN).then_some(self.0)
    }
}
