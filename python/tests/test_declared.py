"""The declared tables are those of the library: `UPDATE_EXPECT=1 pytest python/tests/test_declared.py` writes them."""

import os
import pathlib
import textwrap

from rankscope import _rankscope

FILE = pathlib.Path(__file__).resolve().parents[1] / "rankscope/_declared.py"

HEAD = '''"""The tables as attributes, for editors and type checkers. tests/test_declared.py writes this file from the declarations."""

from __future__ import annotations

from rankscope._table import Table
'''

CLASS = '''

class {name}:
    """{doc}"""

    def _table(self, name: str) -> Table:
        raise NotImplementedError
'''

ATTRIBUTE = '''
    @property
    def {name}(self) -> Table:
        """{doc}"""
        return self._table("{name}")
'''


def declared() -> str:
    text = HEAD
    for name, doc, tables in (
        ("AnalysisTables", "The tables of an analysis.", _rankscope.tables_of_analysis()),
        ("RunTables", "The tables that ranks record.", _rankscope.tables_of_runs()),
    ):
        text += CLASS.format(name=name, doc=doc)
        for table, meaning in tables:
            lines = textwrap.wrap(meaning.replace("\\", "\\\\"), 116, subsequent_indent=" " * 8)
            text += ATTRIBUTE.format(name=table, doc="\n".join(lines))
    return text


def test_declared_tables_are_those_of_the_library():
    if os.environ.get("UPDATE_EXPECT"):
        FILE.write_text(declared())
    assert FILE.read_text() == declared()
