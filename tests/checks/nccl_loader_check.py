#!/usr/bin/env python3
"""Checks that NVIDIA's own NCCL loads and calls the recorder's plugin, without a GPU.

The code in libnccl that finds a plugin, negotiates a version, fills descriptors and closes the plugin needs no device. Its
functions are not exported, but the wheels on PyPI keep their symbols, so this program calls them by address, with a
communicator, a call and a plan that contain only the fields that those functions read. The recorded run is compared with the
calls. This cannot test the proxy thread or real kernels.

  nccl_loader_check.py AGENT LIBRARY --cache DIR [--all]   downloads the wheels, records each, and checks the runs
  nccl_loader_check.py --drive LIBNCCL VERSION             the recorded program
"""

import argparse
import ctypes
import os
import platform
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

# The shared module is one folder up.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from support import CANNOT_RUN  # noqa: E402

# Sizes and offsets in bytes, from the debug information of the wheels: gdb -batch -ex 'ptype /o struct ncclComm' …
# `plan` and `task` are given only for versions whose reading functions are called.
LAYOUTS = {
    "2.27.7": {
        "abi": 4,
        "comm": {"size": 1080320, "rank": 0x1044B8, "nRanks": 0x1044BC, "nNodes": 0x104570, "commHash": 0x1044B0,
                 "commName": 0x106500},
    },
    "2.28.9": {
        "abi": 5,
        "comm": {"size": 1082968, "rank": 0x1044D0, "nRanks": 0x1044D4, "nNodes": 0x104588, "commHash": 0x1044C8,
                 "commName": 0x1069B8},
        "info": {"size": 80, "coll": 0, "count": 32, "datatype": 40, "comm": 56},
        "plan": {"size": 208, "comm": 0x10, "collTaskQueue": 0x98, "groupApiEventHandle": 0xB8,
                 "groupEventHandle": 0xC8},
        "task": {"size": 240, "func": 8, "count": 32, "datatype": 44, "nWarps": 97, "algorithm": 98, "protocol": 99,
                 "eActivationMask": 200, "groupApiEventHandle": 208, "collApiEventHandle": 216, "eventHandle": 224,
                 "nChannels": 232},
        # ncclProfilerApiState, at 0x10b8 of the library's thread-local storage.
        "thread": {"group": 0x10B8 + 16, "coll": 0x10B8 + 32},
    },
    "2.30.7": {
        "abi": 6,
        "comm": {"size": 1199744, "rank": 0x1206F0, "nRanks": 0x1206F4, "nNodes": 0x1207A8, "commHash": 0x1206E8,
                 "commName": 0x122E30},
        "info": {"size": 120, "coll": 0, "count": 32, "datatype": 40, "comm": 56},
        "plan": {"size": 272, "comm": 16, "collTaskQueue": 216, "groupApiEventHandle": 248, "groupEventHandle": 264},
        "task": {"size": 248, "func": 8, "count": 32, "datatype": 44, "nWarps": 97, "algorithm": 98, "protocol": 99,
                 "eActivationMask": 208, "groupApiEventHandle": 216, "collApiEventHandle": 224, "eventHandle": 232,
                 "nChannels": 240},
        "thread": {"group": 0x10E0 + 16, "coll": 0x10E0 + 32},
    },
    "2.32.3": {
        "abi": 7,
        "comm": {"size": 1196536, "rank": 0x1206E8, "nRanks": 0x1206EC, "nNodes": 0x1207AC, "commHash": 0x1206E0,
                 "commName": 0x1236C8},
        "info": {"size": 192, "coll": 0, "count": 32, "datatype": 40, "comm": 56},
        "plan": {"size": 352, "comm": 16, "collTaskQueue": 280, "groupApiEventHandle": 328, "groupEventHandle": 344},
        "task": {"size": 304, "func": 8, "count": 32, "datatype": 44, "nWarps": 97, "algorithm": 98, "protocol": 99,
                 "eActivationMask": 224, "groupApiEventHandle": 232, "collApiEventHandle": 240, "eventHandle": 248,
                 "nChannels": 256},
        "thread": {"group": 0x10F0 + 16, "coll": 0x10F0 + 32},
    },
}  # fmt: skip

# A wheel has about 0.3 GB. Without --all, only the version that torch 2.11 pins is tested.
FETCHED = {"2.28.9"}
# SHA-256 of the wheels for x86-64.
WHEELS = {
    "2.27.7": "de5ba5562f08029a19cb1cd659404b18411ed0d6c90ac5f52f30bf99ad5809aa",
    "2.28.9": "485776daa8447da5da39681af455aa3b2c2586ddcf4af8772495e7c532c7e5ab",
    "2.30.7": "8ce1b8213f61f2bfac132e6df890af6450b77cbd140c6ce4e98cb0c2d8e678c9",
    "2.32.3": "bb94b2348e4861d5e8aa00b36c3d12d9bdf9c6369b82cbb723de0b582280a21c",
}

# nccl.h and nccl_common.h
ALL_REDUCE, FLOAT32, RING, LL128 = 4, 7, 1, 1
GROUP_START_API_STOP, GROUP_END_API_START = 23, 24
COMM_HASH = 0xFEEDBEEF00000001
RANK, RANKS, NODES, COUNT, CALLS = 3, 8, 2, 1000, 5


class Object:
    """Zeroed memory with the layout of one of NCCL's structs."""

    def __init__(self, layout):
        self.layout = layout
        self.memory = ctypes.create_string_buffer(layout["size"])
        self.address = ctypes.addressof(self.memory)

    def put(self, form, **fields):
        for name, value in fields.items():
            struct.pack_into(form, self.memory, self.layout[name], value)

    def get(self, name):
        return struct.unpack_from("<Q", self.memory, self.layout[name])[0]


def symbols(path, wanted):
    """Addresses of functions by their unmangled name, from the ELF's .symtab."""
    found = {}
    with open(path, "rb") as file:
        header = file.read(64)
        offset, (size, count) = struct.unpack_from("<Q", header, 40)[0], struct.unpack_from("<HH", header, 58)
        file.seek(offset)
        sections = [struct.unpack_from("<IIQQQQIIQQ", file.read(size)) for _ in range(count)]
        for section in sections:
            if section[1] != 2:  # SHT_SYMTAB
                continue
            file.seek(section[4])
            table = file.read(section[5])
            file.seek(sections[section[6]][4])
            strings = file.read(sections[section[6]][5])
            for name, info, _, _, value, _ in struct.iter_unpack("<IBBHQQ", table):
                if info & 15 == 2:  # STT_FUNC
                    text = strings[name : strings.index(b"\0", name)].decode()
                    # _Z, the length of the name, the name, the types of its arguments.
                    match = re.match(r"_Z(\d+)", text)
                    plain = text[match.end() : match.end() + int(match[1])] if match else text
                    if plain in wanted and ".cold" not in text:
                        found[plain] = value
    missing = wanted - found.keys()
    assert not missing, f"{path} has no {sorted(missing)}"
    return found


class Loaded(ctypes.Structure):
    """glibc's `struct dl_phdr_info`."""

    _fields_ = [
        ("base", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("headers", ctypes.c_void_p),
        ("header_count", ctypes.c_uint16),
        ("adds", ctypes.c_uint64),
        ("subs", ctypes.c_uint64),
        ("tls_module", ctypes.c_size_t),
        ("tls_data", ctypes.c_uint64),
    ]


def loaded(path):
    """The base address of a library, and the address of its thread-local storage."""
    found = []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Loaded), ctypes.c_size_t, ctypes.c_void_p)
    def look(library, _size, _data):
        if library[0].name and os.fsdecode(library[0].name) == path:
            found.append((library[0].base, library[0].tls_data))
        return 0

    ctypes.CDLL(None).dl_iterate_phdr(look, None)
    return found[0]


class Nccl:
    """libnccl, whose functions are called by address."""

    def __init__(self, path, names):
        path = os.path.realpath(path)
        addresses = symbols(path, set(names))
        self.library = ctypes.CDLL(path)
        self.path = path
        base, _ = loaded(path)
        self.addresses = {name: base + address for name, address in addresses.items()}

    def of_thread(self, offset):
        """A pointer in the library's thread-local storage."""
        _, data = loaded(self.path)
        assert data, "this thread has not used the thread-local storage yet"
        return ctypes.c_uint64.from_address(data + offset).value

    def call(self, name, *arguments):
        types = [ctypes.c_uint64 if each > 0xFFFF else ctypes.c_int for each in arguments]
        result = ctypes.CFUNCTYPE(ctypes.c_int, *types)(self.addresses[name])(*arguments)
        assert result == 0, f"{name} returned {result}"


def drive(path, version):
    """Calls the profiler as ncclCommInitRank, ncclAllReduce and ncclCommDestroy do, without a device."""
    layout = LAYOUTS[version]
    names = ["PluginInit", "PluginFinalize"]
    if "plan" in layout:
        names += ["StartGroupApiEvent", "StopGroupApiEvent", "RecordGroupApiEventState", "StartCollApiEvent"]
        names += ["StopCollApiEvent", "StartKernelLaunchEvent", "StopKernelLaunchEvent", "StartGroupEvent"]
        names += ["StopGroupEvent", "StartTaskEvents", "StopTaskEvents"]
    nccl = Nccl(path, ["ncclProfiler" + name for name in names])
    name = ctypes.create_string_buffer(b"dp_group")
    comm = Object(layout["comm"])
    comm.put("<i", rank=RANK, nRanks=RANKS, nNodes=NODES)
    comm.put("<Q", commHash=COMM_HASH, commName=ctypes.addressof(name))
    nccl.call("ncclProfilerPluginInit", comm.address)
    for _ in range(CALLS if "plan" in layout else 0):
        all_reduce(nccl, layout, comm)
    nccl.call("ncclProfilerPluginFinalize", comm.address)
    print(f"drove {version}")


def all_reduce(nccl, layout, comm):
    """ncclAllReduce on the caller's thread, as in enqueue.cc and group.cc of 2.28."""
    info, plan, task = Object(layout["info"]), Object(layout["plan"]), Object(layout["task"])
    info.put("<i", coll=ALL_REDUCE, datatype=FLOAT32)
    info.put("<Q", count=COUNT, comm=comm.address)
    call = lambda name, *arguments: nccl.call("ncclProfiler" + name, *arguments)  # noqa: E731
    call("StartGroupApiEvent", info.address, 0)
    call("RecordGroupApiEventState", GROUP_START_API_STOP)
    call("StartCollApiEvent", info.address, 0)
    # collTaskAppend reads these from the thread's state.
    api = {name: nccl.of_thread(offset) for name, offset in layout["thread"].items()}
    assert api["group"] and api["coll"], "the plugin must accept the call"
    call("StopCollApiEvent")
    call("RecordGroupApiEventState", GROUP_END_API_START)
    plan.put("<Q", comm=comm.address, groupApiEventHandle=api["group"], collTaskQueue=task.address)
    task.put("<i", func=ALL_REDUCE, datatype=FLOAT32, eActivationMask=0xFFFF)
    task.put("<Q", count=COUNT, groupApiEventHandle=api["group"], collApiEventHandle=api["coll"])
    task.put("<B", nChannels=2, nWarps=4, algorithm=RING, protocol=LL128)
    call("StartKernelLaunchEvent", plan.address, 0)
    call("StopKernelLaunchEvent", plan.address)
    call("StartGroupEvent", plan.address)
    call("StartTaskEvents", plan.address)
    assert task.get("eventHandle") != 0, "the plugin must accept the collective"
    call("StopTaskEvents", plan.address)
    call("StopGroupEvent", plan.address)
    call("StopGroupApiEvent")


def wheel(version, cache, fetch):
    """The path of libnccl. Downloads it from PyPI if `fetch` is set; None if it is missing or cannot be downloaded."""
    library = cache / version / "libnccl.so.2"
    if library.is_file():
        return library
    if not fetch:
        return None
    with tempfile.TemporaryDirectory(dir=cache) as directory:
        pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet", "--no-deps"]
        wanted = Path(directory) / "requirements.txt"
        wanted.write_text(f"nvidia-nccl-cu12=={version} --hash=sha256:{WHEELS[version]}\n")
        pip += ["--require-hashes", "--only-binary", ":all:"]
        done = subprocess.run([*pip, "--dest", directory, "--requirement", wanted], check=False)
        wheels = list(Path(directory).glob("*.whl"))
        if done.returncode != 0 or not wheels:
            return None
        library.parent.mkdir(exist_ok=True)
        part = library.with_suffix(".part")
        with zipfile.ZipFile(wheels[0]) as packed, part.open("wb") as out:
            name = next(name for name in packed.namelist() if name.endswith("libnccl.so.2"))
            shutil.copyfileobj(packed.open(name), out)
        part.rename(library)
    return library


def rows(run, table):
    import pyarrow.parquet as pq

    parts = sorted((run / table).glob("*.parquet"))
    return [row for part in parts for row in pq.ParquetFile(part).read().to_pylist()]


def check(version, library, agent, plugin, directory):
    """Records the program above and compares the run with its calls. Returns the number of rows."""
    run = Path(directory) / version
    environment = dict(os.environ, RANKSCOPE_INJECT_LIB=str(plugin))
    program = [sys.executable, __file__, "--drive", str(library), version]
    done = subprocess.run([agent, "exec", "--out", run, "--", *program], env=environment, capture_output=True, text=True,
                          timeout=120, check=False)  # fmt: skip
    assert done.returncode == 0, f"{version}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert f"drove {version}" in done.stdout, done.stdout
    comms = rows(run, "comms")
    last = comms[-1]
    found = {name: last[name] for name in ("comm_id", "name", "size", "nodes", "comm_rank")}
    expected = {"comm_id": COMM_HASH - 2**64, "name": "dp_group", "size": RANKS, "nodes": NODES, "comm_rank": RANK}
    assert found == expected, f"{version}: {found}"
    assert last["destroyed_ns"] > last["created_ns"], f"{version}: no finalize"
    if "plan" not in LAYOUTS[version]:
        return len(comms)
    launches = [row for row in rows(run, "events") if row["name"] == "nccl:launch"]
    collectives = rows(run, "collectives")
    assert len(launches) == len(collectives) == CALLS, f"{version}: {len(launches)} launches, {len(collectives)} collectives"
    for seq, row in enumerate(sorted(collectives, key=lambda row: row["seq"])):
        found = {name: row[name] for name in ("op", "seq", "dtype", "count", "bytes", "algo", "proto", "channels", "state")}
        expected = {"op": "allreduce", "seq": seq, "dtype": "float32", "count": COUNT, "bytes": 4 * COUNT, "algo": "RING",
                    "proto": "LL128", "channels": 2, "state": "enqueued"}  # fmt: skip
        assert found == expected, f"{version}: {found}"
        assert row["event_id"] in {launch["id"] for launch in launches}, f"{version}: {row}"
    return len(comms) + len(launches) + len(collectives)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("agent", type=Path)
    parser.add_argument("plugin", type=Path)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--all", action="store_true")
    arguments = parser.parse_args()
    if sys.platform != "linux" or platform.machine() != "x86_64":
        print("skipped: NVIDIA's loader: the offsets are known for x86-64 Linux only")
        sys.exit(CANNOT_RUN)
    arguments.cache.mkdir(parents=True, exist_ok=True)
    checked = []
    with tempfile.TemporaryDirectory() as directory:
        for version, layout in LAYOUTS.items():
            fetch = arguments.all or version in FETCHED
            library = wheel(version, arguments.cache, fetch)
            if library is None:
                why = "its wheel could not be downloaded" if fetch else "its 0.3 GB are downloaded with --all only"
                print(f"skipped: NVIDIA's loader of NCCL {version}: {why}")
                continue
            stored = check(version, library, arguments.agent, arguments.plugin.resolve(), directory)
            checked.append(f"NCCL {version} by v{layout['abi']}: {stored} rows")
            print(checked[-1])
    if not checked:
        sys.exit(CANNOT_RUN)
    print("; ".join(checked))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--drive"]:
        drive(sys.argv[2], sys.argv[3])
    else:
        main()
