//! Numbers that may be unknown, in half of the memory of an option: large jobs have millions of them.

/// A number that may be unknown. One value of the type stands for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Maybe<T>(T);

/// A time that may be unknown.
pub type MaybeNs = Maybe<i64>;

/// A position that may be unknown.
pub type MaybeAt = Maybe<u32>;

/// A number with a value that stands for an unknown one.
pub trait Number: Copy + PartialEq {
    /// That value.
    const UNKNOWN: Self;
    /// The value next to it.
    const NEXT: Self;
}

impl Number for i64 {
    const UNKNOWN: Self = Self::MIN;
    const NEXT: Self = Self::MIN + 1;
}

impl Number for i32 {
    const UNKNOWN: Self = Self::MIN;
    const NEXT: Self = Self::MIN + 1;
}

impl Number for u32 {
    const UNKNOWN: Self = Self::MAX;
    const NEXT: Self = Self::MAX - 1;
}

impl Number for u64 {
    const UNKNOWN: Self = Self::MAX;
    const NEXT: Self = Self::MAX - 1;
}

impl<T: Number> Maybe<T> {
    /// An unknown number.
    pub const UNKNOWN: Self = Self(T::UNKNOWN);

    /// A number. A hostile file may hold the value that stands for an unknown one: it becomes the value next to it, so that
    /// it stays known, and impossible.
    pub fn of(number: Option<T>) -> Self {
        match number {
            Some(number) if number == T::UNKNOWN => Self(T::NEXT),
            Some(number) => Self(number),
            None => Self::UNKNOWN,
        }
    }

    /// The number.
    pub fn get(self) -> Option<T> {
        (self.0 != T::UNKNOWN).then_some(self.0)
    }
}

impl<T: Number> Default for Maybe<T> {
    fn default() -> Self {
        Self::UNKNOWN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_comes_back_and_takes_no_more_memory() {
        assert_eq!([Maybe::of(Some(-1_i32)).get(), Maybe::of(None).get()], [Some(-1), None]);
        assert_eq!(MaybeNs::of(Some(i64::MIN)).get(), Some(i64::MIN + 1));
        assert_eq!(size_of::<MaybeNs>(), size_of::<i64>());
    }
}
