//! Disks that fail and processes that are killed: nothing is lost unsaid, nothing old is destroyed, and the next command
//! succeeds.

mod cases;
mod ctl_faults;
mod faults;
mod killed_ranks;
mod kills;
mod recorder_faults;
