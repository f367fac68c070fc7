"""The hand-over of windows to the process that writes them, with a profiler that is none: torch is not needed."""

import json
import os
import pathlib
import subprocess
import sys
import time
import warnings

import pytest

import rankscope
from rankscope import _in_flight, _recording
from rankscope._in_flight import InFlight, is_stalled
from rankscope._recording import Recording, SlowSteps

US = 1000


class FakeProfiler:
    """Writes traces as torch.profiler does, with steps and a collective, on the wall clock."""

    def __init__(self, rank=0, world_size=1):
        self.rank, self.world_size, self.step = rank, world_size, 0
        self.begun = time.time_ns()
        #: When each step ended, in the rank's clock: at least and at most. The machine may pause between any two lines.
        self.ends = []

    def export_chrome_trace(self, path):
        before_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        base, now = self.begun, time.time_ns()
        self.ends.append((before_ns, time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)))
        self.begun = now
        length = (now - base) // US
        event = {"ph": "X", "pid": os.getpid(), "tid": os.getpid()}
        half = {"ts": 1 + length // 4, "dur": length // 2}
        events = [
            {**event, "cat": "user_annotation", "name": f"ProfilerStep#{self.step}", "ts": 0, "dur": length},
            {**event, "cat": "cpu_op", "name": "aten::mm", **half},
        ]
        self.step += 1
        group = [{"pg_name": "0", "pg_desc": "default_pg", "ranks": list(range(self.world_size)), "backend_config": "cpu:gloo"}]
        info = {"rank": self.rank, "world_size": self.world_size, "backend": "gloo", "pg_count": 1, "pg_config": group}
        trace = {"schemaVersion": 1, "distributedInfo": info, "baseTimeNanoseconds": base, "traceEvents": events}
        pathlib.Path(path).write_text(json.dumps(trace))


def wait_for(condition, seconds=60):
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.02)
    assert condition()


def test_windows_of_one_rank_become_a_run_in_the_ranks_clock(tmp_path):
    recording, profiler = Recording(tmp_path / "run", rank=0, world_size=1), FakeProfiler()
    for _ in range(3):
        time.sleep(0.25)
        recording.window(profiler.export_chrome_trace)
    recording.finish()
    assert (recording.ended, recording.written) == (3, 3)
    run = rankscope.open(tmp_path / "run")
    assert run.recorded_ranks == [0]
    steps = run.steps.to_arrow().to_pylist()
    assert [(row["step"], row["window"]) for row in steps] == [(0, 1), (1, 2), (2, 3)]
    for before, after in zip(steps, steps[1:], strict=False):
        assert 0 <= after["start_ns"] - before["end_ns"] < 50_000_000
    for step, (least_ns, most_ns) in zip(steps, profiler.ends, strict=True):
        assert least_ns - 50_000_000 < step["end_ns"] < most_ns + 50_000_000, "times are in the rank's clock"
    assert len(run.events.to_arrow()) == 6
    kinds = {row["kind"] for row in run.clock_samples.to_arrow().to_pylist()}
    assert kinds == {"utc"}
    analysis = rankscope.analyze(tmp_path / "run")
    assert analysis.complete and analysis.facts["steps"] == [0, 1, 2]
    assert not recording._spool.exists()


RANK = """
import sys, time
sys.path.insert(0, sys.argv[1])
from test_recording import FakeProfiler
from rankscope._recording import Recording
out, rank, size, port = sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
recording = Recording(out, rank=rank, world_size=size, rendezvous=f"127.0.0.1:{port}", join_timeout_s=20)
profiler = FakeProfiler(rank, size)
for _ in range(2):
    time.sleep(0.3)
    recording.window(profiler.export_chrome_trace)
opened = None
if len(sys.argv) > 6:
    while recording.agent.place() is None:
        time.sleep(0.01)
    print("ready", flush=True)
    until = time.monotonic() + 20
    step = 0
    while opened is None and time.monotonic() < until:
        recording.agent.step(step)
        step += 1
        time.sleep(0.01)
        opened = recording.agent.opens()
recording.finish()
print(opened, recording.written)
"""


def start(tmp_path, rank, size, port, *more):
    tests = pathlib.Path(__file__).resolve().parent
    command = [sys.executable, "-c", RANK, tests, tmp_path / "run", str(rank), str(size), str(port), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def free_port():
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def test_ranks_compare_their_clocks_and_the_bound_holds(tmp_path):
    """Invariant (clocks): The bound of the clocks of `rankscope.torch` contains the error of the profiler's times, or
    the run says that it does not.
    """
    port = free_port()
    ranks = [start(tmp_path, rank, 3, port) for rank in range(3)]
    ended = [rank.communicate(timeout=120) for rank in ranks]
    assert [(out.split()[-1], errors) for out, errors in ended] == [("2", "")] * 3
    run = rankscope.open(tmp_path / "run")
    pings = [row for row in run.clock_samples.to_arrow().to_pylist() if row["kind"] == "ping"]
    assert {(row["rank"], row["peer_rank"]) for row in pings} == {(1, 0), (2, 0)}
    assert min(row["rtt_ns"] for row in pings) > 4 * US, "it contains the error of converted times"
    analysis = rankscope.analyze(tmp_path / "run", clock="ping")
    assert analysis.complete
    for fit in analysis.clock_fit.to_arrow().to_pylist():
        # All ranks read one clock.
        assert fit["method"] == "ping" and abs(fit["offset_ns"]) <= fit["bound_ns"], fit


def test_ctl_orders_a_window_at_one_step_of_all_ranks(tmp_path):
    """Invariant (python): The ranks of a training open their windows at one step."""
    port = free_port()
    ranks = [start(tmp_path, rank, 2, port, "ctl") for rank in range(2)]
    assert [rank.stdout.readline() for rank in ranks] == ["ready\n"] * 2
    command = [sys.executable, "-m", "rankscope", "ctl", "start", "--out", tmp_path / "run"]
    refused = subprocess.run([*command, "--duration", "3"], capture_output=True, text=True)
    assert refused.returncode == 1 and "torch.profiler records" in refused.stderr
    subprocess.run(command, check=True, capture_output=True)
    opened = [rank.communicate(timeout=120)[0].split()[0] for rank in ranks]
    assert opened[0] == opened[1] != "None"


def test_a_rank_that_never_comes_is_a_warning_and_an_omission(tmp_path):
    """Invariant (python): A training that records itself is not harmed."""
    recording = Recording(
        tmp_path / "run", rank=0, world_size=2, rendezvous=f"127.0.0.1:{free_port()}", join_timeout_s=0.5
    )
    profiler = FakeProfiler(0, 2)
    time.sleep(0.3)
    recording.window(profiler.export_chrome_trace)
    with pytest.warns(rankscope.RankscopeWarning, match="clocks are not compared"):
        recording.finish()
    assert recording.written == 1
    with pytest.warns(rankscope.RankscopeWarning):
        analysis = rankscope.analyze(tmp_path / "run")
    assert any(row["what"] == "comparison of clocks" for row in analysis.omissions.to_arrow().to_pylist())


def test_a_failing_export_is_a_warning_and_counted(tmp_path):
    """Invariant (python): A training that records itself is not harmed."""
    recording, profiler = Recording(tmp_path / "run", rank=0, world_size=1), FakeProfiler()

    def fails(path):
        raise OSError("no space")

    with pytest.warns(rankscope.RankscopeWarning, match="not exported: no space"):
        recording.window(fails)
    time.sleep(0.3)
    recording.window(profiler.export_chrome_trace)
    with pytest.warns(rankscope.RankscopeWarning, match="no JSON|not a trace|traceEvents"):
        recording.window(lambda path: pathlib.Path(path).write_text("nonsense"))
        recording.finish()
    with pytest.warns(rankscope.RankscopeWarning):
        analysis = rankscope.analyze(tmp_path / "run")
    lost = [row for row in analysis.omissions.to_arrow().to_pylist() if row["what"] == "windows of the profiler"]
    assert [(row["kind"], row["amount"]) for row in lost] == [("lost", 2)]


def test_a_run_that_exists_harms_nothing(tmp_path):
    """Invariant (python): A training that records itself is not harmed."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run/file").write_text("mine")
    recording, profiler = Recording(tmp_path / "run", rank=0, world_size=1), FakeProfiler()
    wait_for(lambda: refused(recording))
    with pytest.warns(rankscope.RankscopeWarning, match="exists and is not empty"):
        recording.window(profiler.export_chrome_trace)
        recording.finish()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["file"]


def refused(recording):
    try:
        return recording.agent.place() and False
    except RuntimeError:
        return True


def test_windows_beyond_the_queue_are_dropped_and_counted(tmp_path, monkeypatch):
    """Invariant (python): A training that records itself is not harmed."""
    recording, profiler = Recording(tmp_path / "run", rank=0, world_size=1), FakeProfiler()

    def answer_slowly(process, item):
        yield 0.1
        return {}

    monkeypatch.setattr(_recording, "_ask", answer_slowly)
    time.sleep(0.3)
    with pytest.warns(rankscope.RankscopeWarning, match="still waiting"):
        for _ in range(_recording.WAITING_WINDOWS + 3):
            recording.window(profiler.export_chrome_trace)
    recording.finish()
    assert recording.written < recording.ended


def test_a_killed_writer_costs_windows_and_nothing_else(tmp_path):
    """Invariant (python): A training that records itself is not harmed."""
    recording, profiler = Recording(tmp_path / "run", rank=0, world_size=1), FakeProfiler()
    time.sleep(0.3)
    recording.window(profiler.export_chrome_trace)
    wait_for(lambda: recording.written == 1)
    children = subprocess.run(["pgrep", "-P", str(os.getpid()), "-f", "rankscope._windows"], capture_output=True, text=True)
    os.kill(int(children.stdout.split()[0]), 9)
    with pytest.warns(rankscope.RankscopeWarning, match="ended with -9|pipe"):
        recording.window(profiler.export_chrome_trace)
        recording.finish()
    with pytest.warns(rankscope.RankscopeWarning):
        analysis = rankscope.analyze(tmp_path / "run")
    assert analysis.facts["steps"] == [0] and not analysis.complete


def test_a_killed_training_keeps_what_was_handed_over(tmp_path):
    program = f"""
import sys, time, os
sys.path.insert(0, {str(pathlib.Path(__file__).resolve().parent)!r})
from test_recording import FakeProfiler
from rankscope._recording import Recording
recording, profiler = Recording({str(tmp_path / "run")!r}, rank=0, world_size=1), FakeProfiler()
time.sleep(0.3)
recording.window(profiler.export_chrome_trace)
until = time.monotonic() + 30
while recording.written < 1 and time.monotonic() < until:
    time.sleep(0.01)
os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == -9
    time.sleep(0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rankscope.RankscopeWarning)
        analysis = rankscope.analyze(tmp_path / "run")
    assert analysis.facts["steps"] == [0] and not analysis.complete


def test_a_fork_of_the_training_does_not_record(tmp_path):
    recording, profiler = Recording(tmp_path / "run", rank=0, world_size=1), FakeProfiler()
    child = os.fork()
    if child == 0:
        recording.window(profiler.export_chrome_trace)
        recording.finish()
        os._exit(0 if recording.ended == 0 else 1)
    wait_for(lambda: os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT))
    assert os.waitpid(child, 0)[1] == 0
    time.sleep(0.3)
    recording.window(profiler.export_chrome_trace)
    recording.finish()
    assert recording.written == 1


def test_a_slow_step_is_beyond_the_recent_ones():
    slow = SlowSteps()
    # Steps vary by a few per cent, and the first are slow.
    lengths = [0.5, 0.4] + [0.1 + 0.002 * (number % 7) for number in range(120)]
    assert not any(slow.is_slow(length) for length in lengths)
    assert not slow.is_slow(0.13), "the first steps were slower"
    steady = SlowSteps()
    assert not any(steady.is_slow(length) for length in lengths[2:])
    assert steady.is_slow(0.2)
    assert not steady.is_slow(0.2), "there is nothing to compare it with"


def test_a_rank_is_stalled_if_it_made_no_progress_or_a_communicator_did_not():
    assert is_stalled({"0": (5, 4)}, {"0": (5, 4)})
    assert is_stalled({"0": (5, 5)}, {"0": (5, 5)}), "the rank that others wait for called nothing"
    assert not is_stalled({"0": (5, 4)}, {"0": (6, 5)})
    assert is_stalled({"0": (5, 4), "1": (7, 7)}, {"0": (6, 4), "1": (9, 9)}), "0 has not ended 5"
    assert not is_stalled({"0": (5, 5)}, {"0": (6, 5)}), "6 was just called"
    assert not is_stalled({"0": (5, 5)}, {"0": (5, 5), "1": (1, 0)}), "1 is new"


def test_the_dump_of_a_rank_is_in_the_run_while_it_is_stalled(tmp_path, monkeypatch):
    monkeypatch.setattr(_in_flight, "INTERVAL_S", 0.05)
    at = {"0": (5, 4)}
    file = tmp_path / "in_flight" / "nccl_trace_rank_3"
    problems: list[str] = []
    kept = InFlight(3, lambda: str(tmp_path), lambda: dict(at), lambda: b"ring", problems.append)
    wait_for(file.exists)
    assert file.read_bytes() == b"ring"
    progress = iter(range(6, 10**6))

    def positions():
        number = next(progress)
        return {"0": (number, number - 1)}

    kept._positions = positions
    wait_for(lambda: not file.parent.exists())
    kept._positions = lambda: dict(at)
    wait_for(file.exists)
    kept.end()
    assert not file.parent.exists() and not problems


def test_a_dump_that_fails_is_a_problem_and_ends_no_training(tmp_path, monkeypatch):
    monkeypatch.setattr(_in_flight, "INTERVAL_S", 0.05)
    (tmp_path / "in_flight").write_text("a file")
    problems: list[str] = []
    kept = InFlight(0, lambda: str(tmp_path), lambda: {"0": (1, 0)}, lambda: b"ring", problems.append)
    wait_for(lambda: problems)
    kept.end()
    assert "if this job hangs, the run will not tell what this rank has in flight" in problems[0]
