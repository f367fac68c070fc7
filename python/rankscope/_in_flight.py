"""What a rank has in flight while it is stalled, as a file in its run that outlives the process: `rankscope hang RUN` reads it."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Callable, Generator, Mapping

from rankscope._rankscope import NativeThread

#: The directory in the run, with one dump for each rank that is stalled, or was when it was killed.
DIRECTORY = "in_flight"
#: Time from one look to the next, in s. A rank that made no progress in it is stalled.
INTERVAL_S = 5.0

#: For each communicator, the numbers of the last operations that were called and that have ended.
Positions = Mapping[str, tuple[int, int]]


class InFlight:
    """Keeps a dump of a rank in its run while the rank is stalled, from a thread of its own.

    run: the directory of the run; None while the ranks have not met.
    positions: how far the rank is; None without communicators. It is asked every INTERVAL_S seconds, so it must be cheap.
    dump: what the rank has in flight, of bounded size.
    problem: takes the reason if a dump cannot be written.
    """

    def __init__(
        self,
        rank: int,
        run: Callable[[], str | None],
        positions: Callable[[], Positions | None],
        dump: Callable[[], bytes],
        problem: Callable[[str], None],
    ) -> None:
        self._rank, self._run, self._positions, self._dump, self._problem = rank, run, positions, dump, problem
        self._file: pathlib.Path | None = None
        self._ended = False
        self._thread = NativeThread("rankscope-in-flight", self._watch())

    def end(self) -> None:
        """The training of this rank has ended: it has nothing in flight."""
        self._ended = True
        self._thread.wake()
        self._thread.join(INTERVAL_S)
        self._remove()

    def _watch(self) -> Generator[float, bytes | None, None]:
        before: Positions | None = None
        dumped: Positions | None = None
        while True:
            yield INTERVAL_S
            if self._ended:
                return
            try:
                now = self._positions()
                if now is None or before is None or not is_stalled(before, now):
                    self._remove()
                    dumped = None
                elif now != dumped:
                    dumped = now if self._write() else None
                before = now
            except Exception as error:
                self._problem(f"if this job hangs, the run will not tell what this rank has in flight: {error}")
                return

    def _write(self) -> bool:
        """Writes a dump, whole or not at all. Returns whether there is a run for it."""
        run = self._run()
        if run is None:
            return False
        file = pathlib.Path(run) / DIRECTORY / f"nccl_trace_rank_{self._rank}"
        file.parent.mkdir(exist_ok=True)
        part = file.with_name(f".{file.name}.part")
        part.write_bytes(self._dump())
        os.replace(part, file)
        self._file = file
        return True

    def _remove(self) -> None:
        if self._file:
            with contextlib.suppress(OSError):
                self._file.unlink(missing_ok=True)
                # The last rank removes the directory.
                self._file.parent.rmdir()
            self._file = None


def is_stalled(before: Positions, now: Positions) -> bool:
    """Whether the rank made no progress: it called and ended nothing, or a communicator with open operations ended none."""
    if before == now:
        return True
    return any(
        ended < called and (known := before.get(comm)) is not None and known[1] == ended and known[0] > ended
        for comm, (called, ended) in now.items()
    )
