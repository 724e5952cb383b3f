"""Data from memory as files that Zillion reads.

Data frames and Arrow tables are written to one Arrow file, rows to one file of JSON lines. The name
of a file has a hash of its bytes, so the same data has the same file, and other data does not
replace it.
"""

from __future__ import annotations

import collections.abc
import hashlib
import inspect
import json
import math
import os
import pathlib
import tempfile
import typing

from ._errors import JobError
from ._frames import find_module, is_from, need_module

# The largest number of rows of a record batch, the unit that the reader shuffles.
BATCH_ROWS = 65536

Path = typing.Union[str, "os.PathLike[str]"]


def is_paths(data: typing.Any) -> bool:
    """Returns whether ``data`` is a path or a list of paths."""
    if isinstance(data, (str, os.PathLike)):
        return True
    return (
        isinstance(data, (list, tuple))
        and len(data) > 0
        and all(isinstance(entry, (str, os.PathLike)) for entry in data)
    )


def list_files(data: typing.Any, folder: pathlib.Path, name: str) -> typing.List[str]:
    """Returns the files of ``data``.

    Paths are made absolute, except for URLs. Other data is written to a file in ``folder``.
    """
    if is_paths(data):
        paths = [data] if isinstance(data, (str, os.PathLike)) else data
        texts = [os.fspath(path) for path in paths]
        return [text if "://" in text else os.path.abspath(text) for text in texts]
    return [os.fspath(write_file(data, folder, name).absolute())]


def link_data(data: typing.Any, folder: pathlib.Path, name: str) -> pathlib.Path:
    """Returns a path ``NAME.ending`` in ``folder`` under which a command finds ``data``."""
    files = list_files(data, folder, name)
    if len(files) != 1 or "://" in files[0]:
        raise JobError(f"`{name}` is not one local file; give one file, or data in memory")
    source = pathlib.Path(files[0])
    if not source.is_file():
        raise JobError(f"`{name}`: there is no file {source}; correct the path")
    endings = "".join(source.suffixes[-2:] if source.suffix in (".gz", ".zst") else [source.suffix])
    path = folder / f"{name}{endings}"
    path.symlink_to(source)
    return path


def write_file(data: typing.Any, folder: pathlib.Path, name: str) -> pathlib.Path:
    """Writes data from memory to a file in ``folder``, and returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{name}-", suffix=".tmp", dir=folder)
    os.close(handle)
    try:
        ending = write(data, temporary, name)
        digest = hashlib.blake2b(digest_size=8)
        with open(temporary, "rb") as file:
            for piece in iter(lambda: file.read(1 << 20), b""):
                digest.update(piece)
            os.fsync(file.fileno())
        path = folder / f"{name}-{digest.hexdigest()}.{ending}"
        os.replace(temporary, path)
        return path
    except BaseException:
        os.unlink(temporary)
        raise


def write(data: typing.Any, path: str, name: str) -> str:
    """Writes data to ``path``, and returns the ending of the format."""
    if is_from(data, "polars"):
        return write_polars(data, path)
    table = as_arrow(data)
    if table is not None:
        return write_arrow(table, path)
    rows = as_rows(data)
    if rows is None:
        raise JobError(
            f"`{name}`: {type(data).__name__} is not data; give paths, a data frame of pandas or "
            "polars, an Arrow table, a dictionary of columns, or an iterable of dictionaries"
        )
    return write_rows(rows, path, name)


def write_polars(data: typing.Any, path: str) -> str:
    """Writes a frame of polars."""
    polars = need_module("polars", "a frame of polars")
    if isinstance(data, polars.LazyFrame):
        data = data.collect()
    if isinstance(data, polars.Series):
        data = data.to_frame()
    # The oldest level has no string views, which few programs write yet.
    options: typing.Dict[str, typing.Any] = {"compat_level": polars.CompatLevel.oldest()}
    # Older releases write a record batch for each chunk of the frame.
    if "record_batch_size" in inspect.signature(data.write_ipc).parameters:
        options["record_batch_size"] = BATCH_ROWS
    data.write_ipc(path, **options)
    return "arrow"


def as_arrow(data: typing.Any) -> typing.Any:
    """Returns data as a table or a reader of pyarrow, or ``None`` if it must be read as rows."""
    pyarrow = find_module("pyarrow")
    if is_from(data, "pandas"):
        if pyarrow is None:
            return None
        return pyarrow.Table.from_pandas(data, preserve_index=False)
    if is_from(data, "pyarrow"):
        if isinstance(data, pyarrow.RecordBatch):
            return pyarrow.Table.from_batches([data])
        return data if hasattr(data, "schema") else None
    if is_from(data, "datasets") and hasattr(data, "with_format") and hasattr(data, "__len__"):
        return read_dataset(data)
    if hasattr(data, "__arrow_c_stream__"):
        pyarrow = need_module("pyarrow", f"data of the class {type(data).__name__}")
        return pyarrow.RecordBatchReader.from_stream(data)
    return None


def read_dataset(data: typing.Any) -> typing.Any:
    """Returns a data set of the package `datasets` as a reader of its record batches.

    The rows are those of the data set, also after a selection or a shuffle.
    """
    if isinstance(data, collections.abc.Mapping):
        raise JobError(
            f"a {type(data).__name__} has several splits ({', '.join(map(str, data))}); give one "
            "of them"
        )
    pyarrow = need_module("pyarrow", f"data of the class {type(data).__name__}")
    schema = data.features.arrow_schema
    tables = data.with_format("arrow").iter(batch_size=BATCH_ROWS)
    batches = (batch for table in tables for batch in table.cast(schema).to_batches())
    return pyarrow.RecordBatchReader.from_batches(schema, batches)


def write_arrow(table: typing.Any, path: str) -> str:
    """Writes a table or a stream of record batches of pyarrow."""
    pyarrow = need_module("pyarrow", "an Arrow table")
    if hasattr(table, "to_reader"):
        table = table.to_reader(max_chunksize=BATCH_ROWS)
    if hasattr(table, "to_batches"):
        batches = table.to_batches()
    else:
        batches = table
    ipc = need_module("pyarrow.ipc", "an Arrow table")
    with pyarrow.OSFile(path, "wb") as sink, ipc.new_file(sink, table.schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return "arrow"


def as_rows(data: typing.Any) -> typing.Optional[typing.Iterable[typing.Any]]:
    """Returns data as an iterable of dictionaries, or ``None`` if it is something else."""
    if is_from(data, "pandas"):
        columns = {str(name): data[name].tolist() for name in data.columns}
        return rows_of(columns)
    if isinstance(data, collections.abc.Mapping):
        return rows_of(data)
    if isinstance(data, (bytes, bytearray)) or not isinstance(data, collections.abc.Iterable):
        return None
    return data


def rows_of(columns: typing.Mapping[str, typing.Any]) -> typing.Iterator[typing.Any]:
    """Returns the rows of a dictionary of columns."""
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise JobError(f"the columns have different numbers of rows: {lengths}; make them equal")
    names = list(columns)
    return (dict(zip(names, values)) for values in zip(*columns.values()))


def write_rows(rows: typing.Iterable[typing.Any], path: str, name: str) -> str:
    """Writes dictionaries as JSON lines."""
    count = 0
    with open(path, "w", encoding="utf-8") as file:
        for row in rows:
            if not isinstance(row, collections.abc.Mapping):
                raise JobError(
                    f"`{name}`: row {count} is of the class {type(row).__name__}; give a "
                    "dictionary of values by column"
                )
            try:
                cells = {str(key): plain(value) for key, value in row.items()}
            except TypeError as error:
                raise JobError(f"`{name}`: row {count}: {error}") from None
            file.write(json.dumps(cells, allow_nan=False, separators=(",", ":")))
            file.write("\n")
            count += 1
    if count == 0:
        raise JobError(f"`{name}` has no rows; give at least one")
    return "jsonl"


def plain(value: typing.Any) -> typing.Any:
    """Returns a value as JSON can write it. A missing value is ``None``."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if hasattr(value, "tolist"):
        # A number or an array of numpy.
        return plain(value.tolist())
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    if hasattr(value, "isoformat"):
        return value.isoformat()
    raise TypeError(
        f"a value of the class {type(value).__name__} has no form in a row; give a number, a text, "
        "a list of these, or None"
    )
