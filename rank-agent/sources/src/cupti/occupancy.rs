//! Estimates the occupancy of the multiprocessors by a kernel from its launch parameters.

use super::layout::{Device, Kernel};
use super::settings::KnownDevice;

/// Unit in which a warp is given registers (CUDA C++ Programming Guide, compute capability 3.0 and later).
const REGISTER_UNIT: u64 = 256;
/// Number of schedulers of a multiprocessor, which share its warps and registers.
const SCHEDULERS: u64 = 4;
/// Shared memory of every block that the system reserves from compute capability 8.0 on.
const RESERVED_SHARED_BYTES: u64 = 1024;

/// The limits of a device from its record.
pub(crate) fn known(device: &Device) -> KnownDevice {
    KnownDevice {
        device_id: device.id,
        capability_major: device.capability_major,
        multiprocessors: device.multiprocessors,
        threads_per_warp: device.threads_per_warp,
        threads_per_multiprocessor: device.warps_per_multiprocessor.saturating_mul(device.threads_per_warp),
        blocks_per_multiprocessor: device.blocks_per_multiprocessor,
        registers_per_multiprocessor: device.registers_per_multiprocessor,
        shared_bytes_per_multiprocessor: device.shared_memory_per_multiprocessor,
    }
}

/// The limits of a device that bound occupancy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    multiprocessors: u64,
    threads_per_warp: u64,
    warps: u64,
    blocks: u64,
    registers: u64,
    shared_bytes: u64,
    reserved_shared_bytes: u64,
    shared_unit: u64,
}

impl Limits {
    /// Returns `None` if a required limit is unknown.
    pub(crate) fn of(device: &KnownDevice) -> Option<Self> {
        let recent = device.capability_major >= 8;
        let limits = Self {
            multiprocessors: device.multiprocessors.into(),
            threads_per_warp: device.threads_per_warp.into(),
            warps: device.threads_per_multiprocessor.checked_div(device.threads_per_warp).unwrap_or(0).into(),
            blocks: device.blocks_per_multiprocessor.into(),
            registers: device.registers_per_multiprocessor.into(),
            shared_bytes: device.shared_bytes_per_multiprocessor.into(),
            reserved_shared_bytes: if recent { RESERVED_SHARED_BYTES } else { 0 },
            shared_unit: if recent { 128 } else { 256 },
        };
        let needed = [limits.multiprocessors, limits.threads_per_warp, limits.warps, limits.blocks];
        needed.iter().all(|limit| *limit > 0).then_some(limits)
    }

    /// Number of blocks of the kernel that fit on a multiprocessor, by warps, registers and shared memory.
    fn resident_blocks(&self, kernel: &Kernel, warps_per_block: u64) -> u64 {
        let by_warps = self.warps / warps_per_block;
        let by_registers = match u64::from(kernel.registers_per_thread) {
            0 => u64::MAX,
            registers => {
                let per_warp = (registers * self.threads_per_warp).next_multiple_of(REGISTER_UNIT);
                let warps = self.registers / SCHEDULERS / per_warp * SCHEDULERS;
                warps / warps_per_block
            }
        };
        let asked = |bytes: i32| u64::try_from(bytes).unwrap_or(0);
        let shared = asked(kernel.static_shared_memory) + asked(kernel.dynamic_shared_memory);
        let per_block = (shared + self.reserved_shared_bytes).next_multiple_of(self.shared_unit);
        let by_shared = self.shared_bytes.checked_div(per_block).unwrap_or(u64::MAX);
        self.blocks.min(by_warps).min(by_registers).min(by_shared)
    }
}

/// Estimated achieved occupancy in percent, as torch.profiler defines it: blocks per multiprocessor (the number that fits,
/// or the grid's share if that is less) times warps per block, divided by the warps that a multiprocessor holds.
///
/// Returns `None` for an impossible launch, and for one that does not fit the limits: the driver then uses other limits.
pub(crate) fn achieved_pct(limits: &Limits, kernel: &Kernel) -> Option<f64> {
    let size = |x: i32, y: i32, z: i32| -> Option<u64> {
        let [x, y, z] = [x, y, z].map(|side| u64::try_from(side).ok().filter(|side| *side > 0));
        x?.checked_mul(y?)?.checked_mul(z?)
    };
    let blocks = size(kernel.grid_x, kernel.grid_y, kernel.grid_z)?;
    let threads = size(kernel.block_x, kernel.block_y, kernel.block_z)?;
    let warps_per_block = threads.div_ceil(limits.threads_per_warp);
    let resident = limits.resident_blocks(kernel, warps_per_block);
    if resident == 0 {
        return None;
    }
    let per_multiprocessor = (resident as f64).min(blocks as f64 / limits.multiprocessors as f64);
    Some(100.0 * per_multiprocessor * warps_per_block as f64 / limits.warps as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cupti::layout::Version;

    /// Limits of compute capability 9.0 (CUDA C++ Programming Guide, table of technical specifications), 132
    /// multiprocessors.
    const HOPPER: Limits = Limits {
        multiprocessors: 132,
        threads_per_warp: 32,
        warps: 64,
        blocks: 32,
        registers: 65_536,
        shared_bytes: 233_472,
        reserved_shared_bytes: 1024,
        shared_unit: 128,
    };

    fn kernel(grid: i32, block: i32, registers: u16, shared: i32) -> Kernel {
        let zero = Kernel::read(&[0; 248], Version::OLDEST).unwrap();
        Kernel {
            grid_x: grid,
            grid_y: 1,
            grid_z: 1,
            block_x: block,
            block_y: 1,
            block_z: 1,
            registers_per_thread: registers,
            dynamic_shared_memory: shared,
            ..zero
        }
    }

    /// Limits from the CUDA driver: `cuDeviceGetAttribute` 16, 10, 39, 106, 82 and 81.
    #[test]
    fn limits_are_those_of_the_device() {
        let known = KnownDevice {
            device_id: 3,
            capability_major: 9,
            multiprocessors: 132,
            threads_per_warp: 32,
            threads_per_multiprocessor: 2048,
            blocks_per_multiprocessor: 32,
            registers_per_multiprocessor: 65_536,
            shared_bytes_per_multiprocessor: 233_472,
        };
        assert_eq!(Limits::of(&known), Some(HOPPER));
        assert_eq!(Limits::of(&KnownDevice { threads_per_warp: 0, ..known }), None);
    }

    #[test]
    fn each_limit_bounds_in_turn() {
        let large = 1 << 20;
        for (kernel, expected) in [
            // 2048 threads fit: 8 blocks of 256 with 32 registers each.
            (kernel(large, 256, 32, 0), Some(100.0)),
            // 128 registers: 4096 a warp, 16 warps fit in 65 536 registers.
            (kernel(large, 256, 128, 0), Some(25.0)),
            // 100 registers: 3200 a warp, rounded up to 3328; 4 warps a scheduler.
            (kernel(large, 32, 100, 0), Some(25.0)),
            // 99 KiB and the reserved one: two blocks of 8 warps.
            (kernel(large, 256, 32, 99 << 10), Some(25.0)),
            // At most 32 blocks of one warp.
            (kernel(large, 32, 16, 0), Some(50.0)),
            // Half a wave: 66 blocks on 132 multiprocessors.
            (kernel(66, 1024, 32, 0), Some(25.0)),
            // A single block, like a collective on one channel.
            (kernel(1, 640, 96, 0), Some(100.0 * 20.0 / 132.0 / 64.0)),
            // 33 threads take two warps.
            (kernel(132, 33, 16, 0), Some(100.0 * 2.0 / 64.0)),
            (kernel(0, 256, 32, 0), None),
            (kernel(1, -1, 32, 0), None),
            // No block fits: the limits are not those of the device.
            (kernel(large, 1024, 255, 0), None),
            (kernel(i32::MAX, i32::MAX, 1, 0), None),
        ] {
            let pct = achieved_pct(&HOPPER, &kernel);
            assert_eq!(pct.map(|pct| (pct * 1e6).round()), expected.map(|pct: f64| (pct * 1e6).round()), "{kernel:?}");
        }
    }
}
