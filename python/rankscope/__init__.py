"""Why is a distributed training step slow? The analysis of rankscope for Python.

    import rankscope
    a = rankscope.analyze("traces/")          # traces of torch.profiler, or a run that `rankscope exec` recorded
    a.verdict.rank, a.verdict.cost_ns         # the rank that makes the others wait, and its cost per step
    a.step_breakdown.to_pandas()              # every table is Arrow: also for polars, pyarrow, DuckDB
    a.report("report.html")                   # one page for a browser; in a notebook, `a` shows it

Nothing is written that is not asked for. Calls work without the GIL, and several threads may call at once. An interrupted
call (Ctrl-C) raises KeyboardInterrupt. Wrong inputs and options raise RankscopeError.
"""

from rankscope._analysis import Analysis, Reason, Verdict, VerdictKind, analyze, map_rank, reduce
from rankscope._compare import Diff, Prediction, WhatIf, diff, what_if
from rankscope._errors import RankscopeError, RankscopeWarning
from rankscope._hang import Culprit, Fault, Hang, HangWait, WaitReason, hang
from rankscope._rankscope import version as _version
from rankscope._run import Ingested, Run, ingest, open
from rankscope._table import Column, Table

__version__: str = _version()

__all__ = [
    "Analysis",
    "Column",
    "Culprit",
    "Diff",
    "Fault",
    "Hang",
    "HangWait",
    "Ingested",
    "Prediction",
    "Reason",
    "RankscopeError",
    "RankscopeWarning",
    "Run",
    "Table",
    "Verdict",
    "VerdictKind",
    "WaitReason",
    "WhatIf",
    "analyze",
    "diff",
    "hang",
    "ingest",
    "map_rank",
    "open",
    "reduce",
    "what_if",
]
