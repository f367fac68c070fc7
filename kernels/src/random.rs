//! Pseudo-random numbers that are the same on every machine and in every release.

/// SplitMix64 (Steele, Lea and Flood 2014).
///
/// It is written out here because its numbers are part of the workload: a new version of a library must not change them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    /// The stream that starts from `state`.
    pub fn new(state: u64) -> Self {
        Self { state }
    }

    /// The stream that starts from the hash of a key.
    pub fn keyed(key: &[u64]) -> Self {
        Self::new(key.iter().fold(0, |state, part| mix(state ^ mix(part.wrapping_add(GOLDEN)))))
    }

    /// The state, from which the stream can be continued.
    pub fn state(&self) -> u64 {
        self.state
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        mix(self.state)
    }

    /// A number below `limit`, uniform up to a bias below limit / 2^32; 0 if the limit is 0.
    pub fn below(&mut self, limit: u32) -> u32 {
        (((self.next_u64() >> 32) * u64::from(limit)) >> 32) as u32
    }
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_the_published_ones() {
        // The published test vector: state 1234567 gives 6457827717110365317 first.
        let mut numbers = SplitMix64::new(1_234_567);
        assert_eq!(numbers.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(numbers.next_u64(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn a_key_is_hashed_part_by_part() {
        let first = SplitMix64::keyed(&[5, 3]).state();
        assert_eq!(SplitMix64::keyed(&[5, 3, 7]).state(), mix(first ^ mix(7_u64.wrapping_add(GOLDEN))));
    }
}
