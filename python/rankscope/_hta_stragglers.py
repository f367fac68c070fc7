"""HTA's ranking of ranks by the late start of their communication."""

from __future__ import annotations

from rankscope._errors import RankscopeError
from rankscope._hta_rows import Rows
from rankscope._numeric import pd

#: Communication that takes less of a step than this says nothing, as in HTA.
_LEAST_SHARE = 0.01


def late_starts(ranks: dict[int, Rows], steps: list[int] | None, candidates: int) -> list[int]:
    """The ranks that begin the communication whose length differs most between ranks late, by how often they do."""
    first = min(rows.base_ns for rows in ranks.values())
    parts = []
    for rank, of_rank in ranks.items():
        shift = of_rank.base_ns - first
        parts.append(of_rank.all.assign(rank=rank, ts=of_rank.all["ts"] + shift, end=of_rank.all["end"] + shift))
    rows = pd.concat(parts, ignore_index=True)
    rows = rows[rows["step"].isin(steps) if steps else rows["step"].ge(0)]
    numbers = rows["step"].nunique()
    if rows.empty or len(ranks) < 2:
        raise RankscopeError("HTA's ranking needs steps of several ranks", None)
    step_length = rows["end"].max() / numbers
    named = rows["stream"].gt(0) & rows["step"].gt(0) & rows["name"].str.startswith("ncclKernel")
    rows = rows[named & rows["dur"].ge(_LEAST_SHARE * step_length)]
    if rows.empty:
        raise RankscopeError("HTA's ranking needs kernels whose name begins with ncclKernel; use strict_hta=False", None)
    last = rows.sort_values("ts").groupby(["rank", "stream", "step", "name"], as_index=False).last()
    spread = last.groupby(["stream", "step", "name"])["dur"].std().groupby(["stream", "name"]).mean()
    chosen = last.set_index(["stream", "name"]).loc[[spread.idxmax()]].reset_index()
    count = max(candidates, 1)
    is_late = chosen["ts"] >= chosen.groupby("step")["ts"].transform(lambda ts: ts.nlargest(count).min())
    times_late = is_late.groupby(chosen["rank"]).sum()
    times_late = times_late[times_late > 0].sort_values(ascending=False, kind="stable")
    return [int(rank) for rank in times_late.index[:count]]
