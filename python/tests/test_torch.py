"""rankscope.torch with the real profiler, in one process. tests/checks/torch_check.py has four ranks in networks."""

import subprocess
import sys
import time
import warnings

import pytest

import rankscope

torch = pytest.importorskip("torch", reason="torch is not installed: rankscope.torch is not tested here")

import rankscope.torch  # noqa: E402


def work(seconds=0.005):
    torch.ones(32, 32) @ torch.ones(32, 32)
    time.sleep(seconds)


def options():
    return {"activities": [torch.profiler.ProfilerActivity.CPU]}


def steps_of(run):
    return [(row["step"], row["window"]) for row in rankscope.open(run).steps.to_arrow().to_pylist()]


def test_the_windows_of_a_schedule_become_a_run(tmp_path):
    schedule = torch.profiler.schedule(wait=2, warmup=1, active=2, repeat=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", rankscope.RankscopeWarning)
        with rankscope.torch.profile(run=tmp_path / "run", schedule=schedule, **options()) as prof:
            for _ in range(12):
                work()
                prof.step()
    assert steps_of(tmp_path / "run") == [(3, 1), (4, 1), (8, 2), (9, 2)]
    analysis = rankscope.analyze(tmp_path / "run")
    assert analysis.complete
    names = set(rankscope.open(tmp_path / "run").events.to_arrow()["name"].to_pylist())
    assert "aten::mm" in names
    manifest = rankscope.open(tmp_path / "run").manifest
    assert manifest["config"]["recorded_by"] == f"torch.profiler {torch.__version__}"


def test_a_profiler_of_ones_own_takes_the_handler(tmp_path):
    ready = rankscope.torch.handler(tmp_path / "run")
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=1)
    with torch.profiler.profile(schedule=schedule, on_trace_ready=ready, **options()) as prof:
        for _ in range(6):
            work()
            prof.step()
    with torch.profiler.profile(schedule=schedule, on_trace_ready=ready, **options()) as prof:
        for _ in range(6):
            work()
            prof.step()
    ready.finish()
    assert steps_of(tmp_path / "run") == [(2, 1), (3, 1), (7, 2), (8, 2)], "the steps of a later profiler go on"


def test_ctl_opens_a_window(tmp_path):
    command = [sys.executable, "-m", "rankscope", "ctl", "start", "--out", tmp_path / "run"]
    with rankscope.torch.profile(run=tmp_path / "run", active=2, **options()) as prof:
        until, told = time.monotonic() + 60, False
        while prof.recording.ended == 0 and time.monotonic() < until:
            work()
            prof.step()
            if not told and prof.recording.agent.place():
                told = subprocess.run(command, capture_output=True).returncode == 0
    steps = [step for step, _ in steps_of(tmp_path / "run")]
    assert len(steps) == 2 and steps[1] == steps[0] + 1


def test_a_slow_step_opens_a_window(tmp_path, monkeypatch):
    # A busy machine has slow steps of its own.
    monkeypatch.setattr(rankscope._recording.SlowSteps, "FACTOR", 8)
    with rankscope.torch.profile(run=tmp_path / "run", trigger="slow", active=2, **options()) as prof:
        for number in range(400):
            work(0.6 if number == 80 else 0.01)
            prof.step()
            if prof.recording.ended:
                break
    steps = [step for step, _ in steps_of(tmp_path / "run")]
    assert len(steps) == 2 and 80 < steps[0] < 180


def test_the_ranks_meet_beside_the_jobs_store(monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "of-another-job")
    monkeypatch.setenv("MASTER_PORT", "65000")
    assert rankscope.torch._rendezvous() == "of-another-job:63882"
    store = torch.distributed.TCPStore("127.0.0.1", 0, 1, True)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        expected = store.port + 1118 if store.port + 1118 < 65536 else store.port - 1118
        assert rankscope.torch._rendezvous() == f"127.0.0.1:{expected}"
    finally:
        torch.distributed.destroy_process_group()


def test_without_a_window_there_is_a_warning(tmp_path):
    with pytest.warns(rankscope.RankscopeWarning, match="no window was recorded"):
        with rankscope.torch.profile(run=tmp_path / "run", **options()) as prof:
            work()
            prof.step()
    for wrong in ({"trigger": "fast"}, {"active": 0}):
        with pytest.raises(ValueError):
            rankscope.torch.profile(run=tmp_path / "other", **wrong)


def test_an_error_of_the_training_passes_and_its_window_is_kept(tmp_path):
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=10, repeat=1)
    with pytest.raises(ZeroDivisionError):
        with rankscope.torch.profile(run=tmp_path / "run", schedule=schedule, **options()) as prof:
            for number in range(5):
                work()
                prof.step()
            raise ZeroDivisionError
    assert [step for step, _ in steps_of(tmp_path / "run")][:3] == [1, 2, 3]


def test_a_stalled_rank_leaves_its_flight_recorder_in_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(rankscope._in_flight, "INTERVAL_S", 0.3)
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        torch.distributed.all_reduce(torch.ones(8))
        ready = rankscope.torch.handler(tmp_path / "run", rendezvous="127.0.0.1:0")
        dump = tmp_path / "run" / "in_flight" / "nccl_trace_rank_0"
        until = time.monotonic() + 60
        while not dump.exists() and time.monotonic() < until:
            time.sleep(0.05)
        found = rankscope.hang(tmp_path / "run")
        assert (found.culprits, found.data["ranks_read"]) == ([], 1)
        ready.finish()
        assert not dump.parent.exists()
    finally:
        torch.distributed.destroy_process_group()
