//! Times of collectives from CUDA events, for devices without CUPTI.
//!
//! An event before and one after a collective give its length to half a microsecond. An anchor places it on the recorder's
//! clock: an event on an idle stream between two readings of the clock, the tightest of several.

use kernels::cuda::{Cuda, Event, Stream};
use recorder::{Collective, CollectiveState, ThreadRecorder, TimingSource};

use crate::Error;

/// Most measurements in flight; further collectives become rows without times.
const PENDING_MAX: usize = 4096;
/// Tries for an anchor; the tightest counts.
const ANCHORS: usize = 8;

/// A collective with the events of its start and end, and of the time when its gradients were ready.
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

/// The events of a collective that is being issued.
pub(super) struct TimingEvents {
    ready: Event,
    start: Event,
}

impl Timing {
    /// Relates the device's time to the recorder's clock. Waits for `stream`, which should be idle.
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

    /// Call before the collective: records when `compute` has made the gradients, and makes the start event.
    pub(super) fn begin(&mut self, cuda: &Cuda, compute: &Stream) -> Result<Option<TimingEvents>, Error> {
        if self.pending.len() >= PENDING_MAX || self.anchor.is_none() {
            return Ok(None);
        }
        let (ready, start) = (self.event(cuda)?, self.event(cuda)?);
        ready.record(compute)?;
        Ok(Some(TimingEvents { ready, start }))
    }

    /// Call after the collective was enqueued on `stream`: records its end.
    pub(super) fn end(
        &mut self,
        cuda: &Cuda,
        TimingEvents { ready, start }: TimingEvents,
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

    /// Writes a row for every measured collective. The streams must be idle.
    pub(super) fn settle(&mut self, thread: &ThreadRecorder) -> Result<(), Error> {
        for Pending { collective, ready, start, end } in self.pending.drain(..) {
            if let Some((anchor, anchor_ns)) = &self.anchor {
                // CUDA returns distances as f32 in ms, so shorter ones are more exact: lengths to half a microsecond, a
                // start 8 s after the anchor to one.
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

impl TimingEvents {
    /// Records the start, after `stream` was made to wait for the gradients.
    pub(super) fn start(&self, stream: &Stream) -> Result<(), Error> {
        Ok(self.start.record(stream)?)
    }
}
