#!/usr/bin/env python3
"""Makes the snapshots of the tests, in the format of torch.cuda.memory._dump_snapshot (torch/cuda/memory.py: _snapshot), and the
numbers that the tests expect: those of the simulated allocator, checked against torch.cuda._memory_viz, which reads snapshots
in pure Python. Needs torch; no GPU.

    make.py DIR
"""

import json
import pathlib
import pickle
import sys

from torch.cuda import _memory_viz

MIB = 1 << 20


def frames(function, line):
    """Innermost first, as torch writes them."""
    return [{"name": "at::detail::empty_generic", "filename": "EmptyTensor.cpp", "line": 10},
            {"name": "linear", "filename": "/usr/lib/python3/site-packages/torch/nn/functional.py", "line": 2300},
            {"name": function, "filename": "/jobs/user/train.py", "line": line},
            {"name": "<module>", "filename": "/jobs/user/train.py", "line": 90}]


class Allocator:
    """One segment, first fit; blocks are multiples of 512 bytes, as in torch's caching allocator."""

    def __init__(self, device, total):
        self.device, self.total, self.base = device, total, (device + 1) << 40
        self.blocks, self.trace, self.time_us = {}, [], 1_700_000_000_000_000
        self.recording, self.peak, self.reserved = False, (0, 0), total

    def log(self, action, addr, size, stack):
        self.time_us += 10
        if self.recording:
            self.trace.append({"action": action, "addr": addr, "size": size, "stream": 0, "time_us": self.time_us, "frames": stack,
                               "compile_context": "N/A", "user_metadata": ""})
            self.peak = max(self.peak, (sum(size for size, *_ in self.blocks.values()), self.reserved), key=lambda peak: peak[0])

    def alloc(self, requested, stack):
        size = max(512, -(-requested // 512) * 512)
        addr = self.base
        for taken in sorted(self.blocks):
            if taken - addr >= size:
                break
            addr = taken + self.blocks[taken][0]
        self.blocks[addr] = (size, requested, stack if self.recording else [])
        self.log("alloc", addr, requested, stack)
        return addr

    def free(self, addr, stack):
        _, requested, _ = self.blocks.pop(addr)
        self.log("free_requested", addr, requested, stack)
        self.log("free_completed", addr, requested, stack)

    def segment(self):
        blocks, at = [], self.base
        for addr in sorted(self.blocks):
            if addr > at:
                blocks.append({"address": at, "size": addr - at, "requested_size": 0, "state": "inactive", "frames": []})
            size, requested, stack = self.blocks[addr]
            blocks.append({"address": addr, "size": size, "requested_size": requested, "state": "active_allocated", "frames": stack})
            at = addr + size
        end = self.base + self.total
        if at < end:
            blocks.append({"address": at, "size": end - at, "requested_size": 0, "state": "inactive", "frames": []})
        used = sum(size for size, *_ in self.blocks.values())
        return {"device": self.device, "address": self.base, "total_size": self.total, "allocated_size": used, "active_size": used,
                "requested_size": sum(requested for _, requested, _ in self.blocks.values()), "stream": 0, "segment_type": "large",
                "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": blocks}


def job(device, scale):
    allocator = Allocator(device, 64 * MIB)
    weights = [allocator.alloc(scale * MIB + 100, []) for _ in range(3)]
    allocator.recording = True
    forward, backward, keep = frames("forward", 31), frames("backward", 52), frames("keep", 7)
    for number in range(6):
        acts = [allocator.alloc(2 * MIB + 1000 * layer, forward) for layer in range(3)]
        grad = allocator.alloc(scale * MIB, backward)
        for addr in reversed(acts):
            allocator.free(addr, backward)
        allocator.alloc(100_000, keep)
        allocator.free(grad, backward)
        if number == 2:
            # Released, though its allocation is not in the history.
            allocator.free(weights.pop(), backward)
    return allocator


def snapshot(allocators, with_history=True):
    return {"segments": [allocator.segment() for allocator in allocators],
            "device_traces": [allocator.trace if with_history else [] for allocator in allocators],
            "allocator_settings": {"expandable_segments": False, "max_split_size": -1, "roundup_power2_divisions": {"1": 0}},
            "external_annotations": []}


def main():
    place = pathlib.Path(sys.argv[1])
    place.mkdir(parents=True, exist_ok=True)
    expected = {}
    for name, devices, protocol, history in [("rank0.pickle", 1, 4, True), ("rank3.pickle", 2, 2, True), ("without_history.pickle", 1, 4, False)]:
        allocators = [job(device, 1 + device) for device in range(devices)]
        data = snapshot(allocators, history)
        (place / name).write_bytes(pickle.dumps(data, protocol))
        summary = _memory_viz.segsum(data)
        requested = sum(segment["requested_size"] for segment in data["segments"])
        assert f"total_allocated: {_memory_viz.Bytes(requested)}\n" in summary, summary
        assert all(_memory_viz.calc_active(segment) == segment["allocated_size"] for segment in data["segments"])
        expected[name] = []
        for allocator, segment in zip(allocators, data["segments"]):
            peak = allocator.peak if history else (segment["allocated_size"], allocator.total)
            expected[name].append({"device_id": allocator.device, "peak_bytes": peak[0], "reserved_bytes": peak[1]})
    (place / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
