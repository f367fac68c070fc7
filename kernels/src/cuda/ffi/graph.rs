//! CUDA graphs: captured work of streams that one launch repeats.

use cudarc::driver::sys;

use super::driver::{Context, Stream, check};
use crate::error::Result;

/// A captured and instantiated graph.
#[derive(Debug)]
pub struct Graph {
    graph: sys::CUgraph,
    executable: sys::CUgraphExec,
    context: Context,
}

// SAFETY: graphs may be used from any thread, one at a time.
unsafe impl Send for Graph {}

impl Graph {
    /// Captures the work that `body` enqueues on `stream` and on streams that fork from it and join it again, instead of
    /// running it. `body` must not allocate or wait.
    ///
    /// # Errors
    /// `body`'s error; the driver's error if the work cannot be captured.
    pub fn capture<E: From<crate::Error>>(
        stream: &Stream,
        body: impl FnOnce() -> std::result::Result<(), E>,
    ) -> std::result::Result<Self, E> {
        stream.context().bind()?;
        // Restricts only this thread's calls, because a communication library has its own threads.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive.
        unsafe { check("cuStreamBeginCapture", sys::cuStreamBeginCapture_v2(stream.raw(), mode))? };
        let captured = body();
        let mut graph = std::ptr::null_mut();
        // SAFETY: the capture began above and ends here, whatever `body` did; `graph` is written.
        let ended = unsafe { check("cuStreamEndCapture", sys::cuStreamEndCapture(stream.raw(), &mut graph)) };
        // The error of `body` is the cause of the driver's error.
        captured?;
        ended?;
        let mut made = Self { graph, executable: std::ptr::null_mut(), context: stream.context().clone() };
        // SAFETY: `graph` is what the capture made; `executable` is written.
        unsafe {
            let code = sys::cuGraphInstantiateWithFlags(&mut made.executable, graph, 0);
            check("cuGraphInstantiate", code)?;
        }
        Ok(made)
    }

    /// Enqueues the captured work.
    pub fn launch(&self, stream: &Stream) -> Result<()> {
        self.context.bind()?;
        // SAFETY: both are alive. The caller that captured the graph keeps its kernels' memory alive.
        unsafe { check("cuGraphLaunch", sys::cuGraphLaunch(self.executable, stream.raw())) }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.context.bind().is_err() {
            return;
        }
        // SAFETY: each made once and destroyed once; a launch under way is finished by the driver first.
        unsafe {
            if !self.executable.is_null() {
                sys::cuGraphExecDestroy(self.executable);
            }
            if !self.graph.is_null() {
                sys::cuGraphDestroy(self.graph);
            }
        }
    }
}
