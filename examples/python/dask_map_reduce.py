#!/usr/bin/env python3
"""Analyses a run or traces with Dask: each task maps a share of the ranks, and the parts are reduced here.

    dask_map_reduce.py RUN|TRACES PARTS [--scheduler HOST:PORT] [--shares 64]

All workers need the input and PARTS, a new directory, on a common file system. Without a scheduler, this machine works alone.
"""

import argparse

import rankscope
from dask.distributed import Client


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input")
    parser.add_argument("parts")
    parser.add_argument("--scheduler")
    parser.add_argument("--shares", type=int, default=64)
    options = parser.parse_args()
    with Client(options.scheduler) if options.scheduler else Client(processes=True, dashboard_address=None) as client:
        shares = [f"{share}/{options.shares}" for share in range(options.shares)]
        client.gather(client.map(lambda share: rankscope.map_rank(options.input, options.parts, share), shares))
    print(rankscope.reduce(options.parts).verdict)


if __name__ == "__main__":
    main()
