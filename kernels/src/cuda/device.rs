//! Chooses the device of a rank.

use super::ffi::driver;
pub use super::ffi::driver::DeviceInfo;
use super::libraries;
use crate::error::{Error, Result};

/// The opened and initialized driver.
#[derive(Clone, Copy, Debug)]
pub struct Driver {
    version: i32,
}

/// The oldest supported CUDA version, as 1000 · major + 10 · minor.
const OLDEST_VERSION: i32 = 12_000;

impl Driver {
    /// Opens and initializes the driver. Without a driver this is cheap.
    ///
    /// # Errors
    /// [`Error::Library`] if it is missing or too old; [`Error::Cuda`] if it finds no usable device.
    pub fn open() -> Result<Self> {
        libraries::open(&libraries::DRIVER)?;
        let version = driver::initialize()?;
        if version < OLDEST_VERSION {
            return Err(Error::Library {
                name: libraries::DRIVER.name,
                files: "libcuda.so.1".into(),
                problem: format!("is too old: it serves CUDA {}", version_text(version)),
                searched: "the driver's own version".into(),
                install: "update NVIDIA's driver to 525 or newer",
            });
        }
        Ok(Self { version })
    }

    /// The newest CUDA version that the driver supports: `13.0`.
    pub fn version(&self) -> String {
        version_text(self.version)
    }

    /// The visible devices.
    ///
    /// # Errors
    /// [`Error::Cuda`].
    pub fn devices(&self) -> Result<Vec<DeviceInfo>> {
        (0..driver::device_count()?).map(driver::device_info).collect()
    }
}

fn version_text(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// The ordinal, among `visible` devices, for rank number `local_rank` of its host.
///
/// `CUDA_VISIBLE_DEVICES` has already chosen and ordered the devices. If there are fewer devices than ranks, ranks take them
/// in turns: a launcher may show every rank only its own device, so that all ranks see one. Only the devices' UUIDs tell
/// whether two ranks share a device.
///
/// # Errors
/// [`Error::NoDevice`].
pub fn choose(local_rank: usize, visible: usize, variable: Option<&str>) -> Result<usize> {
    match local_rank.checked_rem(visible) {
        Some(ordinal) => Ok(ordinal),
        None => {
            let why = match variable {
                Some(value) => format!("CUDA_VISIBLE_DEVICES is `{value}`"),
                None => "the driver sees none".into(),
            };
            Err(Error::NoDevice { why })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_take_the_visible_devices_in_turns() {
        let chosen = |visible| (0..4).map(|rank| choose(rank, visible, None).unwrap()).collect::<Vec<_>>();
        assert_eq!(chosen(8), [0, 1, 2, 3]);
        assert_eq!(chosen(2), [0, 1, 0, 1]);
        assert_eq!(chosen(1), [0, 0, 0, 0]);
    }

    #[test]
    fn an_error_says_why_there_is_no_device() {
        let error = choose(0, 0, Some("")).unwrap_err().to_string();
        assert_eq!(error, "there is no CUDA device to compute on: CUDA_VISIBLE_DEVICES is ``");
        assert!(choose(0, 0, None).unwrap_err().to_string().contains("the driver sees none"));
    }

    #[test]
    fn versions_are_formatted() {
        assert_eq!((version_text(13_000).as_str(), version_text(12_040).as_str()), ("13.0", "12.4"));
    }
}
