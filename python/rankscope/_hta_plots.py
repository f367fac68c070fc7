"""The plots of `rankscope.hta`, drawn by plotly."""

from __future__ import annotations

from typing import Any

from rankscope._numeric import pd


def _express() -> Any:
    try:
        import plotly.express
    except ImportError as error:
        why = "plots need plotly: `pip install plotly`, or pass visualize=False"
        raise ImportError(why, name="plotly") from error
    return plotly.express


def _show(figure: Any, renderer: str = "") -> None:
    figure.show(renderer=renderer or None)


def stacked(frame: pd.DataFrame, columns: list[str], title: str) -> None:
    """Bars of ranks."""
    express = _express()
    _show(express.bar(frame, x="rank", y=columns, title=title))


def pie(frame: pd.DataFrame, values: str, names: str, title: str, renderer: str) -> None:
    """A pie of shares."""
    express = _express()
    _show(express.pie(frame[frame[values] > 0], values=values, names=names, title=title), renderer)


def kernels(frame: pd.DataFrame, renderer: str) -> None:
    """For each type, the sums of names on each rank."""
    express = _express()
    for kind, rows in frame.groupby("kernel_type"):
        figure = express.bar(rows, x="rank", y="sum (us)", color="name", title=f"{kind}: kernels on each rank")
        _show(figure, renderer)


def idle(frame: pd.DataFrame, column: str) -> None:
    """For each rank, why its streams idle."""
    express = _express()
    for rank, rows in frame.groupby("rank"):
        rows = rows.assign(stream=rows["stream"].astype(str))
        title = f"Idle time of rank {rank}"
        _show(express.bar(rows, x="stream", y=column, color="idle_category", title=title))


def launches(rank: int, frame: pd.DataFrame, runtime_cutoff: int, delay_cutoff: int) -> None:
    """Short kernels, long calls and long delays."""
    express = _express()
    shown = (
        ("short kernels", frame[frame["gpu_duration"] < frame["cpu_duration"]], "gpu_duration"),
        ("runtime outliers", frame[frame["cpu_duration"] > runtime_cutoff], "cpu_duration"),
        ("launch delay outliers", frame[frame["launch_delay"] > delay_cutoff], "launch_delay"),
    )
    for what, rows, column in shown:
        _show(express.histogram(rows, x=column, title=f"Rank {rank}: {what} (us)"))


def patterns(rank: int, frame: pd.DataFrame) -> None:
    """The most frequent sequences of kernels."""
    express = _express()
    shown = frame.assign(pattern=frame["pattern"].str.replace("|", "<br>", regex=False))
    title = f"Rank {rank}: frequent sequences of kernels"
    _show(express.bar(shown, x=shown.index.astype(str), y="count", hover_data=["pattern"], title=title))


def compared(frame: pd.DataFrame, column: str, title: str, shown: tuple[bool, str | None]) -> None:
    """Bars of both recordings and their difference, by name; shown, written to a file, or both."""
    both = [name for name in frame.columns if name.endswith(f"_{column}")]
    difference = "diff_counts" if column == "counts" else "diff_duration"
    columns = [*(name for name in both if name != difference), difference]
    figure = _express().bar(frame, x=frame.index, y=columns, barmode="group", title=title)
    if shown[0]:
        _show(figure)
    if shown[1]:
        figure.write_image(shown[1])
