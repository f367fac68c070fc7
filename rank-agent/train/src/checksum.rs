//! Checks that the parameters are bit-identical on all ranks.

use std::fmt;
use std::hash::Hasher;

use twox_hash::XxHash3_64;
use zerocopy::IntoBytes;

use crate::Error;

/// A checksum of tensors: 64-bit XXH3 of their lengths and bits in order, so that it detects exchanged values and moved
/// borders. It runs at memory bandwidth.
#[derive(Default)]
pub struct Checksum {
    hasher: XxHash3_64,
}

impl Checksum {
    /// Adds the next tensor.
    pub fn update(&mut self, tensor: &[f32]) {
        self.hasher.write(&(tensor.len() as u64).to_le_bytes());
        self.hasher.write(tensor.as_bytes());
    }

    /// The checksum of all tensors so far.
    pub fn finish(&self) -> u64 {
        self.hasher.finish()
    }
}

/// Ranks whose parameters differ from the others'.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The step after which they were compared.
    pub step: i64,
    /// Ranks in the job.
    pub world_size: usize,
    /// The checksum of more than half of the ranks, if they share one.
    pub majority: Option<u64>,
    /// The ranks with another checksum; all ranks if there is no majority.
    pub disagreeing: Vec<(usize, u64)>,
}

impl std::error::Error for Mismatch {}

impl From<Mismatch> for Error {
    fn from(mismatch: Mismatch) -> Self {
        Self::Diverged(mismatch.to_string())
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, world_size, majority, disagreeing } = self;
        write!(f, "parameters differ between ranks after step {step}: ")?;
        match majority {
            Some(checksum) => {
                let agreeing = world_size - disagreeing.len();
                write!(f, "{agreeing} of {world_size} ranks have checksum {checksum:016x}, but ")?;
            }
            None => write!(f, "no checksum is shared by more than half of the {world_size} ranks: ")?,
        }
        for (i, (rank, checksum)) in disagreeing.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}rank {rank} has {checksum:016x}")?;
        }
        Ok(())
    }
}

/// Compares the checksums of all ranks, in rank order, after `step`.
pub fn compare(step: i64, checksums: &[u64]) -> Result<(), Mismatch> {
    let majority = majority(checksums);
    let disagreeing: Vec<(usize, u64)> =
        checksums.iter().copied().enumerate().filter(|&(_, checksum)| Some(checksum) != majority).collect();
    if disagreeing.is_empty() {
        Ok(())
    } else {
        Err(Mismatch { step, world_size: checksums.len(), majority, disagreeing })
    }
}

/// The value of more than half of the elements.
fn majority(values: &[u64]) -> Option<u64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    // A value that fills more than half of a sorted list covers its middle.
    let middle = *sorted.get(sorted.len() / 2)?;
    let count = sorted.iter().filter(|&&value| value == middle).count();
    (2 * count > sorted.len()).then_some(middle)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checksum(tensors: &[&[f32]]) -> u64 {
        let mut checksum = Checksum::default();
        for tensor in tensors {
            checksum.update(tensor);
        }
        checksum.finish()
    }

    #[test]
    fn bits_order_and_borders_change_the_checksum() {
        let whole = checksum(&[&[1.0, 2.0, 3.0]]);
        assert_eq!(whole, checksum(&[&[1.0, 2.0, 3.0]]));
        assert_ne!(whole, checksum(&[&[2.0, 1.0, 3.0]]), "order");
        assert_ne!(whole, checksum(&[&[1.0, 2.0], &[3.0]]), "borders");
        assert_ne!(whole, checksum(&[&[1.0, 2.0, f32::from_bits(3.0_f32.to_bits() + 1)]]), "the last bit");
        assert_ne!(checksum(&[&[0.0]]), checksum(&[&[-0.0]]), "bits, not values");
        assert_ne!(checksum(&[]), checksum(&[&[]]));
    }

    #[test]
    fn equal_checksums_agree() {
        assert_eq!(compare(3, &[7; 8]), Ok(()));
        assert_eq!(compare(3, &[7]), Ok(()));
        assert_eq!(compare(3, &[]), Ok(()));
    }

    #[test]
    fn a_mismatch_names_the_minority_and_the_step() {
        let mismatch = compare(12, &[0xa, 0xa, 0xb, 0xa, 0xc]).unwrap_err();
        assert_eq!(mismatch.disagreeing, [(2, 0xb), (4, 0xc)]);
        assert_eq!(
            mismatch.to_string(),
            "parameters differ between ranks after step 12: 3 of 5 ranks have checksum 000000000000000a, \
             but rank 2 has 000000000000000b, rank 4 has 000000000000000c"
        );
    }

    #[test]
    fn without_a_majority_all_ranks_are_listed() {
        let mismatch = compare(0, &[1, 2]).unwrap_err();
        assert_eq!((mismatch.majority, mismatch.disagreeing.len()), (None, 2));
        assert_eq!(
            mismatch.to_string(),
            "parameters differ between ranks after step 0: no checksum is shared by more than half of the 2 ranks: \
             rank 0 has 0000000000000001, rank 1 has 0000000000000002"
        );
    }
}
