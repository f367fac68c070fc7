#!/usr/bin/env python3
"""Runs the notebooks of examples/notebooks with the Python that runs this, each in a fresh kernel.

    PYTHON tests/checks/notebooks_check.py [--write] [NOTEBOOK...]      PYTHON has the wheel, nbclient and ipykernel

A cell that fails, or that warns, is a failure. With --write the outputs are stored, without times of execution and numbers of this
machine's kernel.
"""

import argparse
import pathlib
import sys
import time

import nbclient
import nbformat

# The shared module is one folder up.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support import ROOT  # noqa: E402

FOLDER = ROOT / "examples/notebooks"


def run(path, write):
    """Returns what is wrong with a notebook."""
    notebook = nbformat.read(path, as_version=4)
    try:
        nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(path.parent)}}).execute()
    except nbclient.exceptions.CellExecutionError as error:
        return [str(error)]
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    told = [out.text for cell in cells for out in cell.outputs if out.output_type == "stream" and out.name == "stderr"]
    silent = [cell.source for cell in cells[1:] if not cell.outputs]
    if write:
        for cell in cells:
            cell.metadata.pop("execution", None)
        notebook.metadata = {"language_info": {"name": "python"}}
        nbformat.write(notebook, path)
    return [f"it says: {text}" for text in told] + [f"a cell shows nothing:\n{source}" for source in silent]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", type=pathlib.Path, nargs="*")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    notebooks = [path.resolve() for path in options.notebooks] or sorted(FOLDER.glob("*.ipynb"))
    failed = 0
    for path in notebooks:
        begun = time.monotonic()
        wrong = run(path, options.write)
        failed += bool(wrong)
        print(f"{path.name}: {'FAILED' if wrong else 'ok'}, {time.monotonic() - begun:.0f} s")
        for text in wrong:
            print(text)
    print(f"{len(notebooks)} notebooks: {failed} failed")
    return 1 if failed or not notebooks else 0


if __name__ == "__main__":
    sys.exit(main())
