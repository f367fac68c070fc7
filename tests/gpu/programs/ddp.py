#!/usr/bin/env python3
"""An ordinary DistributedDataParallel training, which tests/gpu/run records unmodified.

    torchrun --nproc-per-node 2 ddp.py --out DIR [--layers 6 --hidden 2048 --batch 512 --steps 20] [--profile]

Ranks may share a GPU. NCCL refuses that, so each rank reports its own host id, or NCCL 2.30.3 and later allow it by a
variable. Rank 0 writes its own facts to DIR/ddp.json: ms a step, of which CPU time of all threads, buckets, bytes, NCCL's
version. With --profile every rank also runs under torch.profiler, which competes for CUPTI's subscription.
"""

import argparse
import ctypes
import json
import os
import pathlib
import time


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--profile", action="store_true")
    return parser.parse_args()


def nccl_version(library="libnccl.so.2"):
    """The release of a library, by default of the one in use. `torch.cuda.nccl.version()` is that of PyTorch's build."""
    number = ctypes.c_int()
    ctypes.CDLL(library).ncclGetVersion(ctypes.byref(number))
    return number.value // 10000, number.value // 100 % 100, number.value % 100


def share_devices(local_rank, devices, local_size, nccl):
    """Lets ranks share devices where there are fewer devices than ranks. Call it before NCCL is initialized."""
    if devices < local_size and nccl >= (2, 30, 3):
        os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")
        os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    elif devices < local_size:
        os.environ.setdefault("NCCL_HOSTID", f"{os.uname().nodename}-{local_rank}")
        os.environ.setdefault("NCCL_NET", "Socket")
    return local_rank % devices


def main():
    options = parse()
    import torch
    import torch.distributed as dist

    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
    device = share_devices(local_rank, torch.cuda.device_count(), local_size, nccl_version())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    layers = [torch.nn.Linear(options.hidden, options.hidden) for _ in range(options.layers)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers).cuda(), device_ids=[device])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    inputs = torch.randn(options.batch, options.hidden, device="cuda")

    done = 0

    def steps(n, profiler=None):
        nonlocal done
        torch.cuda.synchronize()
        begin, cpu_begin = time.perf_counter(), time.process_time()
        for _ in range(n):
            done += 1
            # Ranges with this prefix mark the steps of a recorded program.
            with torch.cuda.nvtx.range(f"ProfilerStep#{done}"):
                optimizer.zero_grad(set_to_none=True)
                model(inputs).square().mean().backward()
                optimizer.step()
            if profiler:
                profiler.step()
        torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - begin) / n, 1e3 * (time.process_time() - cpu_begin) / n

    steps(options.warmup)
    if options.profile:
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profiler:
            ms, cpu_ms = steps(options.steps, profiler)
        profiler.export_chrome_trace(str(options.out / f"kineto_rank{rank}.json"))
    else:
        ms, cpu_ms = steps(options.steps)
    if rank == 0:
        logged = model._get_ddp_logging_data()
        buckets = str(logged.get("rebuilt_bucket_sizes") or logged.get("bucket_sizes") or "")
        sizes = [int(size) for size in buckets.replace(",", " ").split()]
        version = ".".join(map(str, nccl_version()))
        document = {"ms_per_step": ms, "cpu_ms_per_step": cpu_ms, "bucket_bytes": sizes, "nccl": version,
                    "steps": options.warmup + options.steps, "profiled_steps": options.steps,
                    "world_size": dist.get_world_size()}
        (options.out / "ddp.json").write_text(json.dumps(document), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
