#!/usr/bin/env python3
"""Collectives whose events NCCL reports in ways of their own; started by torchrun with two ranks.

    nccl_cases.py group|alltoall|broadcasts|graph|bandwidth|hang RESULT.json

group      four all-reduces at once: one launch
alltoall   all-to-all, which has a send to oneself, and all-reduces between
broadcasts broadcasts of one root and of several roots in a group, which NCCL 2.29 and later combines, and all-reduces between
graph      a CUDA graph of three all-reduces, with an all-reduce without a graph between its launches
bandwidth  all-reduces of three sizes, with their bus bandwidth by CUDA's events and the formula of nccl-tests
hang       rank 1 does not call the all-reduce of step 20
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist

from ddp import nccl_version, share_devices

ARRAYS = (12, 16, 18, 20)


def group(arrays):
    for _ in range(50):
        with dist._coalescing_manager(async_ops=False, device=arrays[0].device):
            for array in arrays:
                dist.all_reduce(array)
        torch.cuda.synchronize()


def alltoall(arrays):
    source, target = torch.ones(1 << 18, device="cuda"), torch.empty(1 << 18, device="cuda")
    for index in range(50):
        dist.all_to_all_single(target, source)
        dist.all_reduce(arrays[index % len(arrays)])
        torch.cuda.synchronize()


def broadcasts(arrays):
    for roots in 10 * [[0], [1], [0, 1], [1, 1]]:
        with dist._coalescing_manager(async_ops=False, device=arrays[0].device):
            for root, array in zip(roots, arrays, strict=False):
                dist.broadcast(array, root)
        for array in arrays:
            dist.all_reduce(array)
        torch.cuda.synchronize()


def graph(arrays):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for array in arrays:
            dist.all_reduce(array)
        torch.cuda.synchronize()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured, stream=stream):
            for array in arrays[:3]:
                dist.all_reduce(array)
        for _ in range(10):
            for _ in range(7):
                captured.replay()
            dist.all_reduce(arrays[3])
            torch.cuda.synchronize()
    del captured
    torch.cuda.synchronize()


def bandwidth(_):
    """Bus bandwidth in GB/s by bytes: an array's bytes a second, times 2 (n - 1) / n."""
    ranks, found = dist.get_world_size(), {}
    for bits in (22, 24, 26):
        array = torch.ones(1 << bits, device="cuda")
        times = []
        for _ in range(12):
            dist.barrier()
            torch.cuda.synchronize()
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            dist.all_reduce(array)
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) / 1e3)
        size = array.numel() * array.element_size()
        found[size] = size / sorted(times[2:])[5] / 1e9 * 2 * (ranks - 1) / ranks
    return found


def hang(arrays):
    for index in range(40):
        if index == 20 and dist.get_rank() == 1:
            time.sleep(3600)
        dist.all_reduce(arrays[1])
        torch.cuda.synchronize()


CASES = {case.__name__: case for case in (group, alltoall, broadcasts, graph, bandwidth, hang)}


def main():
    case, out = sys.argv[1], sys.argv[2]
    local_rank, local_size = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    torch.cuda.set_device(share_devices(local_rank, torch.cuda.device_count(), local_size, nccl_version()))
    dist.init_process_group("nccl")
    arrays = [torch.ones(1 << bits, device="cuda") for bits in ARRAYS]
    dist.all_reduce(arrays[0])
    torch.cuda.synchronize()
    begin = time.perf_counter()
    # A range with this prefix marks a step of a recorded program.
    with torch.cuda.nvtx.range("ProfilerStep#1"):
        found = CASES[case](arrays)
    run_s, begin = time.perf_counter() - begin, time.perf_counter()
    rank = dist.get_rank()
    dist.destroy_process_group()
    if rank == 0:
        document = {"case": case, "run_s": run_s, "destroy_s": time.perf_counter() - begin, "busbw_gbs": found}
        with open(out, "w", encoding="utf-8") as file:
            json.dump(document, file)


if __name__ == "__main__":
    main()
