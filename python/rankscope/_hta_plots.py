"""The plots of `rankscope.hta`. Without plotly, nothing is drawn."""

from __future__ import annotations

from typing import Any

from rankscope._numeric import pd


def _express() -> Any | None:
    try:
        import plotly.express
    except ImportError:
        return None
    return plotly.express


def _show(figure: Any, renderer: str = "") -> None:
    figure.show(renderer=renderer or None)


def stacked(frame: pd.DataFrame, columns: list[str], title: str) -> None:
    """Bars of ranks."""
    if (express := _express()) is not None:
        _show(express.bar(frame, x="rank", y=columns, title=title))


def pie(frame: pd.DataFrame, values: str, names: str, title: str, renderer: str) -> None:
    """A pie of shares."""
    if (express := _express()) is not None:
        _show(express.pie(frame[frame[values] > 0], values=values, names=names, title=title), renderer)


def kernels(frame: pd.DataFrame, renderer: str) -> None:
    """For each type, the sums of names on each rank."""
    if (express := _express()) is not None:
        for kind, rows in frame.groupby("kernel_type"):
            figure = express.bar(rows, x="rank", y="sum (us)", color="name", title=f"{kind}: kernels on each rank")
            _show(figure, renderer)


def idle(frame: pd.DataFrame, column: str) -> None:
    """For each rank, why its streams idle."""
    if (express := _express()) is not None:
        for rank, rows in frame.groupby("rank"):
            rows = rows.assign(stream=rows["stream"].astype(str))
            title = f"Idle time of rank {rank}"
            _show(express.bar(rows, x="stream", y=column, color="idle_category", title=title))


def launches(rank: int, frame: pd.DataFrame, runtime_cutoff: int, delay_cutoff: int) -> None:
    """Short kernels, long calls and long delays."""
    if (express := _express()) is not None:
        shown = (
            ("short kernels", frame[frame["gpu_duration"] < frame["cpu_duration"]], "gpu_duration"),
            ("runtime outliers", frame[frame["cpu_duration"] > runtime_cutoff], "cpu_duration"),
            ("launch delay outliers", frame[frame["launch_delay"] > delay_cutoff], "launch_delay"),
        )
        for what, rows, column in shown:
            _show(express.histogram(rows, x=column, title=f"Rank {rank}: {what} (us)"))


def patterns(rank: int, frame: pd.DataFrame) -> None:
    """The most frequent sequences of kernels."""
    if (express := _express()) is not None:
        shown = frame.assign(pattern=frame["pattern"].str.replace("|", "<br>", regex=False))
        title = f"Rank {rank}: frequent sequences of kernels"
        _show(express.bar(shown, x=shown.index.astype(str), y="count", hover_data=["pattern"], title=title))
