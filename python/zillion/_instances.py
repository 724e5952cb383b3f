"""Rows in memory as the dictionaries that clients send."""

from __future__ import annotations

import collections.abc
import typing

from ._data import as_rows, plain
from ._errors import JobError
from ._frames import is_from
from ._progress import Figures


def make_instances(rows: typing.Any) -> typing.List[Figures]:
    """Returns rows as a list of dictionaries that JSON can write."""
    if is_from(rows, "polars"):
        rows = rows.to_dicts()
    elif is_from(rows, "pyarrow"):
        rows = rows.to_pylist()
    found = as_rows(rows)
    if found is None or isinstance(rows, str):
        raise JobError(
            f"rows of the class {type(rows).__name__} cannot be sent; give dictionaries, a "
            "dictionary of columns, a data frame, or an Arrow table"
        )
    instances = [plain_row(row) for row in found]
    if not instances:
        raise JobError("there are no rows to send; give at least one")
    return instances


def plain_row(row: typing.Any) -> Figures:
    """Returns a row whose values JSON can write."""
    if not isinstance(row, collections.abc.Mapping):
        raise JobError(
            f"a row of the class {type(row).__name__} cannot be sent; give a dictionary of values "
            "by column"
        )
    return {str(name): plain(value) for name, value in row.items()}
