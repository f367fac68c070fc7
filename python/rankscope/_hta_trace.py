"""HTA's `Trace`: the rows of ranks as data frames in which names and categories are numbers of a symbol table."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from rankscope._hta_rows import MEMORY_PREFIX, Rows, microseconds
from rankscope._numeric import pd


class SymbolTable:
    """The texts of names and categories, and their numbers."""

    def __init__(self) -> None:
        self.sym_table: list[str] = []
        self.sym_index: dict[str, int] = {}

    def add_symbols(self, texts: pd.Series[str]) -> pd.Series[int]:
        """The numbers of texts. Texts without one get it."""
        for text in texts.unique():
            if text not in self.sym_index:
                self.sym_index[text] = len(self.sym_table)
                self.sym_table.append(text)
        return texts.map(self.sym_index).astype("int64")

    def get_sym_table(self) -> list[str]:
        """All texts; the place of one is its number."""
        return self.sym_table

    def get_sym_id_map(self) -> dict[str, int]:
        """The number of each text."""
        return self.sym_index

    def add_symbols_to_trace_df(self, trace_df: pd.DataFrame, col: str) -> None:
        """Replaces the numbers of a column of a data frame by their texts."""
        trace_df[col] = trace_df[col].map(dict(enumerate(self.sym_table)))


class Trace:
    """The rows of ranks."""

    def __init__(self, ranks: list[int], rows_of: Callable[[int], Rows]) -> None:
        #: The texts of the data frames that were made.
        self.symbols = SymbolTable()
        self._ranks = ranks
        self._rows_of = rows_of
        self._frames: dict[int, pd.DataFrame] = {}

    @property
    def symbol_table(self) -> SymbolTable:
        """The texts of all ranks."""
        self.get_all_traces()
        return self.symbols

    @property
    def traces(self) -> dict[int, pd.DataFrame]:
        """The data frame of each rank."""
        return {rank: self.get_trace(rank) for rank in self._ranks}

    def get_ranks(self) -> list[int]:
        """The ranks."""
        return self._ranks

    def get_all_traces(self) -> dict[int, pd.DataFrame]:
        """The data frame of each rank."""
        return self.traces

    def get_trace(self, rank: int) -> pd.DataFrame:
        """The rows of a rank, in the order of its file; times are µs since the first row of any rank. The index is the row's id.
        Rows of the host have the stream −1; the process of a row of a stream is its device, and the thread its stream.
        `index_correlation` is the id of the launch or of the work, −1 without a correlation and 0 where that is not recorded."""
        if rank not in self._frames:
            self._frames[rank] = self._frame(rank)
        return self._frames[rank]

    def shift_ns(self, rows: Rows) -> int:
        """What times of a rank are after the first row of any rank."""
        return rows.base_ns - min(self._rows_of(rank).base_ns for rank in self._ranks)

    def _frame(self, rank: int) -> pd.DataFrame:
        of_rank = self._rows_of(rank)
        rows = of_rank.all.sort_values("id")
        is_host = rows["device_id"].lt(0) & rows["stream"].lt(0)
        shift = self.shift_ns(of_rank)
        frame = pd.DataFrame(
            {
                "index": rows["id"],
                "cat": self.symbols.add_symbols(rows["kind"]),
                "name": self.symbols.add_symbols(rows["name"]),
                "pid": rows["device_id"].where(~is_host, of_rank.pid),
                "tid": rows["tid"].where(is_host, rows["stream"]),
                "ts": microseconds(rows["ts"] + shift),
                "dur": microseconds(rows["dur"]),
                "stream": rows["stream"],
                "correlation": rows["correlation"],
                "external_id": rows["external"],
                "memory_bw_gbps": rows["bandwidth_gbs"].fillna(0.0),
                "index_correlation": _partners(rows, is_host),
                "iteration": rows["step"],
                "end": microseconds(rows["end"] + shift),
            }
        )
        return frame.set_index("index", drop=False).rename_axis(None)

    def decode_symbol_ids(self, use_shorten_name: bool = True) -> None:
        """Adds the columns `s_name` and `s_cat` with the texts to all data frames."""
        frames = self.traces.values()
        texts = pd.Series(self.symbols.sym_table, dtype=object)
        shown = texts.map(short_name) if use_shorten_name else texts
        for frame in frames:
            frame["s_name"], frame["s_cat"] = frame["name"].map(shown), frame["cat"].map(texts)


def _partners(rows: pd.DataFrame, is_host: pd.Series[bool]) -> pd.Series[int]:
    """The ids of the launches of device work, and of the work of launches."""
    has = rows["correlation"].ge(0)
    found = pd.Series(-1, index=rows.index, dtype="int64")
    for one, other in ((is_host, ~is_host), (~is_host, is_host)):
        known = rows[other & has].drop_duplicates("correlation").set_index("correlation")["id"]
        found[one & has] = rows["correlation"][one & has].map(known).fillna(0).astype("int64")
    return found


def short_name(name: Any) -> str:
    """A name without its return type, template arguments and parameters, as HTA shortens it; those of copies stay."""
    if re.match(MEMORY_PREFIX, name) or not re.search(r"[<(]", name):
        return str(name)
    text = name.replace("->", "")
    while (fewer := re.sub(r"<[^<>]*>|\([^()]*\)", "", text)) != text:
        text = fewer
    return text.split()[-1] if text.split() else str(name)
