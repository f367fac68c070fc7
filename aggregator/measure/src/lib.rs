//! The map: one rank at a time becomes a part that is small enough to hold for every rank of a large run.

pub mod breakdown;
pub mod by_name;
pub mod communication;
pub mod critical;
pub mod device;
pub mod graph;
pub mod idle;
pub mod lost_launches;
pub mod map;
pub mod memory;
pub mod modules;
mod occupancy;
pub mod overhead;
pub mod own_time;
pub mod part;
mod recurring;
pub mod reduced;
mod roofline;
mod select_steps;
mod step_flops;
