"""Rows as the columns of a request over gRPC, whose values mean the same as in JSON."""

from __future__ import annotations

import dataclasses
import struct
import typing

from ._errors import JobError
from ._progress import Figures

# The largest integer below which every integer is a float64.
EXACT = 1 << 53
LENGTHS = "__lengths"

Tensor = typing.Tuple[str, str, int, bytes]


@dataclasses.dataclass
class Column:
    """The values of an input. ``lengths`` has the number of values of each row, if it has lists."""

    values: typing.List[typing.Any]
    lengths: typing.Optional[typing.List[int]]

    def tensors(self, name: str) -> typing.Iterator[Tensor]:
        """Returns the tensors of the column: name, datatype, number of values, bytes."""
        datatype, data = encode(self.values)
        yield name, datatype, len(self.values), data
        if self.lengths is not None:
            packed = struct.pack(f"<{len(self.lengths)}q", *self.lengths)
            yield f"{name}{LENGTHS}", "INT64", len(self.lengths), packed


def make_columns(rows: typing.Sequence[Figures]) -> typing.Dict[str, Column]:
    """Returns the columns of rows that have the same keys."""
    columns = {name: Column([], None) for name in rows[0]}
    for number, row in enumerate(rows):
        odd = sorted(row.keys() ^ columns.keys())
        if odd:
            raise JobError(
                f"`{odd[0]}` is in some of the rows, and row {number} differs; give a value in "
                "each row, None where it is missing"
            )
        for name, value in row.items():
            column = columns[name]
            if isinstance(value, list):
                if column.lengths is None:
                    column.lengths = [1] * number
                column.lengths.append(len(value))
                column.values.extend(value)
            else:
                if column.lengths is not None:
                    column.lengths.append(1)
                column.values.append(value)
    return columns


def encode(values: typing.Sequence[typing.Any]) -> typing.Tuple[str, bytes]:
    """Returns the datatype of values, and their bytes.

    A tensor has one datatype, and only floats have a missing value of their own. So values of
    several kinds are sent as texts, which a server reads as numbers where it needs numbers; an
    empty text is a missing value there.
    """
    kinds = {type(value) for value in values}
    if kinds == {bool}:
        return "BOOL", bytes(values)
    if kinds == {int}:
        if all(-(1 << 63) <= value < 1 << 63 for value in values):
            return "INT64", struct.pack(f"<{len(values)}q", *values)
        if all(0 <= value < 1 << 64 for value in values):
            return "UINT64", struct.pack(f"<{len(values)}Q", *values)
    is_float = float in kinds and kinds <= {float, int, type(None)}
    if is_float and all(abs(value) < EXACT for value in values if type(value) is int):
        floats = (float("nan") if value is None else value for value in values)
        return "FP64", struct.pack(f"<{len(values)}d", *floats)
    texts = [as_text(value).encode() for value in values]
    return "BYTES", b"".join(struct.pack("<I", len(text)) + text for text in texts)


def as_text(value: typing.Any) -> str:
    """Returns a value as a text that means the same."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        raise JobError("a list inside a list is not supported; give a flat list")
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
