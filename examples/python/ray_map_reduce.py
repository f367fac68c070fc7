#!/usr/bin/env python3
"""Analyses a run or traces with Ray: each task maps a share of the ranks, and the parts are reduced here.

    ray_map_reduce.py RUN|TRACES PARTS [--address ADDRESS] [--shares 64]

All nodes need the input and PARTS, a new directory, on a common file system. Without an address, this machine works alone.
"""

import argparse

import rankscope
import ray


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input")
    parser.add_argument("parts")
    parser.add_argument("--address")
    parser.add_argument("--shares", type=int, default=64)
    options = parser.parse_args()
    ray.init(address=options.address, include_dashboard=False)
    task = ray.remote(rankscope.map_rank)
    shares = [f"{share}/{options.shares}" for share in range(options.shares)]
    ray.get([task.remote(options.input, options.parts, share) for share in shares])
    print(rankscope.reduce(options.parts).verdict)


if __name__ == "__main__":
    main()
