//! The tables that the aggregator writes about where exposed communication comes from, and about pipelines.

use crate::{Op, Text, Word};

tables! {
    communication_list uses $;

    /// One row per rank, device, step, communicator, operation and bucket: what of `exposed_comm_ns` of `step_breakdown` is its. The
    /// rows of a step sum to that. Where collectives run at the same time, the time counts for the one that began first.
    exposed_communication: ExposedCommRow / ExposedCommBuilder / ExposedCommView, by Aggregator, sorted by None; {
        /// Global rank.
        rank: i32,
        /// Device number; null for the CPU.
        device_id: Option<i64>,
        /// Training step.
        step: i32,
        /// Id of the communicator; null for communication that belongs to no recorded collective.
        comm_id: Option<i64>,
        /// Name of the communicator.
        comm_name: Option<Text>,
        /// Number of hosts in the communicator; null if unknown.
        nodes: Option<i32>,
        /// Operation.
        op: Option<Word<Op>>,
        /// Gradient bucket.
        bucket: Option<i32>,
        /// Number of collectives.
        collectives: i64,
        /// Time in them that no earlier collective covers.
        comm_ns: i64,
        /// What of it no compute hides.
        exposed_ns: i64,
    }

    /// One row per rank of a job whose ranks send to each other, and step: the idle time that the schedule makes.
    pipeline: PipelineRow / PipelineBuilder / PipelineView, by Aggregator, sorted by None; {
        /// Global rank.
        rank: i32,
        /// The rank's stage: the lowest rank of it. Ranks of one stage do the same work.
        stage: i32,
        /// Training step.
        step: i32,
        /// Length of the step if every rank works as is typical of its role, and transfers take no time.
        step_ns: i64,
        /// What of it the rank waits for other stages: the bubble.
        bubble_ns: i64,
    }
}
