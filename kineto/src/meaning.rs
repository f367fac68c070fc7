//! The meaning of the rows of one rank: steps, collectives and their process groups, memory, devices, arrows, details
//! of operators.

pub(crate) mod collectives;
mod comm_size;
mod context;
pub(crate) mod device_memory_flow_rows;
pub(crate) mod device_steps;
pub(crate) mod flight_dump;
pub(crate) mod flight_recorder;
pub(crate) mod groups;
mod in_order;
pub(crate) mod named_ranks;
pub(crate) mod names;
pub(crate) mod op_details;
pub(crate) mod overlong;
mod shares;
pub(crate) mod steps;
