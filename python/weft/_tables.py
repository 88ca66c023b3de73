"""Tables of libweft as numpy arrays and pandas data frames."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Iterator

from weft._library import ffi, lib, owned, text

if TYPE_CHECKING:
    import numpy
    import pandas

_DTYPES = {0: "int64", 1: "float64", 2: "int32"}  # weft_column_type


@dataclass(frozen=True)
class Column:
    """A column: its values are a view of the library's memory."""

    name: str
    unit: str
    doc: str
    values: "numpy.ndarray"  # for a column of words: indices into `words`; -1: no word
    words: tuple[str, ...] | None  # None: a column of numbers

    def decoded(self) -> "numpy.ndarray":
        """The values. For a column of words: a new array of their texts, with None for no word."""
        import numpy

        if self.words is None:
            return self.values
        return numpy.array([*self.words, None], dtype=object)[self.values]


class Table:
    """Columns of equal length. Their values are in memory of the library, and no call copies them.

    `table["begin"]` is a numpy array: for a column of words, an array of indices into
    `table.column("kind").words`. `to_pandas()` makes columns of words categorical.
    """

    def __init__(self, pointer: Any):
        import numpy

        self._handle = owned(pointer, lib.weft_table_close)
        self._columns: dict[str, Column] = {}
        rows = lib.weft_table_rows(self._handle)
        for i in range(lib.weft_table_columns(self._handle)):
            face = lib.weft_table_column(self._handle, i)
            dtype = numpy.dtype(_DTYPES[face.type])
            values = memory(self._handle, face.data, rows * dtype.itemsize).view(dtype)
            words = None
            if face.words != ffi.NULL or face.type == 2:
                words = tuple(text(face.words[k]) for k in range(face.n_words))
            column = Column(text(face.name), text(face.unit), text(face.doc), values, words)
            self._columns[column.name] = column
        self._rows = rows

    def __len__(self) -> int:
        return self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __getitem__(self, name: str) -> "numpy.ndarray":
        return self.column(name).values

    def __repr__(self) -> str:
        return f"<weft.Table of {len(self)} rows: {', '.join(self._columns)}>"

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self._columns)

    def column(self, name: str) -> Column:
        """A column with its unit, its line of documentation, and its words."""
        try:
            return self._columns[name]
        except KeyError:
            raise KeyError(f"{name}: wanted one of {', '.join(self._columns)}") from None

    def to_dict(self) -> dict[str, list[Any]]:
        """Plain Python lists; words as texts."""
        return {name: self.column(name).decoded().tolist() for name in self}

    def to_pandas(self) -> "pandas.DataFrame":
        """A data frame: numbers are views of the library's memory, words are categories."""
        import pandas

        data = {}
        for name, column in self._columns.items():
            data[name] = column.values if column.words is None else pandas.Categorical.from_codes(
                column.values, categories=column.words)
        frame = pandas.DataFrame(data, copy=False)
        frame.attrs["units"] = {name: column.unit for name, column in self._columns.items()}
        return frame


class _Memory:
    """Memory of the library in the form that numpy reads. An array of it keeps `owner` alive."""

    def __init__(self, owner: Any, address: Any, size: int, writable: bool):
        self._owner = owner
        self.__array_interface__ = {
            "version": 3, "shape": (size,), "typestr": "|u1",
            "data": (int(ffi.cast("uintptr_t", address)), not writable),
        }


def memory(owner: Any, address: Any, size: int, writable: bool = False) -> "numpy.ndarray":
    """An array of `size` bytes of the library at `address`, without a copy."""
    import numpy

    return numpy.asarray(_Memory(owner, address, size, writable))


def knobs() -> Table:
    """The knobs of a strategy, as `weft knobs` lists them."""
    return Table(lib.weft_knob_table())
