"""The command `rankscope`, and `python -m rankscope`."""

import os
import pathlib
import signal
import sys
import sysconfig

from rankscope._rankscope import command

#: The library that CUDA and NCCL load. The command looks for it beside its own executable, which here is Python's.
LIBRARY = "lib/rankscope/librankscope_inject.so"


def library() -> pathlib.Path | None:
    """The library that the wheel installed: for all users, for one (`pip install --user`), or beside the package."""
    package = pathlib.Path(__file__).resolve().parent
    places = [pathlib.Path(sysconfig.get_path("data")), package.parent, *package.parents[3:4]]
    return next((place / LIBRARY for place in places if (place / LIBRARY).exists()), None)


def main() -> int:
    """Runs the command with this process's arguments and returns its exit code."""
    # A signal acts as on a program without Python: what Python handles or ignores by itself gets the system's action back.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    found = library()
    if found:
        os.environ.setdefault("RANKSCOPE_INJECT_LIB", str(found))
    return command(["rankscope", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
