#!/usr/bin/env python3
"""Plays the programs of this folder on the stand-ins for CUPTI and NCCL, for dry runs of tests/gpu/run.

    standin.py torchrun COMMAND …    two processes, with the variables that torchrun sets
    standin.py PROGRAM.py …          the program: its kernels and collectives come from $RANKSCOPE_STANDIN/cupti-driver

Exit code 77: the stand-ins cannot play it.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

STEPS = 40


def torchrun(command):
    world = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
    ranks = [subprocess.Popen(command, env=os.environ | world | {"RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(2)]
    return max(rank.wait() for rank in ranks)


def recorded():
    """Whether `rank-agent exec` started this program: it names the libraries that CUDA and NCCL load."""
    return "CUDA_INJECTION64_PATH" in os.environ


def play(program, *arguments):
    if recorded():
        folder = pathlib.Path(os.environ["RANKSCOPE_STANDIN"])
        cupti = {"RANKSCOPE_CUPTI": str(folder / "libstand_in_cupti.so"), "STAND_IN_CUPTI": "version=130001"}
        subprocess.run([folder / program, *arguments], env=os.environ | cupti, check=True)


def ddp(words):
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--profile", action="store_true")
    options, _ = parser.parse_known_args(words)
    play("cupti-driver", "steps", str(STEPS))
    rank = int(os.environ["RANK"])
    if options.profile:
        events = [{"cat": "kernel", "name": "kernel"}] * (2 * STEPS)
        (options.out / f"kineto_rank{rank}.json").write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    if rank == 0:
        document = {"ms_per_step": 1.0, "cpu_ms_per_step": 1.0, "bucket_bytes": [4000], "steps": STEPS, "profiled_steps": STEPS,
                    "nccl": "stand-in", "world_size": 2}
        (options.out / "ddp.json").write_text(json.dumps(document), encoding="utf-8")


def nccl_cases(words):
    case, out = words
    if case == "bandwidth":
        return 77
    if case == "hang":
        play("nccl-replay", os.environ["CUDA_INJECTION64_PATH"], "hang", "5", "1")
        time.sleep(3600)
    play("cupti-driver", "steps", str(STEPS))
    pathlib.Path(out).write_text(json.dumps({"case": case, "run_s": 0.0, "destroy_s": 0.0, "busbw_gbs": None}), encoding="utf-8")
    return 0


def launches(words):
    play("cupti-driver", "injected")
    print(f"us a launch: {1.0 if words[0] == 'cost' else 0.0}")


PROGRAMS = {"torchrun": torchrun, "ddp.py": ddp, "nccl_cases.py": nccl_cases, "launches.py": launches}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in PROGRAMS:
        sys.exit(77)
    sys.exit(PROGRAMS[sys.argv[1]](sys.argv[2:]) or 0)
