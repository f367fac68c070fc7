"""Misuse: an exception each, and no crash."""

import concurrent.futures
import copy
import functools
import gzip
import http.server
import multiprocessing
import os
import pathlib
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest

import rankscope


def test_a_path_that_does_not_exist(tmp_path):
    calls = (
        rankscope.analyze,
        rankscope.open,
        rankscope.what_if,
        rankscope.reduce,
        lambda path: rankscope.ingest(path, tmp_path / "out"),
        lambda path: rankscope.map_rank(path, tmp_path / "parts"),
        lambda path: rankscope.diff(path, path),
    )
    for call in calls:
        with pytest.raises(rankscope.RankscopeError) as caught:
            call(tmp_path / "none")
        assert caught.value.file == str(tmp_path / "none"), caught.value
    assert list(tmp_path.iterdir()) == []
    for wrong in (None, 3, [None]):
        with pytest.raises(TypeError):
            rankscope.analyze(wrong)


def test_errors_name_file_rank_and_byte(traces, tmp_path):
    one = min(traces.glob("*.json*"))
    text = gzip.open(one, "rb").read() if one.suffix == ".gz" else one.read_bytes()
    (tmp_path / "rank1.json").write_bytes(text[: len(text) // 2])
    with pytest.warns(rankscope.RankscopeWarning, match="from byte"):
        cut = rankscope.analyze(tmp_path)
    assert not cut.complete
    (tmp_path / "rank1.json").write_bytes(b"\n\n  no JSON")
    with pytest.raises(rankscope.RankscopeError) as caught:
        rankscope.analyze(tmp_path / "rank1.json")
    assert (caught.value.file, caught.value.byte) == (str(tmp_path / "rank1.json"), 4)
    with pytest.raises(rankscope.RankscopeError, match="rank=99") as caught:
        rankscope.what_if(traces, without=[99])


def test_several_threads_call_at_once(traces, analysis):
    """Invariant (python): Threads, forks, Ctrl-C and removed runs do no harm."""
    expected = analysis.step_breakdown.to_arrow()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: rankscope.analyze(traces).step_breakdown.to_arrow(), range(8)):
            assert found.equals(expected)
        # All threads ask one analysis for a table that nobody has asked for before.
        fresh = rankscope.analyze(traces)
        tables = list(pool.map(lambda _: fresh.op_stats.to_arrow(), range(8)))
    assert len({table["total_ns"].chunks[0].buffers()[1].address for table in tables}) == 1


def test_the_gil_is_free_during_a_call(many_ranks):
    counted = 0
    done = threading.Event()

    def work():
        rankscope.analyze(many_ranks, ranks=range(64))
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not done.is_set():
        counted += 1
        time.sleep(0.001)
    thread.join()
    assert counted > 5


def all_calls(traces, queue):
    with_directory = os.path.join(os.path.dirname(queue), f"of-{os.getpid()}")
    found = [
        rankscope.analyze(traces).verdict.rank,
        len(rankscope.ingest(traces, with_directory).run.recorded_ranks),
        rankscope.analyze(traces).report(f"{with_directory}/report.html"),
        len(rankscope.what_if(traces).changes),
        rankscope.diff(traces, traces).changed,
    ]
    with open(queue, "a") as out:
        out.write(f"{found[0]} {found[1]}\n")


def ends_well(target, *arguments):
    """Whether a fork of this process that calls `target` ends without an error."""
    child = multiprocessing.get_context("fork").Process(target=target, args=arguments)
    child.start()
    child.join(120)
    hangs = child.is_alive()
    # Otherwise the interpreter would wait for it at its own end.
    child.kill()
    child.join()
    assert not hangs, "the child hangs"
    return child.exitcode == 0


# Python warns of each fork of a process with threads, which all of these are.
forks = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@forks
def test_a_fork_after_import_and_after_calls_works(traces, tmp_path):
    """Invariant (python): Threads, forks, Ctrl-C and removed runs do no harm."""
    answers = str(tmp_path / "answers")
    all_calls(traces, answers)
    assert ends_well(all_calls, traces, answers)
    assert open(answers).read() == "5 8\n5 8\n"


@forks
def test_a_fork_in_the_middle_of_calls_works(traces):
    """Invariant (python): Threads, forks, Ctrl-C and removed runs do no harm.

    A child has only the thread that forked, so it must wait for nothing that another one held."""
    ended = threading.Event()

    def work():
        while not ended.is_set():
            rankscope.analyze(traces)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            assert ends_well(rankscope.analyze, traces)
    finally:
        ended.set()
        for thread in threads:
            thread.join()


class WithRanges(http.server.SimpleHTTPRequestHandler):
    """Serves parts of files, as object stores do."""

    def do_GET(self):
        content = pathlib.Path(self.translate_path(self.path)).read_bytes()
        asked = self.headers.get("Range")
        first, last = (int(number) for number in asked.removeprefix("bytes=").split("-")) if asked else (0, len(content) - 1)
        part = content[first : last + 1]
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(part)))
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{first + len(part) - 1}/{len(content)}")
        self.end_headers()
        self.wfile.write(part)

    def log_message(self, format, *arguments):
        """Prints nothing."""


@forks
def test_a_fork_after_requests_to_a_server_works(traces):
    """Invariant (python): Threads, forks, Ctrl-C and removed runs do no harm."""
    handler = functools.partial(WithRanges, directory=traces)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/{min(traces.glob('*.json*')).name}"
        rankscope.analyze(url)
        assert ends_well(rankscope.analyze, url)
        server.shutdown()


def test_ctrl_c_interrupts_a_call(many_ranks):
    """Invariant (python): Threads, forks, Ctrl-C and removed runs do no harm."""
    told, began = [], threading.Event()

    def press():
        began.wait(60)
        os.kill(os.getpid(), signal.SIGINT)

    def tell(done, ranks):
        told.append(done)
        began.set()

    thread = threading.Thread(target=press)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        rankscope.analyze(many_ranks, progress=tell)
    thread.join()
    assert told[-1] < 256, "the call had ended before it was interrupted"
    # The next call is not harmed.
    assert rankscope.analyze(many_ranks, ranks=[0, 1, 2]).facts["ranks"] == [0, 1, 2]


def test_an_error_of_the_callback_ends_the_call(traces, tmp_path):
    def fails(done, ranks):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        rankscope.analyze(traces, progress=fails)


def test_an_interrupted_ingest_leaves_no_half_run(many_ranks, traces, tmp_path):
    def fails(done, ranks):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rankscope.ingest(traces, tmp_path / "run", progress=fails)
    left = list(tmp_path.iterdir())
    # It was over before it was interrupted, or it left nothing.
    assert left == [] or rankscope.open(tmp_path / "run").recorded_ranks == list(range(8))


def test_an_analysis_outlives_its_run(own_run, tmp_path):
    """Invariant (python): Threads, forks, Ctrl-C and removed runs do no harm."""
    analysis, run = rankscope.analyze(own_run), rankscope.open(own_run)
    shutil.rmtree(own_run)
    assert analysis.verdict.rank == 5 and len(analysis.step_breakdown.to_arrow()) > 8
    for call in (
        lambda: analysis.report(tmp_path / "report.html"),
        analysis._repr_html_,
        lambda: analysis.timeline(4),
        lambda: analysis.save(own_run),
    ):
        with pytest.raises(rankscope.RankscopeError, match="no such file"):
            call()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(Exception, match="does not exist"):
        run.events.to_arrow()
    with pytest.raises(rankscope.RankscopeError):
        run.analyze()


def test_a_report_replaces_no_trace(traces, tmp_path):
    copied = tmp_path / "traces"
    shutil.copytree(traces, copied)
    first = next(copied.iterdir())
    before = first.read_bytes()
    with pytest.raises(rankscope.RankscopeError, match="file of the input"):
        rankscope.analyze(copied).report(first)
    assert first.read_bytes() == before


def test_an_analysis_is_not_pickled(analysis):
    for copied in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError):
            copied(analysis)


def test_importing_loads_no_other_library():
    program = """
import sys, time
start = time.perf_counter()
import rankscope
spent = time.perf_counter() - start
print(round(spent * 1000, 1), *sorted({"numpy", "pandas", "polars", "pyarrow", "tqdm"} & sys.modules.keys()))
"""
    spent = []
    for _ in range(5):
        done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
        took, *loaded = done.stdout.split()
        assert loaded == []
        spent.append(float(took))
    print(f"import takes {min(spent)} ms")
