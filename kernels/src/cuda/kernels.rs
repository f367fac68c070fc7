//! The compiled kernels, and the grids of their launches.

use std::collections::BTreeMap;
use std::path::Path;

use super::ffi::driver::{Argument, Context, Function, MAX_ARGUMENTS, Module, Stream, launch};
use super::ffi::nvrtc;
use super::program::{self, SOURCES};
use crate::error::{Error, Result};

/// Threads of a block, for kernels that work element by element.
const THREADS: u32 = 256;
/// Most blocks of a launch: several waves of a large device; kernels loop over the remaining elements.
const BLOCKS_MAX: usize = 4096;

/// Shapes of grid and block.
pub(super) type Shape = ((u32, u32), (u32, u32));

/// The kernels of [`SOURCES`] on a device.
#[derive(Debug)]
pub(super) struct Kernels(BTreeMap<&'static str, Function>);

impl Kernels {
    /// Compiles the kernels or takes them from the cache, and loads them.
    pub(super) fn load(context: &Context, capability: u32, cache: Option<&Path>) -> Result<Self> {
        let known = nvrtc::architectures()?;
        let Some(target) = program::target(capability, &known) else {
            return Err(Error::NoDevice {
                why: format!("NVRTC compiles for {known:?}, and the device is of {capability}: it is too old"),
            });
        };
        let mut kernels = BTreeMap::new();
        for source in &SOURCES {
            let image = program::image(source, target, cache)?;
            let module = match Module::load(context, &image.code) {
                // A cached file may not suit this driver; freshly compiled code must load.
                Err(_) if image.was_cached => Module::load(context, &program::image(source, target, None)?.code)?,
                loaded => loaded?,
            };
            for name in source.kernels {
                kernels.insert(*name, module.function(name)?);
            }
        }
        Ok(Self(kernels))
    }

    /// Enqueues a kernel; does nothing if the grid is empty.
    pub(super) fn launch(
        &self,
        stream: &Stream,
        name: &'static str,
        shape: Shape,
        arguments: &mut [Argument],
    ) -> Result<()> {
        let ((columns, rows), _) = shape;
        if columns == 0 || rows == 0 {
            return Ok(());
        }
        debug_assert!(arguments.len() <= MAX_ARGUMENTS, "{name}");
        let Some(function) = self.0.get(name) else {
            return Err(Error::Cuda {
                call: "cuLaunchKernel",
                code: -1,
                message: format!("there is no kernel {name}"),
            });
        };
        launch(stream, function, shape, arguments)
    }
}

/// A grid for `n` elements, one thread per element up to the limit of blocks.
pub(super) fn vector(n: usize) -> Shape {
    ((saturating(n.div_ceil(THREADS as usize).min(BLOCKS_MAX)), 1), (THREADS, 1))
}

/// A grid for a matrix: one thread per column, rows side by side.
pub(super) fn matrix(rows: usize, cols: usize) -> Shape {
    let across = cols.div_ceil(THREADS as usize);
    let down = rows.min((BLOCKS_MAX * 4 / across.max(1)).max(1));
    ((saturating(across), saturating(down)), (THREADS, 1))
}

fn saturating(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_fit_the_device_and_the_work() {
        assert_eq!(vector(0).0, (0, 1));
        assert_eq!(vector(257).0, (2, 1));
        assert_eq!(vector(1 << 40).0, (4096, 1));
        assert_eq!(matrix(3, 300).0, (2, 3));
        assert_eq!(matrix(1 << 20, 8192).0, (32, 512));
        assert_eq!(matrix(5, 0).0.0, 0);
        // The y of a grid is at most 65535.
        assert_eq!(matrix(1 << 30, 1).0, (1, 16384));
    }
}
