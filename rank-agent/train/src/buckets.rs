//! Assigns gradients to buckets as PyTorch's DistributedDataParallel does.
//!
//! Parameters are taken in reverse order of use, which is the order in which backward computes their gradients. A bucket
//! closes as soon as its size reaches its limit, so it may exceed it; a tensor is never split. The first bucket's limit is
//! small, so that communication starts early.
//!
//! ```text
//! order of use      w0     b0   w1     b1   w2   b2          limits: first 4, then 10
//! bytes             8      2    8      2    4    1
//! taken as          b2 w2 | b1 w1 | b0 w0
//! bucket            0 (5)   1 (10)  2 (10)
//! ```

/// Limit of the first bucket in bytes: DDP's `kDefaultFirstBucketBytes`.
pub const FIRST_BUCKET_BYTES: usize = 1 << 20;

/// One bucket: the gradients of one all-reduce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Indices of its parameters, in the order in which their gradients become ready.
    pub parameters: Vec<usize>,
    /// Number of elements.
    pub len: usize,
}

/// The place of a parameter's gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Its bucket.
    pub bucket: usize,
    /// Its first element within the bucket.
    pub offset: usize,
    /// Number of elements.
    pub len: usize,
}

/// The assignment of all parameters to buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketPlan {
    /// The buckets in the order of launch.
    pub buckets: Vec<Bucket>,
    /// One slot per parameter, by its index in order of use.
    pub slots: Vec<Slot>,
}

impl BucketPlan {
    /// Assigns parameters of `lens` elements, in order of use, of `element_bytes` each.
    ///
    /// As in DDP, the first limit never exceeds the others, so a small `limit_bytes` holds for all buckets.
    pub fn new(lens: &[usize], element_bytes: usize, limit_bytes: usize) -> Self {
        let mut slots = vec![Slot { bucket: 0, offset: 0, len: 0 }; lens.len()];
        let mut buckets: Vec<Bucket> = Vec::new();
        let mut limit = FIRST_BUCKET_BYTES.min(limit_bytes);
        let mut open = Bucket { parameters: Vec::new(), len: 0 };
        for (parameter, &len) in lens.iter().enumerate().rev() {
            slots[parameter] = Slot { bucket: buckets.len(), offset: open.len, len };
            open.parameters.push(parameter);
            open.len += len;
            if open.len.saturating_mul(element_bytes) >= limit {
                buckets.push(std::mem::replace(&mut open, Bucket { parameters: Vec::new(), len: 0 }));
                limit = limit_bytes;
            }
        }
        if !open.parameters.is_empty() {
            buckets.push(open);
        }
        Self { buckets, slots }
    }

    /// Sizes of the gradients of a bucket of f32, in the order in which they fill it.
    pub fn parameter_bytes(&self, bucket: &Bucket) -> Vec<i64> {
        let len = |parameter: &usize| self.slots.get(*parameter).map_or(0, |slot| slot.len);
        bucket.parameters.iter().map(|parameter| (len(parameter) * size_of::<f32>()) as i64).collect()
    }

    /// The state at the start of a backward pass: no gradient is ready.
    pub fn pending(&self) -> Pending {
        let missing = self.buckets.iter().map(|bucket| bucket.parameters.len()).collect();
        Pending { missing, ready: vec![false; self.slots.len()] }
    }
}

/// The gradients that a backward pass has not computed yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    missing: Vec<usize>,
    ready: Vec<bool>,
}

impl Pending {
    /// Notes that a parameter's gradient is ready. Returns its bucket if this was the bucket's last gradient.
    ///
    /// Noting a gradient again changes nothing.
    pub fn note(&mut self, plan: &BucketPlan, parameter: usize) -> Option<usize> {
        let bucket = plan.slots.get(parameter)?.bucket;
        let ready = self.ready.get_mut(parameter)?;
        if std::mem::replace(ready, true) {
            return None;
        }
        let missing = self.missing.get_mut(bucket)?;
        *missing -= 1;
        (*missing == 0).then_some(bucket)
    }

    /// Whether every gradient is ready.
    pub fn is_complete(&self) -> bool {
        self.missing.iter().all(|&missing| missing == 0)
    }

    /// Returns to the start of a backward pass without allocating.
    pub fn reset(&mut self, plan: &BucketPlan) {
        self.ready.fill(false);
        for (missing, bucket) in self.missing.iter_mut().zip(&plan.buckets) {
            *missing = bucket.parameters.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[track_caller]
    fn check(lens_mib: &[usize], limit_mib: usize, expected: &[&[usize]]) {
        let lens: Vec<usize> = lens_mib.iter().map(|mib| mib * MIB / 4).collect();
        let plan = BucketPlan::new(&lens, 4, limit_mib * MIB);
        let buckets: Vec<&[usize]> = plan.buckets.iter().map(|bucket| bucket.parameters.as_slice()).collect();
        assert_eq!(buckets, expected);
    }

    #[test]
    fn buckets_close_when_they_reach_their_limit() {
        check(&[], 25, &[]);
        check(&[4], 25, &[&[0]]);
        // Index       0  1  2  3; the first bucket closes at 1 MiB, the others at 8.
        check(&[4, 4, 4, 4], 8, &[&[3], &[2, 1], &[0]]);
        // A tensor above the limit is not split, and closes its bucket at once.
        check(&[3, 30, 3], 8, &[&[2], &[1], &[0]]);
        // Small tensors share a bucket with the next one.
        check(&[4, 0, 4, 0, 4, 0], 8, &[&[5, 4], &[3, 2, 1, 0]]);
        // A limit below 1 MiB also holds for the first bucket; with 0 every parameter has its own bucket.
        check(&[1, 1, 1], 0, &[&[2], &[1], &[0]]);
    }

    #[test]
    fn slots_follow_each_other_in_order_of_readiness() {
        let plan = BucketPlan::new(&[5, 3, 7], 4, 1 << 30);
        assert_eq!(plan.buckets, [Bucket { parameters: vec![2, 1, 0], len: 15 }]);
        let offsets: Vec<usize> = plan.slots.iter().map(|slot| slot.offset).collect();
        assert_eq!(offsets, [10, 7, 0]);
    }

    #[test]
    fn a_bucket_is_ready_once_with_its_last_gradient() {
        let plan = BucketPlan::new(&[MIB, MIB, 1, MIB], 4, 8 * MIB);
        let mut pending = plan.pending();
        assert_eq!(pending.note(&plan, 3), Some(0));
        assert_eq!(pending.note(&plan, 3), None, "already there");
        assert_eq!(pending.note(&plan, 1), None, "2 is missing");
        assert_eq!(pending.note(&plan, 1), None, "2 is still missing");
        assert_eq!(pending.note(&plan, 99), None, "no such parameter");
        assert!(!pending.is_complete());
        assert_eq!(pending.note(&plan, 2), None);
        assert_eq!(pending.note(&plan, 0), Some(1));
        assert!(pending.is_complete());
        pending.reset(&plan);
        assert_eq!(pending, plan.pending());
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_parameter_is_in_one_bucket_in_order_and_buckets_close_when_full(
            lens in prop::collection::vec(prop_oneof![0..2_000_usize, 100_000..600_000_usize], 0..40),
            limit_bytes in prop_oneof![0..4_096_usize, 0..8_000_000_usize],
        ) {
            let plan = BucketPlan::new(&lens, 4, limit_bytes);
            let order: Vec<usize> = plan.buckets.iter().flat_map(|b| b.parameters.clone()).collect();
            let reversed: Vec<usize> = (0..lens.len()).rev().collect();
            prop_assert_eq!(order, reversed);

            for (index, bucket) in plan.buckets.iter().enumerate() {
                let limit = if index == 0 { limit_bytes.min(FIRST_BUCKET_BYTES) } else { limit_bytes };
                let mut offset = 0;
                for (place, &parameter) in bucket.parameters.iter().enumerate() {
                    prop_assert!(place == 0 || offset * 4 < limit, "the bucket was full before");
                    prop_assert_eq!(plan.slots[parameter], Slot { bucket: index, offset, len: lens[parameter] });
                    offset += lens[parameter];
                }
                prop_assert_eq!(bucket.len, offset);
                let is_last = index + 1 == plan.buckets.len();
                prop_assert!(is_last || offset * 4 >= limit, "the bucket closed before it was full");
            }
        }

        #[test]
        fn buckets_become_ready_in_order_of_launch(
            lens in prop::collection::vec(0..600_000_usize, 0..40),
            limit_bytes in 0..8_000_000_usize,
        ) {
            let plan = BucketPlan::new(&lens, 4, limit_bytes);
            let mut pending = plan.pending();
            let launched: Vec<usize> = (0..lens.len()).rev().filter_map(|p| pending.note(&plan, p)).collect();
            prop_assert_eq!(launched, (0..plan.buckets.len()).collect::<Vec<_>>());
            prop_assert!(pending.is_complete());
        }
    }
}
