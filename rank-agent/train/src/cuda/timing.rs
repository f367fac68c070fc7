//! Times of collectives from CUDA events, for devices without CUPTI.
//!
//! An event before and one after a collective give its length to half a microsecond. Anchors place it on the recorder's clock:
//! an event on an idle stream between two readings of the clock, the tightest of several. The device's clock drifts, so there is
//! one anchor before the collectives and one after them, and times in between are interpolated. Their error is half an anchor's
//! width, some microseconds, plus the step of CUDA's numbers.

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

/// An event, and its time in the recorder's clock.
struct Anchor {
    event: Event,
    at_ns: i64,
}

impl Anchor {
    fn new(cuda: &Cuda, stream: &Stream, thread: &ThreadRecorder) -> Result<Option<Self>, Error> {
        let mut best: Option<(i64, Self)> = None;
        stream.synchronize()?;
        for _ in 0..ANCHORS {
            let event = cuda.event(true)?;
            let before = thread.now_ns();
            event.record(stream)?;
            event.synchronize()?;
            let width = thread.now_ns() - before;
            if best.as_ref().is_none_or(|(narrowest, _)| width < *narrowest) {
                best = Some((width, Self { event, at_ns: before + width / 2 }));
            }
        }
        Ok(best.map(|(_, anchor)| anchor))
    }
}

/// Measures collectives on one stream.
#[derive(Default)]
pub(super) struct Timing {
    pending: Vec<Pending>,
    spare: Vec<Event>,
    anchor: Option<Anchor>,
}

/// The events of a collective that is being issued.
pub(super) struct TimingEvents {
    ready: Event,
    start: Event,
}

impl Timing {
    /// Relates the device's time to the recorder's clock. Waits for `stream`, which should be idle.
    pub(super) fn anchor(&mut self, cuda: &Cuda, stream: &Stream, thread: &ThreadRecorder) -> Result<(), Error> {
        self.anchor = Anchor::new(cuda, stream, thread)?;
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
    pub(super) fn settle(&mut self, cuda: &Cuda, stream: &Stream, thread: &ThreadRecorder) -> Result<(), Error> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let after = Anchor::new(cuda, stream, thread)?;
        let rate = match (&self.anchor, &after) {
            (Some(before), Some(after)) => rate(after.at_ns - before.at_ns, after.event.ns_since(&before.event)?),
            _ => 1.0,
        };
        let scaled = |ns: i64| (ns as f64 * rate).round() as i64;
        for Pending { collective, ready, start, end } in self.pending.drain(..) {
            if let Some(Anchor { event, at_ns }) = &self.anchor {
                // CUDA returns distances as f32 in ms, so shorter ones are more exact: lengths to half a microsecond, a
                // start 8 s after the anchor to one.
                let start_ns = at_ns + scaled(start.ns_since(event)?);
                thread.collective(Collective {
                    ready_ns: Some(start_ns - scaled(start.ns_since(&ready)?)),
                    start_ns: Some(start_ns),
                    end_ns: Some(start_ns + scaled(end.ns_since(&start)?)),
                    state: CollectiveState::Done,
                    timing_source: TimingSource::GpuTimer,
                    ..collective
                });
            }
            self.spare.extend([ready, start, end]);
        }
        self.anchor = after;
        Ok(())
    }
}

/// Nanoseconds of the recorder's clock in one of the device's, where the time between two anchors is `host_ns` and
/// `device_ns`.
fn rate(host_ns: i64, device_ns: i64) -> f64 {
    if host_ns > 0 && device_ns > 0 { host_ns as f64 / device_ns as f64 } else { 1.0 }
}

impl TimingEvents {
    /// Records the start, after `stream` was made to wait for the gradients.
    pub(super) fn start(&self, stream: &Stream) -> Result<(), Error> {
        Ok(self.start.record(stream)?)
    }
}
