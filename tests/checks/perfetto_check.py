#!/usr/bin/env python3
"""Reads a Perfetto export with Perfetto's own schema and checks it against its run.

    tests/checks/perfetto_check.py RUN EXPORT        RUN has been analyzed

Checks that every row of `events` is one slice, that slices begin and end in pairs and nest, that every arrow has two ends or
more, that counters are never negative, and that no rank leaves an all-reduce before all have entered, beyond the clock error.
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
        names, categories, arguments = {}, {}, {}
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
                                    (arguments, packet.interned_data.debug_annotation_names)):
                for entry in interned:
                    check((sequence, entry.iid) not in table, f"string {entry.iid} of sequence {sequence} twice")
                    table[sequence, entry.iid] = entry.name
            events.append((packet.timestamp, number, sequence, packet.track_event))
        # Trace processors sort by time; packets with equal times stay in order.
        for at, _, sequence, event in sorted(events, key=lambda e: e[:2]):
            check(event.track_uuid in self.tracks, f"no descriptor of track {event.track_uuid}")
            stack = open_slices[event.track_uuid]
            if event.type == TrackEvent.TYPE_SLICE_BEGIN:
                numbers = {arguments[sequence, a.name_iid]: a.int_value for a in event.debug_annotations}
                stack.append({"track": event.track_uuid, "name": names[sequence, event.name_iid], "from": at,
                              "category": categories[sequence, event.category_iids[0]],
                              "flows": list(event.flow_ids), **{f"arg_{k}": v for k, v in numbers.items()}})
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


def check_export(run, path):
    reader = Reader(path)
    rows = duckdb.sql(f"select rank, count(*) from '{run}/events/*.parquet' where open is not true group by 1").fetchall()
    wanted = {f"rank {rank}": count for rank, count in rows}
    kinds = ("collective", "step", "work", "transfer", "unexplained")
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
    return (f"{sum(found.values())} slices of {len(found)} ranks = rows of events; {len(ends)} arrows, all with two ends; "
            f"{len(reader.counters)} counters; {held} all-reduces, none left before all had entered")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        print(check_export(sys.argv[1], sys.argv[2]))
    except Failed as failed:
        sys.exit(f"{sys.argv[2]}: {failed}")
