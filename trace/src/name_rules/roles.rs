//! Places in a job's parallelism in the names of files: `dp0_pp0_tp1.json` of vLLM, `TP-1-DP-0.json` of SGLang.

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
        let rest = rest.strip_prefix(['-', '_', '=']).unwrap_or(rest);
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let ends = !rest[end..].starts_with(|c: char| c.is_ascii_alphabetic());
        rest[..end].parse().ok().filter(|_| ends && is_apart(at))
    };
    name.match_indices(word).find_map(number)
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
}
