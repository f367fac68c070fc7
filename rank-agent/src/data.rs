//! Deterministic numbers: initial parameters, and a classification task that a rank makes for itself.
//!
//! Everything follows from a seed and a position by integer arithmetic and exactly rounded float operations, so all
//! machines make the same numbers and nothing need be sent or stored.

use std::f32::consts::FRAC_1_SQRT_2;

/// A task that can be learnt: one Gaussian cluster per class, its centre drawn at random.
///
/// A feature is `(centre + noise) / √2`, both of variance 1, so that inputs have variance 1: far enough apart in many
/// dimensions that twenty steps teach them, and overlapping where there are few. Centres are the same for all ranks and
/// steps, samples differ by (rank, step).
#[derive(Debug)]
pub struct Clusters {
    seed: u64,
    features: usize,
    centres: Vec<f32>,
    classes: u32,
}

/// Streams of one seed that must not meet.
mod stream {
    pub(super) const CENTRES: u64 = 1;
    pub(super) const PARAMETER: u64 = 2;
    pub(super) const BATCH: u64 = 3;
}

impl Clusters {
    /// The task of `seed`: `classes` clusters in `features` dimensions.
    pub fn new(seed: u64, features: usize, classes: u32) -> Self {
        let mut numbers = Numbers::new(&[seed, stream::CENTRES]);
        let centres = (0..features * classes as usize).map(|_| numbers.normal()).collect();
        Self { seed, features, centres, classes }
    }

    /// The clusters' centres, `features` numbers a class.
    pub fn centres(&self) -> &[f32] {
        &self.centres
    }

    /// The key of a rank's batches, without the step: a device completes it and counts the stream from there.
    pub fn batch_key(&self, rank: u64) -> u64 {
        Numbers::new(&[self.seed, stream::BATCH, rank]).state
    }

    /// Makes the batch of a rank and step: one label and `features` numbers per sample.
    ///
    /// `inputs` holds a row per label; rows beyond the labels are left as they are.
    pub fn batch(&self, rank: u64, step: u64, inputs: &mut [f32], labels: &mut [u32]) {
        let mut numbers = Numbers::new(&[self.seed, stream::BATCH, rank, step]);
        let features = self.features.max(1);
        for (row, label) in inputs.chunks_exact_mut(features).zip(labels) {
            *label = numbers.below(self.classes);
            let centre = self.centres.iter().skip(*label as usize * features);
            for (x, centre) in row.iter_mut().zip(centre) {
                *x = (centre + numbers.normal()) * FRAC_1_SQRT_2;
            }
        }
    }
}

/// Initial values of the `index`-th parameter: normal with the given standard deviation.
pub fn normal(seed: u64, index: u64, deviation: f32, values: &mut [f32]) {
    let mut numbers = Numbers::new(&[seed, stream::PARAMETER, index]);
    for value in values {
        *value = deviation * numbers.normal();
    }
}

/// A stream of numbers: SplitMix64 (Steele, Lea and Flood 2014), started where its key hashes to.
///
/// Written out because the numbers are part of the workload: a library's next version must not change them.
struct Numbers {
    state: u64,
}

impl Numbers {
    fn new(key: &[u64]) -> Self {
        let state = key.iter().fold(0, |state, part| mix(state ^ mix(part.wrapping_add(GOLDEN))));
        Self { state }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        mix(self.state)
    }

    /// Uniform below `limit`, by multiplication; 0 where the limit is 0. Its bias is below limit / 2^32.
    fn below(&mut self, limit: u32) -> u32 {
        (((self.next() >> 32) * u64::from(limit)) >> 32) as u32
    }

    /// Mean 0 and variance 1, nearly normal: the sum of four uniform numbers (Irwin–Hall), which needs no logarithm and
    /// so is the same on every machine. Never beyond ±2·√3.
    fn normal(&mut self) -> f32 {
        let bits = self.next();
        let sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
        // Each part is uniform on 0..65536: the sum has mean 131070 and variance 4 · 65536² / 12.
        (sum as f32 - 131_070.0) * (1.732_050_8 / 65_536.0)
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

    fn batch(seed: u64, rank: u64, step: u64) -> (Vec<f32>, Vec<u32>) {
        let (mut inputs, mut labels) = (vec![0.0; 64 * 32], vec![0; 64]);
        Clusters::new(seed, 32, 10).batch(rank, step, &mut inputs, &mut labels);
        (inputs, labels)
    }

    #[test]
    fn a_batch_depends_on_seed_rank_and_step_and_on_nothing_else() {
        assert_eq!(batch(1, 2, 3), batch(1, 2, 3));
        for other in [batch(9, 2, 3), batch(1, 9, 3), batch(1, 2, 9), batch(1, 3, 2)] {
            assert_ne!(batch(1, 2, 3).0, other.0);
            assert_ne!(batch(1, 2, 3).1, other.1);
        }
    }

    #[test]
    fn a_key_and_a_step_give_the_batch() {
        let key = Clusters::new(5, 32, 10).batch_key(3);
        let state = mix(key ^ mix(7_u64.wrapping_add(GOLDEN)));
        assert_eq!(state, Numbers::new(&[5, stream::BATCH, 3, 7]).state);
    }

    #[test]
    fn the_numbers_are_pinned() {
        // SplitMix64's published test vector: state 1234567 gives 6457827717110365317 first.
        let mut numbers = Numbers { state: 1_234_567 };
        assert_eq!(numbers.next(), 6_457_827_717_110_365_317);
        assert_eq!(numbers.next(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn normals_have_mean_zero_and_variance_one() {
        let mut numbers = Numbers::new(&[7]);
        let values: Vec<f64> = (0..200_000).map(|_| f64::from(numbers.normal())).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / values.len() as f64;
        assert!(mean.abs() < 0.01, "mean {mean}");
        assert!((variance - 1.0).abs() < 0.01, "variance {variance}");
    }

    #[test]
    fn every_class_occurs() {
        let mut seen = [0; 10];
        for step in 0..20 {
            for label in batch(1, 0, step).1 {
                seen[label as usize] += 1;
            }
        }
        // 1280 samples of ten classes: 128 each, standard deviation 10.7.
        assert!(seen.iter().all(|&n| (70..190).contains(&n)), "{seen:?}");
    }

    #[test]
    fn parameters_differ_by_index_and_have_their_deviation() {
        let (mut values, mut others) = (vec![0.0; 10_000], vec![0.0; 10_000]);
        normal(3, 0, 0.1, &mut values);
        normal(3, 1, 0.1, &mut others);
        assert_ne!(values, others);
        let variance = values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / 10_000.0;
        assert!((variance * 100.0 - 1.0).abs() < 0.05, "variance {variance}");
    }
}
