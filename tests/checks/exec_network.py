#!/usr/bin/env python3
"""Clocks over a network: four ranks of `rank-agent exec` in network namespaces, with delays between them.

    tests/checks/exec_network.py AGGREGATOR RANK_AGENT [--seconds 2]

All ranks read the same clock, so the true offset and drift are 0 and any other result of the fit is its error. For each case
and rank, prints the error of the fit and the two limits that the fit reports: `error_ns` (95 %) and `bound_ns` (guaranteed).
An asymmetric path shifts a ping by half the asymmetry, which no ping can detect; the bound must include it.

TUN devices and a router in this process connect the namespaces. The router delays every packet, so no kernel module is
needed. Needs root, `ip` and /dev/net/tun; exits with 77 where these are missing.

Invariant (clocks): The error of a clock covers unequal routes over a real network stack.
"""

import argparse
import fcntl
import heapq
import json
import os
import pathlib
import random
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time

# The shared module is one folder up.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support import CANNOT_RUN  # noqa: E402

RANKS = 4
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
# Delay from a rank to the others and back to it, and jitter, in ms.
CASES = {
    "no delay": [(0, 0, 0)] * RANKS,
    "0.5 to 3 ms, jitter 0.3": [(0, 0, 0), (0.5, 0.5, 0.3), (1.5, 1.5, 0.3), (3, 3, 0.3)],
    "asymmetric, 1 and 5 ms": [(0, 0, 0), (0, 0, 0), (1, 5, 0.1), (5, 1, 0.1)],
}


def ip(*words, inside=None):
    prefix = ["ip", "netns", "exec", inside] if inside else []
    done = subprocess.run([*prefix, "ip", *words], capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


class Network:
    """One namespace for each rank, with a TUN device whose packets this process forwards."""

    def __init__(self):
        self.names = [f"rankscope-{os.getpid()}-{rank}" for rank in range(RANKS)]
        self.files = []
        self.delays = [(0, 0, 0)] * RANKS
        self.open = True
        try:
            for rank, name in enumerate(self.names):
                self.add(rank, name)
        except OSError:
            self.close()
            raise
        self.thread = threading.Thread(target=self.route, daemon=True)
        self.thread.start()

    def add(self, rank, name):
        ip("netns", "add", name)
        device = f"rs{os.getpid() % 100000}x{rank}"
        file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        self.files.append(file)
        fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH", device.encode(), IFF_TUN | IFF_NO_PI))
        ip("link", "set", device, "netns", name)
        ip("link", "set", "lo", "up", inside=name)
        ip("addr", "add", f"10.77.0.{rank + 1}/24", "dev", device, inside=name)
        ip("link", "set", device, "up", inside=name)

    def route(self):
        waiting, number = [], 0
        last = {}
        while self.open:
            now = time.monotonic()
            while waiting and waiting[0][0] <= now:
                _, _, to, packet = heapq.heappop(waiting)
                try:
                    os.write(self.files[to], packet)
                except OSError:
                    pass  # TCP sends a lost packet again.
            pause = min(0.05, max(0.0, waiting[0][0] - time.monotonic())) if waiting else 0.05
            # The kernel's timers are coarse compared with a ping, so short waits are busy loops.
            ready, _, _ = select.select(self.files, [], [], 0 if pause < 0.0002 else pause)
            for file in ready:
                source = self.files.index(file)
                try:
                    packet = os.read(file, 65536)
                except OSError:
                    continue
                to = packet[19] - 1 if packet[0] >> 4 == 4 else -1
                if not 0 <= to < RANKS:
                    continue
                out, _, jitter = self.delays[source]
                _, back, other_jitter = self.delays[to]
                delay = out + back + random.random() * (jitter + other_jitter)
                # Keep the order of packets, as a link does.
                due = max(time.monotonic() + delay / 1000, last.get((source, to), 0))
                last[(source, to)] = due
                number += 1
                heapq.heappush(waiting, (due, number, to, packet))

    def close(self):
        self.open = False
        if hasattr(self, "thread"):
            self.thread.join()
        for file in self.files:
            os.close(file)
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def run(network, agent, out, seconds):
    ranks = []
    for rank, name in enumerate(network.names):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(RANKS), "RANKSCOPE_TOKEN": "a test"}
        command = ["ip", "netns", "exec", name, agent, "exec", "--out", out, "--quiet", "--ping-every", "1",
                   "--rendezvous", "10.77.0.1:4700", "--", sys.executable, "-c", f"import time; time.sleep({seconds})"]
        ranks.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    errors = [rank.communicate(timeout=120)[1] for rank in ranks]
    for rank, process in enumerate(ranks):
        if process.returncode != 0:
            sys.exit(f"rank {rank} ended with {process.returncode}: {errors[rank]}")


def check(name, aggregator, out):
    done = subprocess.run([aggregator, "analyze", out, "--clock", "ping", "--json"], capture_output=True, text=True)
    if done.returncode not in (0, 3):
        sys.exit(f"analyze ended with {done.returncode}: {done.stderr}")
    fits = {fit["rank"]: fit for fit in json.loads(done.stdout)["tables"]["clock_fit"] if fit["clock"] == "host"}
    failed = 0
    for rank in range(1, RANKS):
        fit = fits[rank]
        off, error, bound = fit["offset_ns"], fit["error_ns"], fit["bound_ns"]
        inside = bound is not None and abs(off) <= bound
        failed += not inside
        drift = fit["drift_ppb"]
        print(f"{name:26} rank {rank}: wrong by {off / 1e3:9.1f} us, error {error / 1e3:9.1f}, bound {bound / 1e3:9.1f} us, "
              f"drift {drift if drift is not None else '-'} ppb of 0, {fit['method']}, "
              f"{'inside its bound' if inside else 'OUTSIDE its bound'}")
        failed += fit["method"] != "ping"
    return failed


def network_here():
    """The namespaces and the router between them; None, with the reason printed, where there can be none."""
    if os.geteuid() != 0 or not shutil.which("ip") or not os.path.exists("/dev/net/tun"):
        print("skipped: network namespaces need root, ip (iproute2) and /dev/net/tun")
        return None
    try:
        return Network()
    except OSError as error:
        print(f"skipped: no network namespaces here: {error}")
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("aggregator")
    parser.add_argument("agent")
    parser.add_argument("--seconds", type=float, default=2.5)
    options = parser.parse_args()
    network = network_here()
    if network is None:
        return CANNOT_RUN
    failed = 0
    try:
        for name, delays in CASES.items():
            network.delays = delays
            with tempfile.TemporaryDirectory() as place:
                run(network, os.path.abspath(options.agent), f"{place}/run", options.seconds)
                failed += check(name, options.aggregator, f"{place}/run")
    finally:
        network.close()
    print(f"{RANKS - 1} clocks in {len(CASES)} networks: {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
