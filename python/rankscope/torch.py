"""torch.profiler's windows of all ranks as one run, on one clock with a guaranteed error.

    import rankscope.torch

    with rankscope.torch.profile(run="run", schedule=torch.profiler.schedule(wait=50, warmup=2, active=3)) as prof:
        for batch in loader:
            train(batch)
            prof.step()

Each rank writes its windows into the same run, in another process, so that the training goes on. The ranks compare their clocks over
the network when they meet, between windows and at the end. `rankscope ctl start` and `trigger="slow"` open a window on all ranks at
the same step. While a rank is stalled, the dump of torch's Flight Recorder is in the run, so that `rankscope hang RUN` names the ranks
that hold up a job that hangs or was killed. Importing this module turns the Flight Recorder on for process groups that begin later,
unless TORCH_FR_BUFFER_SIZE or TORCH_NCCL_TRACE_BUFFER_SIZE say otherwise. No error of the recording reaches the training: it is a
`rankscope.RankscopeWarning`, and the run lists what it lacks.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import time
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal

import torch
import torch.distributed
import torch.profiler
from torch.profiler import ProfilerAction

from rankscope._in_flight import Positions
from rankscope._recording import WINDOWS, Recording, SlowSteps

__all__ = ["Handler", "handler", "profile"]

#: Offset from MASTER_PORT, which the program uses; `rankscope exec` uses the port before.
_PORT_OFFSET = 1118

_recordings: dict[str, Recording] = {}

#: torch's calls that dump its Flight Recorder, and the variables for its size: since 2.9 for all backends, and before for NCCL.
_FLIGHT_RECORDERS = {"_dump_fr_trace": "TORCH_FR_BUFFER_SIZE", "_dump_nccl_trace": "TORCH_NCCL_TRACE_BUFFER_SIZE"}
_C10D = getattr(torch._C, "_distributed_c10d", None)
_DUMP = next((name for name in _FLIGHT_RECORDERS if hasattr(_C10D, name)), None)
if _DUMP and not any(name in os.environ for name in _FLIGHT_RECORDERS.values()):
    # As many entries as torch has by default in later versions.
    os.environ[_FLIGHT_RECORDERS[_DUMP]] = "2000"


def handler(
    run: str | os.PathLike[str], *, rendezvous: str | None = None, join_timeout_s: float = 60.0
) -> Handler:
    """An `on_trace_ready` for a profiler of your own: its windows go into `run`, a new or empty directory on all hosts' file system.

    The ranks meet at `rendezvous` (`host:port` of rank 0; default: beside the job's TCPStore, or beside MASTER_ADDR and MASTER_PORT),
    for at most `join_timeout_s` seconds, in the background. Create it on every rank, after `init_process_group` or where RANK and
    WORLD_SIZE are set. The run is complete when the process exits, or after `finish()`.

    RuntimeError: this process has no thread or no temporary directory left.
    """
    recording = _recording(run, rendezvous, join_timeout_s)
    return Handler(recording)


class Handler:
    """Hands the windows of a profiler over; see `handler`."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self._profiler: Callable[[], Any] | None = None
        self._step_shift, self._next_step = 0, 0

    def __call__(self, prof: Any) -> None:
        """A window of `prof` has ended."""
        # Every profiler counts its steps from 0; those of a later one go on.
        if self._profiler is None or self._profiler() is not prof:
            self._profiler, self._step_shift = weakref.ref(prof), self._next_step
        self._next_step = self._step_shift + getattr(prof, "step_num", 0) + 1
        self.recording.window(prof.export_chrome_trace, step_shift=self._step_shift, dump=_of_nccl)

    def finish(self) -> None:
        """Waits until the windows are written and all ranks have ended, and closes the run."""
        self.recording.finish()


class profile(torch.profiler.profile):
    """torch.profiler.profile whose windows go into `run`, with the same options, and these:

    run: a new or empty directory on all hosts' file system.
    schedule: as torch.profiler's; None: windows on demand only.
    trigger: "slow" opens a window when a step takes longer than 99 % of the recent ones.
    active: the steps of a window on demand, which `rankscope ctl start` or a trigger opens on all ranks at the same step.
    rendezvous, join_timeout_s: as for `handler`.
    """

    def __init__(
        self,
        *,
        run: str | os.PathLike[str],
        schedule: Callable[[int], ProfilerAction] | None = None,
        trigger: Literal["slow"] | None = None,
        active: int = 3,
        rendezvous: str | None = None,
        join_timeout_s: float = 60.0,
        **options: Any,
    ) -> None:
        if trigger not in (None, "slow"):
            raise ValueError(f'trigger={trigger!r}: there is only "slow"')
        if active < 1:
            raise ValueError(f"active={active}: a window has at least one step")
        self.recording = _recording(run, rendezvous, join_timeout_s)
        self._opener = _Opener(self.recording, schedule, active, trigger)
        super().__init__(schedule=self._opener, on_trace_ready=Handler(self.recording), **options)

    def step(self) -> None:
        """The next step begins."""
        self._opener.step_ends()
        super().step()
        self._opener.step_begins()

    def stop(self) -> None:
        """Ends the profiler and closes the run: waits until the windows are written and all ranks have ended."""
        super().stop()
        if self.recording.ended == 0:
            self.recording.problem(
                "no window was recorded: the schedule had none, and none was ordered by `rankscope ctl start` or a trigger"
            )
        self.recording.finish(failed=self._opener.failed)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        place: TracebackType | None,
    ) -> None:
        self._opener.failed = kind is not None
        super().__exit__(kind, error, place)


class _Opener:
    """A schedule that also opens windows on demand, at the step that all ranks have agreed on."""

    def __init__(
        self, recording: Recording, schedule: Callable[[int], ProfilerAction] | None, active: int, trigger: str | None
    ) -> None:
        self.recording, self.schedule, self.active, self.trigger = recording, schedule, active, trigger
        self.failed = False
        self._done: int | None = None
        self._begun = time.perf_counter()
        self._slow = SlowSteps()
        self._records = False

    def __call__(self, step: int) -> ProfilerAction:
        action = self.schedule(step) if self.schedule else ProfilerAction.NONE
        try:
            action = self._with_demand(step, action)
            self._records = action != ProfilerAction.NONE
            self.recording.agent.step(step)
            self.recording.agent.records(self._records)
        except Exception as error:
            self.recording.problem(f"windows on demand do not work: {error}")
        return action

    def _with_demand(self, step: int, action: ProfilerAction) -> ProfilerAction:
        opens = self.recording.agent.opens()
        if opens is None or opens == self._done:
            return action
        last = opens + self.active - 1
        if step < opens:
            return ProfilerAction.WARMUP if step == opens - 1 and action == ProfilerAction.NONE else action
        if step <= last and (step == opens or self._records):
            return ProfilerAction.RECORD if step < last else ProfilerAction.RECORD_AND_SAVE
        self._done = opens
        self.recording.agent.opened()
        if not self._records:
            self.recording.problem(f"a window from step {opens} on was ordered, which this rank learned at step {step}")
            self.recording.agent.omit(WINDOWS, 1, "the order to record came after its step")
        return action

    def step_begins(self) -> None:
        """Notes the time. What the profiler did since the last step, such as its export, is no part of a step."""
        self._begun = time.perf_counter()

    def step_ends(self) -> None:
        """Notes the length of a step, and orders a window if it is slow. Steps that are recorded do not count."""
        length = time.perf_counter() - self._begun
        if self.trigger and not self._records and self._slow.is_slow(length):
            with contextlib.suppress(Exception):
                self.recording.agent.open()


def _recording(run: str | os.PathLike[str], rendezvous: str | None, join_timeout_s: float) -> Recording:
    """The recording into a run: one for each run and process."""
    path = os.path.abspath(run)
    known = _recordings.get(path)
    if known is not None and known.is_mine:
        return known
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        rank, world_size = distributed.get_rank(), distributed.get_world_size()
    else:
        rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    local = os.environ.get("LOCAL_RANK", "")
    recording = Recording(
        path,
        rank=rank,
        world_size=world_size,
        local_rank=int(local) if local.isdigit() else None,
        rendezvous=rendezvous or _rendezvous(),
        join_timeout_s=join_timeout_s,
        recorded_by=f"torch.profiler {torch.__version__}",
        in_flight=(_positions, _in_flight) if _DUMP else None,
    )
    _recordings[path] = recording
    atexit.register(recording.finish)
    return recording


def _rendezvous() -> str | None:
    """The address beside that of the job's store, or beside MASTER_PORT; None: the launcher's variables decide."""
    address, port = _store() or (os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT", ""))
    if not address or not port.isdigit():
        return None
    number = int(port) + _PORT_OFFSET
    host = f"[{address}]" if ":" in address else address
    return f"{host}:{number if number < 65536 else int(port) - _PORT_OFFSET}"


def _store() -> tuple[str, str] | None:
    """Host and port of the store by which the ranks of the job have met, if it is a TCPStore."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return None
    try:
        store: Any = distributed.distributed_c10d._get_default_store()
        while not hasattr(store, "host"):
            store = store.underlying_store
        return store.host, str(store.port)
    except Exception:  # A store of another kind, or a torch in which this has another name.
        return None


def _of_nccl() -> bytes | None:
    """torch's Flight Recorder without frames, for the groups of a window's collectives: if NCCL is used."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()) or "nccl" not in distributed.get_backend():
        return None
    return _flight_recorder(operations=True, frames=False) if _DUMP else None


def _positions() -> Positions | None:
    """How far this rank is in each process group; None without groups, or if the Flight Recorder is off."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    status = pickle.loads(_flight_recorder(operations=False, frames=False)).get("pg_status") or {}
    return {
        group: (int(at["last_enqueued_collective"]), int(at["last_completed_collective"])) for group, at in status.items()
    } or None


def _in_flight() -> bytes:
    return _flight_recorder(operations=True, frames=True)


def _flight_recorder(operations: bool, frames: bool) -> bytes:
    """The ring of torch's Flight Recorder as a pickle. Torch finds the places of frames slowly: for a second in the first dump."""
    # The last argument leaves out what has ended.
    found: bytes = getattr(_C10D, str(_DUMP))(operations, frames, False)
    return found
