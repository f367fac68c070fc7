//! Communicators of a part of the ranks over NCCL, for jobs that work on the host: numbers go through pinned memory to the device,
//! NCCL carries them, and the result comes back.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use agent::fabric::agree::agree_on_success as agree;
use agent::fabric::{Buffers, Fabric, Group, InFlight, Lane, Transfer};
use kernels::cuda::{Context, Event, Staging, Stream};
use trace::lock;

use super::nccl::{Communicator, Nccl, UNIQUE_ID_BYTES};
use super::plan::{Carrier, CudaPlan};
use crate::Error;

/// Words of an id of NCCL.
const ID_WORDS: usize = UNIQUE_ID_BYTES / size_of::<u64>();

/// Makes communicators on the device of a plan.
pub(crate) struct NcclGroups<'a> {
    nccl: Nccl,
    context: Context,
    fabric: &'a dyn Fabric,
}

impl<'a> NcclGroups<'a> {
    /// Opens the device. Collective.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if NCCL carries nothing, as with one rank; the driver's error.
    pub(crate) fn open(plan: &CudaPlan, fabric: &'a dyn Fabric) -> Result<Self, Error> {
        let Carrier::Nccl(nccl, _) = plan.carrier else {
            return Err(Error::Unavailable("--collectives nccl: a job of one rank has no transfers".into()));
        };
        let context = Context::retain(plan.info.ordinal).map_err(Error::from);
        Ok(Self { nccl, context: agree(fabric, context)?, fabric })
    }

    /// A communicator of the ranks that pass the same color, in the order of ranks. Every rank must call it.
    ///
    /// # Errors
    /// NCCL's, or the fabric's error.
    pub(crate) fn split(&self, color: usize) -> Result<Arc<dyn Group>, Error> {
        let colors = self.fabric.all_gather(Lane::Control, &[color as u64])?;
        let members: Vec<usize> = (0..colors.len()).filter(|rank| colors[*rank] == color as u64).collect();
        let place = members.iter().position(|rank| *rank == self.fabric.rank()).unwrap_or(0);
        // The first member makes the id of its communicator.
        let id = if place == 0 { self.nccl.unique_id().map_err(Error::from) } else { Ok(vec![0; UNIQUE_ID_BYTES]) };
        let words: Vec<u64> = agree(self.fabric, id)?.chunks_exact(size_of::<u64>()).map(word).collect();
        let ids = self.fabric.all_gather(Lane::Control, &words)?;
        let first = members.first().copied().unwrap_or(0) * ID_WORDS;
        let id: Vec<u8> = ids.iter().skip(first).take(ID_WORDS).flat_map(|word| word.to_ne_bytes()).collect();
        self.context.bind()?;
        let joined = Communicator::join(self.nccl, &id, place, members.len()).map_err(Error::from);
        let communicator = agree(self.fabric, joined)?;
        let stream = Stream::new(&self.context, true)?;
        Ok(Arc::new(NcclGroup(Arc::new(Mutex::new(Inner { communicator, stream, spare: BTreeMap::new() })))))
    }
}

fn word(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_ne_bytes)
}

struct NcclGroup(Arc<Mutex<Inner>>);

struct Inner {
    communicator: Communicator,
    stream: Stream,
    /// Memory of finished transfers, by the lengths of both sides.
    spare: BTreeMap<(usize, usize), Vec<[Staging; 2]>>,
}

impl Group for NcclGroup {
    fn start(&self, transfer: Transfer, buffers: Buffers) -> Result<Box<dyn InFlight>, agent::Error> {
        Ok(Box::new(self.enqueue(transfer, buffers)?))
    }
}

impl NcclGroup {
    fn enqueue(&self, transfer: Transfer, buffers: Buffers) -> Result<OverNccl, Error> {
        let mut inner = lock(&self.0);
        let Inner { communicator, stream, spare } = &mut *inner;
        let context = stream.context();
        let lens = (buffers.send.len(), buffers.recv.len());
        let memory = match spare.get_mut(&lens).and_then(Vec::pop) {
            Some(memory) => memory,
            None => [Staging::new(context, "send", lens.0)?, Staging::new(context, "receive", lens.1)?],
        };
        let [mut send, mut recv] = memory;
        send.numbers()?.copy_from_slice(&buffers.send);
        send.upload(stream)?;
        communicator.transfer(transfer, ((&send, lens.0), (&recv, lens.1)), stream)?;
        recv.download(stream)?;
        let end = Event::new(context, false)?;
        end.record(stream)?;
        Ok(OverNccl { group: self.0.clone(), memory: [send, recv], buffers, end, is_over: false })
    }
}

/// A transfer that is enqueued on the device.
struct OverNccl {
    group: Arc<Mutex<Inner>>,
    memory: [Staging; 2],
    buffers: Buffers,
    end: Event,
    is_over: bool,
}

impl OverNccl {
    fn advance(&mut self) -> Result<bool, Error> {
        if self.is_over {
            return Ok(true);
        }
        if !self.end.is_over()? {
            lock(&self.group).communicator.check()?;
            return Ok(false);
        }
        let [_, recv] = &mut self.memory;
        self.buffers.recv.copy_from_slice(recv.numbers()?);
        self.is_over = true;
        Ok(true)
    }
}

impl InFlight for OverNccl {
    fn test(&mut self) -> Result<bool, agent::Error> {
        Ok(self.advance()?)
    }

    fn into_buffers(self: Box<Self>) -> Buffers {
        let Self { group, memory, buffers, is_over, .. } = *self;
        if !is_over {
            return Buffers::default();
        }
        let lens = (buffers.send.len(), buffers.recv.len());
        lock(&group).spare.entry(lens).or_default().push(memory);
        buffers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_the_same_after_its_way_as_words() {
        let id: Vec<u8> = (0..UNIQUE_ID_BYTES as u8).collect();
        let words: Vec<u64> = id.chunks_exact(size_of::<u64>()).map(word).collect();
        assert_eq!(words.len(), ID_WORDS);
        assert_eq!(words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>(), id);
    }
}
