"""Tables: Arrow's PyCapsule interface, and the ways into other libraries, which are imported only when they are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow


class Column(NamedTuple):
    """A column of a table."""

    name: str
    #: The type as DuckDB shows it.
    type: str
    unit: str | None
    doc: str


class Exporter(Protocol):
    """The source of a table: its columns in words, and its rows as Arrow."""

    @property
    def name(self) -> str: ...
    @property
    def doc(self) -> str: ...
    @property
    def columns(self) -> list[tuple[str, str, str | None, str]]: ...
    def __len__(self) -> int: ...
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...
    def __arrow_c_schema__(self) -> object: ...


class Table:
    """Rows as Arrow. `pyarrow.table(t)`, `polars.DataFrame(t)`, `pandas.DataFrame.from_arrow(t)` and `FROM t` in DuckDB
    take its buffers without a copy."""

    __slots__ = ("_rows",)

    def __init__(self, rows: Exporter) -> None:
        self._rows = rows

    @property
    def name(self) -> str:
        """The name of the table."""
        return self._rows.name

    @property
    def doc(self) -> str:
        """The meaning of a row."""
        return self._rows.doc

    @property
    def columns(self) -> list[Column]:
        """The columns: name, type, unit and meaning."""
        return [Column(*column) for column in self._rows.columns]

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"<rankscope.Table {self.name}: {len(self)} rows, {len(self._rows.columns)} columns>"

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._rows.__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        return self._rows.__arrow_c_schema__()

    def to_arrow(self) -> pyarrow.Table:
        """A table of pyarrow, with the same buffers. Strings are dictionary-encoded."""
        import pyarrow

        return pyarrow.table(self)

    def to_polars(self) -> polars.DataFrame:
        """A data frame of Polars."""
        import polars

        return polars.DataFrame(self)

    def to_pandas(self) -> pandas.DataFrame:
        """A data frame of pandas, in which strings are strings and no categories. Needs pyarrow."""
        import pyarrow

        table = self.to_arrow()
        for at, field in enumerate(table.schema):
            if pyarrow.types.is_dictionary(field.type):
                plain = pyarrow.field(field.name, field.type.value_type, field.nullable, field.metadata)
                table = table.set_column(at, plain, table.column(at).cast(field.type.value_type))
        frame: pandas.DataFrame = table.to_pandas()
        return frame
