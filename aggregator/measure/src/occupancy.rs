//! The resource that limits the occupancy of a kernel, by the rules of CUDA's occupancy calculator.
//!
//! ```text
//! blocks that one multiprocessor holds = min(by threads, by registers, by shared memory, a limit of the device)
//! estimated occupancy = min(these, blocks of the grid / multiprocessors) · threads of a block / threads that fit
//! ```

use trace::{DeviceRow, OccupancyLimit};

use model::KernelUse;

/// Threads of a warp on NVIDIA's devices. Profilers estimate no occupancy on others.
const WARP_THREADS: u64 = 32;
/// Unit in which a warp is given registers (CUDA C++ Programming Guide, compute capability 3.0 and later).
const REGISTER_UNIT: u64 = 256;
/// Schedulers of a multiprocessor, which share its warps and registers.
const SCHEDULERS: u64 = 4;
/// Shared memory of every block that the system reserves from compute capability 8.0 on. Those multiprocessors are the
/// ones with at least 100 KiB.
const RESERVED_SHARED_BYTES: u64 = 1024;
const RESERVING_SHARED_BYTES: u64 = 100 << 10;
/// torch.profiler writes the occupancy in whole percent.
const ROUNDING_PCT: f64 = 1.0;
/// A grid with this share of the blocks that fit has enough.
const NEARLY_ALL: f64 = 0.95;

/// Finds the use of the device by kernels. It is fast if the ids of the kernels ascend, as they mostly do.
pub(super) struct Uses<'a> {
    all: &'a [KernelUse],
    /// The position after the last match.
    next: usize,
}

impl<'a> Uses<'a> {
    /// `all` is sorted by id.
    pub(super) fn of(all: &'a [KernelUse]) -> Self {
        Self { all, next: 0 }
    }

    /// The position of the kernel with this id.
    pub(super) fn find(&mut self, id: i64) -> Option<usize> {
        let at = match self.all.get(self.next) {
            Some(used) if used.id == id => self.next,
            _ => self.all.binary_search_by_key(&id, |used| used.id).ok()?,
        };
        self.next = at + 1;
        Some(at)
    }
}

/// How many blocks of a call the grid has by multiprocessor, and how many fit.
struct Fit {
    blocks_per_sm: f64,
    /// Share of a multiprocessor's threads that one block takes, in percent.
    block_pct: f64,
    by_threads: u64,
    /// `None` if the registers or the shared memory are unknown.
    by_registers_and_shared: Option<(u64, u64)>,
}

impl Fit {
    fn of(used: &KernelUse, device: &DeviceRow) -> Option<Self> {
        let positive = |n: i64| u64::try_from(n).ok().filter(|n| *n > 0);
        let threads = positive(used.block_threads()?.into())?;
        let most_threads = positive(device.max_threads_per_sm?.into())?;
        let warps = threads.div_ceil(WARP_THREADS);
        let by_registers = |registers: u16| match u64::from(registers) {
            0 => Some(u64::MAX),
            registers => {
                let per_warp = (registers * WARP_THREADS).next_multiple_of(REGISTER_UNIT);
                Some(positive(device.registers_per_sm?.into())? / SCHEDULERS / per_warp * SCHEDULERS / warps)
            }
        };
        let by_shared = |bytes: u32| {
            let per_sm = positive(device.shared_mem_per_sm_bytes?)?;
            let reserved = if per_sm >= RESERVING_SHARED_BYTES { RESERVED_SHARED_BYTES } else { 0 };
            Some(per_sm.checked_div(u64::from(bytes) + reserved).unwrap_or(u64::MAX))
        };
        Some(Self {
            blocks_per_sm: positive(used.blocks()?)? as f64 / positive(device.sm_count?.into())? as f64,
            block_pct: 100.0 * threads as f64 / most_threads as f64,
            by_threads: most_threads / WARP_THREADS / warps,
            by_registers_and_shared: used
                .registers
                .and_then(by_registers)
                .zip(used.shared_mem_bytes.and_then(by_shared)),
        })
    }

    /// The occupancy in percent if so many blocks fit.
    fn pct(&self, fitting: u64) -> f64 {
        self.block_pct * self.blocks_per_sm.min(fitting as f64)
    }
}

/// The estimated achieved occupancy of a call in percent.
///
/// torch.profiler writes 0 for kernels with more shared memory than a block has by default (48 KiB), as if no block fitted.
/// But the kernel ran, so one block did. Then the occupancy is estimated here; `None` if the trace does not tell it.
pub(super) fn occupancy_pct(used: &KernelUse, device: Option<&DeviceRow>) -> Option<f64> {
    let written = f64::from(used.occupancy_pct?);
    if written > 0.0 {
        return Some(written);
    }
    match device.and_then(|device| Fit::of(used, device)) {
        Some(fit) if fit.pct(1) > ROUNDING_PCT => {
            let (by_registers, by_shared) = fit.by_registers_and_shared?;
            Some(fit.pct(fit.by_threads.min(by_registers).min(by_shared).max(1)))
        }
        _ => Some(written),
    }
}

/// The resource that limits the occupancy of a call. `None` if it is full, or if the trace does not tell.
pub(super) fn occupancy_limit(used: &KernelUse, device: &DeviceRow) -> Option<OccupancyLimit> {
    let pct = occupancy_pct(used, Some(device))?;
    if pct > 100.0 - ROUNDING_PCT {
        return None;
    }
    let fit = Fit::of(used, device)?;
    let all_reside = fit.pct(u64::MAX) <= pct + ROUNDING_PCT;
    let Some((by_registers, by_shared)) = fit.by_registers_and_shared else {
        return all_reside.then_some(OccupancyLimit::Grid);
    };
    let least = by_registers.min(by_shared);
    // A persistent kernel has as many blocks as fit, or nearly: more would only wait.
    if all_reside && fit.blocks_per_sm < NEARLY_ALL * least.min(fit.by_threads) as f64 {
        return Some(OccupancyLimit::Grid);
    }
    // Fewer blocks than any of the resources allow: the device holds a limited number of blocks, whatever their size.
    let device_limits = !all_reside && fit.pct(least.min(fit.by_threads)) > pct + ROUNDING_PCT;
    Some(match by_registers.cmp(&by_shared) {
        _ if least >= fit.by_threads || device_limits => OccupancyLimit::BlockSize,
        std::cmp::Ordering::Less => OccupancyLimit::Registers,
        std::cmp::Ordering::Greater => OccupancyLimit::SharedMemory,
        std::cmp::Ordering::Equal => OccupancyLimit::RegistersAndSharedMemory,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An H100: 132 multiprocessors of 2048 threads, 65 536 registers and 228 KiB.
    fn device() -> DeviceRow {
        DeviceRow {
            sm_count: Some(132),
            max_threads_per_sm: Some(2048),
            registers_per_sm: Some(65_536),
            shared_mem_per_sm_bytes: Some(228 << 10),
            ..DeviceRow::default()
        }
    }

    fn used(blocks: u32, threads: u16, registers: u16, shared: u32, occupancy_pct: f32) -> KernelUse {
        KernelUse {
            id: 0,
            grid: [blocks, 1, 1],
            block: [threads, 1, 1],
            registers: Some(registers),
            shared_mem_bytes: Some(shared),
            occupancy_pct: Some(occupancy_pct),
        }
    }

    /// Occupancies by CUDA's occupancy calculator, in whole percent as torch.profiler writes them.
    #[test]
    fn the_scarcest_resource_is_the_limit() {
        use OccupancyLimit::{BlockSize, Grid, Registers, RegistersAndSharedMemory, SharedMemory};
        for (kernel, limit) in [
            (used(1, 128, 22, 0, 0.0), Some(Grid)),
            // One block of 384 threads on each multiprocessor, where shared memory and registers hold one.
            (used(132, 384, 168, 213_000, 19.0), Some(RegistersAndSharedMemory)),
            (used(128, 384, 168, 213_000, 18.0), Some(RegistersAndSharedMemory)),
            // The same with many blocks.
            (used(1320, 384, 168, 213_000, 19.0), Some(RegistersAndSharedMemory)),
            (used(1320, 384, 80, 213_000, 19.0), Some(SharedMemory)),
            (used(9999, 256, 128, 5120, 25.0), Some(Registers)),
            // 32 blocks of one warp fill half of the warps, though registers and shared memory have room.
            (used(9999, 32, 16, 0, 50.0), Some(BlockSize)),
            (used(9999, 256, 32, 0, 100.0), None),
            // Occupancies that torch.profiler could not estimate.
            (used(112, 384, 168, 203_776, 0.0), Some(Grid)),
            (used(2505, 480, 128, 123_360, 0.0), Some(RegistersAndSharedMemory)),
        ] {
            assert_eq!(occupancy_limit(&kernel, &device()), limit, "{kernel:?}");
        }
    }

    /// Kernels of a trace of DeepSeek's training: 112 blocks of 384 threads on 132 multiprocessors.
    #[test]
    fn an_occupancy_of_zero_is_estimated_if_the_kernel_ran_with_more() {
        let gemm = used(112, 384, 168, 203_776, 0.0);
        let estimated = occupancy_pct(&gemm, Some(&device())).unwrap();
        assert!((estimated - 100.0 * 112.0 / 132.0 * 384.0 / 2048.0).abs() < 1e-9, "{estimated}");
        // One block of 128 threads on the whole device rounds to 0.
        assert_eq!(occupancy_pct(&used(1, 128, 22, 0, 0.0), Some(&device())), Some(0.0));
        assert_eq!(occupancy_pct(&used(112, 384, 168, 203_776, 18.0), Some(&device())), Some(18.0));
        assert_eq!(occupancy_pct(&KernelUse { registers: None, ..gemm }, Some(&device())), None);
        assert_eq!(occupancy_pct(&gemm, None), Some(0.0));
    }

    #[test]
    fn nothing_is_guessed_without_the_limits_of_the_device() {
        let kernel = used(9999, 256, 128, 5120, 25.0);
        assert_eq!(occupancy_limit(&kernel, &DeviceRow::default()), None);
        assert_eq!(occupancy_limit(&kernel, &DeviceRow { registers_per_sm: None, ..device() }), None);
        assert_eq!(occupancy_limit(&KernelUse { occupancy_pct: None, ..kernel }, &device()), None);
        assert_eq!(occupancy_limit(&KernelUse { shared_mem_bytes: None, ..kernel }, &device()), None);
    }

    proptest::proptest! {
        #[test]
        fn any_launch_and_device_is_survived(
            (blocks, threads, registers, shared) in proptest::prelude::any::<(u32, u16, u16, u32)>(),
            occupancy in proptest::prelude::any::<f32>(),
            (sms, most, per_sm, shared_per_sm) in proptest::prelude::any::<(i32, i32, i32, i64)>(),
        ) {
            let device = DeviceRow {
                sm_count: Some(sms),
                max_threads_per_sm: Some(most),
                registers_per_sm: Some(per_sm),
                shared_mem_per_sm_bytes: Some(shared_per_sm),
                ..DeviceRow::default()
            };
            occupancy_limit(&used(blocks, threads, registers, shared, occupancy), &device);
        }
    }
}
