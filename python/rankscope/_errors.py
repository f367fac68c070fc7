"""The exception and the warning of the package."""

from __future__ import annotations

import re
import warnings


class RankscopeError(Exception):
    """The input is wrong, or an option does not fit it. The message says which file, rank or option, and what to do."""

    #: The file or directory that the error is about, where it is one.
    file: str | None
    #: The rank, where one is named.
    rank: int | None
    #: The byte of the file from which it cannot be read, where that is known.
    byte: int | None

    def __init__(self, message: str, file: str | None = None) -> None:
        super().__init__(message)
        self.file = file
        self.rank = _number(r"\brank (\d+)", message)
        self.byte = _number(r"\bbyte (\d+)", message)


class RankscopeWarning(UserWarning):
    """The result is there, but something that was recorded is lost or could not be read; `omissions` lists it."""


def _number(pattern: str, text: str) -> int | None:
    found = re.search(pattern, text)
    return int(found[1]) if found else None


def warn_of_losses(omissions: list[dict[str, object]], stacklevel: int) -> None:
    """Warns if something recorded was lost."""
    lost = [row for row in omissions if row["kind"] == "lost"]
    if lost:
        first, more = lost[0], f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        where = " ".join(str(part) for part in (first.get("file"), _rank(first.get("rank"))) if part)
        text = f"{first['what']}{f' of {where}' if where else ''}: {first['why']}"
        warnings.warn(f"something that was recorded is lost: {text}{more}", RankscopeWarning, stacklevel + 1)


def _rank(rank: object) -> str | None:
    return None if rank is None else f"rank {rank}"
