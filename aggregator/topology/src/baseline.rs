//! The ranks whose work counts for that of a typical rank.

/// The ranks whose work counts for that of a typical rank.
#[derive(Clone, Debug, Default)]
pub struct Usual {
    /// Whether each rank is one of them.
    pub is_usual: Vec<bool>,
    /// The most ranks that may be slow: half of those of each stage, or all but its faster group.
    pub slow: usize,
}

impl Usual {
    /// All ranks are.
    pub fn all(ranks: usize) -> Self {
        Self { is_usual: vec![true; ranks], slow: ranks / 2 }
    }

    /// The values of the usual ranks among `values`, which hold a rank each; all values if no rank is usual.
    pub fn of<T>(&self, values: impl Iterator<Item = (usize, T)> + Clone) -> Vec<T> {
        let usual: Vec<T> = values.clone().filter(|(rank, _)| self.is_usual[*rank]).map(|(_, value)| value).collect();
        if usual.is_empty() { values.map(|(_, value)| value).collect() } else { usual }
    }
}
