#!/usr/bin/env python3
"""Writes what tests/gpu/run has seen of each claim: verdict.py CLAIMS.tsv TABLE.tsv > verdict.md

A claim is confirmed if it has lines that are ok and none that failed, contradicted if one failed, else not reached. Lines of
earlier calls count, but a part that ran again replaces its earlier lines.
"""

import pathlib
import sys


def rows(path):
    return [line.split("\t") for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines()]


def newest(table):
    """The lines of the last call of each part."""
    last = {part: call for call, part, *_ in table}
    return [line[1:] for line in table if last[line[1]] == line[0]]


def main():
    claims, table = rows(sys.argv[1]), newest(rows(sys.argv[2]))
    machine = next((detail for part, claim, _, detail in table if claim == "machine"), "unknown")
    standin = machine.startswith("stand-in")
    words = ("played", "FAILED", "not played") if standin else ("confirmed", "CONTRADICTED", "not reached")
    print(f"# What was seen on {machine}\n")
    if standin:
        print("This is a dry run on stand-ins: it confirms nothing about a device.\n")
    counts, text = dict.fromkeys(words, 0), []
    for claim, sentence, _ in claims:
        seen = [line for line in table if line[1] == claim]
        results = [line[2] for line in seen]
        word = words[1] if "FAILED" in results else words[0] if "ok" in results else words[2]
        counts[word] += 1
        text.append(f"## {word}: {sentence} (`{claim}`)\n")
        text += [f"- {part}: {result}: {detail}" for part, _, result, detail in seen] or ["- no part reached it"]
        text.append("")
    print(", ".join(f"{count} {word}" for word, count in counts.items()) + f", of {len(claims)} claims.\n")
    print("\n".join(text))


if __name__ == "__main__":
    main()
