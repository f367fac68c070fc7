//! Events: marks in a stream that another stream or the host can wait for, with measurable distances.

use cudarc::driver::sys;

use super::driver::{Context, Stream, check};
use crate::error::{Error, Result};

/// A mark in a stream.
#[derive(Debug)]
pub struct Event {
    event: sys::CUevent,
    context: Context,
}

// SAFETY: events may be used from any thread; the driver locks them.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// An event that only orders, which is cheaper, or also measures time.
    pub fn new(context: &Context, keeps_time: bool) -> Result<Self> {
        context.bind()?;
        let flags = if keeps_time { 0 } else { sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32 };
        let mut event = std::ptr::null_mut();
        // SAFETY: a context is current; `event` is written.
        unsafe { check("cuEventCreate", sys::cuEventCreate(&mut event, flags))? };
        Ok(Self { event, context: context.clone() })
    }

    /// A new event, recorded after the present work of `stream`; it only orders.
    pub(crate) fn after(stream: &Stream) -> Result<Self> {
        let event = Self::new(stream.context(), false)?;
        event.record(stream)?;
        Ok(event)
    }

    /// Records the event after the present work of `stream`.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        self.context.bind()?;
        // SAFETY: both are alive.
        unsafe { check("cuEventRecord", sys::cuEventRecord(self.event, stream.raw())) }
    }

    /// Makes later work of `stream` wait for the last record of this event.
    pub fn hold(&self, stream: &Stream) -> Result<()> {
        self.context.bind()?;
        // SAFETY: both are alive.
        unsafe { check("cuStreamWaitEvent", sys::cuStreamWaitEvent(stream.raw(), self.event, 0)) }
    }

    /// Whether the stream has passed the event; true for an event that was never recorded.
    pub fn is_over(&self) -> Result<bool> {
        self.context.bind()?;
        // SAFETY: the event is alive.
        match unsafe { sys::cuEventQuery(self.event) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => check("cuEventQuery", code).map(|()| true),
        }
    }

    /// Waits until the stream has passed the event.
    pub fn synchronize(&self) -> Result<()> {
        self.context.bind()?;
        // SAFETY: the event is alive.
        unsafe { check("cuEventSynchronize", sys::cuEventSynchronize(self.event)) }
    }

    /// Nanoseconds from `earlier` to this event, to about half a microsecond; both must be passed and measure time.
    pub fn ns_since(&self, earlier: &Self) -> Result<i64> {
        type Elapsed = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> u32;
        self.context.bind()?;
        let mut milliseconds = 0.0;
        // SAFETY: the signature is the documented one, for both names. Newer headers call the function `_v2`, but every
        // driver has the old name, so it is looked up here instead of taken from cudarc. Both events are alive.
        let code = unsafe {
            let elapsed = sys::culib().get::<Elapsed>(b"cuEventElapsedTime").map_err(|error| Error::Cuda {
                call: "cuEventElapsedTime",
                code: -1,
                message: error.to_string(),
            })?;
            elapsed(&mut milliseconds, earlier.event, self.event)
        };
        if code != 0 {
            let message = "an event is not passed, or does not measure time".into();
            return Err(Error::Cuda { call: "cuEventElapsedTime", code: code.cast_signed(), message });
        }
        Ok((f64::from(milliseconds) * 1e6).round() as i64)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: created once, destroyed once; the driver keeps events that streams still wait for.
            unsafe { sys::cuEventDestroy_v2(self.event) };
        }
    }
}
