"""Makes the traces and tables in this directory: traces of torch.profiler, and its own tables of them.

    python -m venv venv && venv/bin/pip install torch
    venv/bin/python make.py DIRECTORY

It writes three traces of CPU programs: `stack` with Python stacks, `plain` without, and `gloo` of one of two ranks. Beside each
trace it writes the rows of `key_averages()` as CSV, in µs and bytes, grouped by name, by input shape, and (`stack`) by stack.
Times differ between runs, so a trace and its tables must come from one run.
"""

import csv
import gzip
import os
import shutil
import sys
import tempfile

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

STACK_ENTRIES = 3
COLUMNS = [
    "count",
    "cpu_time_total",
    "self_cpu_time_total",
    "device_time_total",
    "self_device_time_total",
    "cpu_memory_usage",
    "self_cpu_memory_usage",
    "device_memory_usage",
    "self_device_memory_usage",
    "flops",
]


class Small(nn.Module):
    """Convolution, embedding, batched and plain products: every operator for which torch counts FLOPs."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2)
        self.embedding = nn.Embedding(32, 12)
        self.linear = nn.Linear(12, 5)

    def forward(self, images, words):
        with record_function("features"):
            pooled = self.convolution(images).mean((2, 3))
            embedded = self.embedding(words)
        both = torch.cat([pooled, pooled], 1)
        weighed = torch.baddbmm(embedded, torch.bmm(embedded, embedded.transpose(1, 2)), embedded)
        return self.linear(torch.mul(weighed.sum(1), both) + both @ torch.eye(12))


def train(model, optimizer, images, words):
    loss = model(images, words).square().sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def write(averages, path):
    with open(path, "w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(["name", "user_annotation", "input_shapes", "stack", *COLUMNS])
        for row in averages:
            stack = ";".join(row.stack or [])
            values = [repr(getattr(row, column)) for column in COLUMNS]
            out.writerow([row.key, int(bool(row.is_user_annotation)), row.input_shapes or "", stack, *values])


def save(prof, directory, name, stack):
    path = os.path.join(directory, f"{name}.json")
    prof.export_chrome_trace(path)
    with open(path, "rb") as plain, gzip.GzipFile(f"{path}.gz", "wb", 9, mtime=0) as packed:
        shutil.copyfileobj(plain, packed)
    os.remove(path)
    write(prof.key_averages(), os.path.join(directory, f"{name}_by_name.csv"))
    shapes = prof.key_averages(group_by_input_shape=True)
    write(shapes, os.path.join(directory, f"{name}_by_input_shape.csv"))
    if stack:
        stacks = prof.key_averages(group_by_stack_n=STACK_ENTRIES)
        write(stacks, os.path.join(directory, f"{name}_by_stack.csv"))
    with open(os.path.join(directory, f"{name}_table.txt"), "w") as file:
        printed = prof.key_averages().table(sort_by="self_cpu_time_total", row_limit=8)
        # Torch pads every line with blanks.
        file.write("".join(f"{line.rstrip()}\n" for line in printed.splitlines()))


def local(directory, name, stack):
    torch.manual_seed(0)
    model = Small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images, words = torch.randn(3, 4, 8, 8), torch.randint(32, (3, 7))
    options = dict(record_shapes=True, profile_memory=True, with_flops=True, with_stack=stack)
    # Without `verbose`, torch keeps no stack of an operator.
    options["experimental_config"] = torch._C._profiler._ExperimentalConfig(verbose=stack)
    plan = schedule(wait=0, warmup=1, active=2, repeat=1)
    options["on_trace_ready"] = lambda prof: save(prof, directory, name, stack)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan, **options) as prof:
        for _ in range(3):
            train(model, optimizer, images, words)
            prof.step()


def of_rank(rank, directory, rendezvous):
    torch.distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randn(16, 64)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True) as prof:
        for _ in range(2):
            model(inputs).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            torch.distributed.barrier()
    if rank == 0:
        save(prof, directory, "gloo", False)
    torch.distributed.destroy_process_group()


def main():
    # A trace holds the path that it was written to; a bare name says nothing of this machine.
    os.chdir(sys.argv[1])
    directory = ""
    local(directory, "stack", True)
    local(directory, "plain", False)
    with tempfile.TemporaryDirectory() as temporary:
        rendezvous = os.path.join(temporary, "rendezvous")
        torch.multiprocessing.spawn(of_rank, (directory, rendezvous), nprocs=2)


if __name__ == "__main__":
    main()
