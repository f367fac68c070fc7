"""Inputs of the tests: the real traces of the repository, and a simulated run."""

import pathlib
import shutil
import signal
import subprocess
import sysconfig

import pytest

import rankscope

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMAND = pathlib.Path(sysconfig.get_path("scripts")) / "rankscope"

# A shell that starts the tests in the background lets them ignore Ctrl-C, and all programs that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def traces():
    """Eight ranks of a gloo job; rank 5 sleeps in every step."""
    return ROOT / "examples/traces/gloo8_slow5"


@pytest.fixture(scope="session")
def analysis(traces):
    return rankscope.analyze(traces)


@pytest.fixture(scope="session")
def run(traces, tmp_path_factory):
    """The same as a run. Tests that change it take `own_run`."""
    return rankscope.ingest(traces, tmp_path_factory.mktemp("runs") / "run").run


@pytest.fixture
def own_run(run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run.path, copy)
    return copy


@pytest.fixture(scope="session")
def many_ranks(tmp_path_factory):
    """A simulated run of so many ranks that an analysis takes seconds."""
    out = tmp_path_factory.mktemp("runs") / "many"
    subprocess.run([COMMAND, "simulate", "--out", out, "--parallel", "dp=256", "--steps", "6"], check=True)
    return out
