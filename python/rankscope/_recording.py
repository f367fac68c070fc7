"""The recording of a rank inside of its training: the agent, and the hand-over of windows to the process that writes them.

    training   step ── step ── window ends: export, hand over ── step …      nothing waits, except `finish`
    thread                        └─ queue of 8 ─► line of JSON ─► answer   (no Python thread: profilers record the stacks of those)
    process                                          └─ Parquet

It imports neither torch nor a library that is not in the package. No error of it reaches the training: each is a warning with its
reason, and a window that is not written is counted in the run.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import pathlib
import queue
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Generator
from typing import IO

from rankscope._errors import RankscopeWarning
from rankscope._in_flight import InFlight, Positions
from rankscope._rankscope import NativeAgent, NativeThread

#: Windows that wait to be written. A further one is dropped and counted.
WAITING_WINDOWS = 8
#: Time for the other ranks to end, and for the waiting windows to be written, in s.
PATIENCE_S = 120.0
#: What a generator yields to its NativeThread: how long to wait, in s (None: until it is woken), or two descriptors and a line.
_Turn = float | tuple[int, int, bytes] | None
#: What the run calls a window that was dropped.
WINDOWS = "windows of the profiler"


class Recording:
    """The recording of this process's rank into a run. Methods never raise and never wait, except `finish`."""

    def __init__(
        self,
        run: str | os.PathLike[str],
        *,
        rank: int,
        world_size: int,
        local_rank: int | None = None,
        rendezvous: str | None = None,
        join_timeout_s: float = 60.0,
        recorded_by: str = "torch.profiler",
        in_flight: tuple[Callable[[], Positions | None], Callable[[], bytes]] | None = None,
    ) -> None:
        self.rank, self.world_size = rank, world_size
        #: Windows that ended, and those of them that are in the run.
        self.ended, self.written = 0, 0
        self._pid = os.getpid()
        self._problems: collections.deque[str] = collections.deque(maxlen=64)
        self._waiting: queue.Queue[dict[str, object] | None] = queue.Queue(WAITING_WINDOWS)
        self._spool = pathlib.Path(tempfile.mkdtemp(prefix="rankscope-"))
        self._finished = False
        self._patience_s = PATIENCE_S
        self.agent = NativeAgent(
            os.path.abspath(run), rank, world_size, local_rank, rendezvous, join_timeout_s, recorded_by
        )
        self._thread = NativeThread("rankscope-windows", self._hand_over())
        self._in_flight = InFlight(rank, self._directory, *in_flight, self.problem) if in_flight else None

    @property
    def is_mine(self) -> bool:
        """Whether this process records: a fork of it does not."""
        return os.getpid() == self._pid and not self._finished

    def window(
        self,
        export: Callable[[str], object],
        *,
        step_shift: int = 0,
        dump: Callable[[], bytes | None] | None = None,
    ) -> None:
        """A window has ended: `export(path)` writes its trace, and `dump` returns torch's Flight Recorder, if there is one."""
        if not self.is_mine:
            return
        self.ended += 1
        stem = f"rank{self.rank}-window{self.ended}"
        trace, recorder = self._spool / f"{stem}.json", self._spool / f"nccl_trace_{stem}"
        try:
            export(str(trace))
            content = self._dumped(dump, recorder)
            item: dict[str, object] = {
                "trace": str(trace),
                "flight_recorder": str(recorder) if content else None,
                "number": self.ended,
                "step_shift": step_shift,
                "wall_clock": self.agent.wall_clock(),
            }
            self._waiting.put_nowait(item)
            self._thread.wake()
        except queue.Full:
            self._lost(f"{WAITING_WINDOWS} windows were still waiting to be written", trace, recorder)
        except Exception as error:
            self._lost(f"it was not exported: {error}", trace, recorder)
        self.agent.compare()
        self.tell()

    def _dumped(self, dump: Callable[[], bytes | None] | None, to: pathlib.Path) -> bool:
        """Whether there is a dump of the Flight Recorder. A window is of use without it."""
        try:
            content = dump() if dump else None
            if content:
                to.write_bytes(content)
            return bool(content)
        except Exception as error:
            self.problem(f"window {self.ended} has no dump of the Flight Recorder: {error}")
            return False

    def tell(self) -> None:
        """Warns of the problems since the last call."""
        found = self.agent.take_problems()
        while self._problems:
            found.append(self._problems.popleft())
        for text in found:
            where = f"rank {self.rank}: " if self.world_size > 1 else ""
            # A filter may make it an error, which is not for the training.
            try:
                warnings.warn(f"{where}{text}", RankscopeWarning, stacklevel=2)
            except RankscopeWarning as error:
                print(f"rankscope: {error}", file=sys.stderr)

    def problem(self, text: str) -> None:
        """Keeps a problem for the next `tell`."""
        self._problems.append(text)

    def finish(self, failed: bool = False) -> None:
        """Writes the waiting windows, compares the clocks when all ranks have ended or one has `failed`, and closes the run."""
        if not self.is_mine:
            return
        self._finished = True
        until = time.monotonic() + self._patience_s
        if self._in_flight:
            self._in_flight.end()
        try:
            # A full queue has a thread that empties it.
            self._waiting.put(None, timeout=self._patience_s)
            self._thread.wake()
            if not self._thread.join(max(0.0, until - time.monotonic())):
                self._lost(f"they were still being written after {self._patience_s:.0f} s; their process goes on")
        except Exception as error:
            self.problem(f"the windows that waited are not written: {error}")
        try:
            self.agent.finish(failed, max(1.0, until - time.monotonic()))
        except Exception as error:
            self.problem(f"the recording did not end in order: {error}")
        if self._thread.join(0.0):
            shutil.rmtree(self._spool, ignore_errors=True)
        self.tell()

    def _lost(self, why: str, *files: pathlib.Path) -> None:
        for file in files:
            file.unlink(missing_ok=True)
        self.problem(f"window {self.ended} is not recorded: {why}")
        self.agent.omit(WINDOWS, 1, why)

    def _place(self) -> Generator[_Turn, bytes | None, tuple[object, ...] | None]:
        """The run, once the ranks have met."""
        while (place := self.agent.place()) is None:
            if self._finished and self._waiting.empty():
                return None
            yield 0.05
        return place

    def _directory(self) -> str | None:
        place = self.agent.place()
        return str(place[0]) if place else None

    def _hand_over(self) -> Generator[_Turn, bytes | None, None]:
        """Gives the windows to the process that writes them, one at a time."""
        process: subprocess.Popen[str] | None = None
        refused: str | None = None
        while (item := (yield from self._next())) is not None:
            try:
                if process is None and refused is None:
                    process = yield from self._start()
                if process is None:
                    raise RuntimeError(refused or "the training ended before the ranks had met")
                answer = yield from _ask(process, item)
                if "error" in answer:
                    raise RuntimeError(answer["error"])
                self.written += 1
                if answer.get("lost"):
                    self.problem(f"parts of window {item['number']} are lost; the run lists them")
            except Exception as error:
                if process is None or process.poll() is not None:
                    refused = str(error)
                    _close(process)
                    process = None
                self._lost(str(error), pathlib.Path(str(item["trace"])))
        if process is not None:
            self._end(process)

    def _next(self) -> Generator[_Turn, bytes | None, dict[str, object] | None]:
        """The next window; None after the last one."""
        while self._waiting.empty():
            yield None
        return self._waiting.get_nowait()

    def _start(self) -> Generator[_Turn, bytes | None, subprocess.Popen[str] | None]:
        place = yield from self._place()
        if place is None:
            return None
        package = str(pathlib.Path(__file__).resolve().parents[1])
        path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
        process = subprocess.Popen(
            [sys.executable, "-m", "rankscope._windows"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Ctrl-C is for the training, which then ends this process in order.
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path, "RAYON_NUM_THREADS": "1"},
        )
        run = {
            "place": [str(part) for part in place],
            "rank": self.rank,
            "world_size": self.world_size,
            "max_memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 8,
            "spool": str(self._spool),
        }
        _send(process.stdin, run)
        return process

    def _end(self, process: subprocess.Popen[str]) -> None:
        try:
            output, _ = process.communicate(timeout=self._patience_s)
            answer = json.loads(output or "{}")
            if process.returncode != 0 or "error" in answer:
                self.problem(f"the list of the windows' shards is not written: {answer.get('error', process.returncode)}")
        except Exception as error:
            self.problem(f"the process that writes the windows did not end in order: {error}")


class SlowSteps:
    """Tells a step that is slower than the recent ones: beyond their 99th percentile, and beyond 1.25 times their median."""

    REMEMBERED, LEAST, FACTOR = 200, 50, 1.25

    def __init__(self) -> None:
        self._lengths: collections.deque[float] = collections.deque(maxlen=self.REMEMBERED)

    def is_slow(self, length_s: float) -> bool:
        """Whether the step is slow. After one that is, new steps are needed to compare with."""
        lengths = self._lengths
        if len(lengths) >= self.LEAST:
            ordered = sorted(lengths)
            percentile, median = ordered[int(0.99 * len(ordered))], ordered[len(ordered) // 2]
            if length_s > max(percentile, self.FACTOR * median):
                lengths.clear()
                return True
        lengths.append(length_s)
        return False


def _close(process: subprocess.Popen[str] | None) -> None:
    """Closes the pipes of a process that has ended."""
    for pipe in (process.stdin, process.stdout) if process else ():
        with contextlib.suppress(OSError):
            if pipe:
                pipe.close()


def _send(to: IO[str] | None, value: dict[str, object]) -> None:
    if to is not None:
        to.write(json.dumps(value) + "\n")
        to.flush()


def _ask(
    process: subprocess.Popen[str], item: dict[str, object]
) -> Generator[_Turn, bytes | None, dict[str, str]]:
    line: bytes | None = None
    if process.stdin and process.stdout:
        line = yield process.stdin.fileno(), process.stdout.fileno(), f"{json.dumps(item)}\n".encode()
    if not line:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
        state = "does not answer" if process.returncode is None else f"ended with {process.returncode}"
        raise RuntimeError(f"the process that writes the windows {state}")
    answer: dict[str, str] = json.loads(line)
    return answer
