#!/usr/bin/env python3
"""Makes the calls of Holistic Trace Analysis's (HTA's) demo notebooks with rankscope.hta and with HTA, and compares the results.

    PYTHON tests/checks/hta_notebooks_check.py [--data KINETO] [--hta PYTHON]     PYTHON has the wheel, pandas and pyarrow

The calls are those of the notebooks in HTA's repository (examples/*.ipynb at f4d0062) that use TraceAnalysis, with the arguments
that stand there. Most of the notebooks read traces that are in no distribution: other traces take their place. HTA itself is
that of tests/checks/hta_check.py. Results must have the same types, columns and values with `strict_hta=True`, but for those
in REASONS.

Prints each call with its result: equal, differs with the reason, or FAILED. Exits with 77 where HTA or the traces are missing.

Invariant (python): The calls of HTA's notebooks give HTA's results.
"""

import argparse
import collections
import json
import logging
import math
import pathlib
import shutil
import subprocess
import sys
import tempfile
import warnings

# The shared module is one folder up.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support import CANNOT_RUN, DATA, ROOT  # noqa: E402

#: By notebook: the folder of traces, and the calls with the names that the notebook gives to their results.
NOTEBOOKS = {
    "trace_analysis_demo": (
        "dlrm8",
        [
            ("time_spent", "a.get_temporal_breakdown(visualize=False)"),
            (
                "kernels",
                "a.get_gpu_kernel_breakdown(visualize=False, duration_ratio=0.8, num_kernels=5, include_memory_kernels=True)",
            ),
            ("overlap", "a.get_comm_comp_overlap(visualize=False)"),
            (
                "idle",
                "a.get_idle_time_breakdown(ranks=[1], visualize=False, visualize_pctg=1, show_idle_interval_stats=True)",
            ),
            ("counters", "a.generate_trace_with_counters(ranks=[1], time_series=m.TimeSeriesTypes.QUEUE_LENGTH)"),
            ("queue_summary", "a.get_queue_length_summary(ranks=[1])"),
            ("queue_length_dict", "a.get_queue_length_time_series(ranks=[1])"),
            ("full_queue", "a.get_time_spent_blocked_on_full_queue(queue_length_dict, max_queue_length=1024)"),
            ("kernel_stats", "a.get_cuda_kernel_launch_stats(visualize=False)"),
            (
                "frequent",
                "a.get_frequent_cuda_kernel_sequences(operator_name='aten::linear', output_dir=scratch, min_pattern_len=3, "
                "rank=0, top_k=5, visualize=False)",
            ),
        ],
    ),
    "trace_analysis_demo, annotations": (
        "ns_resolution",
        [
            ("found", "a.get_gpu_kernels_with_user_annotations(rank=0, expand_names=True, shortern_names=False)"),
            ("columns", "found[['s_name', 's_cat', 's_user_annotation', 'stream', 'ts', 'dur']]"),
        ],
    ),
    "kernel_breakdown_demo": (
        "dlrm8",
        [
            (
                "kernels",
                "a.get_gpu_kernel_breakdown(num_kernels=5, include_memory_kernels=True, image_renderer='png', visualize=False)",
            )
        ],
    ),
    "identify_stragglers": (
        "dlrm8",
        [
            ("steps", "a.get_profiler_steps()"),
            ("one", "a.get_potential_stragglers(profiler_steps=steps[-1:], num_candidates=1)"),
            ("stragglers", "a.get_potential_stragglers()"),
        ],
    ),
    "critical_path_analysis": (
        "simple_add",
        [
            ("annotation", "'[param|pytorch.model.alex_net|0|0|0|measure|forward]'"),
            ("analysed", "a.critical_path_analysis(rank=0, annotation=annotation, instance_id=1)"),
            ("success", "analysed[1]"),
            ("summary", "analysed[0].summary()"),
            ("overlaid", "bool(a.overlay_critical_path_analysis(0, analysed[0], output_dir=scratch))"),
            ("zip_file", "analysed[0].save(out_dir=scratch + '/saved')"),
            ("restored", "m.restore_cpgraph(zip_filename=zip_file, t_full=a.t, rank=0)"),
            ("same_edges", "len(restored.critical_path_edges_set) == len(analysed[0].critical_path_edges_set)"),
            ("same_nodes", "len(restored.nodes) == len(analysed[0].nodes)"),
            ("restored_summary", "restored.summary()"),
            ("again", "restored.critical_path()"),
            ("summary_again", "restored.summary()"),
        ],
    ),
    "cupti_flops_analysis": (
        None,
        [
            ("gpu_kernels", "a.get_cupti_counter_data_with_operators(ranks=[0])[0]"),
            ("first", "gpu_kernels.loc[0]"),
            ("head", "gpu_kernels.head()[['name', 'op_stack', 'top_level_op'] + list(m.CUDA_SASS_INSTRUCTION_COUNTER_FLOPS)]"),
            ("flops", "sum(gpu_kernels[counter] * flops for counter, flops in m.CUDA_SASS_INSTRUCTION_COUNTER_FLOPS.items())"),
        ],
    ),
}
#: Why a result is not HTA's, and by what share of it a number may differ; without a share, what it holds differs.
REASONS = {
    ("trace_analysis_demo", "idle"): ("HTA takes the trace's first row for a launch that was not recorded", None),
    ("trace_analysis_demo", "queue_summary"): ("HTA orders a launch and a start at the same time by chance", 0.02),
    ("trace_analysis_demo", "queue_length_dict"): ("HTA's index numbers rows of the file, and its order at equal times is by chance", None),
    ("trace_analysis_demo, annotations", "columns"): ("HTA rounds starts and ends to whole µs", None),
    ("cupti_flops_analysis", "first"): ("HTA has empty columns of arguments too", None),
    ("cupti_flops_analysis", "flops"): ("HTA's counters have 8 bits here, so that their sum overflows", None),
}
#: These results are not compared. They are objects of the libraries, or frames whose columns a later call compares.
OBJECTS = {"analysed", "restored", "zip_file", "found", "gpu_kernels"}


def counters_trace(folder):
    """A trace of two kernels with the counters of CUPTI's range profiler, which no shared trace has."""
    operations = ["ffma", "fmul", "fadd", "hfma", "hmul", "hadd", "dfma", "dmul", "dadd"]

    def row(cat, name, ts, dur, tid=1, **args):
        return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}

    def counted(name, ts, dur, first):
        counts = {
            f"smsp__sass_thread_inst_executed_op_{name}_pred_on.sum": first + at for at, name in enumerate(operations)
        }
        return row("cuda_profiler_range", name, ts, dur, tid=0, **counts)

    rows = [
        row("user_annotation", "ProfilerStep#1", 0, 100),
        row("cpu_op", "aten::linear", 10, 40),
        row("cpu_op", "aten::mm", 15, 20),
        row("cuda_runtime", "cudaLaunchKernel", 20, 5, correlation=1, cbid=211),
        row("cpu_op", "aten::relu", 55, 20),
        row("cuda_runtime", "cudaLaunchKernel", 60, 5, correlation=2, cbid=211),
        counted("gemm", 70, 10, 100),
        counted("relu", 90, 5, 7),
    ]
    trace = {"schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 1}, "traceEvents": rows}
    (folder / "rank0.json").write_text(json.dumps(trace))


def plain(value):
    """A result as JSON: frames with their columns, in their order."""
    kind = type(value).__name__
    if kind == "DataFrame":
        columns = [list(column) if isinstance(column, tuple) else column for column in value.columns.tolist()]
        return {"type": kind, "columns": columns, "index": plain(value.index.tolist()), "rows": plain(value.to_numpy().tolist())}
    if kind == "Series":
        return {"type": kind, "index": plain(value.index.tolist()), "rows": plain(value.tolist())}
    if isinstance(value, dict):
        return {"type": "dict", "items": [[plain(key), plain(item)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and math.isnan(value):
        return None
    return value if value is None or isinstance(value, (bool, int, float, str)) else f"{kind} {value}"


def make_calls(library, folder, scratch, calls):
    """Prints a line of JSON for each call: its name and the result, or the error."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    if library == "hta":
        import hta.analyzers.critical_path_analysis as critical
        import hta.analyzers.cupti_counter_analysis as cupti
        import hta.trace_analysis as m

        m.restore_cpgraph = critical.restore_cpgraph
        m.CUDA_SASS_INSTRUCTION_COUNTER_FLOPS = cupti.CUDA_SASS_INSTRUCTION_COUNTER_FLOPS
        options = {}
    else:
        import rankscope.hta as m

        options = {"strict_hta": True}
    names = {"m": m, "scratch": scratch, "a": m.TraceAnalysis(trace_dir=folder, **options)}
    for name, call in calls:
        try:
            names[name] = eval(call, names)
            shown = None if name in OBJECTS else plain(names[name])
            print("result", json.dumps([name, shown]))
        except Exception as error:
            print("result", json.dumps([name, {"error": f"{type(error).__name__}: {error}"}]))


def results(python, library, folder, calls):
    with tempfile.TemporaryDirectory() as scratch:
        command = [str(python), __file__, "--calls", library, str(folder), scratch]
        done = subprocess.run(command, input=json.dumps(calls), capture_output=True, text=True, check=False)
    lines = [line.removeprefix("result ") for line in done.stdout.splitlines() if line.startswith("result ")]
    found = dict(map(json.loads, lines))
    why = (done.stderr.strip().splitlines() or ["no error was printed"])[-1]
    return {name: found.get(name, {"error": f"the process ended with {done.returncode}: {why}"}) for name, _ in calls}


def difference(ours, theirs, share=1e-9, path=""):
    """Where two results differ first; None if they are equal. Numbers may differ by a share of them, or in the last digit of a µs."""
    if isinstance(ours, dict) and isinstance(theirs, dict) and ours.keys() == theirs.keys():
        pairs = [(f"{path}.{key}", ours[key], theirs[key]) for key in ours]
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = [(f"{path}[{at}]", *pair) for at, pair in enumerate(zip(ours, theirs))]
    elif isinstance(ours, (int, float)) and isinstance(theirs, (int, float)):
        return None if math.isclose(ours, theirs, rel_tol=share, abs_tol=max(1e-6, share)) else f"{path}: {ours} here, {theirs} in HTA"
    else:
        return None if ours == theirs else f"{path}: {str(ours)[:160]} here, {str(theirs)[:160]} in HTA"
    return next(filter(None, (difference(*pair, share, where) for where, *pair in pairs)), None)


def judge(notebook, folder, calls, options, counts):
    theirs, ours = (results(python, library, folder, calls) for python, library in
                    ((options.hta, "hta"), (sys.executable, "rankscope")))
    for name, call in calls:
        found = difference(ours[name], theirs[name])
        reason, share = REASONS.get((notebook, name), (None, None))
        is_within = share is None or difference(ours[name], theirs[name], share) is None
        if isinstance(ours[name], dict) and "error" in ours[name]:
            result, why = "FAILED", ours[name]["error"]
        elif found is None:
            result, why = "equal", ""
        elif reason and is_within:
            result, why = "differs", reason
        else:
            result, why = "FAILED", found
        counts[result] += 1
        print(f"{result:8} {notebook}: {call}{f': {why}' if why else ''}")


def main():
    if sys.argv[1:2] == ["--calls"]:
        make_calls(*sys.argv[2:], json.load(sys.stdin))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, default=DATA / "kineto")
    parser.add_argument("--hta", type=pathlib.Path, default=ROOT / "target/hta-venv/bin/python")
    options = parser.parse_args()
    for needed in (options.data, options.hta):
        if not needed.exists():
            print(f"skipped: HTA's notebooks: there is no {needed}")
            return CANNOT_RUN
    counts = collections.Counter()
    with tempfile.TemporaryDirectory() as scratch:
        for notebook, (name, calls) in NOTEBOOKS.items():
            folder = pathlib.Path(scratch) / (name or "counters")
            if name:
                # Calls write files beside the traces.
                shutil.copytree(options.data / name, folder, dirs_exist_ok=True)
            else:
                folder.mkdir()
                counters_trace(folder)
            judge(notebook, folder, calls, options, counts)
    print("HTA's notebooks: " + ", ".join(f"{counts[result]} calls {result}" for result in ("equal", "differs", "FAILED")))
    return 1 if counts["FAILED"] or not counts["equal"] else 0


if __name__ == "__main__":
    sys.exit(main())
