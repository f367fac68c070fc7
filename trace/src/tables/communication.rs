//! The tables that the aggregator writes about communicators, where exposed communication comes from, about pipelines, and about the critical path
//! of the job.

use crate::words::{CommOrigin, Op, PathKind, Unexplained};
use crate::{Text, Word};

tables! {
    communication_list uses $, by Aggregator;

    /// One row per rank, device, step, communicator, operation, bucket and module: what of `exposed_comm_ns` of `step_breakdown` is its. The
    /// rows of a step sum to that. Where collectives run at the same time, the time counts for the one that began first.
    exposed_communication: ExposedCommRow / ExposedCommBuilder / ExposedCommView; {
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
        /// What the communicator is for, as the program says.
        comm_description: Option<Text>,
        /// Number of hosts in the communicator; null if unknown.
        nodes: Option<i32>,
        /// Operation.
        op: Option<Word<Op>>,
        /// Gradient bucket.
        bucket: Option<i32>,
        /// FSDP unit that called it, or else the module; null where no range of one is recorded around the call.
        module: Option<Text>,
        /// Number of collectives.
        collectives: i64,
        /// Time in them that no earlier collective covers.
        comm_ns: i64,
        /// What of it no compute hides.
        exposed_ns: i64,
        /// What of `exposed_ns` an earlier call could have hidden: of the all-gathers of FSDP units, each at most the compute since the
        /// collective before it. Null for other collectives.
        late_ns: Option<i64>,
    }

    /// One row per communicator with a collective. The largest first, then by its ranks.
    communicators: CommunicatorRow / CommunicatorBuilder / CommunicatorView; {
        /// Id of the communicator, as in `collectives`.
        comm_id: i64,
        /// Name of the communicator.
        name: Option<Text>,
        /// What it is for, as the program says, such as `mesh_tp`.
        description: Option<Text>,
        /// How it is known which collectives are its: `stated`, `flight_recorder` or `inferred`.
        origin: Word<CommOrigin>,
        /// Number of its ranks; null if unknown.
        size: Option<i32>,
        /// Its global ranks; null if the recording does not list them.
        ranks: Option<Vec<i32>>,
        /// Number of hosts in it; null if unknown.
        nodes: Option<i32>,
        /// Number of its collectives, as in `collective_instances`.
        instances: i64,
        /// Number of them in which ranks are missing.
        incomplete: i64,
    }

    /// One row per rank of a job whose ranks send to each other, and step: the idle time that the schedule makes. Empty without an account
    /// of lost time.
    pipeline: PipelineRow / PipelineBuilder / PipelineView; {
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
    /// One row per piece of the critical path of the job, which leads from the end of the last step back to the begin of the first one.
    /// Where a rank waited for another in a collective, the path goes on in the rank that arrived last. The pieces of a step follow each
    /// other without a gap, so they sum to the length of the step. By step and time. Empty for one rank, and without an account of lost
    /// time.
    job_critical_path: JobPathRow / JobPathBuilder / JobPathView; {
        /// Training step, as the rank on the path counts it; −1 between steps.
        step: i32,
        /// Global rank on the path; of a transfer, the rank that left last.
        rank: i32,
        /// `work` or `transfer`.
        kind: Word<PathKind>,
        /// Of a transfer, the collective, as in `collective_instances`.
        instance: Option<i64>,
        /// Of a transfer, the id of the communicator.
        comm_id: Option<i64>,
        /// Of a transfer, the operation.
        op: Option<Word<Op>>,
        /// Start, in global ns.
        ts_ns: i64,
        /// Length. The following columns sum to it.
        dur_ns: i64,
        /// Operators and calls of the host while no device worked; without a device, operators.
        cpu_ns: i64,
        /// Code of the host outside of any operator while no device worked, mostly Python.
        host_gap_ns: i64,
        /// Ranges of data loaders while no device worked.
        data_loading_ns: i64,
        /// Kernels that compute.
        gpu_compute_ns: i64,
        /// Copies and fills beside computing kernels.
        gpu_memory_ns: i64,
        /// From the last arrival at the collective to the end.
        transfer_ns: i64,
        /// What the recording does not explain.
        unexplained_ns: i64,
        /// Why: `unmatched`, `clock` or `not_recorded`; null if all is explained.
        unexplained: Option<Word<Unexplained>>,
    }
}
