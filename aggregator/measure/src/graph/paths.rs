//! Paths between nodes, and how they are kept: the paths are most of the memory of a graph.

/// A path from one kept node to another, without the nodes between them, and with the length of the second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Path {
    /// The node at whose end it begins.
    pub from: u32,
    /// The time of the host on it.
    pub host_ns: i64,
    /// The time of device work on it.
    pub device_ns: i64,
    /// The time by which starts on it are late.
    pub late_ns: i64,
    /// All other time on it: usual times between ends and starts, and overlaps, which are negative.
    pub fixed_ns: i64,
}

impl Path {
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            from: self.from,
            host_ns: self.host_ns + other.host_ns,
            device_ns: self.device_ns + other.device_ns,
            late_ns: self.late_ns + other.late_ns,
            fixed_ns: self.fixed_ns + other.fixed_ns,
        }
    }

    pub(super) fn length(&self, [host, device, late]: [f64; 3]) -> f64 {
        host * self.host_ns as f64 + device * self.device_ns as f64 + late * self.late_ns as f64 + self.fixed_ns as f64
    }
}

/// Paths in their order. A path without times of seconds takes half of the memory of a [`Path`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Paths {
    all: Vec<Short>,
    /// The paths that are too long for [`Short`].
    long: Vec<Path>,
}

/// A path with times below 4.3 s, and with a fixed time below 2.1 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Short {
    from: u32,
    /// Of a longer path, its position in [`Paths::long`].
    host_ns: u32,
    device_ns: u32,
    late_ns: u32,
    /// [`LONG`] of a longer path.
    fixed_ns: i32,
}

const LONG: i32 = i32::MIN;

impl Short {
    fn of(path: Path) -> Option<Self> {
        Some(Self {
            from: path.from,
            host_ns: path.host_ns.try_into().ok()?,
            device_ns: path.device_ns.try_into().ok()?,
            late_ns: path.late_ns.try_into().ok()?,
            fixed_ns: path.fixed_ns.try_into().ok().filter(|ns| *ns != LONG)?,
        })
    }
}

impl Paths {
    /// No path, with room for so many.
    pub fn with_capacity(paths: usize) -> Self {
        Self { all: Vec::with_capacity(paths), long: Vec::new() }
    }

    /// The number of paths.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there is no path.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Adds a path behind the others.
    pub fn push(&mut self, path: Path) {
        let short = Short::of(path).unwrap_or_else(|| {
            self.long.push(path);
            Short { from: path.from, host_ns: self.long.len() as u32 - 1, device_ns: 0, late_ns: 0, fixed_ns: LONG }
        });
        self.all.push(short);
    }

    /// All paths.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Path> + Clone {
        self.between(0, self.len() as u32)
    }

    /// The paths from one position to another. None if that range is not in them.
    pub fn between(&self, from: u32, to: u32) -> impl ExactSizeIterator<Item = Path> + Clone {
        let all = self.all.get(from as usize..to as usize).unwrap_or_default();
        all.iter().map(|short| self.path(short))
    }

    fn path(&self, short: &Short) -> Path {
        if short.fixed_ns == LONG {
            return self.long[short.host_ns as usize];
        }
        Path {
            from: short.from,
            host_ns: short.host_ns.into(),
            device_ns: short.device_ns.into(),
            late_ns: short.late_ns.into(),
            fixed_ns: short.fixed_ns.into(),
        }
    }

    /// Gives back the room for further paths.
    pub(super) fn shrink_to_fit(&mut self) {
        self.all.shrink_to_fit();
    }
}

impl Extend<Path> for Paths {
    fn extend<I: IntoIterator<Item = Path>>(&mut self, paths: I) {
        let paths = paths.into_iter();
        self.all.reserve(paths.size_hint().0);
        paths.for_each(|path| self.push(path));
    }
}

impl FromIterator<Path> for Paths {
    fn from_iter<I: IntoIterator<Item = Path>>(paths: I) -> Self {
        let mut all = Self::default();
        all.extend(paths);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Times around all limits.
    fn ns() -> impl Strategy<Value = i64> {
        prop_oneof![
            -3_i64..3,
            (-2_i64..3).prop_map(|ns| ns + i64::from(u32::MAX)),
            (-2_i64..3).prop_map(|ns| ns + i64::from(i32::MAX)),
            (-2_i64..3).prop_map(|ns| ns + i64::from(i32::MIN)),
            any::<i64>(),
        ]
    }

    proptest! {
        /// Invariant (verdicts): The paths of a graph are kept as they are, however long they take.
        #[test]
        fn paths_are_kept_as_they_are(
            paths in prop::collection::vec((any::<u32>(), ns(), ns(), ns(), ns()), 0..12),
        ) {
            let path = |(from, host_ns, device_ns, late_ns, fixed_ns)| Path { from, host_ns, device_ns, late_ns, fixed_ns };
            let paths: Vec<Path> = paths.into_iter().map(path).collect();
            let kept: Paths = paths.iter().copied().collect();
            prop_assert_eq!(kept.iter().collect::<Vec<_>>(), paths.clone());
            let from = paths.len() / 2;
            prop_assert_eq!(kept.between(from as u32, paths.len() as u32).collect::<Vec<_>>(), &paths[from..]);
        }
    }
}
