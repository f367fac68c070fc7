#!/usr/bin/env python3
"""Reads a Perfetto export with Perfetto's own schema and checks it against its run.

    tests/checks/perfetto_check.py RUN EXPORT        RUN has been analyzed

Checks that every row of `events` is one slice with its shapes, types, stack, module and launch parameters, that slices begin and
end in pairs and nest, that every arrow has two ends or more, that counters are never negative, that the waits and transfers of a
collective fill it, and that no rank leaves an all-reduce before all have entered, beyond the clock error.
"""

import collections
import pathlib
import sys

import duckdb
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent


class Failed(Exception):
    """The export contradicts the run."""


def check(condition, what):
    if not condition:
        raise Failed(what)


class Reader:
    """Decodes packets as a trace processor does: interned strings, tracks by id, stacks of open slices."""

    def __init__(self, path):
        self.tracks = {}
        self.processes = {}
        self.slices = []
        self.counters = collections.defaultdict(list)
        names, categories, arguments, texts = {}, {}, {}, {}
        open_slices = collections.defaultdict(list)
        trace = Trace()
        trace.ParseFromString(pathlib.Path(path).read_bytes())
        events = []
        for number, packet in enumerate(trace.packet):
            sequence = packet.trusted_packet_sequence_id
            check(sequence > 0, "a packet without a sequence")
            if packet.HasField("track_descriptor"):
                descriptor = packet.track_descriptor
                check(descriptor.uuid not in self.tracks, f"track {descriptor.uuid} is described twice")
                self.tracks[descriptor.uuid] = descriptor
                if descriptor.HasField("process"):
                    self.processes[descriptor.uuid] = descriptor.process.process_name
                continue
            for table, interned in ((names, packet.interned_data.event_names),
                                    (categories, packet.interned_data.event_categories),
                                    (arguments, packet.interned_data.debug_annotation_names),
                                    (texts, packet.interned_data.debug_annotation_string_values)):
                for entry in interned:
                    check((sequence, entry.iid) not in table, f"string {entry.iid} of sequence {sequence} twice")
                    table[sequence, entry.iid] = entry.str.decode() if table is texts else entry.name
            events.append((packet.timestamp, number, sequence, packet.track_event))
        # Trace processors sort by time; packets with equal times stay in order.
        for at, _, sequence, event in sorted(events, key=lambda e: e[:2]):
            check(event.track_uuid in self.tracks, f"no descriptor of track {event.track_uuid}")
            stack = open_slices[event.track_uuid]
            if event.type == TrackEvent.TYPE_SLICE_BEGIN:
                values = {arguments[sequence, a.name_iid]: texts[sequence, a.string_value_iid] if a.HasField("string_value_iid")
                          else a.double_value if a.HasField("double_value") else a.int_value
                          for a in event.debug_annotations}
                stack.append({"track": event.track_uuid, "name": names[sequence, event.name_iid], "from": at,
                              "category": categories[sequence, event.category_iids[0]],
                              "flows": list(event.flow_ids), **{f"arg_{k}": v for k, v in values.items()}})
            elif event.type == TrackEvent.TYPE_SLICE_END:
                check(stack, f"an end without a beginning on track {self.tracks[event.track_uuid].name} at {at}")
                done = stack.pop()
                done["to"] = at
                if stack:
                    check(at <= stack[-1].get("to", at), "a slice outlives the one around it")
                self.slices.append(done)
            else:
                check(event.type == TrackEvent.TYPE_COUNTER, f"type {event.type}")
                self.counters[event.track_uuid].append(event.double_counter_value)
        self.open = [s for stack in open_slices.values() for s in stack]

    def process_of(self, slice_):
        return self.processes[self.tracks[slice_["track"]].parent_uuid]


def sides(column):
    return f"'[' || array_to_string({column}, ', ') || ']'"


# The annotations of a row of `events`, and their values in SQL. Shapes and types are compared without blanks.
ANNOTATIONS = {"input_dims": "input_dims", "input_types": "input_types", "stack": "nullif(stack, '')", "module": "nullif(module, '')",
               "grid": sides("grid"), "block": sides("block"), "registers": "registers", "shared_mem_bytes": "shared_mem_bytes",
               "occupancy_pct": "round(occupancy_pct, 3)"}


def check_annotations(run, reader, kinds):
    """Every value of a row is an annotation of its slice, and no other."""
    drawn = {(int(reader.process_of(s).split(" (")[0].removeprefix("rank ")), s["arg_id"]): s
             for s in reader.slices if s["category"] not in kinds}
    found = collections.Counter()
    names = list(ANNOTATIONS)
    query = ", ".join(ANNOTATIONS.values())
    rows = duckdb.sql(f"select rank, id, {query} from '{run}/events/*.parquet' where open is not true").fetchall()
    for rank, row, *values in rows:
        for name, wanted in zip(names, values):
            shown = drawn[rank, row].get(f"arg_{name}")
            if name in ("input_dims", "input_types"):
                # A row without inputs has no annotation, and lists of tensors are drawn as `[]`.
                check((shown is not None) <= (wanted is not None), f"rank {rank}, row {row}: {name} is {shown}, not {wanted}")
                same = shown is None or "[[[" in wanted or shown.replace(" ", "") == wanted.replace(" ", "")
            elif name == "occupancy_pct" and shown is not None and wanted is not None:
                same = abs(shown - wanted) < 0.01
            else:
                same = shown == wanted
            check(same, f"rank {rank}, row {row}: {name} is {shown}, not {wanted}")
            found[name] += shown is not None
    return {name: count for name, count in found.items() if count}


def check_parts(reader):
    """The wait and the transfer of a collective fill it, and the last rank does not wait."""
    tracks = collections.defaultdict(list)
    for s in reader.slices:
        if s["category"] in ("wait", "move"):
            tracks[s["track"]].append(s)
    parts = split = 0
    for s in (s for s in reader.slices if s["category"] == "collective" and "arg_last_rank" in s and s["from"] < s["to"]):
        process = int(reader.process_of(s).split(" (")[0].removeprefix("rank "))
        inside = [p for track, found in tracks.items() if reader.tracks[track].parent_uuid == reader.tracks[s["track"]].parent_uuid
                  for p in found if s["from"] <= p["from"] and p["to"] <= s["to"]]
        waits = [p for p in inside if p["category"] == "wait" and p["from"] == s["from"]]
        moves = [p for p in inside if p["category"] == "move" and p["to"] == s["to"]]
        wait_ns = min(s["arg_wait_ns"], s["to"] - s["from"])
        check(wait_ns == 0 or any(p["to"] - p["from"] == wait_ns and p["name"] == f"wait for rank {s['arg_last_rank']}"
                                  for p in waits), f"a wait of {wait_ns} ns is not drawn: {waits}")
        rest_ns = s["to"] - s["from"] - wait_ns
        check(rest_ns == 0 or any(p["to"] - p["from"] == rest_ns and p["name"] == "transfer" for p in moves),
              f"a transfer of {rest_ns} ns is not drawn: {moves}")
        check(process != s["arg_last_rank"] or wait_ns == 0, f"rank {process} waits for itself")
        split += 1
        parts += (wait_ns > 0) + (rest_ns > 0)
    drawn = sum(len(found) for found in tracks.values())
    check(parts == drawn, f"{drawn} waits and transfers are drawn, {parts} belong to a collective")
    return split, parts


def check_backward(run, reader):
    """Each arrow of `flows` from a forward operator to its backward operator is drawn between these two."""
    by_flow = collections.defaultdict(set)
    for s in reader.slices:
        for flow in s["flows"]:
            if s["category"] not in ("collective",):
                by_flow[flow].add((int(reader.process_of(s).split(" (")[0].removeprefix("rank ")), s.get("arg_id")))
    drawn = {frozenset(ends) for ends in by_flow.values()}
    try:
        rows = duckdb.sql(f"select rank, src_id, dst_id from '{run}/flows/*.parquet' where kind = 'fwdbwd'").fetchall()
    except duckdb.IOException:
        return 0
    for rank, source, target in rows:
        check(frozenset({(rank, source), (rank, target)}) in drawn, f"rank {rank}: no arrow from row {source} to {target}")
    return len(rows)


def check_export(run, path):
    reader = Reader(path)
    rows = duckdb.sql(f"select rank, count(*) from '{run}/events/*.parquet' where open is not true group by 1").fetchall()
    wanted = {f"rank {rank}": count for rank, count in rows}
    kinds = ("collective", "wait", "move", "step", "work", "transfer", "unexplained")
    found = collections.Counter(
        reader.process_of(s).split(" (")[0] for s in reader.slices if s["category"] not in kinds)
    check(found == wanted, f"slices of events by rank: {dict(found)}, rows: {wanted}")
    check(not reader.open, f"{len(reader.open)} slices never end")

    ends = collections.Counter(flow for s in reader.slices for flow in s["flows"])
    lonely = [flow for flow, count in ends.items() if count < 2]
    check(not lonely, f"{len(lonely)} of {len(ends)} arrows lead nowhere")
    check(ends, "no arrow at all")
    for track, values in reader.counters.items():
        check(min(values) >= 0, f"counter {reader.tracks[track].name} falls to {min(values)}")

    instances = duckdb.sql(
        f"select instance, ranks_seen, coalesce(error_ns, 0), op from '{run}/analysis/collective_instances.parquet' "
        "where complete").fetchall()
    by_instance = collections.defaultdict(list)
    for s in reader.slices:
        if s["category"] == "collective" and "arg_instance" in s:
            by_instance[s["arg_instance"]].append(s)
    held = 0
    for instance, ranks, error_ns, op in instances:
        members = by_instance[instance]
        check(len(members) == ranks, f"instance {instance}: {len(members)} slices of {ranks} ranks")
        if op == "allreduce":
            held += 1
            last, first_out = max(m["from"] for m in members), min(m["to"] for m in members)
            check(last <= first_out + error_ns, f"instance {instance}: a rank enters {last - first_out} ns after one left")
    check(held > 0, "no all-reduce to test the clocks by")
    annotations = check_annotations(run, reader, kinds)
    split, parts = check_parts(reader)
    backward = check_backward(run, reader)
    return (f"{sum(found.values())} slices of {len(found)} ranks = rows of events; annotations {annotations}; "
            f"{split} collectives of {parts} waits and transfers; {backward} arrows to backward operators; "
            f"{len(ends)} arrows, all with two ends; "
            f"{len(reader.counters)} counters; {held} all-reduces, none left before all had entered")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        print(check_export(sys.argv[1], sys.argv[2]))
    except Failed as failed:
        sys.exit(f"{sys.argv[2]}: {failed}")
