//! Places in a job's parallelism in the names of files and processes: `dp0_pp0_tp1.json` of vLLM, `TP-1-DP-0.json` and
//! `[TP01-DP00] 4711` of SGLang.

use std::fmt;

/// The words, and the kinds of parallelism that they stand for.
pub const WORDS: [(&str, &str); 6] = [
    ("tp", "tensor"),
    ("dp", "data"),
    ("pp", "pipeline"),
    ("ep", "expert"),
    ("cp", "context"),
    ("dcp", "decode context"),
];

/// The number behind one of [`WORDS`] in a name: 1 of `dp` in `dp1_pp0_tp3` and `7-TP-3-DP-1`. The word stands alone, so
/// that `dcp0` has no `cp`.
pub fn role(name: &str, word: &str) -> Option<i32> {
    let name = name.to_ascii_lowercase();
    let is_apart = |at: usize| !name[..at].ends_with(|c: char| c.is_ascii_alphanumeric());
    let number = |(at, _): (usize, &str)| {
        let rest = &name[at + word.len()..];
        let rest = rest.strip_prefix(['-', '_', '=', ' ']).unwrap_or(rest);
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let ends = !rest[end..].starts_with(|c: char| c.is_ascii_alphabetic());
        rest[..end].parse().ok().filter(|_| ends && is_apart(at))
    };
    name.match_indices(word).find_map(number)
}

/// The places that a name says, from the outermost on: `DP 0, TP 1` of `7-TP-1-DP-0`; `None` if it says none.
pub fn roles_in(name: &str) -> Option<String> {
    Some(RankName { number: None, ..RankName::of(name)? }.to_string()).filter(|roles| !roles.is_empty())
}

/// The order of [`WORDS`] in which ranks are counted: the first changes last.
pub const OUTERMOST_FIRST: [usize; WORDS.len()] = [1, 2, 3, 4, 5, 0];

/// Which rank of a job a name says: by its number, by its places in the job's parallelism, or by both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RankName {
    /// The number behind the word `rank`.
    pub number: Option<i32>,
    /// The number behind each of [`WORDS`].
    pub places: [Option<i32>; WORDS.len()],
}

impl RankName {
    /// The rank that a name says; `None` if it says none.
    pub fn of(name: &str) -> Option<Self> {
        let found = Self { number: role(name, "rank"), places: WORDS.map(|(word, _)| role(name, word)) };
        (found != Self::default()).then_some(found)
    }
}

/// `rank 3`, or `DP 0, TP 1` from the outermost place on.
impl fmt::Display for RankName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places = OUTERMOST_FIRST.iter().filter_map(|at| Some((WORDS[*at].0.to_uppercase(), self.places[*at]?)));
        let number = self.number.map(|number| ("rank".to_string(), number));
        let parts: Vec<String> =
            number.into_iter().chain(places).map(|(word, number)| format!("{word} {number}")).collect();
        f.write_str(&parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_parallelism_stand_alone() {
        let role = |name: &str| WORDS.map(|(word, _)| role(name, word));
        assert_eq!(role("dp1_pp0_tp3_dcp2_ep12_rank0.json"), [Some(3), Some(1), Some(0), Some(12), None, Some(2)]);
        assert_eq!(
            role("1712345678.9-TP-1-DP-0-PP-0-EP-2.trace.json"),
            [Some(1), Some(0), Some(0), Some(2), None, None]
        );
        assert_eq!(role("http1/ddp2/dp3x/tp.json"), [None; 6]);
    }

    #[test]
    fn roles_are_the_places_of_a_name() {
        assert_eq!(roles_in("dp1_pp0_tp3_dcp2_rank0.json").as_deref(), Some("DP 1, PP 0, DCP 2, TP 3"));
        assert_eq!([roles_in("rank0.json"), roles_in("trace.json")], [None, None]);
        let roles = roles_in("7-TP-1-DP-0-PP-0-EP-2.json").unwrap();
        assert_eq!(WORDS.map(|(word, _)| role(&roles, word)), [Some(1), Some(0), Some(0), Some(2), None, None]);
    }

    #[test]
    fn names_of_processes_say_ranks() {
        let shown = |name: &str| RankName::of(name).map(|rank| rank.to_string());
        for (name, rank) in [
            ("[TP02-EP02] 4711", "EP 2, TP 2"),
            ("[TP01-DP00-PP03] Spans", "DP 0, PP 3, TP 1"),
            ("Rank 3", "rank 3"),
            ("rank_3_4711", "rank 3"),
            ("[rank 12] python", "rank 12"),
            ("rank0, DP 0, TP 1", "rank 0, DP 0, TP 1"),
        ] {
            assert_eq!(shown(name).as_deref(), Some(rank), "{name}");
            assert_eq!(RankName::of(rank), RankName::of(name));
        }
        for other in ["python", "CUDA API", "CPU 0", "GPU 3", "4711", "Stream 7", "ranks", "frank 3", "H100 80GB"] {
            assert_eq!(shown(other), None, "{other}");
        }
    }
}
