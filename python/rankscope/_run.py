"""Runs: what ranks recorded."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from rankscope import _rankscope
from rankscope._analysis import Analysis, analyze
from rankscope._declared import RunTables
from rankscope._errors import warn_of_losses
from rankscope._options import AnalyzeOptions, InputOptions, Paths, Progress, ShownProgress, StrPath, paths, words
from rankscope._table import Table

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Run(RunTables):
    """A run. Every table that ranks record is an attribute. Its rows are read when a library takes them: one file after the
    other, in the order of ranks. Times are those of the ranks' own clocks."""

    def __init__(self, path: StrPath) -> None:
        self._native = _rankscope.NativeRun(path)

    @property
    def path(self) -> str:
        """The directory."""
        return os.fspath(self._native.path)

    @property
    def recorded_ranks(self) -> list[int]:
        """The ranks with readable files."""
        return self._native.ranks

    @property
    def manifest(self) -> dict[str, Any]:
        """`run.json`."""
        manifest: dict[str, Any] = json.loads(self._native.manifest())
        return manifest

    @property
    def problems(self) -> list[dict[str, Any]]:
        """The rows and files that cannot be read, as in the table `omissions` of an analysis."""
        problems: list[dict[str, Any]] = json.loads(self._native.problems())
        return problems

    @property
    def tables(self) -> list[str]:
        """The names of the tables."""
        return [name for name, _ in _rankscope.tables_of_runs()]

    def table(self, name: str) -> Table:
        """A table by its name."""
        self._native.rows(name)
        return Table(_Recorded(self._native, name))

    def _table(self, name: str) -> Table:
        return self.table(name)

    def analyze(self, progress: Progress = None, **options: Unpack[AnalyzeOptions]) -> Analysis:
        """As `rankscope.analyze` of this run."""
        return analyze(self.path, progress, **options)

    def __repr__(self) -> str:
        return f"<rankscope.Run {self.path}: {len(self.recorded_ranks)} ranks>"


class _Recorded:
    """A recorded table."""

    def __init__(self, run: _rankscope.NativeRun, name: str) -> None:
        self._run = run
        self.name = name

    @property
    def doc(self) -> str:
        return self._run.described(self.name)[0]

    @property
    def columns(self) -> list[tuple[str, str, str | None, str]]:
        return self._run.described(self.name)[1]

    def __len__(self) -> int:
        return self._run.rows(self.name)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._run.stream(self.name)

    def __arrow_c_schema__(self) -> object:
        return self._run.schema(self.name)


class Ingested(NamedTuple):
    """The result of `ingest`."""

    run: Run
    ranks: list[int]
    #: Rows of `events`.
    rows: int
    read_bytes: int
    written_bytes: int
    #: The rows that could not be read, as in the table `omissions` of an analysis.
    omissions: list[dict[str, Any]]


def open(run: StrPath) -> Run:
    """Opens a run, whose recorded tables are then attributes. `analyze` takes its path as well."""
    return Run(run)


def ingest(traces: Paths, out: StrPath, progress: Progress = None, **options: Unpack[InputOptions]) -> Ingested:
    """Writes traces of torch.profiler as a run into the new directory `out`."""
    given: dict[str, Any] = dict(options)
    with ShownProgress(progress) as shown:
        done = _rankscope.ingest(paths(traces), out, words(InputOptions, given), shown.callback)
    ranks, rows, read_bytes, written_bytes, listed = done
    omissions = json.loads(listed)
    warn_of_losses(omissions, 2)
    return Ingested(Run(out), ranks, rows, read_bytes, written_bytes, omissions)
