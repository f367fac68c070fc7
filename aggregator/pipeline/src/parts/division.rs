//! Which process maps which ranks: by the bytes of their files, so that every process finds the same shares.

use std::str::FromStr;

/// One of several shares of the ranks, as in `0/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share {
    /// Number of the share, from 0.
    pub index: u32,
    /// Number of shares.
    pub of: u32,
}

/// Most shares of one input.
const MAX_SHARES: u32 = 99_999;

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "expected the number of a share, from 0, and the number of shares, as in 0/8".to_string();
        let (index, of) = text.split_once('/').ok_or_else(wrong)?;
        let (index, of): (u32, u32) = (index.parse().map_err(|_| wrong())?, of.parse().map_err(|_| wrong())?);
        match of {
            1..=MAX_SHARES if index < of => Ok(Self { index, of }),
            1..=MAX_SHARES => Err(format!("of {of} shares the last has the number {}", of - 1)),
            _ => Err(format!("the number of shares is 1 to {MAX_SHARES}")),
        }
    }
}

/// A rank, and the size of its files.
pub type RankBytes = (i32, u64);

/// The ranks of a share: of `ranks`, ascending, those in whose range of all bytes the middle of their own bytes is.
pub(crate) fn ranks_of(share: Share, ranks: &[RankBytes]) -> Vec<RankBytes> {
    // A rank without a byte still has a place.
    let weight = |bytes: u64| u128::from(bytes) + 1;
    let total: u128 = ranks.iter().map(|(_, bytes)| weight(*bytes)).sum();
    let mut before = 0;
    let is_ours = |(_, bytes): &&RankBytes| {
        let middle = 2 * before + weight(*bytes);
        before += weight(*bytes);
        middle * u128::from(share.of) / (2 * total.max(1)) == u128::from(share.index)
    };
    ranks.iter().filter(is_ours).copied().collect()
}

/// Most ranks of a chunk.
const CHUNK_RANKS: usize = 256;
/// Bytes of traces in a chunk of several ranks.
const CHUNK_BYTES: u64 = 64 << 20;

/// Cuts ranks into chunks.
pub(crate) fn chunks(ranks: &[RankBytes]) -> Vec<Vec<i32>> {
    let mut chunks: Vec<Vec<i32>> = Vec::new();
    let mut in_chunk = 0_u64;
    for (rank, bytes) in ranks {
        match chunks.last_mut() {
            Some(chunk) if chunk.len() < CHUNK_RANKS && in_chunk.saturating_add(*bytes) <= CHUNK_BYTES => {
                chunk.push(*rank);
                in_chunk += bytes;
            }
            _ => {
                chunks.push(vec![*rank]);
                in_chunk = *bytes;
            }
        }
    }
    chunks
}

/// The number of shares where none is asked for: so many that a share is about a chunk, whatever the number of processes.
pub fn usual_shares(ranks: &[RankBytes]) -> u32 {
    let bytes = ranks.iter().fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
    let shares = (ranks.len() as u64).div_ceil(CHUNK_RANKS as u64).max(bytes.div_ceil(CHUNK_BYTES));
    shares.clamp(1, u64::from(MAX_SHARES)) as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn shares_are_numbered_from_0() {
        assert_eq!("2/8".parse(), Ok(Share { index: 2, of: 8 }));
        for wrong in ["", "1", "8/8", "-1/8", "1/0", "a/b", "0/100000"] {
            assert!(wrong.parse::<Share>().is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn every_rank_is_in_one_share_and_shares_are_even(
            bytes in prop::collection::vec(0_u64..1_000_000, 0..80),
            of in 1_u32..9,
        ) {
            let ranks: Vec<RankBytes> = (0..).zip(bytes).collect();
            let shares: Vec<Vec<RankBytes>> = (0..of).map(|index| ranks_of(Share { index, of }, &ranks)).collect();
            prop_assert_eq!(shares.concat(), ranks.clone());
            let total: u64 = ranks.iter().map(|(_, bytes)| bytes + 1).sum();
            let largest = ranks.iter().map(|(_, bytes)| bytes + 1).max().unwrap_or(0);
            for share in shares {
                let sum: u64 = share.iter().map(|(_, bytes)| bytes + 1).sum();
                prop_assert!(sum <= total / u64::from(of) + largest + 1);
            }
            prop_assert_eq!(chunks(&ranks).concat(), ranks.iter().map(|(rank, _)| *rank).collect::<Vec<_>>());
        }
    }
}
