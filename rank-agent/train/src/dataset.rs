//! The synthetic data set: initial parameters, and a classification task that every rank generates.
//!
//! All numbers follow from a seed and a position by integer arithmetic and exactly rounded float operations. All machines
//! generate the same numbers, and none are sent or stored.

use std::f32::consts::FRAC_1_SQRT_2;

use kernels::SplitMix64;

/// A task that a model can learn: one Gaussian cluster per class with a random centre.
///
/// A feature is `(centre + noise) / √2`, both of variance 1, so that inputs have variance 1. In many dimensions the clusters
/// are far enough apart to be learnt in twenty steps; in few dimensions they overlap. Centres are the same for all ranks and
/// steps; samples differ by (rank, step).
#[derive(Debug)]
pub struct Clusters {
    seed: u64,
    features: usize,
    centres: Vec<f32>,
    classes: u32,
}

/// Names of the independent streams of one seed.
mod stream {
    pub(super) const CENTRES: u64 = 1;
    pub(super) const PARAMETER: u64 = 2;
    pub(super) const BATCH: u64 = 3;
}

impl Clusters {
    /// The task of `seed`: `classes` clusters in `features` dimensions.
    pub fn new(seed: u64, features: usize, classes: u32) -> Self {
        let mut numbers = SplitMix64::keyed(&[seed, stream::CENTRES]);
        let centres = (0..features * classes as usize).map(|_| next_normal(&mut numbers)).collect();
        Self { seed, features, centres, classes }
    }

    /// The clusters' centres, `features` numbers per class.
    pub fn centres(&self) -> &[f32] {
        &self.centres
    }

    /// The key of a rank's batches without the step; a device adds the step and generates the stream from it.
    pub fn batch_key(&self, rank: u64) -> u64 {
        SplitMix64::keyed(&[self.seed, stream::BATCH, rank]).state()
    }

    /// Generates the batch of a rank and step: one label and `features` numbers per sample.
    ///
    /// `inputs` holds a row per label; rows beyond the labels are not changed.
    pub fn batch(&self, rank: u64, step: u64, inputs: &mut [f32], labels: &mut [u32]) {
        let mut numbers = SplitMix64::keyed(&[self.seed, stream::BATCH, rank, step]);
        let features = self.features.max(1);
        for (row, label) in inputs.chunks_exact_mut(features).zip(labels) {
            *label = numbers.below(self.classes);
            let centre = self.centres.iter().skip(*label as usize * features);
            for (x, centre) in row.iter_mut().zip(centre) {
                *x = (centre + next_normal(&mut numbers)) * FRAC_1_SQRT_2;
            }
        }
    }
}

/// Initial values of the `index`-th parameter: normal with the given standard deviation.
pub fn normal(seed: u64, index: u64, deviation: f32, values: &mut [f32]) {
    let mut numbers = SplitMix64::keyed(&[seed, stream::PARAMETER, index]);
    for value in values {
        *value = deviation * next_normal(&mut numbers);
    }
}

/// The next number of a distribution with mean 0 and variance 1, nearly normal: the sum of four uniform numbers
/// (Irwin–Hall). It needs no logarithm, so it is the same on every machine. It is never beyond ±2·√3.
fn next_normal(numbers: &mut SplitMix64) -> f32 {
    let bits = numbers.next_u64();
    let sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
    // Each part is uniform on 0..65536: the sum has mean 131070 and variance 4 · 65536² / 12.
    (sum as f32 - 131_070.0) * (1.732_050_8 / 65_536.0)
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
    fn a_batch_depends_only_on_seed_rank_and_step() {
        assert_eq!(batch(1, 2, 3), batch(1, 2, 3));
        for other in [batch(9, 2, 3), batch(1, 9, 3), batch(1, 2, 9), batch(1, 3, 2)] {
            assert_ne!(batch(1, 2, 3).0, other.0);
            assert_ne!(batch(1, 2, 3).1, other.1);
        }
    }

    #[test]
    fn normals_have_mean_zero_and_variance_one() {
        let mut numbers = SplitMix64::keyed(&[7]);
        let values: Vec<f64> = (0..200_000).map(|_| f64::from(next_normal(&mut numbers))).collect();
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
