//! The memory that a command may take for what it reads.

use std::fs;

use kineto::MemoryShare;
use rustix::process::{Resource, getrlimit};
use rustix::system::sysinfo;

/// The limit of a cgroup, as a process in it sees it.
const CGROUP_LIMIT: &str = "/sys/fs/cgroup/memory.max";

/// The memory that readers may take together: the user's limit, else the default.
pub fn max_memory_bytes(limit: Option<u64>) -> u64 {
    limit.unwrap_or_else(default_max_memory_bytes)
}

/// The part of it for each of some ranks.
pub fn share(limit: Option<u64>, ranks: usize) -> MemoryShare {
    MemoryShare::among(max_memory_bytes(limit), ranks)
}

/// The memory that a command may take if the user gives no limit: three quarters of that of the machine, of its cgroup, or
/// of `ulimit -v`, whichever is least. The rest is for what an analysis computes.
fn default_max_memory_bytes() -> u64 {
    let info = sysinfo();
    let of_machine = u64::from(info.mem_unit).saturating_mul(info.totalram as u64);
    let of_cgroup = fs::read_to_string(CGROUP_LIMIT).ok().and_then(|text| text.trim().parse().ok());
    let of_process = getrlimit(Resource::As).current;
    [of_cgroup, of_process].into_iter().flatten().fold(of_machine, u64::min) / 4 * 3
}
