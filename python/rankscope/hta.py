"""The API of Holistic Trace Analysis (HTA) over rankscope: `from rankscope.hta import TraceAnalysis`.

Methods, arguments, columns, units and types are HTA's, so that a notebook changes its import. Times are µs. Where HTA errs,
the numbers are right here instead; `strict_hta=True` gives HTA's own number where it is well defined:

* Communication is what communicates (`docs/method`), and not only kernels whose name begins with `nccl`. *strict*: HTA's names.
* Kernels that were launched before the window but run in it count, and those whose launch was not recorded. *strict*: of several
  steps only those whose launch is in the window.
* A kernel whose launch was not recorded has none. HTA takes the trace's first row for its launch in the idle breakdown.
* `cuda_sync` rows are no work of the GPU. *strict*: those of a stream are, in the temporal breakdown; in HTA also those of all
  streams where the profiler wrote their stream as 4294967295.
* The statistics of kernels are those of the calls, also for the names that HTA takes together. *strict*: those of HTA, which
  takes the sums of names for durations of calls once there are more than `num_kernels` names.
* Stragglers are the ranks that the verdict names, also with NCCL of 2.19 and later; there may be fewer than `num_candidates`.
  *strict*: HTA's ranking by late starts, which errs in most real traces.
* The critical path (that of HTA 0.6.1, whose rules 0.5.0 lacks in part) has all work of CUDA graphs, and the host's time once
  where rows of a thread overlap without nesting. *strict*: one piece of work of a launch; overlapping rows nest like brackets, so
  that lengths are below 0, which the summary adds up. A path of rows without `cuda_sync` warns: it misses the host's waits.
* Work that begins before its launch, by the trace's clocks, was launched into an empty queue. *strict*: a queue of length −1.
* Counters of CUPTI's range profiler that do not match the launches are an error. HTA leaves the rank out.
* Times keep their ns: nothing is rounded to whole µs before it is summed.

pandas and pyarrow are needed, and plotly for plots (`visualize=True`, which is the default as in HTA).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from enum import Flag, auto
from functools import cached_property

from rankscope import _hta_critical as critical
from rankscope import _hta_files as files
from rankscope import _hta_kernels as kernels
from rankscope import _hta_plots as plots
from rankscope._analysis import Analysis, analyze
from rankscope._errors import RankscopeError
from rankscope._hta_critical import CPEdge, CPGraph, CPNode, restore_cpgraph
from rankscope._hta_diff import DeviceType, LabeledTrace, TraceDiff
from rankscope._hta_graph import CPEdgeType, Wait
from rankscope._hta_rows import MEMORY_PREFIX, Recorded, Rows, microseconds, state_lengths, total_length, union
from rankscope._hta_trace import Trace
from rankscope._numeric import np, pd

__all__ = [
    "CUDA_SASS_INSTRUCTION_COUNTER_FLOPS",
    "CPEdge",
    "CPEdgeType",
    "CPGraph",
    "CPNode",
    "DeviceType",
    "LabeledTrace",
    "TimeSeriesTypes",
    "TraceAnalysis",
    "TraceDiff",
    "restore_cpgraph",
]

#: The floating-point operations of an instruction that a counter of CUPTI counts: a multiply-add has two.
CUDA_SASS_INSTRUCTION_COUNTER_FLOPS: dict[str, float] = {
    f"smsp__sass_thread_inst_executed_op_{type_}{op}_pred_on.sum": 2 if op == "fma" else 1
    for type_ in ("f", "h", "d")
    for op in ("fma", "mul", "add")
}

#: HTA's queue length at which the next launch of the host blocks.
CUDA_MAX_LAUNCH_QUEUE_PER_STREAM = 1024
_IDLE = ("host_wait", "kernel_wait", "other")
_TYPES = ("COMPUTATION", "COMMUNICATION", "MEMORY")


class TimeSeriesTypes(Flag):
    """What `generate_trace_with_counters` adds."""

    QUEUE_LENGTH = auto()
    MEMCPY_BANDWIDTH = auto()


class TraceAnalysis:
    """HTA's class. `analysis` is rankscope's own, with the verdict and all tables. Rows are read when they are first needed."""

    def __init__(
        self,
        trace_files: dict[int, str] | list[str] | None = None,
        trace_dir: str = "",
        include_last_profiler_step: bool = False,
        strict_hta: bool = False,
    ) -> None:
        self.strict_hta = strict_hta
        self.include_last_profiler_step = include_last_profiler_step
        self._paths = _paths(trace_files, trace_dir)
        self._recorded = Recorded(self._paths)
        self._rows: dict[int, Rows] = {}
        #: The rows, as HTA has them.
        self.t = Trace(self._ranks, self._of)

    @cached_property
    def analysis(self) -> Analysis:
        """rankscope's own analysis, which reads the traces when it is first asked for."""
        return analyze(self._paths)

    @property
    def _ranks(self) -> list[int]:
        return self._recorded.ranks

    def _of(self, rank: int) -> Rows:
        if rank not in self._rows:
            self._rows[rank] = self._recorded.rows(rank, self.include_last_profiler_step, self.strict_hta)
        return self._rows[rank]

    def _file(self, rank: int) -> str:
        """The path of a rank's trace."""
        return files.path_of(self._of(rank).file, self._paths, rank)

    # --- Breakdowns ---------------------------------------------------------------------------------------------------

    def get_temporal_breakdown(self, visualize: bool = True) -> pd.DataFrame:
        """Idle, compute and other time of each rank between its first and its last work on the GPU."""
        names = ["idle_time", "compute_time", "non_compute_time", "kernel_time"]
        # Rows are read before pandas is used: it is imported beside the reading.
        times = [self._times(rank) for rank in self._ranks]
        frame = pd.DataFrame(times)
        frame.columns = pd.Index(["rank", *(f"{name}(us)" for name in names)])
        for name in names[:3]:
            frame[f"{name}_pctg"] = (100 * frame[f"{name}(us)"] / frame["kernel_time(us)"]).round(2)
        for name in names:
            frame[f"{name}(us)"] = microseconds(frame[f"{name}(us)"])
        if visualize:
            plots.stacked(frame, [f"{name}_pctg" for name in names[:3]], "Temporal breakdown across ranks")
        return frame

    def _times(self, rank: int) -> tuple[int, int, int, int, int]:
        """Of a rank the idle, compute, other and whole time of its GPU, in ns."""
        rows = self._of(rank)
        work = rows.device if self.strict_hta else rows.work
        if work.empty:
            raise RankscopeError(f"rank {rank} has no work on a GPU", None)
        whole = int(work.end.max() - work.ts.min())
        idle = whole - total_length(union(work))
        compute = total_length(rows.busy("COMPUTATION"))
        return rank, idle, compute, whole - compute - idle, whole

    def get_comm_comp_overlap(self, visualize: bool = True) -> pd.DataFrame:
        """The share of its communication that each rank hides behind computation."""
        shares = [(rank, self._overlap(rank)) for rank in self._ranks]
        frame = pd.DataFrame(shares, columns=["rank", "comp_comm_overlap_pctg"])
        if visualize:
            plots.stacked(frame, ["comp_comm_overlap_pctg"], "Computation-communication overlap")
        return frame

    def _overlap(self, rank: int) -> float:
        rows = self._of(rank)
        communicating, computing = rows.busy("COMMUNICATION"), rows.busy("COMPUTATION")
        total = total_length(communicating)
        both = state_lengths([communicating, computing]).get(3, 0)
        return round(100 * both / total, 2) if total else float("nan")

    def get_gpu_kernel_breakdown(
        self,
        visualize: bool = True,
        duration_ratio: float = 0.8,
        num_kernels: int = 10,
        include_memory_kernels: bool = True,
        image_renderer: str = "",
    ) -> tuple[pd.DataFrame, pd.DataFrame]:
        """The time of types of kernels, alone and together, over all ranks; and of each kernel on each rank."""
        types = _TYPES if include_memory_kernels else _TYPES[:2]
        lengths, of_names = self._kernels(types)
        by_type = lengths.groupby("kernel_type")["sum"].sum().reset_index()
        by_type = by_type.sort_values("sum", ascending=False, ignore_index=True)
        by_type["percentage"] = (100 * by_type["sum"] / by_type["sum"].sum()).round(1)
        by_type["sum"] = microseconds(by_type["sum"])
        parts = []
        for name in types:
            for rank in self._ranks:
                stats = of_names[of_names["kernel_type"].eq(name) & of_names["rank"].eq(rank)]
                parts.append(self._by_name(stats, duration_ratio, num_kernels).assign(kernel_type=name, rank=rank))
        by_name = pd.concat(parts, ignore_index=True).sort_values(["kernel_type", "name", "rank"], ignore_index=True)
        if visualize:
            plots.pie(by_type, "percentage", "kernel_type", "Kernel type percentage across all ranks", image_renderer)
            plots.kernels(by_name, image_renderer)
        return by_type, by_name

    def _kernels(self, types: tuple[str, ...]) -> tuple[pd.DataFrame, pd.DataFrame]:
        """The times of types, and the statistics of names, in ns."""
        lengths, of_names = [], []
        for rank in self._ranks:
            rows = self._of(rank)
            for state, time in state_lengths([rows.busy(name) for name in types]).items():
                lengths.append((" overlapping ".join(name for at, name in enumerate(types) if state >> at & 1), time))
            for name in types:
                of_names.append(_stats(rows.of_type(name)).assign(kernel_type=name, rank=rank))
        frame = pd.DataFrame(lengths, columns=["kernel_type", "sum"]).astype({"sum": "int64"})
        return frame, pd.concat(of_names, ignore_index=True)

    def _by_name(
        self, stats: pd.DataFrame, duration_ratio: float, most: int, kept: Callable[[str], bool] | None = None
    ) -> pd.DataFrame:
        """HTA's statistics of names: the longest, and `others`. Those of all names are given, in ns."""
        stats = stats.sort_values("sum", ascending=False, kind="stable", ignore_index=True)
        if len(stats) > most:
            upto = stats["sum"].cumsum()
            other = (upto > upto.quantile(duration_ratio)) | (stats.index >= most)
            if kept is not None:
                other &= ~stats["name"].map(kept)
            named = stats.assign(name=stats["name"].where(~other, "others"))
            if self.strict_hta:
                stats = named.groupby("name")["sum"].agg(["sum", "max", "min", "mean", "std"]).reset_index()
            else:
                stats = pd.concat([stats[~other], _together(stats[other])], ignore_index=True)
                stats = stats.sort_values("name", ignore_index=True)
        found = pd.DataFrame({"name": stats["name"]})
        for column in ("sum", "max", "min"):
            found[f"{column} (us)"] = microseconds(stats[column])
        found["stddev"] = stats["std"].fillna(0) / 1000
        found["mean (us)"] = stats["mean"] / 1000
        return found

    def get_gpu_user_annotation_breakdown(
        self,
        use_gpu_annotation: bool = True,
        visualize: bool = True,
        duration_ratio: float = 0.8,
        num_kernels: int = 1000,
        allowlist_patterns: list[str] | None = None,
        image_renderer: str | None = None,
    ) -> pd.DataFrame | None:
        """The time of each user annotation, on the GPU or on the host; None if there is none."""
        patterns = [re.compile(pattern) for pattern in allowlist_patterns or []]
        kept = (lambda name: any(pattern.match(name) for pattern in patterns)) if allowlist_patterns else None
        parts = []
        for rank in self._ranks:
            rows = self._of(rank)
            frame = rows.annotations if use_gpu_annotation else rows.host[rows.host.kind == "user_annotation"]
            parts.append(self._by_name(_stats(frame), duration_ratio, num_kernels, kept).assign(rank=rank))
        found = pd.concat(parts, ignore_index=True).sort_values(["rank", "name"], ignore_index=True)
        if found.empty:
            return None
        if visualize:
            plots.kernels(found.assign(kernel_type="annotation"), image_renderer or "")
        return found

    def get_idle_time_breakdown(
        self,
        ranks: list[int] | None = None,
        streams: list[int] | None = None,
        visualize: bool = True,
        visualize_pctg: bool = True,
        show_idle_interval_stats: bool = False,
        consecutive_kernel_delay: int = 30,
    ) -> tuple[pd.DataFrame, pd.DataFrame | None]:
        """Why streams idle: `host_wait`, `kernel_wait` (gaps below so many µs) or `other`."""
        totals, intervals = [], []
        for rank in ranks or [0]:
            rows = self._of(rank)
            for stream, work in rows.work.groupby("stream"):
                if streams and stream not in streams:
                    continue
                gaps = _gaps(work.sort_values("ts", kind="stable"), consecutive_kernel_delay)
                sums = gaps.groupby("idle_category", observed=True)["gap"].sum()
                all_gaps = sums.sum()
                for category in sorted(sums.index):
                    share = round(sums[category] / all_gaps, 2) if all_gaps else float("nan")
                    totals.append((rank, stream, category, sums[category], share))
                if show_idle_interval_stats:
                    of_category = gaps.assign(gap=gaps["gap"] / 1000).groupby("idle_category", observed=True)["gap"]
                    stats = of_category.describe().reset_index().astype({"idle_category": str})
                    intervals.append(stats.assign(rank=rank, stream=stream))
        columns = ["rank", "stream", "idle_category", "idle_time", "idle_time_ratio"]
        frame = pd.DataFrame(totals, columns=columns)
        frame["idle_time"] = microseconds(frame["idle_time"])
        if visualize:
            plots.idle(frame, "idle_time_ratio" if visualize_pctg else "idle_time")
        return frame, pd.concat(intervals, ignore_index=True) if intervals else None

    # --- Launches, queues, copies -------------------------------------------------------------------------------------

    def get_cuda_kernel_launch_stats(
        self,
        ranks: list[int] | None = None,
        runtime_cutoff: int = 50,
        launch_delay_cutoff: int = 100,
        include_memory_events: bool = True,
        visualize: bool = True,
    ) -> dict[int, pd.DataFrame]:
        """For each launch: its duration, that of its work on the GPU, and the delay between them."""
        result = {}
        for rank in ranks or [0]:
            names = ("correlation", "end_host", "dur_host", "ts_device", "dur_device")
            launched = self._of(rank).launched(include_memory_events, *names)
            delay = (launched.ts_device - launched.end_host).clip(lower=0)
            result[rank] = pd.DataFrame(
                {
                    "correlation": launched.correlation.astype("int64"),
                    "cpu_duration": microseconds(launched.dur_host),
                    "gpu_duration": microseconds(launched.dur_device),
                    "launch_delay": microseconds(delay),
                }
            )
            if visualize:
                plots.launches(rank, result[rank], runtime_cutoff, launch_delay_cutoff)
        return result

    def get_queue_length_time_series(self, ranks: list[int] | None = None) -> dict[int, pd.DataFrame]:
        """The number of launched pieces of work that wait, at each point where it changes."""
        result = {}
        for rank in ranks or [0]:
            rows = self._of(rank)
            points = rows.queue_points
            if points.empty:
                continue
            device = rows.launched(True, "device_id")["device_id"].to_numpy()[points["piece"]]
            points = points.assign(ts=microseconds(points["at"] + rows.base_ns - self._first()), pid=device)
            frame = points.assign(tid=points["stream"])[["ts", "pid", "tid", "stream", "queue_length"]]
            result[rank] = frame.reset_index(drop=True)
        return result

    def get_queue_length_summary(self, ranks: list[int] | None = None) -> pd.DataFrame | None:
        """Statistics of the queue lengths of each stream."""
        points = {rank: self._of(rank).queue_points for rank in ranks or [0]}
        return self.get_queue_length_summary_from_time_series({rank: found for rank, found in points.items() if len(found)})

    def get_queue_length_summary_from_time_series(
        self, queue_length_dict: dict[int, pd.DataFrame]
    ) -> pd.DataFrame | None:
        """Statistics of the queue lengths of each stream, of the result of `get_queue_length_time_series`."""
        parts = {rank: points.groupby("stream")[["queue_length"]].describe() for rank, points in queue_length_dict.items()}
        return pd.concat(parts, names=["rank"]) if parts else None

    def get_time_spent_blocked_on_full_queue(
        self,
        queue_length_dict: dict[int, pd.DataFrame],
        max_queue_length: int = CUDA_MAX_LAUNCH_QUEUE_PER_STREAM,
    ) -> pd.DataFrame:
        """The time in which so many pieces of work waited, for each stream in which it happened."""
        found = []
        for rank, series in queue_length_dict.items():
            rows = self._of(rank)
            recorded = (rows.all.end.max() - rows.all.ts.min()) / 1000
            for stream, points in series.groupby("stream"):
                held = points["ts"].shift(-1) - points["ts"]
                full = held[points["queue_length"] >= max_queue_length]
                if not full.empty:
                    found.append((rank, stream, full.sum(), full.sum() / recorded))
        columns = ["rank", "stream", "duration_at_max_queue_length", "relative_duration_at_max_queue_length"]
        return pd.DataFrame(found, columns=columns)

    def get_memory_bw_time_series(self, ranks: list[int] | None = None) -> dict[int, pd.DataFrame]:
        """The summed bandwidth of the copies and fills that are under way, at each point where it changes."""
        result = {}
        for rank in ranks or [0]:
            rows = self._of(rank)
            copies = rows.of_type("MEMORY")
            if copies.empty:
                continue
            names = copies["name"].str.extract(MEMORY_PREFIX, expand=False).fillna("Memcpy Unknown")
            rates = copies["bandwidth_gbs"].fillna(0.0)
            ends = copies.ts + copies.dur.where(copies.dur > 0, 1000)
            points = pd.concat(
                [
                    pd.DataFrame({"at": at, "name": names, "pid": copies.device_id, "change": change})
                    for at, change in ((copies.ts, rates), (ends, -rates))
                ]
            ).sort_values(["name", "at"], kind="stable")
            points["memory_bw_gbps"] = points.groupby("name")["change"].cumsum()
            points["ts"] = microseconds(points["at"] + rows.base_ns - self._first())
            result[rank] = points[["ts", "pid", "name", "memory_bw_gbps"]].reset_index(drop=True)
        return result

    def get_memory_bw_summary(self, ranks: list[int] | None = None) -> pd.DataFrame | None:
        """Statistics of the bandwidths, over the points at which a copy or fill is under way; None without copies."""
        parts = []
        for rank, series in self.get_memory_bw_time_series(ranks).items():
            under_way = series[series["memory_bw_gbps"] > 1e-9]
            parts.append(under_way.assign(rank=rank)[["rank", "name", "memory_bw_gbps"]])
        if not parts:
            return None
        return pd.concat(parts).groupby(["rank", "name"]).describe()

    def get_aten_op_kernels_and_delay(
        self, ranks: list[int] | None = None, sort_by: list[str] | None = None
    ) -> dict[int, pd.DataFrame]:
        """The kernels that each `aten::` operator launches, how often, and the delays of its first launch."""
        result = {}
        for rank in ranks or [0]:
            calls = self._of(rank).launches_of_operators().astype({"name": object, "op_name": object})
            calls["aten_op_delay"] = calls.ts_host - calls.ts_op
            calls["runtime_delay"] = calls.ts_device - calls.ts_host
            calls = calls.sort_values(["op_id", "ts_host"], kind="stable")
            calls = calls.groupby("op_id", as_index=False).agg(
                aten_op_name=("op_name", "first"),
                kernel_sequence=("name", " -> ".join),
                aten_op_delay=("aten_op_delay", "first"),
                runtime_delay=("runtime_delay", "first"),
            )
            found = calls.groupby(["aten_op_name", "kernel_sequence"], as_index=False).agg(
                occurrence_count=("runtime_delay", "count"),
                avg_aten_op_launch_delay=("aten_op_delay", "mean"),
                avg_runtime_delay=("runtime_delay", "mean"),
            )
            for column in ("avg_aten_op_launch_delay", "avg_runtime_delay"):
                found[column] = (found[column] / 1000).round(3)
            result[rank] = found.sort_values(sort_by or ["occurrence_count"], ascending=False)
        return result

    # --- Single kernels and trace files ------------------------------------------------------------------------------

    def get_gpu_kernels_with_user_annotations(
        self,
        rank: int,
        expand_names: bool = True,
        shorten_names: bool = True,
        *,
        shortern_names: bool | None = None,
    ) -> pd.DataFrame | None:
        """Work on the GPU with the innermost annotation around it, in µs; None if the rank has no annotations on the GPU.
        HTA before 0.6 spells the last argument `shortern_names`."""
        shorten = shorten_names if shortern_names is None else shortern_names
        return kernels.annotated(self._of(rank), self._first(), expand_names, shorten)

    def get_frequent_cuda_kernel_sequences(
        self,
        operator_name: str,
        output_dir: str,
        min_pattern_len: int = 3,
        rank: int = 0,
        top_k: int = 5,
        visualize: bool = False,
        compress_other_kernels: bool = True,
    ) -> pd.DataFrame:
        """The sequences of kernels that the outermost operators of this name launch, how often, and sums of durations in µs.
        `overlaid_…` in `output_dir` is the rank's trace with the `top_k` most frequent ones as the argument `Patterns`."""
        if not operator_name or not os.path.isdir(output_dir):
            raise RankscopeError("operator_name must not be empty, and output_dir must be a directory", output_dir)
        found = kernels.sequences(self._of(rank), operator_name, min_pattern_len)
        if found is None:
            return pd.DataFrame()
        path = self._file(rank)
        trace = files.read(path)
        files.mark(trace, path, self._of(rank), found, top_k, compress_other_kernels)
        files.write(os.path.join(output_dir, f"overlaid_{os.path.basename(path)}"), trace)
        if visualize:
            plots.patterns(rank, found.frame[:top_k])
        return found.frame

    def get_cupti_counter_data_with_operators(self, ranks: list[int] | None = None) -> list[pd.DataFrame]:
        """For each rank with counters of CUPTI's range profiler its kernels, their operators and counters; times in µs of the
        trace."""
        read = ((rank, files.read(self._file(rank))) for rank in ranks or [0])
        found = (kernels.counters(self._of(rank), trace, rank) for rank, trace in read)
        return [frame for frame in found if frame is not None]

    def critical_path_analysis(
        self,
        rank: int,
        annotation: str,
        instance_id: int | tuple[int, int] | None,
        data_load_events: list[str] | None = None,
    ) -> tuple[CPGraph, bool] | None:
        """The critical path of a rank through instances of an annotation (all rows whose name contains it; the first one is 0,
        and a pair is the first and the last), or through all rows if it is empty. The names that `data_load_events`, regular
        expressions, find load data. False if there is no path; None, with a warning, if there is no such instance.
        """
        wanted = critical.Wanted(rank, annotation, instance_id, data_load_events)

        def waits() -> dict[int, Wait]:
            return files.waits(self._file(rank))

        return critical.analyze(self.t, self._of(rank), wanted, waits)

    def overlay_critical_path_analysis(
        self,
        rank: int,
        critical_path_graph: CPGraph,
        output_dir: str,
        only_show_critical_events: bool = True,
        show_all_edges: bool = False,
    ) -> str:
        """Writes the rank's trace with the path into `overlaid_critical_path_…` in `output_dir` and returns its path. Rows
        of the path have the argument `critical`, other operators and kernels are left out if `only_show_critical_events`. Arrows
        are the path's edges between rows, or those of the whole graph if all rows and `show_all_edges` are wanted.

        # Errors
        A RankscopeError if a file cannot be read or written, or is not that of the graph.
        """
        path = self._file(rank)
        trace = files.read(path)
        edges = critical_path_graph.shown_edges(show_all_edges and not only_show_critical_events)
        files.overlay(trace, path, critical_path_graph, only_show_critical_events, edges)
        written = os.path.join(os.path.expanduser(output_dir), f"overlaid_critical_path_{os.path.basename(path)}")
        files.write(written, trace, makes_folder=True)
        return written

    def generate_trace_with_counters(
        self,
        time_series: TimeSeriesTypes | None = None,
        ranks: list[int] | None = None,
        output_suffix: str = "_with_counters",
    ) -> None:
        """Writes the traces of ranks beside themselves, with queue lengths and bandwidths (GB/s) as counters."""
        wanted = time_series or TimeSeriesTypes.QUEUE_LENGTH | TimeSeriesTypes.MEMCPY_BANDWIDTH
        ranks = ranks or [0]
        shown: list[tuple[dict[int, pd.DataFrame], str, str]] = []
        if TimeSeriesTypes.QUEUE_LENGTH in wanted:
            shown.append((self.get_queue_length_time_series(ranks), "Queue Length", "queue_length"))
        if TimeSeriesTypes.MEMCPY_BANDWIDTH in wanted:
            shown.append((self.get_memory_bw_time_series(ranks), "Memcpy BW", "memory_bw_gbps"))
        for rank in ranks:
            path = self._file(rank)
            trace = files.read(path)
            start_us = (self._first() - files.zero_ns(trace)) / 1000
            for series, counter, column in shown:
                if rank in series:
                    trace["traceEvents"] += files.counter_events(series[rank], counter, column, start_us)
            folder, name = os.path.split(path)
            files.write(os.path.join(folder, name.replace(".json", f"{output_suffix or '_with_counters'}.json")), trace)

    # --- Steps and stragglers -----------------------------------------------------------------------------------------

    def get_profiler_steps(self) -> list[int]:
        """The numbers of the profiler's steps."""
        steps = {step for rank in self._ranks for step in self._of(rank).steps}
        return sorted(steps)

    def get_potential_stragglers(
        self,
        profiler_steps: list[int] | None = None,
        num_candidates: int = 2,
        visualize: bool = False,
    ) -> list[int]:
        """The ranks that make the others wait: those that the verdict names, the most expensive first. With `strict_hta`,
        those whose communication starts late, as HTA ranks them."""
        if self.strict_hta:
            from rankscope._hta_stragglers import late_starts

            return late_starts({rank: self._of(rank) for rank in self._ranks}, profiler_steps, num_candidates)
        judged = self.analysis
        if profiler_steps:
            judged = analyze(self._paths, steps=range(min(profiler_steps), max(profiler_steps) + 1))
        verdict = judged.verdict
        if visualize:
            plots.stacked(judged.stragglers.to_pandas(), ["own_excess_ns"], "Own work beyond that of the other ranks")
        return list(verdict.ranks or verdict.data["suspects"])[:num_candidates]

    def _first(self) -> int:
        """The first start of a row of any rank, from which HTA counts times."""
        return min(self._of(rank).base_ns for rank in self._ranks)


def _stats(rows: pd.DataFrame) -> pd.DataFrame:
    """The statistics of the durations of each name, in ns."""
    by_name = rows.groupby("name", observed=True)["dur"]
    return by_name.agg(["count", "sum", "max", "min", "mean", "std"]).reset_index().astype({"name": object})


def _together(stats: pd.DataFrame) -> pd.DataFrame:
    """The statistics of all calls of several names, as those of `others`."""
    if stats.empty:
        return stats
    count, total = int(stats["count"].sum()), int(stats["sum"].sum())
    mean = total / count
    squares = (stats["count"] - 1) * stats["std"].fillna(0) ** 2 + stats["count"] * (stats["mean"] - mean) ** 2
    row = {
        "name": "others",
        "count": count,
        "sum": total,
        "max": stats["max"].max(),
        "min": stats["min"].min(),
        "mean": mean,
        "std": float(np.sqrt(squares.sum() / (count - 1))) if count > 1 else float("nan"),
    }
    return pd.DataFrame([row])


def _gaps(work: pd.DataFrame, delay_us: int) -> pd.DataFrame:
    """The gaps between the pieces of work of a stream, and why the stream idles."""
    before = work.end.shift(1)
    gap = work.ts - before
    waits_for_host = work.launch > before
    waits_for_kernel = ~waits_for_host & (gap < delay_us * 1000)
    category = pd.Categorical.from_codes(np.select([waits_for_host, waits_for_kernel], (0, 1), 2), _IDLE)
    return pd.DataFrame({"gap": gap, "idle_category": category})


def _paths(trace_files: dict[int, str] | Iterable[str] | None, trace_dir: str) -> list[str]:
    if trace_files:
        files = trace_files.values() if isinstance(trace_files, dict) else trace_files
        return [os.path.join(trace_dir, file) for file in files]
    if not trace_dir:
        raise RankscopeError("TraceAnalysis needs trace_dir or trace_files", None)
    return [trace_dir]
