"""HTA's `TraceDiff`: how often names occur, and how long they take, in two recordings."""

from __future__ import annotations

from enum import Enum

from rankscope import _hta_plots as plots
from rankscope._hta_trace import Trace, short_name
from rankscope._numeric import pd


class DeviceType(Enum):
    """The rows that are compared."""

    CPU = 1
    GPU = 2
    ALL = 3


class LabeledTrace:
    """A recording with a label: the rows of a `TraceAnalysis` (its `t`), or a folder of traces."""

    def __init__(self, label: str | None = None, t: Trace | None = None, trace_dir: str | None = None) -> None:
        if t is None:
            if trace_dir is None:
                msg = "give the rows of a TraceAnalysis (t), or a folder of traces (trace_dir)"
                raise ValueError(msg)
            from rankscope.hta import TraceAnalysis

            t = TraceAnalysis(trace_dir=trace_dir, include_last_profiler_step=True).t
        self.t = t
        self.label = label or "trace"

    def ranks(self) -> list[int]:
        """The ranks, ascending."""
        return sorted(self.t.get_ranks())

    def iterations(self) -> list[int]:
        """The steps of all ranks, ascending."""
        steps = {step for frame in self.t.traces.values() for step in frame["iteration"].unique()}
        return sorted(int(step) for step in steps if step >= 0)

    def extract_ops(
        self,
        rank: int | list[int] | None = None,
        iteration: int | list[int] | None = None,
        device_type: DeviceType = DeviceType.ALL,
    ) -> pd.DataFrame:
        """The rows of ranks in steps, of the host (the stream −1), of devices, or of both. Default: the first rank, and its first
        step; of a recording without steps, all of it."""
        ranks = _chosen(rank, self.ranks(), f"rank of {self.label}")
        steps = _chosen(iteration, self.iterations(), f"step of {self.label}") if self.iterations() else []
        rows = pd.concat([self.t.get_trace(of).assign(rank=of) for of in ranks])
        if steps:
            rows = rows[rows["iteration"].isin(steps)]
        if device_type is DeviceType.ALL:
            return rows
        is_host = rows["stream"].eq(-1)
        return rows[is_host if device_type is DeviceType.CPU else ~is_host]

    def get_ops_summary(self, ops: pd.DataFrame) -> pd.DataFrame:
        """Count and total length, in µs, of each category and name."""
        texts = self.t.symbols.sym_table
        found = ops.groupby(["cat", "name"])["dur"].agg(counts="count", total_duration="sum").reset_index()
        found = found.rename(columns={"cat": "cat_id", "name": "name_id"})
        found["cat"] = [texts[number] for number in found["cat_id"]]
        found["name"] = [texts[number] for number in found["name_id"]]
        found["short_name"] = [short_name(name) for name in found["name"]]
        return found[["cat", "name", "short_name", "counts", "total_duration", "cat_id", "name_id"]]


def _chosen(wanted: int | list[int] | None, known: list[int], what: str) -> list[int]:
    if wanted is None:
        return known[:1]
    chosen = [wanted] if isinstance(wanted, int) else list(wanted)
    if unknown := [number for number in chosen if number not in known]:
        msg = f"{unknown[0]} is no {what}; there are {known}"
        raise ValueError(msg)
    return chosen


def _labelled(trace: LabeledTrace | Trace | str, label: str) -> LabeledTrace:
    if isinstance(trace, LabeledTrace):
        return trace
    return LabeledTrace(label, t=trace) if isinstance(trace, Trace) else LabeledTrace(label, trace_dir=trace)


class TraceDiff:
    """The names of two recordings, compared. `rankscope.diff` says what became slower, and how sure that is."""

    @classmethod
    def compare_traces(
        cls,
        control: LabeledTrace | Trace | str,
        test: LabeledTrace | Trace | str,
        control_rank: int | list[int] | None = None,
        test_rank: int | list[int] | None = None,
        control_iteration: int | list[int] | None = None,
        test_iteration: int | list[int] | None = None,
        device_type: DeviceType = DeviceType.ALL,
        use_short_name: bool = False,
    ) -> pd.DataFrame:
        """Count and total length, in µs, of each name in both recordings, and their differences: test less control. The columns
        begin with the labels; `counts_change_categories` is `+`, `-` or `=`. Default: the first rank and step of each."""
        control, test = _labelled(control, "Control"), _labelled(test, "Test")
        sides = [(control, control_rank, control_iteration), (test, test_rank, test_iteration)]
        by = "short_name" if use_short_name else "name"
        labels = [control.label, test.label if test.label != control.label else f"{test.label}_test"]
        frames = []
        for label, (trace, rank, iteration) in zip(labels, sides, strict=True):
            summary = trace.get_ops_summary(trace.extract_ops(rank, iteration, device_type))
            frames.append(summary.groupby(by)[["counts", "total_duration"]].sum().add_prefix(f"{label}_"))
        both = pd.concat(frames, axis=1).fillna(0).sort_index()
        for name, column in (("diff_counts", "counts"), ("diff_duration", "total_duration")):
            both[name] = both[f"{labels[1]}_{column}"] - both[f"{labels[0]}_{column}"]
        change = both["diff_counts"]
        both["counts_change_categories"] = ["+" if more > 0 else "-" if more < 0 else "=" for more in change]
        return both

    @classmethod
    def ops_diff(
        cls,
        control: LabeledTrace | Trace | str,
        test: LabeledTrace | Trace | str,
        control_rank: int | list[int] | None = None,
        test_rank: int | list[int] | None = None,
        control_iteration: int | list[int] | None = None,
        test_iteration: int | list[int] | None = None,
        device_type: DeviceType = DeviceType.ALL,
    ) -> dict[str, list[str]]:
        """The names that were `added`, `deleted`, `increased`, `decreased` or are `unchanged`, by their counts."""
        both = cls.compare_traces(
            control, test, control_rank, test_rank, control_iteration, test_iteration, device_type
        )
        counts = [column for column in both.columns if column.endswith("_counts") and column != "diff_counts"]
        (before, after), more = (both[column] for column in counts), both["diff_counts"]
        stays = before.gt(0) & after.gt(0)
        found = {
            "added": before.eq(0) & after.gt(0),
            "deleted": before.gt(0) & after.eq(0),
            "increased": stays & more.gt(0),
            "decreased": stays & more.lt(0),
            "unchanged": stays & more.eq(0),
        }
        return {kind: both.index[rows].tolist() for kind, rows in found.items()}

    @classmethod
    def visualize_counts_diff(
        cls, df: pd.DataFrame, show_image: bool = True, export_image_path: str | None = None
    ) -> None:
        """Draws the counts of `compare_traces`."""
        plots.compared(df, "counts", "Ops Count Comparison", (show_image, export_image_path))

    @classmethod
    def visualize_duration_diff(
        cls, df: pd.DataFrame, show_image: bool = True, export_image_path: str | None = None
    ) -> None:
        """Draws the lengths of `compare_traces`."""
        plots.compared(df, "total_duration", "Ops Duration Comparison (us)", (show_image, export_image_path))
