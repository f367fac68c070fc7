"""Comparisons of runs, and predictions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from rankscope import _rankscope
from rankscope._errors import warn_of_losses
from rankscope._options import DiffOptions, Paths, Progress, ShownProgress, WhatIfOptions, paths, words
from rankscope._table import Table

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Diff(NamedTuple):
    """What changed from A to B."""

    #: Whether something changed significantly.
    changed: bool
    sentence: str
    #: The smallest change of all ranks' step that these runs can show, in percent; None: none.
    detectable_step_pct: float | None
    #: Every compared quantity, with its interval: significant ones first.
    changes: Table
    #: Everything, as in `rankscope diff --json`; docs/reference/json.md describes it.
    data: dict[str, Any]

    def __str__(self) -> str:
        return self.sentence


class Prediction(NamedTuple):
    """A change, and what it saves per step. Intervals are of 95 %; None for a single step."""

    change: str
    step_ns: int
    step_interval_ns: tuple[int, int] | None
    saved_ns: int
    saved_interval_ns: tuple[int, int] | None


class WhatIf(NamedTuple):
    """The predictions of a replay."""

    #: Steps that were replayed, and their recorded mean length.
    steps: int
    step_ns: int
    #: How much of a step begins later than anything that was recorded explains; it is in all intervals.
    replay_error_ns: int
    #: What was asked for, or what would save most, the largest first.
    changes: list[Prediction]


def diff(a: Paths, b: Paths, progress: Progress = None, **options: Unpack[DiffOptions]) -> Diff:
    """Compares runs or traces from before a change (`a`) with those from after it (`b`). Several runs a side show how
    much runs of one side differ; record them in turns."""
    given: dict[str, Any] = dict(options)
    with ShownProgress(progress) as shown:
        text, changes = _rankscope.diff(paths(a), paths(b), words(DiffOptions, given), shown.callback)
    data = json.loads(text)
    warn_of_losses(data["omissions"], 2)
    verdict = data["verdict"]
    return Diff(verdict["changed"], verdict["sentence"], verdict["detectable_step_pct"], Table(changes), data)


def what_if(traces_or_run: Paths, progress: Progress = None, **options: Unpack[WhatIfOptions]) -> WhatIf:
    """Replays a job with something changed. Without a change, those are listed that would save most."""
    given: dict[str, Any] = dict(options)
    with ShownProgress(progress) as shown:
        text, omissions = _rankscope.what_if(paths(traces_or_run), words(WhatIfOptions, given), shown.callback)
    warn_of_losses(json.loads(omissions), 2)
    data = json.loads(text)
    return WhatIf(data["steps"], data["step_ns"], data["replay_error_ns"], [_prediction(row) for row in data["changes"]])


def _prediction(row: dict[str, Any]) -> Prediction:
    def interval(low: int | None, high: int | None) -> tuple[int, int] | None:
        return None if low is None or high is None else (low, high)

    return Prediction(
        row["change"],
        row["step_ns"],
        interval(row["step_low_ns"], row["step_high_ns"]),
        row["saved_ns"],
        interval(row["saved_low_ns"], row["saved_high_ns"]),
    )
