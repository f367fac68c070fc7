#!/usr/bin/env python3
"""Strangers beside a job of `rankscope exec`: other users of its host, and other hosts of its network.

    tests/checks/exec_strangers.py RANKSCOPE LIBRARY [--times 1] [ATTACK]...

Two ranks of one user are recorded while a process of another user attacks: it plays rank 0 or rank 1, takes the names of their sockets
or of their directory, floods them, connects and says nothing, or sends again what it has heard. In each case both programs must run
and end well, the rows of both ranks lie in the directory that their user chose, nothing lies anywhere else, and no secret stays.
Where the ranks must also meet, no clock may be left out.

The ranks of two hosts are in two network namespaces. Needs root, `ip` and /dev/net/tun; exits with 77 where these are missing.

Invariant (recorder): A stranger neither joins a job nor harms it.
"""

import argparse
import ctypes
import encodings.idna  # noqa: F401  The stranger may not read the files of Python, and names of hosts need it.
import hashlib
import hmac
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

# The shared module is one folder up, and the network is that of another check.
sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1]), str(pathlib.Path(__file__).resolve().parent)]
import exec_network  # noqa: E402
from support import CANNOT_RUN  # noqa: E402

USER, STRANGER = 61001, 61002
MAGIC = b"rankscope exec 2"
PORT = 29517
LISTENS_AT = PORT + 1117


class As:
    """Runs a part of this process's work as another user, in a child."""

    def __init__(self, user, work, namespace=None):
        self.child = os.fork()
        if self.child == 0:
            try:
                # Python has setns since 3.12.
                if namespace and ctypes.CDLL(None).setns(os.open(f"/run/netns/{namespace}", os.O_RDONLY), 0) != 0:
                    raise OSError(f"no namespace {namespace}")
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)
                work()
            except BaseException as error:
                print(f"    the stranger: {error!r}", flush=True)
            finally:
                os._exit(0)

    def end(self):
        """Whether it was still at work."""
        is_at_work = os.waitpid(self.child, os.WNOHANG)[0] == 0
        if is_at_work:
            os.kill(self.child, 9)
            os.waitpid(self.child, 0)
        return is_at_work


class Job:
    """Two ranks of the user."""

    def __init__(self, options, home, hosts=None, extra=()):
        self.options, self.home, self.hosts, self.extra = options, home, hosts, extra
        self.run = home / "run"

    def start(self, rank, wait=20):
        where = {"MASTER_ADDR": "10.77.0.1"} if self.hosts else {"MASTER_ADDR": "127.0.0.1", "LOCAL_WORLD_SIZE": "2"}
        environment = {
            "PATH": os.environ["PATH"], "HOME": str(self.home), "RANKSCOPE_INJECT_LIB": self.options.library,
            "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "MASTER_PORT": str(PORT), **where,
        }
        inside = ["ip", "netns", "exec", self.hosts[rank]] if self.hosts else []
        command = [*inside, "setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", self.options.rankscope,
                   "exec", "--out", str(self.run), "--join-timeout", str(wait), *self.extra, "--", "echo", "ran"]
        return subprocess.Popen(command, env=environment, cwd=self.home, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def fault(self, ranks, must_meet, loot):
        """What is wrong after the ranks have ended; None: nothing."""
        ended = []
        for rank in ranks:
            try:
                ended.append(rank.communicate(timeout=100))
            except subprocess.TimeoutExpired:
                rank.kill()
                return f"a rank hangs: {rank.communicate()}"
        for rank, (process, (out, err)) in enumerate(zip(ranks, ended)):
            if process.returncode != 0 or out != "ran\n":
                return f"rank {rank} ended with {process.returncode}: {out} {err}"
            if must_meet and "not compared" in err:
                return f"rank {rank} has not met the other one: {err}"
        files = {str(path.relative_to(self.home)) for path in self.home.rglob("*") if path.is_file()}
        for rank in range(2):
            if not any(f"ranks/rank-0000{rank}-" in file for file in files):
                return f"rank {rank} is not in the run: {sorted(files)}"
        others = [file for file in files if not file.startswith("run/") or "secret" in file]
        stolen = [str(path) for path in loot.rglob("*")]
        return f"files elsewhere: {others + stolen}" if others or stolen else None


def names_of(job):
    """The names of the sockets at which rank 0 may listen, as every user of the host can read them."""
    probe = Job(job.options, job.home / "probe")
    probe.home.mkdir()
    os.chown(probe.home, USER, USER)
    rank = probe.start(0, wait=2)
    until = time.monotonic() + 10
    while time.monotonic() < until:
        lines = pathlib.Path("/proc/net/unix").read_text().splitlines()
        found = [line.split()[-1] for line in lines if f"@rankscope-{USER}-" in line]
        if found:
            stem = found[0][1:].rsplit("-", 1)[0]
            rank.communicate()
            shutil.rmtree(probe.home)
            return [f"\0{stem}-{number}" for number in range(16)]
        time.sleep(0.002)
    sys.exit("rank 0 listens at no socket")


def take(names, listens, accepts=False):
    def work():
        taken = []
        for name in names:
            taken.append(socket.socket(socket.AF_UNIX))
            taken[-1].bind(name)
            if listens:
                taken[-1].listen(1)
        while accepts:
            for one in taken:
                one.settimeout(0.01)
                try:
                    one.accept()[0].sendall(b"x" * 48)
                except OSError:
                    pass
        time.sleep(100)
    return work


def flood(connect, says=b"", holds=True):
    def work():
        def one():
            kept = []
            while True:
                try:
                    kept.append(connect())
                    kept[-1].sendall(says)
                except OSError:
                    time.sleep(0.001)
                if not holds or len(kept) > 300:
                    kept.clear()
        for _ in range(3):
            threading.Thread(target=one, daemon=True).start()
        time.sleep(100)
    return work


def to_socket(names):
    def connect():
        for name in names:
            stream = socket.socket(socket.AF_UNIX)
            stream.setblocking(False)
            try:
                stream.connect(name)
                return stream
            except OSError:
                stream.close()
        raise OSError("nobody listens")
    return connect


def to_port():
    return socket.create_connection(("10.77.0.1", LISTENS_AT), timeout=0.5)


def hello(rank):
    return MAGIC + struct.pack("<III", rank, 2, 1) + os.urandom(16)


def guess(token):
    """Plays rank 1 with a token that it guesses, again and again."""
    def work():
        while True:
            try:
                with to_port() as stream:
                    stream.settimeout(2)
                    first = hello(1)
                    stream.sendall(first)
                    challenge = stream.recv(16)
                    signed = b"client" + first[28:] + challenge + first[16:28]
                    stream.sendall(hmac.new(token, signed, hashlib.sha256).digest())
                    if len(stream.recv(32)) == 32:
                        os.write(1, b"    the stranger was let in\n")
            except OSError:
                pass
            time.sleep(0.01)
    return work


def listen_first(answer):
    """Listens at rank 0's port before rank 0 does, on its host."""
    def work():
        listener = socket.create_server(("10.77.0.1", LISTENS_AT))
        while True:
            stream, _ = listener.accept()
            threading.Thread(target=answer, args=(stream,), daemon=True).start()
    return work


def mute(stream):
    time.sleep(100)
    stream.close()


def play_rank_0(stream):
    stream.recv(44)
    stream.sendall(os.urandom(16))
    stream.recv(32)
    stream.sendall(os.urandom(32) + struct.pack("<QQQ", 16, 0, 1))


def play_with_rankscope(options, loot):
    def work():
        os.umask(0)
        environment = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                       "MASTER_PORT": str(PORT), "PATH": os.environ["PATH"], "RANKSCOPE_INJECT_LIB": options.library}
        command = [options.rankscope, "exec", "--out", str(loot / "own" / "run"), "--join-timeout", "4", "--", "true"]
        subprocess.run(command, env=environment, capture_output=True)
        time.sleep(100)
    return work


def attacks(options, job, loot, network):
    """For each attack: its name, what the stranger does, where, and whether the ranks must meet all the same."""
    local, far = None, (network.names[0], network.names[2])
    names = names_of(job)
    job_name = f"env 2 MASTER_ADDR=10.77.0.1 MASTER_PORT={PORT}".encode()
    return [
        ("nobody attacks", None, local, True),
        ("another user's rankscope plays rank 0", play_with_rankscope(options, loot), local, True),
        ("the first name is taken", take(names[:1], False), local, True),
        ("a mute listener at the first names", take(names[:5], True), local, True),
        ("a talking listener at the first names", take(names[:5], True, True), local, True),
        ("all names are taken", take(names, False), local, False),
        ("mute listeners at all names", take(names, True), local, False),
        ("a flood of connections that stay", flood(to_socket(names)), local, True),
        ("a flood of connections that end", flood(to_socket(names), holds=False), local, True),
        ("the user's directory in /tmp is taken", None, "/tmp", True),
        ("two hosts, nobody attacks", None, "hosts", True),
        ("two hosts, a stranger guesses the job's name", guess(job_name), far[1], True),
        ("two hosts, a flood of connections that stay", flood(to_port), far[1], True),
        ("two hosts, a flood of half a hello", flood(to_port, hello(1)[:30]), far[1], True),
        ("two hosts, the same hello again and again", flood(to_port, hello(1)), far[1], True),
        ("two hosts, a mute listener at rank 0's port", listen_first(mute), far[0], False),
        ("two hosts, a stranger plays rank 0", listen_first(play_rank_0), far[0], False),
    ]


def case(options, place, network, number, attack):
    """Returns what went wrong in one case."""
    name, work, where, must_meet = attack
    home, loot = place / f"home{number}", place / f"loot{number}"
    for directory, user in [(home, USER), (loot, STRANGER)]:
        directory.mkdir(mode=0o700)
        os.chown(directory, user, user)
    hosts = network.names[:2] if name.startswith("two hosts") else None
    squatted = pathlib.Path(f"/tmp/rankscope-{USER}")
    if where == "/tmp":
        squatted.mkdir()
        os.chown(squatted, STRANGER, STRANGER)
    job = Job(options, home, hosts, ["--duration", "100"] if where == "/tmp" else [])
    stranger = As(STRANGER, work, where if hosts else None) if work else None
    try:
        if stranger:
            time.sleep(0.3)
        wait = 20 if must_meet else 2
        ranks = [job.start(rank, wait) for rank in (0, 1)]
        fault = job.fault(ranks, must_meet, loot)
    finally:
        is_at_work = stranger is None or stranger.end()
        for left in pathlib.Path("/tmp").glob(f"rankscope-{USER}*"):
            shutil.rmtree(left, ignore_errors=True)
    return fault or (None if is_at_work else "the stranger did not attack")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rankscope", type=os.path.abspath)
    parser.add_argument("library", type=os.path.abspath)
    parser.add_argument("attack", nargs="*")
    parser.add_argument("--times", type=int, default=1)
    options = parser.parse_args()
    network = exec_network.network_here()
    if network is None:
        return CANNOT_RUN
    failed = cases = 0
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        place.chmod(0o755)
        for program in ("rankscope", "library"):
            # The users of this check may not read the folders above the build.
            copy = place / pathlib.Path(getattr(options, program)).name
            shutil.copy(getattr(options, program), copy)
            copy.chmod(0o755)
            setattr(options, program, str(copy))
        probe = place / "probe"
        probe.mkdir()
        os.chown(probe, USER, USER)
        try:
            for attack in attacks(options, Job(options, probe), place, network):
                if options.attack and attack[0] not in options.attack:
                    continue
                began, faults = time.monotonic(), []
                for _ in range(options.times):
                    fault = case(options, place, network, cases, attack)
                    faults.extend([fault] if fault else [])
                    cases += 1
                failed += len(faults)
                seconds = (time.monotonic() - began) / options.times
                print(f"{attack[0]:48} {options.times - len(faults)} of {options.times} well, {seconds:.1f} s each", flush=True)
                for fault in faults[:1]:
                    print(f"    {fault}", flush=True)
        finally:
            network.close()
    print(f"{cases} jobs beside a stranger: {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
