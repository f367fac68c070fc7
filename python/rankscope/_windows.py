"""The process that writes the windows of one rank into its run: `python -m rankscope._windows`.

It reads lines of JSON: first the run, then one for each window, and answers each window with a line. It ends with its input, also
if the training was killed: windows that were handed over are written all the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Iterable
from typing import IO

from rankscope._rankscope import NativeWindowWriter


def serve(lines: Iterable[str], answers: IO[str]) -> None:
    """Writes the windows in `lines`."""
    lines = iter(lines)
    run = json.loads(next(lines))
    writer = NativeWindowWriter(tuple(run["place"]), run["rank"], run["world_size"], run["max_memory_bytes"])
    try:
        for line in lines:
            window = json.loads(line)
            files = window["trace"], window["flight_recorder"]
            comparisons = [tuple(comparison) for comparison in window["wall_clock"]]
            try:
                rows, written, error_ns, lost = writer.write(*files, window["number"], window["step_shift"], comparisons)
                answer: dict[str, object] = {"rows": rows, "bytes": written, "error_ns": error_ns, "lost": lost}
            except Exception as error:
                answer = {"error": str(error)}
            for path in files:
                if path:
                    with contextlib.suppress(OSError):
                        os.remove(path)
            _answer(answers, answer)
        try:
            writer.finish()
            _answer(answers, {})
        except Exception as error:
            _answer(answers, {"error": str(error)})
    finally:
        shutil.rmtree(run["spool"], ignore_errors=True)


def _answer(answers: IO[str], answer: dict[str, object]) -> None:
    # Nobody reads the answer if the training was killed.
    with contextlib.suppress(OSError):
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main() -> None:
    """Serves this process's input, behind the training in the order of the processor."""
    with contextlib.suppress(OSError):
        os.nice(10)
    serve(sys.stdin, sys.stdout)


if __name__ == "__main__":
    main()
