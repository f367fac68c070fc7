#!/usr/bin/env python3
"""Runs the tests that Holistic Trace Analysis (HTA) has of its own API, with rankscope.hta in its place.

    PYTHON tests/checks/hta_tests_check.py [--data KINETO]      PYTHON has the wheel, pandas and pyarrow

The tests come from HTA's source distribution on PyPI, which is fetched into target/hta-tests. It has no traces and no notebooks:
those of HTA's traces that RANKSCOPE_DATA has take their place, and a test that needs another one is said to lack it. The modules
`hta…` that the tests import are rankscope's. Tests number rows by their place in the file, and rankscope counts rows alone, so
the rows are numbered anew here.

Prints each test with its result: passes, FAILED, or not run with the trace that it lacks. Exits with 77 where the tests cannot
be fetched or there are no traces.

Invariant (python): HTA's own tests pass as far as their traces are available.
"""

import argparse
import collections
import enum
import pathlib
import shutil
import subprocess
import sys
import tarfile
import types
import unittest

# The shared module is one folder up.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support import CANNOT_RUN, DATA, ROOT  # noqa: E402

import rankscope._hta_files  # noqa: E402
import rankscope.hta  # noqa: E402

HTA = pathlib.Path(__file__).resolve().parent / "requirements-hta.txt"
FOLDER = ROOT / "target/hta-tests"
#: The tests of TraceAnalysis. The others are of HTA's own parser, symbol table, call stacks and comparison of traces.
TESTS = ["test_trace_analysis", "test_critical_path_analysis", "test_cupti_profiler"]
#: HTA's traces by its names for them. Folders of the other names that its tests ask for are in no source distribution.
TRACES = {
    "ns_resolution_trace": "ns_resolution",
    "negative_queue_length_values_check": "neg_queue_r0of16",
    "critical_path/simple_add": "simple_add",
    "critical_path/alexnet": "alexnet_cp",
    "critical_path/cuda_event_sync": "event_sync",
    "rank_non_gpu": "odd/rank_non_gpu.json.gz",
    "amd_trace": "odd/mi250_minitoy_train_ROCm6_2_kineto.json.gz",
}


def cannot_run(why):
    print(f"skipped: HTA's own tests: {why}")
    sys.exit(CANNOT_RUN)


def fetch():
    """The folder of the tests."""
    tests = FOLDER / "source" / "tests"
    if not tests.is_dir():
        # In isolation pip would install setuptools without a hash. .venv has it, and the environment of the wheel has not.
        python = str(ROOT / ".venv/bin/python")
        command = [python, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--retries", "1"]
        command += ["--no-binary", ":all:", "--no-deps", "--no-build-isolation", "--require-hashes"]
        command += ["--dest", str(FOLDER), "--requirement", str(HTA)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            cannot_run((done.stderr.strip().splitlines() or ["pip printed no error"])[-1])
        [archive] = FOLDER.glob("*.tar.gz")
        shutil.rmtree(FOLDER / "unpacked", ignore_errors=True)
        with tarfile.open(archive) as file:
            file.extractall(FOLDER / "unpacked", filter="data")
        [unpacked] = (FOLDER / "unpacked").iterdir()
        unpacked.rename(tests.parent)
    return tests


def place(tests, data):
    """Links traces to where the tests look for them."""
    shutil.rmtree(tests / "data", ignore_errors=True)
    for theirs, ours in TRACES.items():
        path = data / ours
        if not path.exists():
            continue
        folder = tests / "data" / theirs
        folder.mkdir(parents=True)
        for file in [path] if path.is_file() else path.iterdir():
            (folder / file.name).symlink_to(file)


class Missing:
    """What stands for an analysis of a trace that is not there: a test that uses it is skipped."""

    def __init__(self, name):
        self.name = name

    def __getattr__(self, _):
        raise unittest.SkipTest(f"lacks the trace {self.name}")


def analysis_of(tests):
    """TraceAnalysis, with rows that are numbered by their place in the file."""

    def is_row(row):
        return row.get("ph") == "X" and "dur" in row

    class Numbered(rankscope.hta.TraceAnalysis):
        def _of(self, rank):
            is_new = rank not in self._rows
            rows = super()._of(rank)
            if is_new:
                events = rankscope._hta_files.read(self._file(rank))["traceEvents"]
                places = dict(enumerate(at for at, row in enumerate(events) if is_row(row))) | {-1: -1}
                rows.all = rows.all.assign(id=rows.all["id"].map(places), parent=rows.all["parent"].map(places))
            return rows

    def make(trace_files=None, trace_dir="", **options):
        folder = pathlib.Path(trace_dir or next(iter(trace_files.values())))
        if not folder.exists():
            return Missing(folder.relative_to(tests / "data"))
        return Numbered(trace_files, trace_dir, **options)

    rankscope._hta_files.rows_by_id = lambda trace: {
        at: row for at, row in enumerate(trace["traceEvents"]) if is_row(row)
    }
    return make


def modules(tests):
    """The modules that the tests import."""

    def module(name, **members):
        made = types.ModuleType(name)
        made.__dict__.update(members)
        sys.modules[name] = made
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, made)

    class Trace:
        write_raw_trace = staticmethod(rankscope._hta_files.write)

    class CriticalPathAnalysis:
        @staticmethod
        def _is_zero_weight_launch_edge(edge):
            return edge.type.name == "KERNEL_LAUNCH_DELAY" and edge.weight == 0

    backend = enum.Enum("ParserBackend", ["JSON", "IJSON_BATCH_AND_COMPRESS"])
    ours = rankscope.hta
    for name in ("hta", "hta.common", "hta.analyzers"):
        module(name)
    module("hta.common.trace", PHASE_COUNTER="C", Trace=Trace)
    module(
        "hta.common.trace_parser",
        ParserBackend=backend,
        _auto_detect_parser_backend=lambda: backend.JSON,
        get_default_trace_parsing_backend=lambda: backend.JSON,
        set_default_trace_parsing_backend=lambda _: None,
    )
    module("hta.trace_analysis", TraceAnalysis=analysis_of(tests), TimeSeriesTypes=ours.TimeSeriesTypes)
    module("hta.analyzers.cupti_counter_analysis", CUDA_SASS_INSTRUCTION_COUNTER_FLOPS={})
    names = ("CPEdge", "CPEdgeType", "CPGraph", "CPNode", "restore_cpgraph")
    members = {name: getattr(ours, name) for name in names}
    module("hta.analyzers.critical_path_analysis", CriticalPathAnalysis=CriticalPathAnalysis, **members)
    # The tests watch what HTA writes with the path and the content.
    rankscope._hta_files.write = lambda path, trace, **options: Trace.write_raw_trace(path, trace, **options)


class Results(unittest.TestResult):
    """Results by test."""

    def __init__(self):
        super().__init__()
        self.found = {}

    def addSuccess(self, test):
        self.found[test.id()] = ("passes", "")

    def addSkip(self, test, reason):
        self.found[test.id()] = ("not run", reason)

    def addFailure(self, test, err):
        self.found[test.id()] = ("FAILED", self._exc_info_to_string(err, test).strip().splitlines()[-1])

    def addError(self, test, err):
        self.found[test.id()] = ("FAILED", self._exc_info_to_string(err, test).strip())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, default=DATA / "kineto")
    options = parser.parse_args()
    if not options.data.is_dir():
        cannot_run(f"there are no traces in {options.data}")
    tests = fetch()
    place(tests, options.data.resolve())
    modules(tests)
    sys.path.insert(0, str(tests))
    results = Results()
    unittest.defaultTestLoader.loadTestsFromNames(TESTS).run(results)
    for test, (result, why) in sorted(results.found.items()):
        print(f"{result:8} {test}{f': {why}' if why else ''}")
    counts = collections.Counter(result for result, _ in results.found.values())
    print("HTA's own tests: " + ", ".join(f"{counts[result]} {result}" for result in ("passes", "FAILED", "not run")))
    return 1 if counts["FAILED"] or not counts["passes"] else 0


if __name__ == "__main__":
    sys.exit(main())
