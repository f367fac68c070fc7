"""The tables as attributes, for editors and type checkers. Generated from the declarations in trace/src/tables."""

from __future__ import annotations

from rankscope._table import Table


class AnalysisTables:
    """The tables of an analysis, as its views in DuckDB."""

    def _table(self, name: str) -> Table:
        raise NotImplementedError

    @property
    def clock_fit(self) -> Table:
        """One row per rank and clock: how the clock maps to global time, global = t + offset + drift·(t − origin). By rank,
        the host's clock first. A clock that bends or jumped has a row for each part, in order: each but the first
        holds from its `origin_ns` on."""
        return self._table("clock_fit")

    @property
    def step_breakdown_raw(self) -> Table:
        """All rows in the files of `step_breakdown`. One row per rank, device and step: its time in five parts that sum to
        `wall_ns`. K: a kernel computes. C: a kernel communicates. M: a copy or fill runs. By rank and device:
        everything, between steps, then each step."""
        return self._table("step_breakdown_raw")

    @property
    def step_breakdown(self) -> Table:
        """One row per rank, device and step: its time in five parts that sum to `wall_ns`. K: a kernel computes. C: a kernel
        communicates. M: a copy or fill runs. By rank and device: everything, between steps, then each step. Steps
        only."""
        return self._table("step_breakdown")

    @property
    def step_breakdown_gaps(self) -> Table:
        """The time between steps, as one row per rank and device."""
        return self._table("step_breakdown_gaps")

    @property
    def step_breakdown_total(self) -> Table:
        """Everything recorded, as one row per rank and device: the steps and the time between them."""
        return self._table("step_breakdown_total")

    @property
    def idle_breakdown(self) -> Table:
        """One row per rank, device, stream and reason: the gaps between two pieces of work of the stream. By rank, device and
        stream."""
        return self._table("idle_breakdown")

    @property
    def collective_instances(self) -> Table:
        """One row per collective, joined from the rows of all its ranks. By time."""
        return self._table("collective_instances")

    @property
    def collective_waits(self) -> Table:
        """One row per collective and rank: how long the rank waited for the last one. By collective and rank."""
        return self._table("collective_waits")

    @property
    def bucket_timing(self) -> Table:
        """One row per step, gradient bucket and rank: the life of its all-reduce. By step, bucket and rank."""
        return self._table("bucket_timing")

    @property
    def kernel_stats(self) -> Table:
        """One row per rank, device and name of a kernel, copy or fill. By rank and device, longest total first."""
        return self._table("kernel_stats")

    @property
    def op_stats(self) -> Table:
        """One row per rank and name of an operator or range of the host; device ranges have a device. By rank, longest total
        first."""
        return self._table("op_stats")

    @property
    def module_stats(self) -> Table:
        """One row per rank and module of the model (`torch.nn.Module`), a tree: own times and the totals of the children sum
        to the total. A module is named by its calls in the Python stack (`with_stack=True`). Each module follows
        its parent, the longest first."""
        return self._table("module_stats")

    @property
    def step_flops(self) -> Table:
        """One row per rank and step whose operators have FLOPs, and the model FLOPs utilization (MFU). By rank and step."""
        return self._table("step_flops")

    @property
    def annotation_stats(self) -> Table:
        """One row per rank, device and name of a user annotation. By rank and device, longest total first."""
        return self._table("annotation_stats")

    @property
    def critical_path(self) -> Table:
        """One row per rank and step: the per-rank critical path of the step, followed backwards from its end. It ends at the
        rank's own collectives and does not lead to the rank that was waited for: see `job_critical_path`. The parts
        sum to `wall_ns`. By rank and step."""
        return self._table("critical_path")

    @property
    def hta_temporal_breakdown(self) -> Table:
        """One row per rank: HTA's temporal breakdown of the whole trace, over device rows without `cuda_sync`, for comparison
        with HTA. By rank."""
        return self._table("hta_temporal_breakdown")

    @property
    def unfinished_collectives(self) -> Table:
        """One row per collective that some rank entered and did not leave before its recording ended: a hang, or a recording
        that was cut. Those with missing ranks first, then by communicator and sequence number."""
        return self._table("unfinished_collectives")

    @property
    def omissions(self) -> Table:
        """One row per item that was lost or left out of the analysis. In the order in which they were found."""
        return self._table("omissions")

    @property
    def selection(self) -> Table:
        """One row if the analysis covers a part of the run; empty for a whole run."""
        return self._table("selection")

    @property
    def findings(self) -> Table:
        """One row per finding. Findings that make numbers invalid come first, then those with a predicted saving, the largest
        first, then the others by severity."""
        return self._table("findings")

    @property
    def kernel_breakdown(self) -> Table:
        """One row per rank, device and combination of work types that ran at the same time. By rank and device."""
        return self._table("kernel_breakdown")

    @property
    def launch_stats_raw(self) -> Table:
        """All rows in the files of `launch_stats`. One row per rank, device and name of launched work: the time of the
        launching calls, of the launched work, and the delay between them. By rank and device: all names together,
        then the longest summed delay first."""
        return self._table("launch_stats_raw")

    @property
    def launch_stats(self) -> Table:
        """One row per rank, device and name of launched work: the time of the launching calls, of the launched work, and the
        delay between them. By rank and device: all names together, then the longest summed delay first. Names only."""
        return self._table("launch_stats")

    @property
    def launch_stats_total(self) -> Table:
        """All names together, as one row per rank and device."""
        return self._table("launch_stats_total")

    @property
    def queue_length(self) -> Table:
        """One row per rank, device and stream: how many pieces of launched work waited. As in HTA, the statistics are over the
        points where the length of the queue changes. By rank, device and stream."""
        return self._table("queue_length")

    @property
    def memcpy_bandwidth(self) -> Table:
        """One row per rank, device and kind of copy or fill. As in HTA, the statistics are of the summed bandwidth of all that
        are under way, at the points where this sum changes. By rank, device and kind."""
        return self._table("memcpy_bandwidth")

    @property
    def gpu_utilization_raw(self) -> Table:
        """All rows in the files of `gpu_utilization`. One row per rank, device and step: how well the device was used, by the
        definitions of the TensorBoard plugin. By rank and device: all active steps together, then each."""
        return self._table("gpu_utilization_raw")

    @property
    def gpu_utilization(self) -> Table:
        """One row per rank, device and step: how well the device was used, by the definitions of the TensorBoard plugin. By
        rank and device: all active steps together, then each. Steps only."""
        return self._table("gpu_utilization")

    @property
    def gpu_utilization_total(self) -> Table:
        """All active steps together, as one row per rank and device."""
        return self._table("gpu_utilization_total")

    @property
    def gpu_metrics_raw(self) -> Table:
        """All rows in the files of `gpu_metrics`. One row per rank, device, step and hardware metric that a profiler sampled
        (`nsys profile --gpu-metrics-devices`). By rank, device and metric: everything recorded, then each step in
        which a sample lies."""
        return self._table("gpu_metrics_raw")

    @property
    def gpu_metrics(self) -> Table:
        """One row per rank, device, step and hardware metric that a profiler sampled (`nsys profile --gpu-metrics-devices`).
        By rank, device and metric: everything recorded, then each step in which a sample lies. Steps only."""
        return self._table("gpu_metrics")

    @property
    def gpu_metrics_total(self) -> Table:
        """Everything recorded, as one row per rank, device and metric."""
        return self._table("gpu_metrics_total")

    @property
    def kernel_sequences(self) -> Table:
        """One row per rank and sequence of kernels that an operator launches repeatedly: HTA's frequent kernel sequences. At
        most 50 of a rank, the most frequent first."""
        return self._table("kernel_sequences")

    @property
    def sync_stalls(self) -> Table:
        """One row per rank, call in which the host waits for the device, and operator around it. By rank, longest total first."""
        return self._table("sync_stalls")

    @property
    def idle_causes(self) -> Table:
        """One row per rank and place of the host: what the host did while no device of the rank worked and the next work was
        not launched. By rank, longest total first."""
        return self._table("idle_causes")

    @property
    def data_loading_raw(self) -> Table:
        """All rows in the files of `data_loading`. One row per rank and step: the time in which the step waits for input, that
        is in ranges of data loaders and in the range `input` of `rank-agent`. By rank: everything, then each step."""
        return self._table("data_loading_raw")

    @property
    def data_loading(self) -> Table:
        """One row per rank and step: the time in which the step waits for input, that is in ranges of data loaders and in the
        range `input` of `rank-agent`. By rank: everything, then each step. Steps only."""
        return self._table("data_loading")

    @property
    def data_loading_total(self) -> Table:
        """Everything recorded, as one row per rank."""
        return self._table("data_loading_total")

    @property
    def input_gaps(self) -> Table:
        """One row per rank and gap between an optimizer step and the next forward pass, on ranks where no range names the
        loading of input. Such a gap is likely the loading of input. By rank and time."""
        return self._table("input_gaps")

    @property
    def memory_curve(self) -> Table:
        """One row per rank, device and span of time: the moment in the span when the most memory was in use. A recording has
        up to 200 spans of equal length. By rank and device, by time."""
        return self._table("memory_curve")

    @property
    def memory_peaks(self) -> Table:
        """One row per rank and device: the moment of the highest use of memory. By rank and device."""
        return self._table("memory_peaks")

    @property
    def memory_at_peak(self) -> Table:
        """One row per rank, device and block of memory that was in use at the peak of `memory_peaks`. The bytes of a device
        sum to its peak. By rank and device, the largest first; the memory of unknown blocks last."""
        return self._table("memory_at_peak")

    @property
    def memory_by_step(self) -> Table:
        """One row per rank, device and step: the least and the most memory in use. By rank and device, by step."""
        return self._table("memory_by_step")

    @property
    def memory_growth(self) -> Table:
        """One row per rank and device with five steps or more: how `memory_by_step.floor_bytes` changes from step to step
        (docs/method/memory.md). By rank and device."""
        return self._table("memory_growth")

    @property
    def exposed_communication(self) -> Table:
        """One row per rank, device, step, communicator, operation, bucket and module: what of `exposed_comm_ns` of
        `step_breakdown` is its. The rows of a step sum to that. Where collectives run at the same time, the time
        counts for the one that began first."""
        return self._table("exposed_communication")

    @property
    def communicators(self) -> Table:
        """One row per communicator with a collective. The largest first, then by its ranks."""
        return self._table("communicators")

    @property
    def pipeline(self) -> Table:
        """One row per rank of a job whose ranks send to each other, and step: the idle time that the schedule makes. Empty
        without an account of lost time."""
        return self._table("pipeline")

    @property
    def job_critical_path(self) -> Table:
        """One row per piece of the critical path of the job, which leads from the end of the last step back to the begin of
        the first one. Where a rank waited for another in a collective, the path goes on in the rank that arrived
        last. The pieces of a step follow each other without a gap, so they sum to the length of the step. By step
        and time. Empty for one rank, and without an account of lost time."""
        return self._table("job_critical_path")

    @property
    def stragglers(self) -> Table:
        """One row per rank: whether it made the others wait, and by how much. Times are per step, over all steps, with and
        without collectives. By rank."""
        return self._table("stragglers")

    @property
    def lost_time(self) -> Table:
        """The account of lost time: one row per part and step, and of a part that ranks or communicators take, one for each of
        them. The rows of a step sum to its length. A part is a difference of two replays, so it may be negative.
        Empty without rows that say what hosts waited for, and for one rank. By part, rank and step."""
        return self._table("lost_time")

    @property
    def lost_time_lines(self) -> Table:
        """What takes time: one row per line and rank or communicator. A line has all ranks of a stage, or communicators of a
        kind, that take time in the same steps. Times are per step. By line and rank."""
        return self._table("lost_time_lines")

    @property
    def straggler_steps(self) -> Table:
        """One row per rank and compared step: the quantities of `stragglers`, step by step. By rank and step."""
        return self._table("straggler_steps")

    @property
    def rank_groups(self) -> Table:
        """One row per group of ranks: the ranks of a host, of a device model, or of one place in the job's parallelism. Of
        each kind of group, the one with the largest excess first. Empty with a single group of each kind."""
        return self._table("rank_groups")


class RunTables:
    """The tables that ranks record."""

    def _table(self, name: str) -> Table:
        raise NotImplementedError

    @property
    def events(self) -> Table:
        """One row per interval that a rank recorded: an operator, a range, a call, a kernel, a copy."""
        return self._table("events")

    @property
    def collectives(self) -> Table:
        """One row per rank and collective. A later row with the same communicator, `seq` and `op` replaces an earlier one."""
        return self._table("collectives")

    @property
    def nccl_channels(self) -> Table:
        """One row per rank, operation and GPU channel, one per phase of a channel, and one per copy engine's part of an
        operation. NCCL's profiler plugin reports them."""
        return self._table("nccl_channels")

    @property
    def nccl_proxy(self) -> Table:
        """One row per rank, operation, channel and direction of NCCL's proxy thread. NCCL's profiler plugin reports them."""
        return self._table("nccl_proxy")

    @property
    def comms(self) -> Table:
        """One row per rank and communicator; a later row of the same communicator replaces an earlier one."""
        return self._table("comms")

    @property
    def devices(self) -> Table:
        """One row per rank and device."""
        return self._table("devices")

    @property
    def flows(self) -> Table:
        """One row per flow from one row of `events` to another of the same rank."""
        return self._table("flows")

    @property
    def steps(self) -> Table:
        """One row per rank and training step that the schedule recorded, warm-up included."""
        return self._table("steps")

    @property
    def ranks(self) -> Table:
        """One row per process that records the rank; a later row of the same process replaces an earlier one."""
        return self._table("ranks")

    @property
    def parts(self) -> Table:
        """One row per shard that a process closed, without the shards of this table and the last one of `ranks`. A reader
        compares them with the shards that it finds."""
        return self._table("parts")

    @property
    def counters(self) -> Table:
        """One row per source and part: the number of rows that the source stored and lost since the part before. Sum the rows
        of a source."""
        return self._table("counters")

    @property
    def clock_samples(self) -> Table:
        """One row per comparison of the rank's clock with another clock."""
        return self._table("clock_samples")

    @property
    def memory(self) -> Table:
        """One row per allocation or release of memory."""
        return self._table("memory")

    @property
    def gpu_metric_samples(self) -> Table:
        """One row per sample of a hardware metric of a device. The profiler of another tool took it."""
        return self._table("gpu_metric_samples")

    @property
    def buckets(self) -> Table:
        """One row per rank and gradient bucket."""
        return self._table("buckets")
