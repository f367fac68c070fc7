#!/usr/bin/env python3
"""A program that launches small kernels.

    launches.py exit N     N products, and an exit without a synchronisation
    launches.py cost N     prints the time of a launch: of N, the second time
"""

import sys
import time

import torch


def main():
    case, count = sys.argv[1], int(sys.argv[2])
    if case == "exit":
        values = torch.ones(1 << 22, device="cuda")
        for _ in range(count):
            values.mul_(1.0)
        return
    values = torch.ones(8, device="cuda")
    for _ in range(2):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            values.add_(1)
        torch.cuda.synchronize()
        taken = time.perf_counter() - begin
    print(f"us a launch: {1e6 * taken / count:.3f}")


if __name__ == "__main__":
    main()
