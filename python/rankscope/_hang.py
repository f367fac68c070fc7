"""The ranks that hold a hung job up."""

from __future__ import annotations

import json
from enum import Enum
from typing import Any, NamedTuple

from rankscope import _rankscope
from rankscope._errors import warn_of_losses
from rankscope._options import Paths, paths


class Fault(str, Enum):
    """Why others wait for a rank. Each is equal to its word in JSON."""

    #: Its program did not call an operation.
    HOST = "host"
    #: It called two operations in another order than the other ranks.
    ORDER = "order"
    #: Its device does not end what was called.
    DEVICE = "device"
    #: It has no dump.
    NOT_READ = "not_read"

    __str__ = str.__str__


class Culprit(NamedTuple):
    """A rank that others wait for and that waits for nobody."""

    rank: int
    fault: Fault
    #: The operation in which the others wait, as `allgather`; None where none is recorded.
    op: str | None
    communicator: str | None
    #: Number of the operation on its communicator; None for sends and receives.
    seq: int | None
    #: Size of the array of a rank.
    bytes: int | None
    #: First call by a rank that waits, in ns since 1970; None for a run, whose ranks have clocks of their own.
    since_utc_ns: int | None
    #: Line of the program that called it.
    source_line: str | None
    #: Ranks that wait for it in one operation (at most 64), and the number of those that do so through others too.
    waiting: list[int]
    waiting_in_all: int | None


class WaitReason(str, Enum):
    """Why ranks are waited for. Each is equal to its word in JSON."""

    NOT_CALLED = "not_called"
    NOT_READ = "not_read"
    DEVICE_STUCK = "device_stuck"
    QUEUED = "queued"
    NOT_KNOWN = "not_known"

    __str__ = str.__str__


class HangWait(NamedTuple):
    """Ranks that wait in an operation."""

    op: str
    communicator: str
    seq: int | None
    waiting: list[int]
    #: The ranks that they wait for.
    waits_for: list[int]
    why: WaitReason


class Hang(NamedTuple):
    """The ranks that hold a job up, and the waits that show it. Ranks are global and ascending."""

    culprits: list[Culprit]
    #: Ranks whose device does not end what the other ranks ended.
    device_stuck: list[int]
    #: Ranks that wait for each other in a circle.
    deadlocks: list[list[int]]
    #: For each rank that waits, the ranks that it waits for.
    waits_for: dict[int, list[int]]
    #: Operations that do not end, the first called one first.
    waits: list[HangWait]
    #: Operations on whose size, type or order ranks disagree, as in `rankscope hang --json`.
    mismatches: list[dict[str, Any]]
    #: Ranks that others name and that have no dump.
    ranks_not_read: list[int]
    #: Everything, as in `rankscope hang --json`; docs/reference/json.md describes it.
    data: dict[str, Any]


def hang(dumps_or_run: Paths) -> Hang:
    """Finds the ranks that hold a hung job up, in dumps of torch's Flight Recorder or in the unfinished collectives of a run.

    Dumps are pickles or JSON; the rank is in the name of each file, as in `nccl_trace_rank_3`. Nothing in a pickle is executed."""
    data = json.loads(_rankscope.hang(paths(dumps_or_run)))
    warn_of_losses(data["omissions"], 2)
    return Hang(
        [_culprit(row) for row in data["evidence"]],
        data["device_stuck"],
        data["deadlocks"],
        {int(rank): late for rank, late in data["waits_for"].items()},
        [_wait(row) for row in data["waits"]],
        data["mismatches"],
        data["ranks_not_read"],
        data,
    )


def _culprit(row: dict[str, Any]) -> Culprit:
    said = row["operation"] or {}
    return Culprit(
        row["rank"],
        Fault(row["fault"]),
        said.get("op"),
        said.get("communicator"),
        said.get("seq"),
        said.get("bytes"),
        said.get("since_utc_ns"),
        said.get("source_line"),
        row["waiting"],
        row["waiting_in_all"],
    )


def _wait(row: dict[str, Any]) -> HangWait:
    why = WaitReason(row["why"])
    return HangWait(row["op"], row["communicator"], row["seq"], row["waiting"], row["for"], why)
