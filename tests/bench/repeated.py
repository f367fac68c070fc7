"""Makes large traces from small ones by repeating their events. The same input gives the same bytes.

Each copy of the events is later by a period and has new correlation, external and flow ids and step numbers, so that launches
still find their kernels and no step repeats.
"""

import gzip
import json
import re

# The numbers that differ between copies, by their key.
NUMBER = re.compile(rb'("ts": ?|"correlation": ?|"[Ee]xternal id": ?|"id": ?|ProfilerStep#)(\d+)')


def text_of(path):
    raw = path.read_bytes()
    return gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw


def traces_of(folder):
    return sorted(p for p in folder.iterdir() if p.name.endswith((".json", ".json.gz")))


class Repeated:
    """The text of a trace, divided at the numbers that differ between copies of its events."""

    def __init__(self, text):
        opened = text.index(b"[", text.index(b'"traceEvents"')) + 1
        closed = text.rindex(b"]")
        self.before, self.after = text[:opened], text[closed:]
        pieces = NUMBER.split(text[opened:closed])
        kinds, self.values, self.last = pieces[1::3], list(map(int, pieces[2::3])), pieces[-1]
        self.heads = [head + kind for head, kind in zip(pieces[0::3], kinds)]
        self.is_time = [kind.startswith(b'"ts"') for kind in kinds]
        of = {kind: [v for k, v in zip(kinds, self.values) if k == kind] for kind in set(kinds)}
        times = sorted(v for kind, of_kind in of.items() if kind.startswith(b'"ts"') for v in of_kind)
        # The window of the trace without its first events: a few events of set-up may lie far before the rest.
        self.span_us = times[-1] - times[len(times) // 1000] + 1000
        stride = {kind: max(of_kind) - min(of_kind) + 1 for kind, of_kind in of.items()}
        # Some keys use 0 for "no id".
        self.strides = [stride[kind] if value else 0 for kind, value in zip(kinds, self.values)]

    def write(self, target, copies=None, least=None, period_us=None, later_us=0):
        """Writes `copies` copies, or as many as give `least` bytes; all times are later by `later_us`. Returns the bytes
        and copies."""
        period_us = period_us or self.span_us
        strides = [period_us if time else stride for time, stride in zip(self.is_time, self.strides)]
        values = [value + later_us if time else value for time, value in zip(self.is_time, self.values)]
        parts = [b""] * (2 * len(self.heads))
        parts[0::2] = self.heads
        done = 0
        with open(target, "wb") as out:
            written = out.write(self.before)
            while done < copies if copies else written < least:
                parts[1::2] = [b"%d" % (value + done * stride) for value, stride in zip(values, strides)]
                written += out.write((b"," if done else b"") + b"".join(parts) + self.last)
                done += 1
            written += out.write(self.after)
        return written, done


def as_rank(text, rank, ranks):
    """A trace of a job of two ranks as one of rank `rank` in a job of `ranks` ranks. Each group of both ranks becomes a group
    of all, and each group of one rank has its own number."""
    everyone = ", ".join(map(str, range(ranks))).encode()

    def group(found):
        name, middle, size, members = found.groups()
        if int(size) == 1:
            return b'"pg_name": "%d"%s"pg_size": 1, "ranks": [%d]' % (int(name) + 100 * rank, middle, rank)
        return b'"pg_name": "%s"%s"pg_size": %d, "ranks": [%s]' % (name, middle, ranks, everyone)

    text = re.sub(rb'"pg_name": "(\d+)"([^{}]*)"pg_size": (\d+), "ranks": \[([^\]]*)\]', group, text)
    text = re.sub(rb'"rank": \d+, "world_size": 2', b'"rank": %d, "world_size": %d' % (rank, ranks), text)
    text = text.replace(b'"Group size": 2', b'"Group size": %d' % ranks)
    return text.replace(b'"Process Group Ranks": "[0, 1]"', b'"Process Group Ranks": "[%s]"' % everyone)


def collectives_only(text):
    """A trace without events other than kernels of collectives and marks of steps."""
    trace = json.loads(text)
    kept = [
        event for event in trace["traceEvents"]
        if event.get("cat") == "kernel" and event["name"].startswith("nccl")
        or event.get("cat") == "user_annotation" and event["name"].startswith("ProfilerStep")
    ]  # fmt: skip
    return json.dumps(dict(trace, traceEvents=kept)).encode()


def megatron(source, target, ranks, copies, prepare=lambda text: text):
    """Writes a tensor-parallel job of `ranks` ranks: rank r repeats rank r mod 2 of the two ranks in `source`, with one period
    for all ranks. The clocks of ranks differ by multiples of 250 µs. The rows have no sequence numbers. Returns the bytes."""
    texts = [prepare(text_of(path)) for path in traces_of(source)]
    if len(texts) != 2 or any(b'"Seq"' in text for text in texts):
        raise ValueError(f"{source} has no two traces without sequence numbers")
    period_us = max(Repeated(text).span_us for text in texts)
    written = 0
    for rank in range(ranks):
        trace = Repeated(as_rank(texts[rank % 2], rank, ranks))
        written += trace.write(target / f"rank{rank}.json", copies=copies, period_us=period_us, later_us=250 * (rank // 2))[0]
    return written
