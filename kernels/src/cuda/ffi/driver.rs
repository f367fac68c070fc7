//! The driver: devices, contexts, streams, modules, launches.

use std::cell::Cell;
use std::ffi::{CStr, CString, c_void};
use std::sync::Arc;

use cudarc::driver::sys;

use crate::error::{Error, Result};

/// Converts the driver's result code.
pub(crate) fn check(call: &'static str, code: sys::CUresult) -> Result<()> {
    if code as u32 == 0 {
        return Ok(());
    }
    let (mut name, mut text) = (std::ptr::null(), std::ptr::null());
    // SAFETY: both functions write a pointer to a static string, or null for a code they do not know.
    let (name, text) = unsafe {
        sys::cuGetErrorName(code, &mut name);
        sys::cuGetErrorString(code, &mut text);
        (static_text(name), static_text(text))
    };
    Err(Error::Cuda { call, code: code as u32 as i32, message: format!("{name}: {text}") })
}

/// # Safety
/// `text` is null or a string that lives as long as the process.
unsafe fn static_text(text: *const std::ffi::c_char) -> String {
    if text.is_null() {
        return "unknown".into();
    }
    // SAFETY: the caller guarantees it.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Initializes the driver and returns the newest CUDA version that it supports, as 1000 · major + 10 · minor.
pub(crate) fn initialize() -> Result<i32> {
    let mut version = 0;
    // SAFETY: `library::open` has found both functions; `version` is written.
    unsafe {
        check("cuInit", sys::cuInit(0))?;
        check("cuDriverGetVersion", sys::cuDriverGetVersion(&mut version))?;
    }
    Ok(version)
}

/// Number of devices that this process sees, after `CUDA_VISIBLE_DEVICES`.
pub(crate) fn device_count() -> Result<usize> {
    let mut count = 0;
    // SAFETY: after `initialize`; `count` is written.
    unsafe { check("cuDeviceGetCount", sys::cuDeviceGetCount(&mut count))? };
    Ok(usize::try_from(count).unwrap_or(0))
}

/// Properties of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Number among the visible devices.
    pub ordinal: usize,
    /// Name of the device.
    pub name: String,
    /// UUID, equal for all processes that see the device: `GPU-…`, or `MIG-…` for a part of one.
    pub uuid: String,
    /// Place of the whole device on its host's bus, equal for all its parts.
    pub bus_id: String,
    /// Compute capability: 9.0 is 90.
    pub capability: u32,
    /// Streaming multiprocessors.
    pub multiprocessors: i32,
    /// Highest clock of the multiprocessors in kHz.
    pub clock_khz: i32,
    /// Highest clock of the memory in kHz.
    pub memory_clock_khz: i32,
    /// Width of the memory's bus in bits.
    pub bus_bits: i32,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Threads of a warp.
    pub warp_threads: i32,
    /// Threads that a multiprocessor holds at a time.
    pub sm_threads: i32,
    /// Blocks that a multiprocessor holds at a time.
    pub sm_blocks: i32,
    /// Registers of a multiprocessor.
    pub sm_registers: i32,
    /// Shared memory of a multiprocessor in bytes.
    pub sm_shared_bytes: i32,
}

/// Describes a visible device.
pub(crate) fn device_info(ordinal: usize) -> Result<DeviceInfo> {
    let device = device_handle(ordinal)?;
    let (mut name, mut bus_id) = ([0; 128], [0; 32]);
    let mut uuid = sys::CUuuid { bytes: [0; 16] };
    let mut memory_bytes = 0;
    // SAFETY: `device` is one of the driver's; the lengths of the buffers are passed along.
    unsafe {
        check("cuDeviceGetName", sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as i32, device))?;
        check("cuDeviceGetUuid", sys::cuDeviceGetUuid_v2(&mut uuid, device))?;
        check("cuDeviceGetPCIBusId", sys::cuDeviceGetPCIBusId(bus_id.as_mut_ptr(), bus_id.len() as i32, device))?;
        check("cuDeviceTotalMem", sys::cuDeviceTotalMem_v2(&mut memory_bytes, device))?;
    }
    let text = |chars: &[std::ffi::c_char]| -> String {
        let bytes: Vec<u8> = chars.iter().take_while(|c| **c != 0).map(|c| c.cast_unsigned()).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let name = text(&name);
    let attribute = |attribute| device_attribute(device, attribute);
    use sys::CUdevice_attribute as A;
    let major = attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    Ok(DeviceInfo {
        ordinal,
        // The driver names a part so: `NVIDIA H200 MIG 1g.18gb`.
        uuid: uuid_text(if name.contains(" MIG ") { "MIG" } else { "GPU" }, uuid.bytes.map(i8::cast_unsigned)),
        bus_id: text(&bus_id),
        name,
        capability: u32::try_from(major * 10 + minor).unwrap_or(0),
        multiprocessors: attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        clock_khz: attribute(A::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?,
        memory_clock_khz: attribute(A::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?,
        bus_bits: attribute(A::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?,
        memory_bytes: memory_bytes as u64,
        warp_threads: attribute(A::CU_DEVICE_ATTRIBUTE_WARP_SIZE)?,
        sm_threads: attribute(A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?,
        sm_blocks: attribute(A::CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR)?,
        sm_registers: attribute(A::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR)?,
        sm_shared_bytes: attribute(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?,
    })
}

/// Formats a UUID as `nvidia-smi -L` does.
pub(crate) fn uuid_text(kind: &str, bytes: [u8; 16]) -> String {
    let hex = |range: std::ops::Range<usize>| bytes[range].iter().map(|b| format!("{b:02x}")).collect::<String>();
    format!("{kind}-{}-{}-{}-{}-{}", hex(0..4), hex(4..6), hex(6..8), hex(8..10), hex(10..16))
}

fn device_handle(ordinal: usize) -> Result<sys::CUdevice> {
    let mut device = 0;
    let number = i32::try_from(ordinal).unwrap_or(i32::MAX);
    // SAFETY: after `initialize`; `device` is written.
    unsafe { check("cuDeviceGet", sys::cuDeviceGet(&mut device, number))? };
    Ok(device)
}

fn device_attribute(device: sys::CUdevice, attribute: sys::CUdevice_attribute) -> Result<i32> {
    let mut value = 0;
    // SAFETY: `device` is one of the driver's; `value` is written.
    unsafe { check("cuDeviceGetAttribute", sys::cuDeviceGetAttribute(&mut value, attribute, device))? };
    Ok(value)
}

thread_local! {
    /// The context that this module made current on this thread, which saves a driver call per operation.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// A device's primary context, which cuBLAS, NCCL and CUPTI also use. Clones share it; it lives until the last clone and all
/// objects made in it are dropped.
#[derive(Clone, Debug)]
pub struct Context(Arc<Primary>);

#[derive(Debug)]
struct Primary {
    device: sys::CUdevice,
    context: sys::CUcontext,
}

// SAFETY: the driver's contexts may be used from any thread that makes them current; `Context::bind` does.
unsafe impl Send for Primary {}
// SAFETY: as above; the driver locks what it shares.
unsafe impl Sync for Primary {}

impl Drop for Primary {
    fn drop(&mut self) {
        CURRENT.set(0);
        // SAFETY: retained once, in `Context::retain`; nothing made in it is left, because all of it holds the `Arc`.
        unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

impl Context {
    /// The primary context of a visible device.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn retain(ordinal: usize) -> Result<Self> {
        let device = device_handle(ordinal)?;
        let mut context = std::ptr::null_mut();
        // SAFETY: `device` is one of the driver's; `context` is written.
        unsafe { check("cuDevicePrimaryCtxRetain", sys::cuDevicePrimaryCtxRetain(&mut context, device))? };
        Ok(Self(Arc::new(Primary { device, context })))
    }

    /// Makes the context current on this thread.
    pub fn bind(&self) -> Result<()> {
        let address = self.0.context as usize;
        if CURRENT.get() != address {
            // SAFETY: the context is alive as long as `self`.
            unsafe { check("cuCtxSetCurrent", sys::cuCtxSetCurrent(self.0.context))? };
            CURRENT.set(address);
        }
        Ok(())
    }

    /// Waits for all work on all streams.
    pub fn synchronize(&self) -> Result<()> {
        self.bind()?;
        // SAFETY: a context is current.
        unsafe { check("cuCtxSynchronize", sys::cuCtxSynchronize()) }
    }

    /// Free and total memory of the device in bytes.
    pub fn memory_info(&self) -> Result<(u64, u64)> {
        self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: a context is current; both are written.
        unsafe { check("cuMemGetInfo", sys::cuMemGetInfo_v2(&mut free, &mut total))? };
        Ok((free as u64, total as u64))
    }
}

/// A queue of work on a device. Work on one stream runs in order, concurrently with other streams.
#[derive(Debug)]
pub struct Stream {
    stream: sys::CUstream,
    context: Context,
}

// SAFETY: streams may be used from any thread; the driver locks them.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// A stream that does not wait for the default stream. With `urgent`, its blocks are scheduled before those of other
    /// streams.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn new(context: &Context, urgent: bool) -> Result<Self> {
        context.bind()?;
        let (mut stream, mut least, mut greatest) = (std::ptr::null_mut(), 0, 0);
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: a context is current; the three are written.
        unsafe {
            check("cuCtxGetStreamPriorityRange", sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest))?;
            let priority = if urgent { greatest } else { least };
            check("cuStreamCreateWithPriority", sys::cuStreamCreateWithPriority(&mut stream, flags, priority))?;
        }
        Ok(Self { stream, context: context.clone() })
    }

    /// The driver's handle, for libraries that take streams; valid as long as the stream.
    pub fn handle(&self) -> *mut c_void {
        self.stream.cast()
    }

    pub(crate) fn raw(&self) -> sys::CUstream {
        self.stream
    }

    /// The stream's context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Waits for all work on the stream.
    pub fn synchronize(&self) -> Result<()> {
        self.context.bind()?;
        // SAFETY: the stream is alive.
        unsafe { check("cuStreamSynchronize", sys::cuStreamSynchronize(self.stream)) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: made by `new`, destroyed once; work still in it is finished by the driver first.
            unsafe { sys::cuStreamDestroy_v2(self.stream) };
        }
    }
}

/// Compiled kernels on a device.
#[derive(Debug)]
pub(crate) struct Module {
    module: sys::CUmodule,
    context: Context,
}

// SAFETY: modules and their functions may be used from any thread.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

/// A kernel of a [`Module`].
#[derive(Clone, Debug)]
pub(crate) struct Function {
    function: sys::CUfunction,
    /// Keeps the code loaded.
    _module: Arc<Module>,
}

// SAFETY: as for `Module`.
unsafe impl Send for Function {}
// SAFETY: as for `Module`.
unsafe impl Sync for Function {}

impl Module {
    /// Loads a cubin, or PTX that ends with a zero byte.
    pub(crate) fn load(context: &Context, image: &[u8]) -> Result<Arc<Self>> {
        context.bind()?;
        let mut module = std::ptr::null_mut();
        // SAFETY: the image is what NVRTC made: a cubin carries its length in its header, PTX ends with a zero.
        unsafe { check("cuModuleLoadData", sys::cuModuleLoadData(&mut module, image.as_ptr().cast()))? };
        Ok(Arc::new(Self { module, context: context.clone() }))
    }

    /// A kernel by its name.
    pub(crate) fn function(self: &Arc<Self>, name: &str) -> Result<Function> {
        self.context.bind()?;
        let name = CString::new(name).map_err(|_| Error::Cuda {
            call: "cuModuleGetFunction",
            code: -1,
            message: format!("`{name}` is no name"),
        })?;
        let mut function = std::ptr::null_mut();
        // SAFETY: the module is loaded; `name` ends with a zero; `function` is written.
        unsafe {
            let code = sys::cuModuleGetFunction(&mut function, self.module, name.as_ptr());
            check("cuModuleGetFunction", code)?;
        }
        Ok(Function { function, _module: self.clone() })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: loaded once, unloaded once; functions hold the module.
            unsafe { sys::cuModuleUnload(self.module) };
        }
    }
}

/// An argument of a kernel, by value.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub(crate) struct Argument([u8; 8]);

macro_rules! arguments_from {
    ($($type:ty),+) => { $(
        impl From<$type> for Argument {
            fn from(value: $type) -> Self {
                let mut bytes = [0; 8];
                bytes[..size_of::<$type>()].copy_from_slice(&value.to_ne_bytes());
                Self(bytes)
            }
        }
    )+ };
}
arguments_from!(u32, u64, f32);

/// Enqueues a kernel.
///
/// This function cannot check the kernel's signature: `arguments` must match the `.cu` source in type and order, and every
/// pointer among them must stay valid, for all elements that the kernel accesses, until the stream has run it. The callers
/// in [`crate::cuda`] check lengths first; buffers are freed only after the device has finished with them.
pub(crate) fn launch(
    stream: &Stream,
    function: &Function,
    (grid, block): ((u32, u32), (u32, u32)),
    arguments: &mut [Argument],
) -> Result<()> {
    stream.context.bind()?;
    let mut pointers: [*mut c_void; MAX_ARGUMENTS] = [std::ptr::null_mut(); MAX_ARGUMENTS];
    for (pointer, argument) in pointers.iter_mut().zip(arguments.iter_mut()) {
        *pointer = std::ptr::from_mut(argument).cast();
    }
    let (null, shared) = (std::ptr::null_mut(), 0);
    // SAFETY: `pointers` holds an address for each of the kernel's parameters, by the contract above; the driver copies
    // the values before it returns.
    unsafe {
        let code = sys::cuLaunchKernel(
            function.function,
            grid.0,
            grid.1,
            1,
            block.0,
            block.1,
            1,
            shared,
            stream.stream,
            pointers.as_mut_ptr(),
            null,
        );
        check("cuLaunchKernel", code)
    }
}

/// Most arguments of a kernel.
pub(crate) const MAX_ARGUMENTS: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_formatted_as_by_nvidia_smi() {
        let bytes: [u8; 16] = std::array::from_fn(|i| i as u8 * 17);
        assert_eq!(uuid_text("GPU", bytes), "GPU-00112233-4455-6677-8899-aabbccddeeff");
    }
}
