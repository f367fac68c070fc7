"""The command of the wheel, which is an entry point of the module: exit codes, signals, pipes."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from conftest import COMMAND

AS_MODULE = [sys.executable, "-m", "rankscope"]


@pytest.mark.parametrize("command", [[COMMAND], AS_MODULE], ids=["command", "module"])
def test_exit_codes_are_those_of_the_command(command, traces, own_run, tmp_path):
    """Invariant (python): The command of the wheel has the exit codes and signals of the plain command."""
    def code(*arguments):
        done = subprocess.run([*command, *arguments], capture_output=True, text=True)
        return done.returncode, done.stderr

    assert code("--version") == (0, "")
    assert code("analyze", traces, "--json")[0] == 0
    assert code("analyze", tmp_path / "none")[0] == 1
    wrong, said = code("analyze", "--no-such-option")
    assert wrong == 2 and "--no-such-option" in said
    next(pathlib.Path(own_run, "events").iterdir()).unlink()
    assert code("analyze", own_run)[0] == 3
    assert code("exec", "--out", tmp_path / "recorded", "--quiet", "--", "sh", "-c", "exit 7")[0] == 7


def test_a_program_that_is_recorded_gets_the_library_and_the_systems_signals(tmp_path):
    ignored_signals = "grep SigIgn /proc/self/status"
    program = f"echo $CUDA_INJECTION64_PATH; {ignored_signals}"
    done = subprocess.run(
        [COMMAND, "exec", "--out", tmp_path / "run", "--quiet", "--", "sh", "-c", program],
        env={name: value for name, value in os.environ.items() if name != "CUDA_INJECTION64_PATH"},
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    library, ignored = done.stdout.splitlines()
    assert library.endswith("librankscope_inject.so") and os.path.exists(library)
    plain = subprocess.run(["sh", "-c", ignored_signals], check=True, capture_output=True, text=True).stdout
    # Signals 32 and 33 are the C library's own, which its posix_spawn ignores in every program that it starts.
    own = 0b11 << 31
    assert int(ignored.split()[1], 16) & ~own == int(plain.split()[1], 16) & ~own


def test_ctrl_c_ends_the_command_as_the_system_does(many_ranks):
    """Invariant (python): The command of the wheel has the exit codes and signals of the plain command."""
    running = subprocess.Popen([COMMAND, "analyze", many_ranks, "--json"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    # The threads that analyze begin after Python has given its signals up.
    while running.poll() is None and len(os.listdir(f"/proc/{running.pid}/task")) < 2:
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=30)
    assert running.returncode == -signal.SIGINT and b"Traceback" not in said


def test_ctrl_c_reaches_a_recorded_program(tmp_path):
    """Invariant (python): The command of the wheel has the exit codes and signals of the plain command."""
    program = """
import time
try:
    print("ready", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    raise SystemExit(9)
"""
    command = [COMMAND, "exec", "--out", tmp_path / "run", "--quiet", "--", sys.executable, "-c", program]
    running = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert running.stdout.readline() == b"ready\n"
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=30)
    assert running.returncode == 9


def test_a_closed_pipe_is_no_error(traces):
    done = subprocess.run(
        ["bash", "-c", '"$0" analyze "$1" --json --full | head -c 10 >/dev/null; exit ${PIPESTATUS[0]}', COMMAND, traces],
        capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_a_report_names_the_command_and_not_the_interpreter(traces, tmp_path):
    page = tmp_path / "report.html"
    subprocess.run([*AS_MODULE, "report", traces, "-o", page], check=True, capture_output=True)
    assert "rankscope report " in page.read_text() and "-m rankscope" not in page.read_text()
