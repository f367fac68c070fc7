#!/usr/bin/env python3
"""PyTorch's results for the comparisons of tests/gpu/run, on the same machine.

    torch_reference.py gemm SIDE                    speed of square products: f32, tf32, bf16
    torch_reference.py trace TRACE.json --layers …  the steps of rank-agent in PyTorch, traced by torch.profiler
"""

import argparse
import sys
import time

import torch


def gemm(side, repeat=20):
    for name, dtype, tf32 in (("f32", torch.float32, False), ("tf32", torch.float32, True), ("bf16", torch.bfloat16, False)):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        a = torch.randn(side, side, device="cuda").to(dtype)
        b = torch.randn(side, side, device="cuda").to(dtype)
        c = torch.empty(side, side, device="cuda", dtype=dtype)
        for _ in range(5):
            torch.matmul(a, b.t(), out=c)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(repeat):
            torch.matmul(a, b.t(), out=c)
        end.record()
        end.synchronize()
        seconds = begin.elapsed_time(end) / 1e3
        print(f"gemm {name} {side}: {2 * side**3 * repeat / seconds / 1e12:.1f} TFLOP/s")


def model(layers, hidden, classes=10):
    parts = []
    for index in range(layers):
        last = index + 1 == layers
        parts.append(torch.nn.Linear(hidden, classes if last else hidden))
        if not last:
            parts.append(torch.nn.ReLU())
    return torch.nn.Sequential(*parts).cuda().to(torch.bfloat16)


def trace(path, words):
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.02)
    options, _ = parser.parse_known_args(words)
    net = model(options.layers, options.hidden)
    optimizer = torch.optim.SGD(net.parameters(), lr=options.lr, momentum=0.9)
    inputs = torch.randn(options.batch, options.hidden, device="cuda", dtype=torch.bfloat16)
    labels = torch.randint(0, 10, (options.batch,), device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(net(inputs).float(), labels).backward()
        optimizer.step()

    def timed(n):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(n):
            step()
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) / n

    timed(10)
    plain = timed(20)
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    schedule = torch.profiler.schedule(wait=5, warmup=5, active=20, repeat=1)
    with torch.profiler.profile(activities=activities, schedule=schedule) as profiler:
        for index in range(30):
            if index == 10:
                begin = time.perf_counter()
            step()
            # The trace begins after step 9: no kernel of an earlier step may run in it.
            if index in (9, 29):
                torch.cuda.synchronize()
            if index == 29:
                traced = (time.perf_counter() - begin) / 20
            profiler.step()
    profiler.export_chrome_trace(path)
    print(f"overhead torch.profiler {100 * (traced / plain - 1):+.2f} % of a step ({1e3 * plain:.2f} ms without, "
          f"{1e3 * traced:.2f} ms with)")


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in ("gemm", "trace"):
        sys.exit(__doc__)
    if sys.argv[1] == "gemm":
        gemm(int(sys.argv[2]))
    else:
        trace(sys.argv[2], sys.argv[3:])
