//! Deterministic numbers: initial parameters, and a classification task that a rank makes for itself.
//!
//! Everything follows from a seed and a position by integer arithmetic and exactly rounded float operations, so all
//! machines make the same numbers and nothing need be sent or stored.

/// A task that can be learnt: one Gaussian cluster per class, its centre drawn at random.
///
/// A feature is `centre + noise` with a centre of standard deviation [`Clusters::SEPARATION`] and noise of 1, the same
/// for all ranks and steps; samples differ by (rank, step).
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
    /// Standard deviation of a centre's coordinates where the noise has 1: far enough apart that a linear model gets
    /// it right in high dimensions, near enough that an untrained one does not.
    pub const SEPARATION: f32 = 0.5;

    /// The task of `seed`: `classes` clusters in `features` dimensions.
    pub fn new(seed: u64, features: usize, classes: u32) -> Self {
        let mut numbers = Numbers::new(&[seed, stream::CENTRES]);
        let centres = (0..features * classes as usize).map(|_| Self::SEPARATION * numbers.normal()).collect();
        Self { seed, features, centres, classes }
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
                *x = centre + numbers.normal();
            }
        }
    }
}

/// Initial values of the `index`-th parameter: normal with standard deviation `sqrt(2 / fan_in)`, which keeps the
/// variance of activations from layer to layer under ReLU (He et al. 2015).
pub fn he_normal(seed: u64, index: u64, fan_in: usize, values: &mut [f32]) {
    let mut numbers = Numbers::new(&[seed, stream::PARAMETER, index]);
    let deviation = (2.0 / fan_in.max(1) as f32).sqrt();
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
    fn parameters_are_scaled_by_their_fan_in() {
        let mut values = vec![0.0; 10_000];
        he_normal(3, 0, 200, &mut values);
        let variance = values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / 10_000.0;
        assert!((variance * 100.0 - 1.0).abs() < 0.05, "variance {variance}");
        let mut others = vec![0.0; 10_000];
        he_normal(3, 1, 200, &mut others);
        assert_ne!(values, others);
    }
}
