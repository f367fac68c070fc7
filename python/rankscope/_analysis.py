"""An analysis, its verdict and its tables."""

from __future__ import annotations

import html
import json
import os
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from rankscope import _rankscope
from rankscope._declared import AnalysisTables
from rankscope._errors import warn_of_losses
from rankscope._options import AnalyzeOptions, Paths, Progress, ShownProgress, StrPath, paths, words
from rankscope._table import Table

if TYPE_CHECKING:
    from typing_extensions import Unpack


class VerdictKind(str, Enum):
    """What a verdict says. Each is equal to its word in JSON."""

    #: At least one rank slows the others down.
    CAUSE = "cause"
    #: A rank may slow the others down, but the evidence is not certain.
    UNDECIDED = "undecided"
    #: No rank stands out, and no part of the steps takes much but work.
    BALANCED = "balanced"
    #: No rank stands out, but much of the steps is lost because one rank or another is late.
    JITTER = "jitter"
    #: No rank stands out, but much of the steps is lost to transfers, dependencies or longer steps.
    LOST = "lost"
    #: The job hung: ranks are missing from a collective that others entered.
    HUNG = "hung"
    #: There is nothing to judge: one rank, no steps or no collectives.
    NOTHING = "nothing"

    __str__ = str.__str__


class Reason(str, Enum):
    """What a cause does for longer than its peers. Each is equal to its word in JSON."""

    #: The device has more work, or the host of a rank without a device has.
    COMPUTE = "compute"
    #: The same kernels take longer than on other devices.
    DEVICE = "device"
    #: The host does something else while the device idles.
    HOST = "host"
    #: A range of input takes longer.
    INPUT = "input"
    #: Transfers of collectives.
    NETWORK = "network"
    #: A range that waits by its name takes longer.
    WAITING = "waiting"

    __str__ = str.__str__


class Verdict(NamedTuple):
    """The rank that makes the others wait. Without a cause, the rank that stands out most; `kind` tells which."""

    kind: VerdictKind
    #: The rank; None if none stands out.
    rank: int | None
    host: str | None
    pid: int | None
    #: Number of its GPU, as its process sees it.
    gpu: int | None
    gpu_name: str | None
    gpu_uuid: str | None
    #: The file of its trace.
    file: str | None
    #: What it adds to a step, in ns, and the 95 % interval of that.
    cost_ns: int | None
    interval_ns: tuple[int, int] | None
    reason: Reason | None
    #: The host range that contains the excess.
    where: str | None
    #: All ranks that are causes, the most expensive first.
    ranks: list[int]
    #: Median length of a step.
    step_ns: int | None
    title: str
    sentence: str
    #: What to do next.
    action: str | None
    #: Everything, as in `rankscope analyze --json`; docs/reference/json.md describes it.
    data: dict[str, Any]

    def __str__(self) -> str:
        return self.sentence or self.title


class Analysis(AnalysisTables):
    """The analysis of a run or of traces. Every table is an attribute; `tables` has their names."""

    def __init__(self, native: _rankscope.NativeAnalysis, made_by: str) -> None:
        self._native = native
        self._made_by = made_by
        self._facts: dict[str, Any] | None = None
        self._verdict: Verdict | None = None

    @property
    def verdict(self) -> Verdict:
        """The rank that makes the others wait, and its cost per step."""
        if self._verdict is None:
            self._verdict = _verdict(json.loads(self._native.verdict()), self.facts["identities"])
        return self._verdict

    @property
    def facts(self) -> dict[str, Any]:
        """The input and its extent: ranks, hosts, steps, rows; docs/reference/json.md describes the keys."""
        if self._facts is None:
            self._facts = json.loads(self._native.facts())
        return self._facts

    @property
    def complete(self) -> bool:
        """Whether nothing that was recorded is lost; `omissions` lists what is."""
        return self._native.worst_omission() != "lost"

    @property
    def tables(self) -> list[str]:
        """The names of the tables."""
        return [name for name, _ in _rankscope.tables_of_analysis()]

    def table(self, name: str) -> Table:
        """A table by its name."""
        return Table(self._native.table(name))

    def _table(self, name: str) -> Table:
        return self.table(name)

    def timeline(
        self,
        step: int | None = None,
        rank: int | None = None,
        own_clocks: bool = False,
        progress: Progress = None,
    ) -> Table:
        """The recorded rows on one clock: the columns of `events`, with global `ts_ns`, of a step or of all, of a rank or of
        all. With `own_clocks`, times are as each rank recorded them. The input is read again."""
        with ShownProgress(progress) as shown:
            return Table(self._native.timeline(step, rank, own_clocks, shown.callback))

    def report(self, path: StrPath, step: int | None = None) -> str:
        """Writes the report, one page for a browser, and returns its path. Its timeline shows `step` first."""
        self._native.report(path, step, f"{self._made_by}.report({os.fspath(path)!r})")
        return os.fspath(path)

    def save(self, directory: StrPath) -> str:
        """Writes `analysis/`, the tables as Parquet with views for DuckDB, into a directory: the run, or another one."""
        return os.fspath(self._native.save(directory))

    def page(self, step: int | None = None) -> str:
        """The report as text."""
        return self._native.page(step, self._made_by)

    def _repr_html_(self) -> str | None:
        if not self._native.has_rows:
            return None
        # The page has scripts of its own and names from traces: it gets no access to the notebook.
        page = html.escape(self.page(), quote=True)
        style = "width:100%;height:45em;border:1px solid #8884"
        return f'<iframe sandbox="allow-scripts" loading="lazy" style="{style}" srcdoc="{page}"></iframe>'

    def __repr__(self) -> str:
        ranks, steps = len(self.facts["ranks"]), len(self.facts["steps"])
        return f"<rankscope.Analysis: {self.verdict.title or 'NO VERDICT'}; {ranks} ranks, {steps} steps>"


def _verdict(data: dict[str, Any], identities: list[dict[str, Any]]) -> Verdict:
    rank = data["rank"]
    known = next((identity for identity in identities if identity["rank"] == rank), {})
    low, high = data["step_delay_low_ns"], data["step_delay_high_ns"]
    return Verdict(
        kind=VerdictKind(data["kind"]),
        rank=rank,
        host=known.get("host"),
        pid=known.get("pid"),
        gpu=known.get("device_id"),
        gpu_name=known.get("device_name"),
        gpu_uuid=known.get("device_uuid"),
        file=known.get("file"),
        cost_ns=data["step_delay_ns"],
        interval_ns=None if low is None or high is None else (low, high),
        reason=None if data["reason"] is None else Reason(data["reason"]),
        where=data["evidence_range"],
        ranks=data["causes"],
        step_ns=data["step_ns"],
        title=data["title"],
        sentence=data["sentence"],
        action=data["action"],
        data=data,
    )


def analyze(traces_or_run: Paths, progress: Progress = None, **options: Unpack[AnalyzeOptions]) -> Analysis:
    """Analyzes a run, or traces of torch.profiler: files, or directories of them. Nothing is written.

    A RankscopeWarning says that something recorded is lost; the result is of the rest.
    """
    found = paths(traces_or_run)
    given: dict[str, Any] = dict(options)
    with ShownProgress(progress) as shown:
        native = _rankscope.analyze(found, words(AnalyzeOptions, given), shown.callback)
    said = [repr(found[0] if len(found) == 1 else found), *(f"{name}={value!r}" for name, value in given.items())]
    return _warned(Analysis(native, f"rankscope.analyze({', '.join(said)})"))


def map_rank(
    traces_or_run: Paths,
    parts: StrPath,
    part: str = "0/1",
    progress: Progress = None,
    **options: Unpack[AnalyzeOptions],
) -> list[int]:
    """Maps share I of N of the ranks (`part="I/N"`, from 0) into the directory `parts`, and returns these ranks.

    Shares may be mapped by any processes in any order, such as tasks of Ray or Dask; with as many shares as ranks, a task
    maps about one rank. `reduce` makes the analysis of all shares, the same as `analyze` does.
    """
    given: dict[str, Any] = dict(options)
    with ShownProgress(progress) as shown:
        native = words(AnalyzeOptions, given)
        ranks, omissions = _rankscope.map_share(paths(traces_or_run), part, parts, native, shown.callback)
    warn_of_losses(json.loads(omissions), 2)
    return ranks


def reduce(parts: StrPath) -> Analysis:
    """The analysis of the shares that `map_rank` wrote. It has no report and no timeline, which need the ranks' rows."""
    return _warned(Analysis(_rankscope.reduce(parts), f"rankscope.reduce({os.fspath(parts)!r})"))


def _warned(analysis: Analysis) -> Analysis:
    if not analysis.complete:
        warn_of_losses(json.loads(analysis._native.omissions()), 3)
    return analysis
