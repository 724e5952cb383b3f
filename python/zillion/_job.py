"""Jobs: what a row means, what the model is, and how it learns."""

from __future__ import annotations

import collections.abc
import contextlib
import copy
import json
import os
import pathlib
import re
import tempfile
import typing

from . import _cli, _zillion
from ._data import Path, link_data, list_files
from ._errors import Interrupted, JobError, Refused
from ._model import Model, add_origin, trace_model
from ._progress import Callback, Figures, Progress
from ._run import Run

Sections = typing.Dict[str, typing.Any]
SPLITS = ("train", "valid", "test")
# The names of files of given data, which `write_file` makes.
DATA_FILE = re.compile(r"(train|valid|test)-[0-9a-f]{16}\.\w+")


class Job:
    """A job, with the sections and keys of the job file.

    Sections are given by name in ``more``, ``Job(features={...}, model={...})``, or as one
    dictionary ``sections``. A wrong key or value raises ``JobError``, whose text names the nearest
    right one. The order of the features is kept: it is the order of the model's columns. ``model``
    may be a ``zillion.Model``, which is traced at once.
    """

    drafted: typing.Optional[str] = None
    """The commented file of a job that ``draft`` has made; ``None`` for other jobs."""

    def __init__(
        self,
        sections: typing.Optional[typing.Mapping[str, typing.Any]] = None,
        /,
        **more: typing.Any,
    ) -> None:
        merged = merge({}, {} if sections is None else sections)
        self._set(merge(merged, more), {})

    def _set(self, sections: Sections, origins: typing.Mapping[str, str]) -> None:
        """Takes the sections, and the lines of code that made the nodes of the model."""
        self._origins = dict(origins)
        if isinstance(sections.get("model"), Model):
            sections["model"], self._origins = trace_model(sections["model"])
        self._sections = sections
        self._validate()

    @classmethod
    def from_toml(cls, source: Path) -> Job:
        """Returns the job of a job file, or of its text: ``source`` is one of them.

        A text with a line break or with ``=`` is TOML; everything else is a path.
        """
        text = os.fspath(source)
        is_text = isinstance(source, str) and ("\n" in text or "=" in text)
        return cls(json.loads(_zillion.parse(text) if is_text else _zillion.load(text)))

    @classmethod
    def draft(
        cls,
        data: typing.Any,
        *,
        valid: typing.Any = None,
        label: typing.Optional[str] = None,
        model: typing.Optional[str] = None,
    ) -> Job:
        """Returns the job that ``zillion init`` drafts for ``data``.

        ``data`` is what ``train`` takes, or the path of a local file. ``label`` is the column to
        predict, ``model`` the kind of the model; both are chosen by the data without them. With
        ``valid``, validation rows, the job trains until they get no better. ``drafted`` of the job
        is its file with the reason of each guess beside it, which is worth reading.
        """
        with tempfile.TemporaryDirectory(prefix="zillion-") as folder:
            path = link_data(data, pathlib.Path(folder), "train")
            if valid is not None:
                link_data(valid, pathlib.Path(folder), "valid")
            options = [] if label is None else ["--label", label]
            options += [] if model is None else ["--model", model]
            text = _cli.run(["init", os.fspath(path), "--no-split", "--out", "-", *options])
        sections = json.loads(_zillion.parse(text))
        for key in ("root", *SPLITS):
            sections["data"].pop(key, None)
        if not sections["data"]:
            del sections["data"]
        job = cls(sections)
        job.drafted = text
        return job

    def to_toml(self, defaults: bool = False) -> str:
        """Returns the text of the job file. With ``defaults``, every default is written out."""
        text = self._json()
        return _zillion.effective(text) if defaults else _zillion.print(text)

    def to_dict(self) -> Sections:
        """Returns a copy of the sections."""
        return copy.deepcopy(self._sections)

    def replace(
        self,
        sections: typing.Optional[typing.Mapping[str, typing.Any]] = None,
        /,
        **more: typing.Any,
    ) -> Job:
        """Returns a job with other settings: ``job.replace(train={"epochs": 3})``.

        ``sections`` and ``more`` are given as for a new job, and merged key by key into those of
        this one.
        """
        merged = merge(self.to_dict(), {} if sections is None else sections)
        others = [*({} if sections is None else sections), *more]
        job = Job.__new__(Job)
        job._set(merge(merged, more), {} if "model" in others else self._origins)
        return job

    @property
    def name(self) -> str:
        """The name of the job."""
        return str(self._sections.get("name", "job"))

    @property
    def output(self) -> pathlib.Path:
        """The folder of the run."""
        return pathlib.Path(self._validate())

    def check(
        self,
        data: typing.Any = None,
        *,
        valid: typing.Any = None,
        test: typing.Any = None,
        sample: int = 100_000,
    ) -> CheckReport:
        """Returns the problems of the job and its cost in rows, bytes and memory.

        ``data``, ``valid`` and ``test`` are those of ``train``. ``sample`` is the number of rows
        of the training data that are read.
        """
        with tempfile.TemporaryDirectory(prefix="zillion-") as folder:
            job = self._with_data(pathlib.Path(folder), data, valid, test)
            with job._locating():
                report = CheckReport(json.loads(_zillion.check(job._json(), sample)))
        for finding in report.findings:
            finding["text"] = add_origin(finding["text"], job._origins)
        return report

    def train(
        self,
        data: typing.Any = None,
        *,
        valid: typing.Any = None,
        test: typing.Any = None,
        out: typing.Optional[Path] = None,
        callbacks: typing.Sequence[typing.Union[Callback, typing.Callable[..., typing.Any]]] = (),
        progress: bool = True,
        resume: bool = False,
        overwrite: bool = False,
        start: typing.Optional[Path] = None,
    ) -> Run:
        """Trains the job, and returns its run.

        ``data``, ``valid`` and ``test`` are paths, data frames of pandas or polars, Arrow tables,
        dictionaries of columns, or iterables of dictionaries. What is not a path is written once
        to a file in the folder ``data`` of the run. Without them, the job's own files are read.

        ``out`` is the folder of the run. ``callbacks`` are ``Callback`` objects, or functions that
        get the kind of a report and its figures. ``resume`` goes on from the newest checkpoint.
        ``overwrite`` replaces the run in the folder, once the job and its data have been checked; a
        folder with files but no run is refused. ``start`` is the run or checkpoint whose weights a
        new run begins with.

        Ctrl-C ends the training after a checkpoint, and raises ``Interrupted``. An exception in a
        callback does the same, and leaves this method. ``progress`` shows the progress on stderr.
        """
        job = self
        if out is not None:
            job = job.replace(run={"output": os.fspath(out)})
        folder = job.output
        overwrite = overwrite and (resume or has_run(folder))
        before = set(list_folder(folder / "data"))
        job = job._with_data(folder / "data", data, valid, test)
        listeners: typing.List[typing.Any] = [Progress()] if progress else []
        handler = make_handler([*listeners, *callbacks])
        begin = None if start is None else os.fspath(start)
        try:
            with job._locating():
                report, stopped_by = _zillion.train(
                    job._json(), resume, overwrite, begin, handler
                )
        except (JobError, Refused):
            # Nothing was trained, so the folder is left as it was.
            remove_files(set(list_folder(folder / "data")) - before)
            raise
        if overwrite:
            used = {file for split in SPLITS for file in names_of(job, split)}
            old = (path for path in before if DATA_FILE.fullmatch(path.name))
            remove_files(path for path in old if os.fspath(path.absolute()) not in used)
        run = Run(folder, report=json.loads(report))
        if isinstance(stopped_by, KeyboardInterrupt):
            raise Interrupted(run) from None
        if stopped_by is not None:
            raise stopped_by
        return run

    def _with_data(
        self, folder: pathlib.Path, train: typing.Any, valid: typing.Any, test: typing.Any
    ) -> Job:
        """Returns the job with the given data in place of its files."""
        given = {
            split: data for split, data in zip(SPLITS, (train, valid, test)) if data is not None
        }
        if not given:
            return self
        section = self._sections.get("data", {})
        if section.get("format", "auto") != "auto":
            raise JobError(
                f"`data.format` is \"{section['format']}\", but the format of given data follows "
                "from the data; remove the key"
            )
        files = {split: list_files(data, folder, split) for split, data in given.items()}
        return self.replace(data=files)

    def _json(self) -> str:
        return write_json(self._sections)

    def _validate(self) -> str:
        with self._locating():
            return os.fspath(_zillion.validate(self._json()))

    @contextlib.contextmanager
    def _locating(self) -> typing.Iterator[None]:
        """Adds the line of code to an error about a node of a model in Python."""
        try:
            yield
        except JobError as error:
            text = str(error)
            located = add_origin(text, self._origins)
            if located == text:
                raise
            raise JobError(located) from None

    def __getitem__(self, section: str) -> typing.Any:
        return copy.deepcopy(self._sections[section])

    def _identity(self) -> typing.Tuple[str, ...]:
        """Returns the settings without the order of keys, and the orders that have a meaning."""
        sections = json.loads(self._json())
        orders = [list(sections.get(name, {})) for name in ("features", "labels", "side")]
        return json.dumps(sections, sort_keys=True), json.dumps(orders)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def __repr__(self) -> str:
        return f"zillion.Job(name={self.name!r}, sections={list(self._sections)})"


class CheckReport:
    """The report of ``Job.check``, which is made of the dictionary ``report``.

    ``findings`` is a list of dictionaries with the keys severity (error, stop, warning or note),
    about and text, the worst first. ``tables``, ``data`` and ``memory`` hold the estimates, in
    rows and bytes.
    """

    def __init__(self, report: Figures) -> None:
        self.findings: typing.List[Figures] = report["findings"]
        self.tables: typing.List[Figures] = report["tables"]
        self.data: typing.Optional[Figures] = report["data"]
        self.memory: typing.Optional[Figures] = report["memory"]

    @property
    def ok(self) -> bool:
        """Whether the job can and should run: no finding is an error or a stop."""
        return not any(finding["severity"] in ("error", "stop") for finding in self.findings)

    def __str__(self) -> str:
        lines = [f"{f['severity']}: {f['about']}: {f['text']}" for f in self.findings]
        return "\n".join(lines) or "no findings"

    def __repr__(self) -> str:
        return f"zillion.CheckReport(ok={self.ok}, findings={len(self.findings)})"


def merge(into: Sections, patch: typing.Mapping[str, typing.Any]) -> Sections:
    """Merges ``patch`` into ``into`` key by key.

    A table of another ``kind`` replaces the old one, because the two share no settings.
    """
    for key, value in patch.items():
        old = into.get(key)
        if isinstance(value, Model):
            into[key] = value
        elif isinstance(value, collections.abc.Mapping):
            is_other = isinstance(old, dict) and old.get("kind", value.get("kind")) != value.get(
                "kind", old.get("kind")
            )
            base = old if isinstance(old, dict) and not is_other else {}
            into[key] = merge(base, value)
        else:
            into[key] = copy.deepcopy(value)
    return into


def names_of(job: Job, split: str) -> typing.List[str]:
    """Returns the names of the files of a split."""
    names = job.to_dict().get("data", {}).get(split, [])
    return [names] if isinstance(names, str) else list(names)


def remove_files(paths: typing.Iterable[pathlib.Path]) -> None:
    """Removes files; one that is gone already is no error."""
    for path in paths:
        path.unlink(missing_ok=True)


def has_run(folder: pathlib.Path) -> bool:
    """Returns whether a folder has files that a run which has not begun does not make.

    The files of given data would make an empty folder one with files but no run.
    """
    own = {"data", "LOCK", "checkpoints"}
    return any(path.name not in own for path in list_folder(folder))


def list_folder(folder: pathlib.Path) -> typing.List[pathlib.Path]:
    """Returns the files of a folder; none if there is no such folder."""
    return list(folder.iterdir()) if folder.is_dir() else []


def write_json(sections: Sections) -> str:
    """Returns the sections as JSON, or raises an error that names the key without a form in it."""

    def convert(value: typing.Any, path: str) -> typing.Any:
        if isinstance(value, dict):
            for key in value:
                if not isinstance(key, str):
                    raise JobError(f"`{path}`: the key {key!r} is not a text; make it one")
            return {key: convert(v, f"{path}.{key}".strip(".")) for key, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [convert(entry, f"{path}.{at}") for at, entry in enumerate(value)]
        if isinstance(value, os.PathLike):
            return os.fspath(value)
        if hasattr(value, "tolist"):
            return convert(value.tolist(), path)
        if value is None:
            raise JobError(f"`{path}` is None; leave the key out to get its default")
        if isinstance(value, (str, bool, int, float)):
            return value
        raise JobError(f"`{path}` is of the class {type(value).__name__}; give a number or a text")

    try:
        return json.dumps(convert(sections, ""), allow_nan=False)
    except ValueError as error:
        raise JobError(f"the job has a number that is not finite ({error}); correct it") from None


def make_handler(
    listeners: typing.Sequence[typing.Any],
) -> typing.Callable[[str, str], bool]:
    """Returns the function that passes the reports of a training to callbacks."""
    for listener in listeners:
        if not (callable(listener) or hasattr(listener, "on_step")):
            raise TypeError(
                f"a callback of the class {type(listener).__name__} is neither a function nor a "
                "zillion.Callback"
            )

    def handle(kind: str, text: str) -> bool:
        figures = json.loads(text)
        goes_on = True
        for listener in listeners:
            if hasattr(listener, "on_step"):
                wish = getattr(listener, f"on_{kind}")(figures)
            else:
                wish = listener(kind, figures)
            goes_on = goes_on and wish is not False
        return goes_on

    return handle
