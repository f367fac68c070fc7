//! Limits above which a measurement becomes a finding.

use serde::{Deserialize, Serialize};

/// Limits above which a measurement becomes a finding.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Exposed communication, as a share of the step. The TensorBoard plugin's limit.
    pub exposed_comm_pct: f64,
    /// Device utilization below which the device counts as idle. The TensorBoard plugin's limit.
    pub device_busy_pct: f64,
    /// Time in input ranges, as a share of the step. The TensorBoard plugin's limit for data loading.
    pub input_pct: f64,
    /// Peak memory, as a share of the device memory. The TensorBoard plugin's limit.
    pub memory_pct: f64,
    /// Memory that the allocator holds without use at the peak, as a share of what it holds. Our own limit.
    pub fragmentation_pct: f64,
    /// A kernel's mean on one device over that on the median device. 1.1: FALCON's smallest relevant change (10 %).
    pub slow_device_ratio: f64,
    /// Kernels shorter than the call that launched them, as a share of all. Our own limit: more than half of them.
    pub short_kernels_pct: f64,
    /// Calls that wait for a device, as a share of the recorded time. Our own limit, equal to that for exposed
    /// communication.
    pub sync_stall_pct: f64,
    /// Estimated SM efficiency, as a share of utilization. Our own limit: most of a busy device is idle.
    pub sm_share_pct: f64,
    /// Estimated achieved occupancy of a kernel. Our own limit: too few warps to hide the latency of the memory.
    pub occupancy_pct: f64,
    /// Time with a full launch queue, as a share of the recorded time. Our own limit.
    pub full_queue_pct: f64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            exposed_comm_pct: 10.0,
            device_busy_pct: 50.0,
            input_pct: 5.0,
            memory_pct: 90.0,
            fragmentation_pct: 10.0,
            slow_device_ratio: 1.1,
            short_kernels_pct: 50.0,
            sync_stall_pct: 10.0,
            sm_share_pct: 50.0,
            occupancy_pct: 30.0,
            full_queue_pct: 1.0,
        }
    }
}
