"""The options of a call. They have the names and meanings of the command's options, which `rankscope analyze --help` and
docs/reference/commands.md describe; `from_` is `--from`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypedDict, Union

StrPath = Union[str, "os.PathLike[str]"]
Paths = Union[StrPath, Sequence[StrPath]]
#: Called with the number of finished ranks and the total; True draws a bar with tqdm.
Progress = Union[Callable[[int, int], object], bool, None]
Pattern = Union[str, "re.Pattern[str]"]


class InputOptions(TypedDict, total=False):
    """The choice of what is read."""

    #: A window of the profiler: 1, 2, … or "last"; default: all.
    window: int | Literal["last", "all"]
    #: Put files together, or compare runs, that look like those of different jobs.
    force: bool
    #: Memory that rows may take, in bytes or as in "8GiB".
    max_memory: int | str


class ScopeOptions(InputOptions, total=False):
    """The selected part, and the clock."""

    #: As in range(3, 8), "3..8", or one step.
    steps: range | int | str
    #: A global time in ns, or as in "+1.5s" since the start.
    from_: int | str
    to: int | str
    #: Only these ranks.
    ranks: Iterable[int] | int | str
    #: Host ranges that mark the steps.
    step_marker: Pattern
    #: The evidence that aligns the clocks.
    clock: Literal["auto", "ping", "same-host", "collective", "utc"] | str


class AnalyzeOptions(ScopeOptions, total=False):
    """The options of an analysis."""

    #: Only the time inside host ranges whose name matches.
    range: Pattern
    #: Operators and ranges that are searched for kernel sequences.
    sequences_of: Pattern
    #: Device work that counts as communication too, or "hta".
    comm: Pattern
    #: Device work that is no communication.
    not_comm: Pattern
    #: Thresholds of the verdict "cause".
    min_steps: int
    min_effect_pct: float
    min_z: float
    min_persistence: float


class DiffOptions(InputOptions, total=False):
    """The options of a comparison."""

    steps: range | int | str
    ranks: Iterable[int] | int | str
    step_marker: Pattern
    clock: str
    comm: Pattern
    not_comm: Pattern
    #: Changes below this share of A's step, in percent, are ignored.
    smallest: float
    #: The variance between runs over the variance of a run's steps.
    between_runs: float


class WhatIfOptions(ScopeOptions, total=False):
    """The change to predict, and the part of the run that it is predicted for."""

    #: Ranks that do no more work than is typical of their role.
    without: Iterable[int] | int
    #: All ranks do the work that is typical of their role.
    role_median: bool
    #: Transfers take this share of their time.
    comm_scale: float
    #: Gradient buckets close at this size in MiB.
    bucket_mb: int
    #: Every collective blocks its ranks.
    no_overlap: bool
    #: Typical work, and transfers that take no time.
    perfect: bool


def paths(given: Paths) -> list[str]:
    """The paths of an input."""
    return [os.fspath(given)] if isinstance(given, (str, os.PathLike)) else [os.fspath(path) for path in given]


def words(kind: type, given: dict[str, Any]) -> list[tuple[str, str | None]]:
    """The options as the command line has them."""
    known = {name for base in kind.__mro__ for name in getattr(base, "__annotations__", {})}
    if unknown := sorted(given.keys() - known):
        raise TypeError(f"unknown option {unknown[0]!r}; there are {', '.join(sorted(known))}")
    found: list[tuple[str, str | None]] = []
    for name, value in given.items():
        option = name.rstrip("_").replace("_", "-")
        if value is True:
            found.append((option, None))
        elif name == "without" and value is not None:
            ranks = [value] if isinstance(value, int) else value
            found.extend((option, f"rank={int(rank)}") for rank in ranks)
        elif value is not None and value is not False:
            found.append((option, _word(name, value)))
    return found


def _word(name: str, value: Any) -> str:
    if isinstance(value, re.Pattern):
        return str(value.pattern)
    if isinstance(value, range):
        if value.step != 1:
            raise ValueError(f"{name}: a range with a step of {value.step} is not one part of the run")
        return f"{value.start}..{value.stop}"
    if isinstance(value, (str, int, float)):
        return str(value)
    return ",".join(str(int(item)) for item in value)


class ShownProgress:
    """The callback of a call, and its end."""

    def __init__(self, progress: Progress) -> None:
        self.callback: Callable[[int, int], object] | None = None
        self._bar: Any = None
        if progress is True:
            from tqdm.auto import tqdm

            self._bar = tqdm(unit="rank")
            self.callback = self._draw
        elif progress:
            self.callback = progress

    def _draw(self, done: int, total: int) -> None:
        self._bar.total = total
        self._bar.update(done - self._bar.n)

    def __enter__(self) -> ShownProgress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
