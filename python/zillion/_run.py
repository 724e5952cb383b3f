"""Runs: their figures, their curves, and predictions by their best checkpoint."""

from __future__ import annotations

import array
import json
import os
import pathlib
import re
import tempfile
import typing

from . import _cli, _zillion
from ._data import Path, list_files
from ._errors import Error
from ._frames import find_module, is_from, make_frame, need_module
from ._progress import Figures


class Run:
    """A run of a training, in the folder ``folder``. ``Run(folder)`` opens one that exists.

    ``report`` is the report of the training; without it, the one in the record of the run.
    """

    def __init__(self, folder: Path, *, report: typing.Optional[Figures] = None) -> None:
        self.folder = pathlib.Path(folder)
        self._report = report
        self._model: typing.Optional[_zillion.Model] = None
        if not self.folder.is_dir():
            raise Error(f"{self.folder} is not the folder of a run; give the folder of one")

    @property
    def record(self) -> Figures:
        """The record of the run: settings, losses, epochs and the report, as in `record.json`."""
        path = self.folder / "record.json"
        try:
            return typing.cast(Figures, json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise Error(f"{self.folder} has no record of a run; give the folder of a run") from None

    @property
    def report(self) -> Figures:
        """The report of the training, as `zillion train --json` prints it."""
        report = self._report if self._report is not None else self.record.get("report")
        if report is None:
            raise Error(f"the run in {self.folder} has not ended; train it with resume=True")
        return report

    @property
    def interrupted(self) -> bool:
        """Whether the run was stopped before its end."""
        return bool(self.report["interrupted"])

    @property
    def test(self) -> typing.Optional[Figures]:
        """The figures of the test, or ``None`` without test data."""
        return typing.cast(typing.Optional[Figures], self.report.get("test"))

    @property
    def metrics(self) -> typing.Any:
        """A data frame with a row for each epoch.

        Columns: epoch, step, rows, loss, regulariser, rate_scale, seconds, is_best, and the
        figures of the validation with `valid_` before their names. Without pandas, a list of
        dictionaries.
        """
        rows = []
        for epoch in self.record["epochs"]:
            row = {key: value for key, value in epoch.items() if key != "valid"}
            valid = epoch.get("valid") or {}
            row.update(
                (f"valid_{key}", value)
                for key, value in valid.items()
                if isinstance(value, (int, float))
            )
            rows.append(row)
        return make_frame(rows)

    @property
    def losses(self) -> typing.Any:
        """A data frame of the training loss along the run: step, rows, loss."""
        return make_frame(self.record["losses"]["points"])

    @property
    def tables(self) -> typing.Any:
        """A data frame of the tables at the end: name, rows, bytes and counters."""
        return make_frame(self.report["tables"])

    def predict(self, data: typing.Any, *, threads: typing.Optional[int] = None) -> typing.Any:
        """Scores rows with the checkpoint of the best epoch.

        ``data`` is what ``Job.train`` takes; labels are not needed. The result has one column for
        each task (a probability, or a number) and one row for each row of the data, in their
        order. It is a frame of polars for polars, a table for pyarrow, and otherwise a data frame
        of pandas with the index of ``data``; without pandas, a dictionary of lists. A bad row that
        ``data.max_bad_rows`` leaves out has NaN. ``threads`` is the number of compute threads.
        """
        with tempfile.TemporaryDirectory(prefix="zillion-") as folder:
            files = list_files(data, pathlib.Path(folder), "rows")
            names, columns, _ = self._load(threads).predict(files, format_of(files))
        return as_result(data, names, columns)

    def evaluate(self, data: typing.Any, *, threads: typing.Optional[int] = None) -> Figures:
        """Scores labelled rows with the checkpoint of the best epoch, and returns the figures.

        ``data`` is what ``Job.train`` takes. ``threads`` is the number of compute threads.
        """
        with tempfile.TemporaryDirectory(prefix="zillion-") as folder:
            files = list_files(data, pathlib.Path(folder), "rows")
            report = self._load(threads).evaluate(files, format_of(files))
        return typing.cast(Figures, json.loads(report))

    def publish(
        self,
        registry: typing.Any,
        model: str,
        *,
        promote: typing.Optional[str] = "stable",
        parity: typing.Any = None,
    ) -> Figures:
        """Publishes the best checkpoint as a version of a registry, and returns the report.

        ``registry`` is a ``Registry`` or its URL, and ``model`` the name of the model there.
        ``promote`` is the pointer that moves to the version, or ``None``. ``parity`` is data whose
        first rows a server replays when it loads the version; without it, the job's files.
        """
        url = os.fspath(getattr(registry, "url", registry))
        arguments = ["publish", os.fspath(self.folder), "--registry", url, "--model", model]
        arguments += ["--no-promote"] if promote is None else ["--promote", promote]
        with tempfile.TemporaryDirectory(prefix="zillion-") as folder:
            if parity is not None:
                for file in list_files(parity, pathlib.Path(folder), "parity"):
                    arguments += ["--parity", file]
            return typing.cast(Figures, _cli.run_json(arguments))

    def plot(self, *kinds: str) -> Plot:
        """Returns plots of the run: the losses, and the main figure of each epoch.

        ``kinds`` chooses other plots, which are drawn side by side: ``"loss"``, ``"tables"`` (their
        rows and bytes at the end of the run), or a figure of the validation, such as ``"auc"``.
        """
        if kinds:
            return Plot(_zillion.plot(os.fspath(self.folder), list(kinds)))
        path = self.folder / "curves.svg"
        try:
            return Plot(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise Error(f"{self.folder} has no curves; they exist after the first epoch") from None

    def _repr_svg_(self) -> typing.Optional[str]:
        path = self.folder / "curves.svg"
        return path.read_text(encoding="utf-8") if path.exists() else None

    def __repr__(self) -> str:
        return f"zillion.Run({os.fspath(self.folder)!r})"

    def _load(self, threads: typing.Optional[int]) -> _zillion.Model:
        # A training that goes on in the same folder writes newer checkpoints, so only a run whose
        # training has ended keeps the loaded model.
        if threads is not None or self._model is None:
            model = _zillion.Model(os.fspath(self.folder), threads)
            if threads is not None or self._report is None:
                return model
            self._model = model
        return self._model


class Plot:
    """A plot in SVG, which notebooks show. ``svg`` is its text."""

    def __init__(self, svg: str) -> None:
        self.svg = svg

    def save(self, path: Path) -> None:
        """Writes the plot to the file ``path``."""
        pathlib.Path(path).write_text(self.svg, encoding="utf-8")

    def _repr_svg_(self) -> str:
        return self.svg


def compare(runs: typing.Sequence[typing.Union[Run, Path]]) -> typing.Any:
    """Returns the settings in which ``runs`` differ, and their figures, as a data frame.

    A run is a ``Run`` or its folder. Columns: kind (setting or figure), name, one for each run,
    and best, the name of the best run. Without pandas, a list of dictionaries.
    """
    folders = [os.fspath(run.folder if isinstance(run, Run) else run) for run in runs]
    found = _cli.run_json(["compare", *folders])
    names = [run["name"] for run in found["runs"]]
    rows: typing.List[Figures] = []
    for key, values in found["settings"].items():
        rows.append({"kind": "setting", "name": key, **dict(zip(names, values)), "best": None})
    for line in found["figures"]:
        figures = dict(zip(names, line["values"]))
        rows.append({"kind": "figure", "name": line["name"], **figures, "best": line["best"]})
    return make_frame(rows)


def format_of(files: typing.Sequence[str]) -> typing.Optional[str]:
    """Returns the setting ``data.format`` for files whose names tell their formats."""
    known = (".parquet", ".arrow", ".feather", ".ipc", ".csv", ".tsv", ".jsonl", ".ndjson")
    plain = [re.sub(r"\.(gz|zst)$", "", file.lower()) for file in files]
    return "auto" if all(name.endswith(known) for name in plain) else None


def as_result(
    data: typing.Any, names: typing.Sequence[str], columns: typing.Sequence[bytes]
) -> typing.Any:
    """Returns columns of ``f64`` in the class that belongs to ``data``."""
    values = {name: make_array(column) for name, column in zip(names, columns)}
    if is_from(data, "polars"):
        return need_module("polars", "a frame of polars").DataFrame(values)
    if is_from(data, "pyarrow"):
        return need_module("pyarrow", "an Arrow table").table(values)
    pandas = find_module("pandas")
    if pandas is not None:
        index = data.index if is_from(data, "pandas") else None
        return pandas.DataFrame(values, index=index)
    return {name: list(column) for name, column in values.items()}


def make_array(column: bytes) -> typing.Any:
    """Returns bytes of ``f64`` as an array of numpy, or of the standard library without numpy."""
    numpy = find_module("numpy")
    if numpy is not None:
        return numpy.frombuffer(bytearray(column), dtype="<f8")
    values = array.array("d")
    values.frombytes(column)
    return values
