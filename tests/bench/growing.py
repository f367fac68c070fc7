"""Synthetic inputs that have one dimension of size n and are small in the others. The same n gives the same bytes."""

import json
import sqlite3
import zipfile

STEP_US = 100


def event(category, name, ts, dur, args=None, pid=1, tid=1):
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args or {}}


def kernel(name, ts, dur, device=0, correlation=0, **args):
    args.update(device=device, stream=7, correlation=correlation)
    return event("kernel", name, ts, dur, args, device, 7)


def collective(ts, dur, group, ranks, seq=None, **args):
    """A kernel of NCCL as torch.profiler records it; the members of a large group are its first and its stride."""
    args.update({"Collective name": "allreduce", "In msg nelems": 1024, "Out msg nelems": 1024, "dtype": "Float",
                 "Group size": len(ranks), "Process Group Name": group, "Process Group Description": "dp"})  # fmt: skip
    if len(ranks) <= 30:
        args["Process Group Ranks"] = str(list(ranks))
    else:
        args.update({"Global rank start": ranks[0], "Global rank stride": 1, "Process Group Ranks": f"[{ranks[0]}, ...]"})
    if seq is not None:
        args["Seq"] = seq
    return kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", ts, dur, **args)


def trace(rank, world, events):
    return json.dumps({"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world}, "traceEvents": events})


def write_ranks(folder, world, events_of):
    for rank in range(world):
        (folder / f"rank{rank}.json").write_text(trace(rank, world, events_of(rank)))


def step(number, late_us=0, ranks=(0, 1), seq=None):
    """A step of an operator, its launch, its kernel and a collective."""
    at = number * STEP_US
    return [
        event("user_annotation", f"ProfilerStep#{number}", at, STEP_US),
        event("cpu_op", "aten::mm", at + 2, 10 + late_us),
        event("cuda_runtime", "cudaLaunchKernel", at + 5 + late_us, 2, {"correlation": 2 * number + 1}),
        kernel("gemm", at + 10 + late_us, 30, correlation=2 * number + 1),
        event("cuda_runtime", "cudaLaunchKernel", at + 15 + late_us, 2, {"correlation": 2 * number + 2}),
        collective(at + 50 + late_us, 40 - late_us, "0", ranks, number if seq is None else seq, correlation=2 * number + 2),
    ]


def steps(folder, n):
    write_ranks(folder, 2, lambda rank: [row for number in range(n) for row in step(number, 5 * rank)])


def two_runs_of_steps(folder, n):
    for name, late_us in (("a", 5), ("b", 9)):
        (folder / name).mkdir()
        write_ranks(folder / name, 2, lambda rank: [row for at in range(n) for row in step(at, late_us * rank + at % 3)])


def devices(folder, n):
    write_ranks(folder, 1, lambda _: [kernel("gemm", 2 * at, 1, device=at, correlation=at) for at in range(n)])


def communicators(folder, n):
    def of_rank(rank):
        marks = [event("user_annotation", f"ProfilerStep#{number}", number * n * 10, n * 10) for number in range(2)]
        return marks + [collective(at * 10 + rank, 5, str(at % n), (0, 1), at // n, correlation=at) for at in range(2 * n)]

    write_ranks(folder, 2, of_rank)


def without_numbers(folder, n):
    """Collectives of four ranks that state no number; each rank is late by another pattern."""

    def of_rank(rank):
        return [collective(at * 20 + (at * (rank + 3) * 7) % 5, 8, "0", range(4), correlation=at) for at in range(n)]

    write_ranks(folder, 4, of_rank)


def ranks(folder, n):
    write_ranks(folder, n, lambda rank: step(0, rank % 7, range(n)) + step(1, rank % 5, range(n)))


def false_members(folder, n):
    """Every rank says that it is in the group of ranks 0 and 1."""
    write_ranks(folder, n, lambda rank: step(0, rank % 7) + step(1, rank % 5))


def names(folder, n):
    write_ranks(folder, 2, lambda rank: [row for number in range(4) for row in step(number, rank)] +
                [kernel(f"gemm_{at}", 1000 + 2 * at, 1, correlation=1000 + at) for at in range(n)])  # fmt: skip


def zip_members(folder, n):
    with zipfile.ZipFile(folder / "job.zip", "w") as archive:
        for rank in range(n):
            archive.writestr(f"rank{rank}.json", trace(rank, n, step(0, rank % 7, range(n))))


def nsys_processes(folder, n):
    database = sqlite3.connect(folder / "job.sqlite")
    database.executescript("""
        CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
        CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
            correlationId INTEGER, globalPid INTEGER, demangledName INTEGER);
        CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER,
            correlationId INTEGER, nameId INTEGER);
        CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, textId INTEGER,
            domainId INTEGER);
        INSERT INTO StringIds VALUES (1, 'gemm'), (2, 'cudaLaunchKernel');
    """)
    for process in range(n):
        pid = (1 << 56) | ((process + 100) << 24)
        for at in range(4):
            row = (1000 * at, 1000 * at + 900, 0, 7, at, pid, 1)
            database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            row = (1000 * at - 50, 1000 * at - 20, 0, pid + 5, at, 2)
            database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?, ?)", row)
            row = (1000 * at - 60, 1000 * at + 930, 59, f"ProfilerStep#{at}", pid + 5, None, 0)
            database.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    database.commit()
    database.close()


def rocprof_processes(folder, n):
    strings = {"callback_records": [], "buffer_records": [{"kind": "NONE", "operations": []},
               {"kind": "HIP_RUNTIME_API", "operations": ["none", "hipLaunchKernel"]}]}  # fmt: skip

    def dispatch(at):
        return {"kind": 5, "thread_id": 5, "correlation_id": {"internal": at, "external": 0}, "start_timestamp": 1000 * at,
                "end_timestamp": 1000 * at + 500, "dispatch_info": {"agent_id": {"handle": 12}, "queue_id": {"handle": 7},
                "kernel_id": 1, "workgroup_size": {"x": 64, "y": 1, "z": 1}, "grid_size": {"x": 64, "y": 1, "z": 1}}}  # fmt: skip

    def process(pid):
        call = {"kind": 1, "operation": 1, "thread_id": 5, "correlation_id": {"internal": 1}, "start_timestamp": 90,
                "end_timestamp": 99}  # fmt: skip
        return {"metadata": {"node": {"hostname": "node-a"}, "pid": pid, "init_time": 1},
                "agents": [{"id": {"handle": 10}, "type": 1, "node_id": 0}, {"id": {"handle": 12}, "type": 2, "node_id": 1}],
                "strings": strings, "kernel_symbols": [{"kernel_id": 1, "kernel_name": "gemm.kd"}],
                "buffer_records": {"kernel_dispatch": [dispatch(at) for at in range(1, 5)], "hip_api": [call]}}  # fmt: skip

    document = {"rocprofiler-sdk-tool": [process(100 + at) for at in range(n)]}
    (folder / "job_results.json").write_text(json.dumps(document))


def varint(value):
    encoded = b""
    while value > 127:
        encoded += bytes([value & 127 | 128])
        value >>= 7
    return encoded + bytes([value])


def number(field, value):
    return varint(field << 3) + varint(value)


def message(field, content):
    return varint(field << 3 | 2) + varint(len(content)) + content


def xplane_planes(folder, n):
    kind = message(4, number(1, 1) + message(2, number(1, 1) + message(2, b"gemm")))
    events = b"".join(message(4, number(1, 1) + number(2, 2_000_000 * at) + number(3, 1_000_000)) for at in range(4))
    line = message(3, number(1, 1) + message(2, b"Stream #1(Kernel)") + number(3, 0) + events)
    planes = [message(1, message(2, b"/device:GPU:%d" % at) + line + kind) for at in range(n)]
    (folder / "job.xplane.pb").write_bytes(b"".join(planes))


def dump(rank, members, groups, each):
    """A dump of the Flight Recorder of a rank with `groups` groups and `each` entries of each, the last of which is open."""
    config = {str(group): {"name": str(group), "desc": "dp", "ranks": str(members)} for group in range(groups)}
    entries = []
    for seq in range(each):
        for group in range(groups):
            at = len(entries)
            entries.append({"record_id": at, "pg_id": group, "process_group": [str(group), "dp"], "collective_seq_id": seq,
                "p2p_seq_id": 0, "op_id": at, "profiling_name": "nccl:all_reduce", "time_created_ns": 10**18 + at * 1000,
                "input_sizes": [[1024]], "output_sizes": [[1024]], "input_dtypes": ["Float"], "output_dtypes": ["Float"],
                "state": "scheduled" if seq + 1 == each else "completed", "retired": seq + 1 < each, "is_p2p": False,
                "time_discovered_started_ns": None, "timeout_ms": 600000, "frames": []})  # fmt: skip
    return json.dumps({"version": "2.4", "rank": rank, "pg_config": {str(rank): config}, "entries": entries})


def write_dumps(folder, world, groups, each):
    for rank in range(world):
        missing = rank == world - 1
        text = dump(rank, list(range(world)), groups, each - missing)
        (folder / f"nccl_trace_rank_{rank}.json").write_text(text)


def flight_groups(folder, n):
    write_dumps(folder, 2, n, 2)


def flight_ranks(folder, n):
    write_dumps(folder, n, 1, 2)


def flight_entries(folder, n):
    write_dumps(folder, 2, 1, n)


ANALYZE = "analyze {input} --out {out}"
MAP = "map {input} -o {out}"
WHAT_IF = "what-if {input}"
HANG = "hang {input}"
DIFF = "diff {input}/a {input}/b"
# The dimension's generator, its smallest size and the commands whose work is measured.
DIMENSIONS = {
    "devices": (devices, 2500, [ANALYZE]),
    "steps": (steps, 1000, [ANALYZE, MAP, WHAT_IF]),
    "steps of two runs": (two_runs_of_steps, 500, [DIFF]),
    "communicators": (communicators, 1000, [ANALYZE, WHAT_IF]),
    "collectives without numbers": (without_numbers, 4000, [ANALYZE]),
    "ranks": (ranks, 40, [ANALYZE]),
    "ranks that claim one group": (false_members, 320, [ANALYZE]),
    "names": (names, 2000, [ANALYZE]),
    "members of a zip": (zip_members, 200, [ANALYZE]),
    "processes of nsys": (nsys_processes, 240, [ANALYZE]),
    "processes of rocprofv3": (rocprof_processes, 240, [ANALYZE]),
    "planes of XPlane": (xplane_planes, 800, [ANALYZE]),
    "groups of the Flight Recorder": (flight_groups, 4000, [HANG]),
    "ranks of the Flight Recorder": (flight_ranks, 400, [HANG]),
    "entries of the Flight Recorder": (flight_entries, 2000, [HANG]),
}
