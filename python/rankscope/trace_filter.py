"""The filters of HTA's `hta.common.trace_filter` and `trace_stack_filter`: each takes a data frame of rows and returns the rows that it selects.

The data frames are those of a `TraceAnalysis`'s `t`: names and categories are numbers of a symbol table there, and texts in the
columns `s_name` and `s_cat` after `decode_symbol_ids`. A filter whose column is missing warns and selects all rows, as in HTA."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from enum import Enum
from typing import Any

from rankscope._hta_trace import SymbolTable
from rankscope._numeric import pd

#: Synchronisations of a device without a stream are rows of the device.
_ON_DEVICE = ("Event Sync", "Context Sync")


class Filter(ABC):
    """A filter: `filter(rows)` or `filter(rows, symbol_table)` are the selected rows."""

    @abstractmethod
    def __call__(self, df: pd.DataFrame, symbol_table: SymbolTable | None = None) -> pd.DataFrame:
        """The selected rows."""


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=4)


def _has(df: pd.DataFrame, column: str) -> bool:
    if column in df.columns:
        return True
    _warn(f"the rows have no column {column!r}: all are selected")
    return False


def _numbers(given: int | list[int], what: str) -> list[int]:
    if isinstance(given, int):
        return [given]
    if not isinstance(given, list):
        msg = f"{what} is a number or a list of numbers, not {given!r}"
        raise TypeError(msg)
    return given


class IterationFilter(Filter):
    """Rows of steps, by their numbers."""

    def __init__(self, iterations: int | list[int]) -> None:
        self.iterations = _numbers(iterations, "iterations")

    def __call__(self, df: pd.DataFrame, symbol_table: SymbolTable | None = None) -> pd.DataFrame:
        return df[df["iteration"].isin(self.iterations)] if _has(df, "iteration") else df


class IterationIndexFilter(Filter):
    """Rows of steps, by their places among the steps of the rows. Of rows without a step all are selected."""

    def __init__(self, iteration_index: int | list[int]) -> None:
        self.iteration_index = _numbers(iteration_index, "iteration_index")

    def __call__(self, df: pd.DataFrame, symbol_table: SymbolTable | None = None) -> pd.DataFrame:
        if not _has(df, "iteration"):
            return df
        steps = sorted(step for step in df["iteration"].unique() if step != -1)
        if not steps:
            return df
        chosen = [step for at, step in enumerate(steps) if at in self.iteration_index]
        if not chosen:
            _warn(f"of {len(steps)} steps, {self.iteration_index} selects none")
            return pd.DataFrame()
        return df[df["iteration"].isin(chosen)]


class FirstIterationFilter(IterationIndexFilter):
    """Rows of the first step."""

    def __init__(self) -> None:
        super().__init__(0)


class RankFilter(Filter):
    """Rows of ranks, where the rows of several are in one data frame with a column `rank`."""

    def __init__(self, ranks: int | list[int]) -> None:
        self.ranks = _numbers(ranks, "ranks")

    def __call__(self, df: pd.DataFrame, symbol_table: SymbolTable | None = None) -> pd.DataFrame:
        return df[df["rank"].isin(self.ranks)] if _has(df, "rank") else df


class TimeRangeFilter(Filter):
    """Rows that begin and end in a span of time, in µs, both ends included."""

    def __init__(self, time_range: tuple[int, int]) -> None:
        is_pair = isinstance(time_range, tuple) and len(time_range) == 2 and all(isinstance(t, int) for t in time_range)
        if not is_pair or time_range[0] > time_range[1]:
            msg = f"time_range is a pair of whole numbers, the start first, not {time_range!r}"
            raise ValueError(msg)
        self.time_start, self.time_end = time_range

    def __call__(self, df: pd.DataFrame, symbol_table: SymbolTable | None = None) -> pd.DataFrame:
        if not _has(df, "ts"):
            return df
        return df[df["ts"].ge(self.time_start) & (df["ts"] + df["dur"]).le(self.time_end)]


def _texts(df: pd.DataFrame, name: str) -> str | None:
    """The column with the texts of `name` or `cat`; `None` if the rows have only their numbers."""
    for column in (name, f"s_{name}"):
        if column in df.columns and pd.api.types.is_string_dtype(df[column]):
            return column
    return None


class NameFilter(Filter):
    """Rows whose name matches a regular expression from its beginning."""

    def __init__(
        self, name_pattern: str, symbol_table: SymbolTable | None = None, name_column: str | None = None
    ) -> None:
        self.name_pattern, self.symbol_table, self.name_column = name_pattern, symbol_table, name_column

    def __call__(self, df: pd.DataFrame, symbol_table: SymbolTable | None = None) -> pd.DataFrame:
        table = symbol_table or self.symbol_table
        if table is not None:
            names = pd.Series(table.get_sym_table(), dtype=object)
            return df[df["name"].isin(names.index[names.str.match(self.name_pattern)])] if _has(df, "name") else df
        column = self.name_column or _texts(df, "name")
        if column is None:
            _warn("the names of the rows are numbers, and no symbol table is given: all rows are selected")
            return df
        return df[df[column].str.match(self.name_pattern)]


class QueryFilter(Filter):
    """Rows for which an expression of pandas' `DataFrame.query` is true."""

    def __init__(self, query_str: str) -> None:
        self.filter_query = query_str

    def __call__(self, df: pd.DataFrame, symbol_table: SymbolTable | None = None) -> pd.DataFrame:
        return df.query(self.filter_query)


#: Rows with a length. The name is HTA's.
ZeroDurationFilter = QueryFilter("dur > 0")


def _is_on_device(df: pd.DataFrame, symbol_table: SymbolTable | None) -> pd.Series[bool]:
    is_work = df["stream"].ge(0) & df["correlation"].ge(0)
    if symbol_table is None:
        _warn("without a symbol table, synchronisations of a whole device count as rows of the host")
        return is_work
    numbers = symbol_table.get_sym_id_map()
    return is_work | df["name"].isin([numbers[name] for name in _ON_DEVICE if name in numbers])


class GPUKernelFilter(Filter):
    """Rows of devices: kernels, copies, fills and synchronisations."""

    def __call__(self, df: pd.DataFrame, symbol_table: SymbolTable | None = None) -> pd.DataFrame:
        return df[_is_on_device(df, symbol_table)] if _has(df, "stream") else df


class CPUOperatorFilter(Filter):
    """Rows of the host: operators, ranges and calls."""

    def __call__(self, df: pd.DataFrame, symbol_table: SymbolTable | None = None) -> pd.DataFrame:
        if not _has(df, "stream"):
            return df
        return df[df["stream"].eq(-1) & ~_is_on_device(df, symbol_table)]


class MemCopyEventFilter(Filter):
    """Copies of a device with a name, such as `Memcpy HtoD (Pageable -> Device)`."""

    def __init__(self, memory_copy_type: str, symbol_table: SymbolTable | None = None) -> None:
        self.memory_copy_type, self.symbol_table = memory_copy_type, symbol_table

    def __call__(self, df: pd.DataFrame, symbol_table: SymbolTable | None = None) -> pd.DataFrame:
        table = symbol_table or self.symbol_table
        numbers = table.get_sym_id_map() if table else {}
        if self.memory_copy_type not in numbers or "gpu_memcpy" not in numbers:
            return pd.DataFrame()
        return df[df["name"].eq(numbers[self.memory_copy_type]) & df["cat"].eq(numbers["gpu_memcpy"])]


class CompositeFilter(Filter):
    """Filters one after the other."""

    def __init__(self, filters: list[Filter]) -> None:
        for each in filters:
            if not isinstance(each, Filter):
                msg = f"{each!r} is no filter"
                raise TypeError(msg)
        self.filters = filters

    def __call__(self, df: pd.DataFrame, symbol_table: SymbolTable | None = None) -> pd.DataFrame:
        for each in self.filters:
            df = each(df, symbol_table)
        return df


def find_op_occurrence(
    df: pd.DataFrame, op_name: str, position: int, name_column: str = "s_name"
) -> tuple[bool, pd.Series[Any]]:
    """Whether the rows have so many with this name, and the one at this place in the order of time; −1 is the last one."""
    if df.empty or "ts" not in df.columns or name_column not in df.columns:
        return False, pd.Series(dtype=object)
    named = df[df[name_column].eq(op_name)].sort_values("ts")
    if not -len(named) <= position < len(named):
        return False, pd.Series(dtype=object)
    return True, named.iloc[position]


class OperatorFilterMethod(Enum):
    """Where rows lie that are selected by an operator."""

    Under = 0
    After = 1
    Before = 2


class OperatorFilter(Filter):
    """Rows of the operator's stream (the host's is −1) that lie in it, after it or before it, by time. The operator is the one at
    `position` among those of its name, in the order of time; −1 is the last one. Without it nothing is selected. With
    `include_gpu_kernels`, so is the work that the selected calls launched. The rows need texts as names (`decode_symbol_ids`)."""

    def __init__(
        self,
        op_name: str,
        position: int,
        method: OperatorFilterMethod,
        include_gpu_kernels: bool = False,
        name_column: str | None = None,
    ) -> None:
        self.op_name, self.position, self.method = op_name, position, method
        self.include_gpu_kernels, self.name_column = include_gpu_kernels, name_column

    def __call__(self, df: pd.DataFrame, symbol_table: SymbolTable | None = None) -> pd.DataFrame:
        names = self.name_column or _texts(df, "name")
        if names is None:
            _warn("the names of the rows are numbers: decode_symbol_ids() of `t` adds their texts; all rows are selected")
            return df
        found, operator = find_op_occurrence(df, self.op_name, self.position, names)
        if not found:
            _warn(f"no row is occurrence {self.position} of {self.op_name!r}: nothing is selected")
            return pd.DataFrame()
        where = {
            OperatorFilterMethod.Under: df["ts"].ge(operator["ts"]) & df["end"].le(operator["end"]),
            OperatorFilterMethod.After: df["ts"].ge(operator["end"]),
            OperatorFilterMethod.Before: df["end"].le(operator["ts"]),
        }[self.method]
        rows = df[where & df["stream"].eq(operator["stream"])]
        return pd.concat([rows, _launched_by(rows, df)]) if self.include_gpu_kernels else rows


def _launched_by(calls: pd.DataFrame, df: pd.DataFrame) -> pd.DataFrame:
    """The work that calls of the runtime or the driver among the rows launched."""
    column = _texts(calls, "cat")
    if column is None:
        return df.iloc[:0]
    launching = calls[calls[column].isin(["cuda_runtime", "cuda_driver"])]
    return df[df["index_correlation"].isin(launching["index"]) & df["stream"].ge(0)]


class UnderOperatorFilter(OperatorFilter):
    """Rows that lie in an operator."""

    def __init__(
        self, op_name: str, position: int, include_gpu_kernels: bool = False, name_column: str | None = None
    ) -> None:
        super().__init__(op_name, position, OperatorFilterMethod.Under, include_gpu_kernels, name_column)


class AfterOperatorFilter(OperatorFilter):
    """Rows that begin when an operator has ended."""

    def __init__(
        self, op_name: str, position: int, include_gpu_kernels: bool = False, name_column: str | None = None
    ) -> None:
        super().__init__(op_name, position, OperatorFilterMethod.After, include_gpu_kernels, name_column)


class BeforeOperatorFilter(OperatorFilter):
    """Rows that end before an operator begins."""

    def __init__(
        self, op_name: str, position: int, include_gpu_kernels: bool = False, name_column: str | None = None
    ) -> None:
        super().__init__(op_name, position, OperatorFilterMethod.Before, include_gpu_kernels, name_column)


class CombinedOperatorFilter(Filter):
    """Of the first step, the rows in the first `root_op_name`, after the last `preceding_op_name` there and before the first
    `following_op_name` after that. An operator that does not occur limits nothing."""

    def __init__(
        self,
        root_op_name: str,
        preceding_op_name: str,
        following_op_name: str,
        include_gpu_kernels: bool = False,
        stack_depths: list[int] | None = None,
    ) -> None:
        self.root_op_name, self.preceding_op_name, self.following_op_name = (
            root_op_name,
            preceding_op_name,
            following_op_name,
        )
        self.include_gpu_kernels, self.stack_depths = include_gpu_kernels, stack_depths or []

    def __call__(self, df: pd.DataFrame, symbol_table: SymbolTable | None = None) -> pd.DataFrame:
        names = _texts(df, "name")
        if names is None:
            _warn("the names of the rows are numbers: decode_symbol_ids() of `t` adds their texts; all rows are selected")
            return df
        rows = FirstIterationFilter()(df)
        limits = (
            (self.root_op_name, 0, OperatorFilterMethod.Under),
            (self.preceding_op_name, -1, OperatorFilterMethod.After),
            (self.following_op_name, 0, OperatorFilterMethod.Before),
        )
        for name, position, method in limits:
            if find_op_occurrence(rows, name, position, names)[0]:
                rows = OperatorFilter(name, position, method, name_column=names)(rows)
        if self.include_gpu_kernels and not rows.empty:
            rows = pd.concat([_launched_by(rows, df), rows])
        if self.stack_depths and "depth" in rows.columns:
            rows = rows[rows["stream"].gt(0) | rows["depth"].isin(self.stack_depths)]
        return rows
