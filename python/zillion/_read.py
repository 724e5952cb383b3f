"""The batches of a job, as the trainer gets them, with arrays of numpy."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import tempfile
import typing

from . import _zillion
from ._errors import JobError
from ._frames import need_module
from ._job import SPLITS, Job

Array = typing.Any


@dataclasses.dataclass
class Keys:
    """The keys of a sparse feature in a batch.

    ``keys`` has the hashed ids of all rows, one after the other (uint64, shape ``[values]``).
    ``offsets`` has the bounds of the rows (int32, shape ``[rows + 1]``): row ``i`` has
    ``keys[offsets[i]:offsets[i + 1]]``. It is ``None`` if each row has one key. ``weights`` has
    the weights of the keys (float32, shape ``[values]``), or is ``None``.
    """

    keys: Array
    offsets: typing.Optional[Array]
    weights: typing.Optional[Array]


@dataclasses.dataclass
class Label:
    """The values of a label.

    ``values`` has one for each row (float32, shape ``[rows]``). ``mask`` tells which rows have the
    label (bool, shape ``[rows]``); ``None``: all of them.
    """

    values: Array
    mask: typing.Optional[Array]


@dataclasses.dataclass
class Batch:
    """A batch of ``rows`` rows.

    ``sparse`` has the keys of each feature with a table, ``numeric`` the transformed values of
    each numeric feature (float32, shape ``[rows]``) and the vectors of each feature of the kind
    ``vector`` (shape ``[rows, size]``), ``labels`` the labels that the data has.
    ``weight`` (float32), ``group`` (uint64) and ``event_time`` (int64) are ``None`` without such a
    column. ``Trainer.step`` takes a batch.
    """

    rows: int
    sparse: typing.Dict[str, Keys]
    numeric: typing.Dict[str, Array]
    labels: typing.Dict[str, Label]
    weight: typing.Optional[Array]
    group: typing.Optional[Array]
    event_time: typing.Optional[Array]
    _handle: typing.Any = dataclasses.field(default=None, repr=False, compare=False)


def read(
    job: typing.Union[Job, str, "os.PathLike[str]"],
    data: typing.Any = None,
    *,
    split: str = "train",
    batch_size: typing.Optional[int] = None,
    epoch: typing.Optional[int] = None,
) -> typing.Iterator[Batch]:
    """Reads data as the trainer does: decoded, transformed and hashed by the job's features.

    ``job`` is a job or the path of a job file. ``data`` is what ``Job.train`` takes; without it,
    the files of the job's ``split`` (train, valid or test) are read. Rows come in the order of the
    files, or as the trainer takes them in the epoch ``epoch``, counted from 0: shuffled unless
    ``data.shuffle`` is false, and without a smaller last batch under ``train.drop_last``. The split
    ``train`` has the rows that ``data.sample`` and ``data.negatives`` choose, and whole groups in
    each batch if the loss compares rows of a group. ``batch_size`` is the number of rows of a
    batch; without it, that of the job. Features that need statistics take them from the job's
    training data, or from ``data`` if that is the split ``train``.
    """
    need_module("numpy", "zl.read")
    if split not in SPLITS:
        raise JobError(f"unknown split \"{split}\"; expected one of train, valid, test")
    job = job if isinstance(job, Job) else Job.from_toml(pathlib.Path(job))
    with tempfile.TemporaryDirectory(prefix="zillion-") as folder:
        given = {name: data if name == split else None for name in SPLITS}
        with_data = job._with_data(
            pathlib.Path(folder), given["train"], given["valid"], given["test"]
        )
        # The files stay until the last batch, because they are read while batches are taken.
        reader = _zillion.BatchReader(with_data._json(), split, batch_size, epoch)
        for found in reader:
            yield make_batch(found)


def make_batch(found: typing.Dict[str, typing.Any]) -> Batch:
    """Returns the batch of columns that are bytes."""
    return Batch(
        rows=found["rows"],
        sparse={
            name: Keys(as_array(keys, "<u8"), as_array(offsets, "<i4"), as_array(weights, "<f4"))
            for name, (keys, offsets, weights) in found["sparse"].items()
        },
        numeric={name: as_columns(columns) for name, columns in found["numeric"].items()},
        labels={
            name: Label(as_array(values, "<f4"), as_array(mask, "?"))
            for name, (values, mask) in found["labels"].items()
        },
        weight=as_array(found["weight"], "<f4"),
        group=as_array(found["group"], "<u8"),
        event_time=as_array(found["event_time"], "<i8"),
        _handle=found["handle"],
    )


def as_columns(columns: typing.Sequence[bytes]) -> Array:
    """Returns the values of a feature: one for each row, or the vector of each row."""
    arrays = [as_array(column, "<f4") for column in columns]
    if len(arrays) == 1:
        return arrays[0]
    import numpy

    return numpy.stack(arrays, axis=1)


def as_array(column: typing.Optional[bytes], dtype: str) -> Array:
    """Returns bytes as a read-only array over the same memory, or ``None`` for ``None``."""
    if column is None:
        return None
    import numpy

    return numpy.frombuffer(column, dtype=dtype)
