//! Events: marks in a stream that another stream, or the host, can wait for, and whose distance can be measured.

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
    /// An event that only orders, which is cheaper, or also keeps the time.
    pub fn new(context: &Context, keeps_time: bool) -> Result<Self> {
        context.bind()?;
        let flags = if keeps_time { 0 } else { sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32 };
        let mut event = std::ptr::null_mut();
        // SAFETY: a context is current; `event` is written.
        unsafe { check("cuEventCreate", sys::cuEventCreate(&mut event, flags))? };
        Ok(Self { event, context: context.clone() })
    }

    /// A new event behind what `stream` holds now; it only orders.
    pub(crate) fn after(stream: &Stream) -> Result<Self> {
        let event = Self::new(stream.context(), false)?;
        event.record(stream)?;
        Ok(event)
    }

    /// Puts the mark behind what `stream` holds now.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        self.context.bind()?;
        // SAFETY: both are alive.
        unsafe { check("cuEventRecord", sys::cuEventRecord(self.event, stream.raw())) }
    }

    /// What `stream` gets from now on waits for the mark as it stands now.
    pub fn hold(&self, stream: &Stream) -> Result<()> {
        self.context.bind()?;
        // SAFETY: both are alive.
        unsafe { check("cuStreamWaitEvent", sys::cuStreamWaitEvent(stream.raw(), self.event, 0)) }
    }

    /// Whether the stream has passed the mark; yes for one that was never recorded.
    pub fn is_over(&self) -> Result<bool> {
        self.context.bind()?;
        // SAFETY: the event is alive.
        match unsafe { sys::cuEventQuery(self.event) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => check("cuEventQuery", code).map(|()| true),
        }
    }

    /// Waits until the stream has passed the mark.
    pub fn synchronize(&self) -> Result<()> {
        self.context.bind()?;
        // SAFETY: the event is alive.
        unsafe { check("cuEventSynchronize", sys::cuEventSynchronize(self.event)) }
    }

    /// Nanoseconds from `earlier` to this, to about half a microsecond; both must be over and keep time.
    pub fn ns_since(&self, earlier: &Self) -> Result<i64> {
        type Elapsed = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> u32;
        self.context.bind()?;
        let mut milliseconds = 0.0;
        // SAFETY: the signature is the documented one, for both names; newer headers call it `_v2`, but every driver
        // has the old name, which is why it is looked up here and not taken from cudarc. Both events are alive.
        let code = unsafe {
            let elapsed = sys::culib().get::<Elapsed>(b"cuEventElapsedTime").map_err(|error| Error::Cuda {
                call: "cuEventElapsedTime",
                code: -1,
                message: error.to_string(),
            })?;
            elapsed(&mut milliseconds, earlier.event, self.event)
        };
        if code != 0 {
            let message = "an event is not over, or keeps no time".into();
            return Err(Error::Cuda { call: "cuEventElapsedTime", code: code.cast_signed(), message });
        }
        Ok((f64::from(milliseconds) * 1e6).round() as i64)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: made once, destroyed once; the driver keeps what is still waited for.
            unsafe { sys::cuEventDestroy_v2(self.event) };
        }
    }
}
