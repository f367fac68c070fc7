#!/usr/bin/env python3
"""Adds one of each thing that grows to a copy of the workspace, as CONTRIBUTING.md says, and compiles the copy.

Each task edits only files that its chapter in CONTRIBUTING.md names, so the chapter stays true. The copy shares the built dependencies of
the clone by hard links; the crates of the workspace are compiled anew.

    tests/checks/add_one_check.py [TASK...]       without a task: all of them
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COPY = ROOT / "target" / "add-one"


@dataclass
class Task:
    """One task: the heading of its chapter, new files, and what is put before an anchor in files that exist."""

    chapter: str
    new: dict[str, str] = field(default_factory=dict)
    edits: dict[str, list[tuple[str, str]]] = field(default_factory=dict)


FORMAT = '''\
//! Files of an added tool.

use std::path::PathBuf;

use model::source::{RankFile, Source, SourceInfo};
use model::{Error, RankData};
use trace::OmissionRow;

use crate::format::{Beside, Format, Head};

/// The format.
pub(crate) const FORMAT: Format = Format {
    name: "a file of an added tool",
    files: "files of an added tool",
    instead: "`rankscope analyze` reads it",
    recognise: |head: &Head<'_>| head.bytes.starts_with(b"ADDED"),
    open: |paths, beside| Ok(Box::new(AddedSource::open(paths, beside)?)),
    is_table: Format::NO_TABLES,
    is_twin: Format::NO_TWINS,
};

struct AddedSource {
    files: Vec<RankFile>,
}

impl AddedSource {
    fn open(paths: &[PathBuf], beside: &Beside<'_>) -> Result<Self, Error> {
        let first = beside.taken.len() as i32;
        let files = paths.iter().zip(first..).map(|(path, rank)| RankFile::of(rank, path));
        Ok(Self { files: files.collect::<Result<_, _>>()? })
    }
}

impl Source for AddedSource {
    fn info(&self) -> SourceInfo {
        SourceInfo { tool: "added".into(), ..SourceInfo::default() }
    }

    fn ranks(&self) -> Vec<i32> {
        self.files.iter().map(|file| file.rank).collect()
    }

    fn files(&self) -> Result<Vec<RankFile>, Error> {
        Ok(self.files.clone())
    }

    fn problems(&self) -> Vec<OmissionRow> {
        Vec::new()
    }

    fn load(&self, rank: i32) -> Result<RankData, Error> {
        let mut data = RankData::default();
        data.outline.info.rank = rank;
        Ok(data)
    }
}
'''

FINDING = '''\
//! An added finding.

use trace::Severity;

use crate::finding::{Found, finding};
use crate::registry::Context;
use model::claim::{Claim, Quantity, Relation};

kind! {
    /// Every analysis has it.
    ADDED: "added", by added
}

fn added(_: &Context<'_>) -> Option<Found> {
    let claim = Claim::new(Quantity::Recorded, Relation::Is, "step_breakdown").of(0, None);
    Some(finding(claim, Severity::Info, "Rank 0 was added".into(), "1 of 1; threshold 0".into(), "remove it"))
}
'''

TABLE = '''\
    /// One row per rank: an added number.
    added: AddedRow / AddedBuilder / AddedView; {
        /// Global rank.
        rank: i32,
        /// The number.
        number: i64,
    }

'''

SECTION = '''\
//! An added section.

use trace::{OmissionRow, Row};

use crate::section::{Chart, PageData, ReportInput, Section, script};
use model::Error;

pub(crate) static SECTION: Section = Section {
    id: "added",
    title: "Added",
    lead: "A section that was added.",
    proof: false,
    tables: &[OmissionRow::table],
    data,
    scripts: &[script!("added.js")],
};

fn data(_: &ReportInput<'_>, _: &mut PageData) -> Result<Option<Chart>, Error> {
    Ok(Some(Chart::unless(None)))
}
'''

SCRIPT = '''\
// An added section.
import { element } from "../../../templates/report/dom.js";

export function drawAdded() {
  return [element("p", {}, ["added"])];
}
'''

TASKS = {
    "table": Task(
        "A table of the analysis",
        edits={
            "trace/src/tables/analysis.rs": [("    /// One row per rank, device and step: its time in five parts", TABLE)],
            "aggregator/pipeline/src/analyze.rs": [
                (
                    "    tables.rank_groups = ",
                    "    tables.added = vec![trace::AddedRow { rank: 0, number: 1 }];\n",
                )
            ],
        },
    ),
    "format": Task(
        "A trace format",
        new={"aggregator/formats/src/added.rs": FORMAT},
        edits={
            "aggregator/formats/src/lib.rs": [("mod columnar;", "mod added;\n")],
            "aggregator/formats/src/registry.rs": [
                ("&nsys::FORMAT,", "&crate::added::FORMAT, "),
            ],
        },
    ),
    "finding": Task(
        "A finding",
        new={"aggregator/findings/src/added.rs": FINDING},
        edits={
            "aggregator/findings/src/lib.rs": [
                ("mod clocks;", "mod added;\n"),
                ("    &first_steps::SLOW_FIRST_STEPS,", "    &added::ADDED,\n"),
            ],
        },
    ),
    "option": Task(
        "An option of `analyze`",
        edits={
            "aggregator/src/cli/analysis_args.rs": [
                (
                    "    #[command(flatten)]\n    thresholds: ",
                    "    /// Do what was added.\n    #[arg(long)]\n    added: bool,\n",
                ),
                ("            thresholds: self.thresholds", "            added: self.added,\n"),
            ],
            "aggregator/model/src/options.rs": [
                ("    /// Thresholds of the straggler verdict.", "    /// Do what was added. Default: no.\n    pub added: bool,\n")
            ],
            "aggregator/pipeline/src/parts/contract.rs": [
                ("    thresholds: Thresholds,", "    added: bool,\n"),
                ("            thresholds,\n", "            added,\n"),
                ("            thresholds: *thresholds,", "            added: *added,\n"),
                ("            thresholds: self.thresholds", "            added: self.added,\n"),
            ],
        },
    ),
    "section": Task(
        "A section of the report page",
        new={
            "aggregator/report/html/src/sections/added/mod.rs": SECTION,
            "aggregator/report/html/src/sections/added/added.js": SCRIPT,
        },
        edits={
            "aggregator/report/html/src/sections.rs": [
                ("mod buckets;", "mod added;\n"),
                ("    &tables::SECTION,", "    &added::SECTION,\n"),
            ]
        },
    ),
}


def chapter(title: str) -> str:
    """The text of a chapter of CONTRIBUTING.md."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    found = re.search(rf"^### {re.escape(title)}$(.*?)(?=^##)", text, re.M | re.S)
    if not found:
        sys.exit(f"CONTRIBUTING.md has no chapter `{title}`")
    return found[1]


def check_chapter(task: Task) -> None:
    """A chapter must name each file that its task touches: by its path, by its name after another file of its folder, or as `NAME`."""
    text = chapter(task.chapter)
    for path in task.edits:
        name = Path(path).name
        if path not in text and name not in text:
            sys.exit(f"CONTRIBUTING.md, `{task.chapter}`: it does not name {path}")
    for path in task.new:
        path = path.replace("added", "NAME")
        if path not in text:
            sys.exit(f"CONTRIBUTING.md, `{task.chapter}`: it does not name {path}")


def copy_workspace() -> None:
    """Copies the files of the workspace that are tracked or new. A file that did not change keeps its time, so that cargo keeps it."""
    shutil.rmtree(COPY / "tree", ignore_errors=True)
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    for name in subprocess.run(command, check=True, capture_output=True).stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            target = COPY / "tree" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)


def own_names() -> set[str]:
    """The names of our packages and targets, as files in `target` begin with them."""
    command = ["cargo", "metadata", "--locked", "--no-deps", "--format-version", "1"]
    packages = json.loads(subprocess.run(command, check=True, capture_output=True, cwd=ROOT).stdout)["packages"]
    names = {package["name"] for package in packages} | {t["name"] for package in packages for t in package["targets"]}
    return names | {name.replace("-", "_") for name in names}


def link_dependencies() -> None:
    """Links what cargo built of other packages. Cargo writes into files of our own crates, so none of these is shared."""
    own, source, target = own_names(), ROOT / "target" / "debug", COPY / "target" / "debug"
    if target.exists() or not source.exists():
        return
    for part in (".fingerprint", "build", "deps"):
        for path in sorted((source / part).glob("*")):
            name = re.sub(r"-[0-9a-f]{16}(\..*)?$", "", path.name)
            if name in own or name.removeprefix("lib") in own or name.partition(".")[0].removeprefix("lib") in own:
                continue
            (target / part).mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                shutil.copytree(path, target / part / path.name, copy_function=os.link, symlinks=True)
            else:
                os.link(path, target / part / path.name)


def apply(task: Task) -> int:
    """Makes the edits of a task in the copy. Returns the number of files."""
    for name, text in task.new.items():
        path = COPY / "tree" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    for name, edits in task.edits.items():
        path = COPY / "tree" / name
        text = path.read_text()
        for anchor, added in edits:
            if anchor not in text:
                sys.exit(f"{name}: there is no `{anchor}`")
            text = text.replace(anchor, added + anchor, 1)
        path.write_text(text)
    return len(task.new) + len(task.edits)


def main() -> None:
    wanted = sys.argv[1:] or list(TASKS)
    begin = time.monotonic()
    copy_workspace()
    link_dependencies()
    counts = []
    for name in wanted:
        check_chapter(TASKS[name])
        counts.append(f"{name} {apply(TASKS[name])}")
    # The same packages as in the gate, so that dependencies have the same features.
    command = ["cargo", "check", "--locked", "--workspace"]
    subprocess.run(command, check=True, cwd=COPY / "tree", env=os.environ | {"CARGO_TARGET_DIR": str(COPY / "target")})
    print(f"added one of each in {time.monotonic() - begin:.0f} s; files touched: {', '.join(counts)}")


if __name__ == "__main__":
    main()
