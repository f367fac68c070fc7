//! When collectives ran, by CUDA events: the way without CUPTI.
//!
//! An event on each side of a collective gives its length to half a microsecond. Where it lies on the recorder's clock
//! comes from an anchor: an event on an idle stream, between two readings of the clock; the tightest of several.

use kernels::cuda::{Cuda, Event, Stream};
use recorder::{Collective, CollectiveState, ThreadRecorder, TimingSource};

use crate::Error;

/// Measurements in flight at most; what is beyond becomes a row without times.
const PENDING_MAX: usize = 4096;
/// Tries for an anchor, of which the tightest counts.
const ANCHORS: usize = 8;

/// A collective between its two events, and the event that says when its gradients were there.
struct Pending {
    collective: Collective,
    ready: Event,
    start: Event,
    end: Event,
}

/// Measures collectives on one stream.
#[derive(Default)]
pub(super) struct Timing {
    pending: Vec<Pending>,
    spare: Vec<Event>,
    anchor: Option<(Event, i64)>,
}

/// The marks of a collective that is being issued.
pub(super) struct Marks {
    ready: Event,
    start: Event,
}

impl Timing {
    /// Ties the device's time to the recorder's clock. Waits for `stream`, which should be idle.
    pub(super) fn anchor(&mut self, cuda: &Cuda, stream: &Stream, thread: &ThreadRecorder) -> Result<(), Error> {
        let mut best: Option<(i64, i64, Event)> = None;
        stream.synchronize()?;
        for _ in 0..ANCHORS {
            let event = cuda.event(true)?;
            let before = thread.now_ns();
            event.record(stream)?;
            event.synchronize()?;
            let after = thread.now_ns();
            let width = after - before;
            if best.as_ref().is_none_or(|(narrowest, ..)| width < *narrowest) {
                best = Some((width, before + width / 2, event));
            }
        }
        self.anchor = best.map(|(_, middle, event)| (event, middle));
        Ok(())
    }

    /// Before the collective: marks when `compute` has made the gradients, and when `stream` begins.
    pub(super) fn begin(&mut self, cuda: &Cuda, compute: &Stream) -> Result<Option<Marks>, Error> {
        if self.pending.len() >= PENDING_MAX || self.anchor.is_none() {
            return Ok(None);
        }
        let (ready, start) = (self.event(cuda)?, self.event(cuda)?);
        ready.record(compute)?;
        Ok(Some(Marks { ready, start }))
    }

    /// After the collective was enqueued on `stream`.
    pub(super) fn end(
        &mut self,
        cuda: &Cuda,
        Marks { ready, start }: Marks,
        stream: &Stream,
        collective: Collective,
    ) -> Result<(), Error> {
        let end = self.event(cuda)?;
        end.record(stream)?;
        self.pending.push(Pending { collective, ready, start, end });
        Ok(())
    }

    fn event(&mut self, cuda: &Cuda) -> Result<Event, Error> {
        Ok(match self.spare.pop() {
            Some(event) => event,
            None => cuda.event(true)?,
        })
    }

    /// Writes a row for everything measured. The streams must be idle.
    pub(super) fn settle(&mut self, thread: &ThreadRecorder) -> Result<(), Error> {
        for Pending { collective, ready, start, end } in self.pending.drain(..) {
            if let Some((anchor, anchor_ns)) = &self.anchor {
                // CUDA gives distances as f32 in ms, which are the finer the shorter they are: lengths to half a
                // microsecond, the place after 8 s to one.
                let start_ns = anchor_ns + start.ns_since(anchor)?;
                thread.collective(Collective {
                    ready_ns: Some(start_ns - start.ns_since(&ready)?),
                    start_ns: Some(start_ns),
                    end_ns: Some(start_ns + end.ns_since(&start)?),
                    state: CollectiveState::Done,
                    timing_source: TimingSource::GpuTimer,
                    ..collective
                });
            }
            self.spare.extend([ready, start, end]);
        }
        Ok(())
    }
}

impl Marks {
    /// Marks the beginning, once `stream` waits for the gradients.
    pub(super) fn start(&self, stream: &Stream) -> Result<(), Error> {
        Ok(self.start.record(stream)?)
    }
}
