//! Jobs with several communicators: the products and the traffic of the model under data, tensor and pipeline parallelism, and
//! under fully sharded data parallelism.
//!
//! The layers are those of the [model](crate::model), but all are equally wide, and their numbers are not trained: each
//! transfer carries known numbers and is checked at its end. What is real is what a profiler sees: the order, the sizes and
//! the dependencies of products and transfers.
//!
//! | parallelism | layers | transfers |
//! |---|---|---|
//! | data | all, on other samples | gradient buckets are all-reduced beside the backward pass |
//! | fully sharded | all, on other samples | each layer is all-gathered ahead of its use, and its gradient reduce-scattered |
//! | tensor | a part of each layer | odd layers are all-reduced in the forward pass, even ones in the backward pass (Megatron-LM) |
//! | pipeline | a stage of consecutive layers | activations and their gradients, in the order of [`schedule`] |

pub mod compute;
pub mod mesh;
pub mod schedule;

mod comms;
mod gradients;
mod trainer;

pub use comms::Wires;
pub use trainer::ParallelTrainer;
