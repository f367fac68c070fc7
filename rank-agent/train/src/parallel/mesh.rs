//! The ranks of a job as a grid of data, tensor and pipeline parallelism.
//!
//! Tensor-parallel ranks are neighbours, then data-parallel ones; stages are farthest apart, as in Megatron-LM:
//!
//! ```text
//! dp=2,tp=2,pp=2       stage 0            stage 1
//!                      tp 0   tp 1        tp 0   tp 1
//!            dp 0      0      1           4      5
//!            dp 1      2      3           6      7
//! ```

use std::fmt;
use std::str::FromStr;

/// Number of ranks along each dimension; each is at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mesh {
    /// Replicas of the model.
    pub dp: usize,
    /// Parts of a layer.
    pub tp: usize,
    /// Stages of the pipeline.
    pub pp: usize,
}

/// A dimension of a mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dimension {
    /// Data-parallel.
    Dp,
    /// Tensor-parallel.
    Tp,
    /// Pipeline-parallel.
    Pp,
}

impl Dimension {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dp => "dp",
            Self::Tp => "tp",
            Self::Pp => "pp",
        }
    }
}

/// The ranks along one dimension through a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Its number among the lines of this dimension.
    pub number: usize,
    /// Its ranks, ascending.
    pub ranks: Vec<usize>,
    /// The rank's place among them.
    pub place: usize,
}

impl Mesh {
    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.dp.saturating_mul(self.tp).saturating_mul(self.pp)
    }

    /// The stage of a rank.
    pub fn stage(&self, rank: usize) -> usize {
        rank / (self.dp * self.tp)
    }

    /// The ranks along a dimension through `rank`.
    pub fn line(&self, dimension: Dimension, rank: usize) -> Line {
        let Self { dp, tp, pp } = *self;
        let (t, d, p) = (rank % tp, rank / tp % dp, rank / (tp * dp));
        let at = |t: usize, d: usize, p: usize| (p * dp + d) * tp + t;
        match dimension {
            Dimension::Tp => Line { number: p * dp + d, ranks: (0..tp).map(|t| at(t, d, p)).collect(), place: t },
            Dimension::Dp => Line { number: p * tp + t, ranks: (0..dp).map(|d| at(t, d, p)).collect(), place: d },
            Dimension::Pp => Line { number: d * tp + t, ranks: (0..pp).map(|p| at(t, d, p)).collect(), place: p },
        }
    }
}

impl fmt::Display for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dp={},tp={},pp={}", self.dp, self.tp, self.pp)
    }
}

impl FromStr for Mesh {
    type Err = String;

    /// Parses `dp=4,tp=2,pp=2`; a dimension that is left out is 1.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut sizes = [None; 3];
        for part in text.split(',') {
            let (name, value) = part.split_once('=').ok_or_else(|| format!("{part:?} is not name=number"))?;
            let at = ["dp", "tp", "pp"].iter().position(|known| *known == name.trim());
            let at = at.ok_or_else(|| format!("unknown dimension {name:?}; use dp, tp or pp"))?;
            let size = value.trim().parse().ok().filter(|size: &usize| (1..=1_000_000).contains(size));
            let size = size.ok_or_else(|| format!("{name}={value} is not a number of ranks"))?;
            if sizes[at].replace(size).is_some() {
                return Err(format!("{name} is given twice"));
            }
        }
        let [dp, tp, pp] = sizes.map(|size| size.unwrap_or(1));
        Ok(Self { dp, tp, pp })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensor_parallel_ranks_are_neighbours_and_stages_are_far_apart() {
        let mesh: Mesh = "pp=2,dp=2,tp=2".parse().unwrap();
        assert_eq!((mesh.size(), mesh.to_string().as_str()), (8, "dp=2,tp=2,pp=2"));
        let line = |dimension, rank| mesh.line(dimension, rank);
        assert_eq!(line(Dimension::Tp, 6), Line { number: 3, ranks: vec![6, 7], place: 0 });
        assert_eq!(line(Dimension::Dp, 6), Line { number: 2, ranks: vec![4, 6], place: 1 });
        assert_eq!(line(Dimension::Pp, 6), Line { number: 2, ranks: vec![2, 6], place: 1 });
        assert_eq!((mesh.stage(3), mesh.stage(4)), (0, 1));
    }

    #[test]
    fn every_rank_is_in_one_line_of_each_dimension() {
        let mesh = Mesh { dp: 3, tp: 2, pp: 4 };
        for dimension in [Dimension::Dp, Dimension::Tp, Dimension::Pp] {
            for rank in 0..mesh.size() {
                let line = mesh.line(dimension, rank);
                assert_eq!(line.ranks[line.place], rank);
                assert!(line.ranks.iter().all(|other| mesh.line(dimension, *other).number == line.number));
            }
        }
    }

    #[test]
    fn an_error_names_the_wrong_part() {
        assert_eq!("tp=2".parse(), Ok(Mesh { dp: 1, tp: 2, pp: 1 }));
        for (text, part) in [
            ("dp", "not name=number"),
            ("ep=2", "use dp, tp or pp"),
            ("dp=0", "number of ranks"),
            ("dp=2,dp=2", "twice"),
        ] {
            assert!(text.parse::<Mesh>().unwrap_err().contains(part), "{text}");
        }
    }
}
