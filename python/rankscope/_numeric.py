"""NumPy and pandas, imported when they are first used. pandas takes a quarter of a second, in which a trace can be read."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

__all__ = ["import_pandas", "np", "npt", "pd"]

for _needed in ("pandas", "pyarrow"):
    if find_spec(_needed) is None:
        raise ModuleNotFoundError(f"rankscope.hta needs {_needed}: pip install 'rankscope[pandas]'", name=_needed)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd
else:

    class _Later:
        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, attribute: str) -> Any:
            return getattr(import_module(self._name), attribute)

    np, npt, pd = _Later("numpy"), _Later("numpy.typing"), _Later("pandas")


def import_pandas() -> None:
    """Imports pandas."""
    import_module("pandas")
