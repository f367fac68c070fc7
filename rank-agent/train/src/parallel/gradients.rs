//! Data parallelism: gradient buckets that are all-reduced, or layers that are gathered ahead of their use and whose gradients
//! are scattered.
//!
//! ```text
//! sharded   gather 0, gather 1 | layer 0 | gather 2 | layer 1 | …       backward: gather n-1, gather n-2 | layer n-1 | scatter n-1 …
//! ```

use agent::fabric::{Buffers, Transfer};
use recorder::ThreadRecorder;
use trace::BucketRow;

use super::comms::Channel;
use crate::Error;
use crate::buckets::{BucketPlan, Pending};

/// The gradients of a stage.
pub(super) enum Gradients {
    Buckets { plan: BucketPlan, pending: Pending, memory: Vec<Option<Buffers>> },
    Sharded { layers: usize, memory: Vec<Option<Buffers>> },
}

/// The direction of a pass over the layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Forward,
    Backward,
}

impl Gradients {
    /// All-reduced buckets of at most `bucket_bytes` for layers of `len` parameters each.
    pub(super) fn buckets(layers: usize, len: usize, bucket_bytes: usize) -> Self {
        let plan = BucketPlan::new(&vec![len; layers], size_of::<f32>(), bucket_bytes);
        Self::Buckets { pending: plan.pending(), memory: Vec::new(), plan }
    }

    /// Layers that are sharded.
    pub(super) fn sharded(layers: usize) -> Self {
        Self::Sharded { layers, memory: Vec::new() }
    }

    /// Number of transfers that may be outstanding at once.
    pub(super) fn slots(&self) -> usize {
        match self {
            Self::Buckets { plan, .. } => plan.buckets.len(),
            Self::Sharded { layers, .. } => 3 * layers,
        }
    }

    /// The gathers of the forward pass come first, then those of the backward pass, then the scatters.
    fn transfer(&self, slot: usize) -> Transfer {
        match self {
            Self::Buckets { .. } => Transfer::AllReduce,
            Self::Sharded { layers, .. } if slot < 2 * layers => Transfer::AllGather,
            Self::Sharded { .. } => Transfer::ReduceScatter,
        }
    }

    fn memory(&mut self) -> &mut Vec<Option<Buffers>> {
        match self {
            Self::Buckets { memory, .. } | Self::Sharded { memory, .. } => memory,
        }
    }

    /// Allocates the memory of all transfers; a layer has `len` parameters.
    pub(super) fn allocate(&mut self, channel: &Channel, len: usize) {
        let piece = |slot: usize| match &*self {
            Self::Buckets { plan, .. } => plan.buckets[slot].len,
            Self::Sharded { .. } => len.div_ceil(channel.size()),
        };
        let memory = (0..self.slots()).map(|slot| Some(channel.buffers(self.transfer(slot), piece(slot)))).collect();
        *self.memory() = memory;
    }

    /// The rows of the table `buckets`; `first_layer` is the number of the stage's first layer.
    pub(super) fn rows(&self, rank: i32, first_layer: usize) -> Vec<BucketRow> {
        let Self::Buckets { plan, .. } = self else { return Vec::new() };
        let name = |layer: Option<&usize>| format!("layer{}.weight", first_layer + layer.copied().unwrap_or(0));
        let row = |(index, bucket): (usize, &crate::buckets::Bucket)| BucketRow {
            rank,
            bucket: index as i32,
            bytes: (bucket.len * size_of::<f32>()) as i64,
            first_parameter: name(bucket.parameters.first()).as_str().into(),
            last_parameter: name(bucket.parameters.last()).as_str().into(),
            parameter_bytes: Some(plan.parameter_bytes(bucket)),
        };
        plan.buckets.iter().enumerate().map(row).collect()
    }

    fn issue(&mut self, channel: &mut Channel, thread: &ThreadRecorder, slot: usize) -> Result<(), Error> {
        // The sum over one rank is its own numbers.
        if channel.size() == 1 {
            return Ok(());
        }
        let transfer = self.transfer(slot);
        let bucket = matches!(self, Self::Buckets { .. }).then_some(slot as i32);
        let Some(place) = self.memory().get_mut(slot) else { return Ok(()) };
        let buffers = match place.take() {
            Some(buffers) => buffers,
            // The transfer of the previous microbatch.
            None => channel.wait(slot, transfer)?,
        };
        channel.issue(thread, (slot, bucket), transfer, buffers)
    }

    fn wait(&mut self, channel: &mut Channel, slot: usize) -> Result<(), Error> {
        let transfer = self.transfer(slot);
        let Some(place) = self.memory().get_mut(slot).filter(|place| place.is_none()) else { return Ok(()) };
        *place = Some(channel.wait(slot, transfer)?);
        Ok(())
    }

    /// Begins the gather of a layer.
    pub(super) fn gather(
        &mut self,
        channel: &mut Channel,
        thread: &ThreadRecorder,
        layer: usize,
        direction: Direction,
    ) -> Result<(), Error> {
        match self.gather_slot(layer, direction) {
            Some(slot) => self.issue(channel, thread, slot),
            None => Ok(()),
        }
    }

    /// Waits for the gather of a layer.
    pub(super) fn wait_gather(
        &mut self,
        channel: &mut Channel,
        layer: usize,
        direction: Direction,
    ) -> Result<(), Error> {
        match self.gather_slot(layer, direction) {
            Some(slot) => self.wait(channel, slot),
            None => Ok(()),
        }
    }

    pub(super) fn is_sharded(&self) -> bool {
        matches!(self, Self::Sharded { .. })
    }

    fn gather_slot(&self, layer: usize, direction: Direction) -> Option<usize> {
        let Self::Sharded { layers, .. } = self else { return None };
        let begin = if direction == Direction::Forward { 0 } else { *layers };
        (layer < *layers).then_some(begin + layer)
    }

    /// Notes that a layer's gradient of a microbatch is ready. Buckets are sent after the last microbatch.
    pub(super) fn ready(
        &mut self,
        channel: &mut Channel,
        thread: &ThreadRecorder,
        layer: usize,
        is_last: bool,
    ) -> Result<(), Error> {
        let slot = match self {
            Self::Buckets { plan, pending, .. } if is_last => pending.note(plan, layer),
            Self::Buckets { .. } => None,
            Self::Sharded { layers, .. } => Some(2 * *layers + layer),
        };
        slot.map_or(Ok(()), |slot| self.issue(channel, thread, slot))
    }

    /// Waits for all transfers of the step.
    pub(super) fn wait_all(&mut self, channel: &mut Channel) -> Result<(), Error> {
        for slot in 0..self.slots() {
            self.wait(channel, slot)?;
        }
        if let Self::Buckets { plan, pending, .. } = self {
            pending.reset(plan);
        }
        Ok(())
    }

    /// Bytes of all gradients of this stage, for layers of `len` parameters, and the number of their transfers.
    pub(super) fn size(&self, len: usize) -> (usize, usize) {
        let layers = match self {
            Self::Buckets { plan, .. } => plan.slots.len(),
            Self::Sharded { layers, .. } => *layers,
        };
        let transfers = if self.is_sharded() { layers } else { self.slots() };
        (layers * len * size_of::<f32>(), transfers)
    }
}
