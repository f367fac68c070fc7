//! NVRTC: compiles CUDA C to a cubin, without a driver.

use std::ffi::{CStr, CString};

use cudarc::nvrtc::sys;

use crate::error::{Error, Result};

fn check(call: &'static str, code: sys::nvrtcResult) -> Result<()> {
    if code as u32 == 0 {
        return Ok(());
    }
    // SAFETY: the function returns a static string for any code.
    let message = unsafe { CStr::from_ptr(sys::nvrtcGetErrorString(code)) }.to_string_lossy().into_owned();
    Err(Error::Cuda { call, code: code as u32 as i32, message })
}

/// NVRTC's version: (13, 0).
pub(crate) fn version() -> Result<(i32, i32)> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both are written.
    unsafe { check("nvrtcVersion", sys::nvrtcVersion(&mut major, &mut minor))? };
    Ok((major, minor))
}

/// Architectures that this NVRTC supports, ascending: 80, 90, …
pub(crate) fn architectures() -> Result<Vec<u32>> {
    let mut count = 0;
    // SAFETY: `count` is written, and is the number of values that the second call writes.
    unsafe {
        check("nvrtcGetNumSupportedArchs", sys::nvrtcGetNumSupportedArchs(&mut count))?;
        let mut architectures = vec![0; usize::try_from(count).unwrap_or(0)];
        check("nvrtcGetSupportedArchs", sys::nvrtcGetSupportedArchs(architectures.as_mut_ptr()))?;
        Ok(architectures.into_iter().filter_map(|number| u32::try_from(number).ok()).collect())
    }
}

/// A program of NVRTC, destroyed when dropped.
struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        unsafe { sys::nvrtcDestroyProgram(&mut self.0) };
    }
}

fn target(architecture: u32, portable: bool) -> String {
    if portable { format!("compute_{architecture}") } else { format!("sm_{architecture}") }
}

/// The compiler's options, which are also part of the cache key.
pub(crate) fn options(architecture: u32, portable: bool) -> [String; 3] {
    let target = target(architecture, portable);
    [format!("--gpu-architecture={target}"), "--std=c++14".into(), "--generate-line-info".into()]
}

/// Compiles one source for `architecture`: machine code (`sm_90`), or with `portable` PTX (`compute_90`), which the
/// driver compiles further. PTX ends with a zero byte, as the driver requires.
///
/// # Errors
/// [`Error::Compile`] with the compiler's log.
pub(crate) fn compile(name: &str, source: &str, architecture: u32, portable: bool) -> Result<Vec<u8>> {
    let text = |text: &str| CString::new(text).unwrap_or_default();
    let options = options(architecture, portable).map(|option| text(&option));
    let option_pointers: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
    let (source, file) = (text(source), text(name));
    let mut program = std::ptr::null_mut();
    // SAFETY: all strings end with a zero and outlive the calls; no headers are given; each buffer has the length that
    // NVRTC has returned.
    unsafe {
        let none = std::ptr::null();
        let code = sys::nvrtcCreateProgram(&mut program, source.as_ptr(), file.as_ptr(), 0, none, none);
        check("nvrtcCreateProgram", code)?;
        let program = Program(program);
        let compiled = sys::nvrtcCompileProgram(program.0, option_pointers.len() as i32, option_pointers.as_ptr());
        if compiled as u32 != 0 {
            let log = log(&program);
            return Err(Error::Compile { file: name.to_owned(), target: target(architecture, portable), log });
        }
        let mut size = 0;
        if portable {
            check("nvrtcGetPTXSize", sys::nvrtcGetPTXSize(program.0, &mut size))?;
        } else {
            check("nvrtcGetCUBINSize", sys::nvrtcGetCUBINSize(program.0, &mut size))?;
        }
        let mut image = vec![0_u8; size];
        if portable {
            check("nvrtcGetPTX", sys::nvrtcGetPTX(program.0, image.as_mut_ptr().cast()))?;
        } else {
            check("nvrtcGetCUBIN", sys::nvrtcGetCUBIN(program.0, image.as_mut_ptr().cast()))?;
        }
        Ok(image)
    }
}

/// The compiler's log; empty if it is not available.
fn log(program: &Program) -> String {
    let mut size = 0;
    // SAFETY: the buffer has the length that NVRTC has returned, which includes the final zero.
    let bytes = unsafe {
        if sys::nvrtcGetProgramLogSize(program.0, &mut size) as u32 != 0 || size == 0 {
            return String::new();
        }
        let mut bytes = vec![0_u8; size];
        if sys::nvrtcGetProgramLog(program.0, bytes.as_mut_ptr().cast()) as u32 != 0 {
            return String::new();
        }
        bytes
    };
    CStr::from_bytes_until_nul(&bytes).map_or(String::new(), |log| log.to_string_lossy().trim().to_owned())
}
