"""A run whose steps the caller takes one at a time."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import sys
import types
import typing
import warnings

from . import _zillion
from ._data import Path
from ._errors import JobError, Refused
from ._frames import need_module
from ._job import Job, has_run, list_folder, remove_files
from ._progress import Figures
from ._read import Batch, make_batch
from ._run import Run

Array = typing.Any
BeforeStep = typing.Callable[["Trainer", Batch], typing.Any]
AfterStep = typing.Callable[["Trainer", "Step"], typing.Any]


@dataclasses.dataclass
class Step:
    """What a step has done.

    ``step`` counts the steps of the run, from 1; ``epoch`` counts from 1 too. ``loss`` is the mean
    loss of the ``rows`` of the batch, before the step. ``scores`` has the scores of each task
    before the step (float32, shape ``[rows]``), log odds for a label of 0 and 1. ``fetched`` has
    the values of the nodes that the trainer fetches (float32, shape ``[rows, columns]``, or
    ``[values, columns]`` for a node of a list). ``dense_norm`` and ``table_norms`` are the norms of
    the gradients, ``None`` unless the trainer was made with ``norms=True``.
    """

    step: int
    epoch: int
    rows: int
    loss: float
    scores: typing.List[Array]
    fetched: typing.Dict[str, Array]
    dense_norm: typing.Optional[float]
    table_norms: typing.Optional[typing.List[float]]


class Trainer:
    """A run of a job, one step at a time.

        with zl.Trainer(job, frame, valid=other, fetch=["gate"]) as trainer:
            while not trainer.is_finished:
                for batch in trainer.batches():
                    step = trainer.step(batch)
                print(trainer.end_epoch()["valid"]["auc"])
        run = trainer.run

    The steps of all batches of ``batches``, in their order, give the bytes of ``Job.train``.
    Between them are the same schedule, checkpoints and versions. The end of the ``with`` block
    ends the run: a run with all of its epochs is tested, and another one gets a checkpoint, also
    after an exception.

    ``data``, ``valid``, ``test``, ``out``, ``resume``, ``overwrite`` and ``start`` are those of the
    method ``train`` of ``job``.
    ``fetch`` names nodes of the model whose values each step returns. ``norms`` asks for the norms
    of the gradients. A job for a GPU, or with tables on servers, is stepped in the same way;
    several trainers and ``train.accumulate`` are errors.
    """

    rate: float = 1.0
    """The factor of the learning rates of the next steps, beside the schedule of the job."""

    def __init__(
        self,
        job: Job,
        data: typing.Any = None,
        *,
        valid: typing.Any = None,
        test: typing.Any = None,
        out: typing.Optional[Path] = None,
        fetch: typing.Sequence[str] = (),
        norms: bool = False,
        resume: bool = False,
        overwrite: bool = False,
        start: typing.Optional[Path] = None,
    ) -> None:
        need_module("numpy", "zl.Trainer")
        if isinstance(fetch, str):
            raise JobError(f'`fetch` is the text "{fetch}"; give a list of names of nodes')
        if out is not None:
            job = job.replace(run={"output": os.fspath(out)})
        self.folder: pathlib.Path = job.output
        self.run: typing.Optional[Run] = None
        overwrite = overwrite and (resume or has_run(self.folder))
        before = set(list_folder(self.folder / "data"))
        job = job._with_data(self.folder / "data", data, valid, test)
        self.job = job
        self._columns = number_columns(job)
        begin = None if start is None else os.fspath(start)
        try:
            with job._locating():
                self._stepper = _zillion.Stepper(
                    job._json(), (resume, overwrite), begin, list(fetch), norms
                )
        except (JobError, Refused, KeyboardInterrupt):
            # No step was taken, so the folder is left as it was.
            remove_files(set(list_folder(self.folder / "data")) - before)
            raise
        self._show_notes()

    @property
    def steps(self) -> int:
        """The number of steps done."""
        return int(self._position()["step"])

    @property
    def epoch(self) -> int:
        """The number of epochs that have ended."""
        return int(self._position()["epoch"])

    @property
    def is_finished(self) -> bool:
        """Whether the run has had all of its epochs, or was stopped by its plateau."""
        return bool(self._position()["is_finished"])

    @property
    def tables(self) -> typing.List[Figures]:
        """The sizes and counters of the tables."""
        tables: typing.List[Figures] = json.loads(self._stepper.tables())
        return tables

    def batches(self) -> typing.Iterator[Batch]:
        """Yields the batches of the present epoch to its end.

        They are those of ``Job.train``, in its order, and are prepared on other threads meanwhile.
        Another call in the same epoch goes on behind the last batch that was taken, whether or not
        it was a step: keep a batch that you look at, and step on it.
        """
        while True:
            found = self._stepper.next_batch()
            if found is None:
                return
            yield make_batch(found)

    def step(
        self, batch: Batch, *, feed: typing.Optional[typing.Mapping[str, Array]] = None
    ) -> Step:
        """Trains on a batch of ``batches`` or of ``zl.read`` with the same features.

        ``feed`` replaces columns of the batch: a numeric feature (float32, shape ``[rows]``, or
        ``[rows, size]`` of a vector), or a label (shape ``[rows]``). Numbers are those after the
        transform of the feature, as in ``batch.numeric``. A label of 0 and 1 may be a number
        between them.
        """
        if batch._handle is None:
            raise JobError("the batch was not read by Zillion; take one of `batches` or `zl.read`")
        fed = [self._write_column(name, values) for name, values in (feed or {}).items()]
        figures, scores, fetched = self._stepper.step(batch._handle, fed, float(self.rate))
        import numpy

        found = json.loads(figures)
        norms = found["norms"] or {"dense": None, "tables": None}
        return Step(
            step=found["step"],
            epoch=found["epoch"],
            rows=found["rows"],
            loss=found["loss"],
            scores=[numpy.frombuffer(values, dtype="<f4") for values in scores],
            fetched={
                name: numpy.frombuffer(values, dtype="<f4").reshape(-1, columns)
                for name, columns, values in fetched
            },
            dense_norm=norms["dense"],
            table_norms=norms["tables"],
        )

    def end_epoch(self) -> Figures:
        """Ends the epoch: validates it and writes a checkpoint. Returns the figures of the epoch.

        They are those of ``Callback.on_epoch``, such as epoch, loss, valid and is_best. Ctrl-C ends
        the validation, and the epoch can be ended again.
        """
        figures: Figures = json.loads(self._stepper.end_epoch())
        self._show_notes()
        return figures

    def train(
        self,
        *,
        before: typing.Sequence[BeforeStep] = (),
        after: typing.Sequence[AfterStep] = (),
    ) -> Run:
        """Takes all steps that are left, with hooks, and returns the run.

        Each function of ``before`` gets the trainer and the batch, each function of ``after`` the
        trainer and the ``Step``. A hook may set ``trainer.rate``, and ends the run by returning
        ``False``. An exception in a hook leaves this method; the run then has a checkpoint.
        """
        with self:
            while not self.is_finished:
                if not self._train_epoch(before, after):
                    break
                self.end_epoch()
        assert self.run is not None
        return self.run

    def _train_epoch(
        self, before: typing.Sequence[BeforeStep], after: typing.Sequence[AfterStep]
    ) -> bool:
        """Takes the steps of an epoch. Returns whether no hook has ended the run."""
        for batch in self.batches():
            if any([hook(self, batch) is False for hook in before]):
                return False
            step = self.step(batch)
            if any([hook(self, step) is False for hook in after]):
                return False
        return True

    def validate(self) -> typing.Optional[Figures]:
        """Returns the figures of the validation data now, or ``None`` if there is none."""
        figures: typing.Optional[Figures] = json.loads(self._stepper.validate())
        return figures

    def save(self) -> None:
        """Writes a checkpoint of the present state to the folder of the run."""
        self._stepper.save()
        self._show_notes()

    def finish(self) -> Run:
        """Ends the run, and returns it. Without all epochs, it gets a checkpoint to resume from."""
        if self.run is None:
            self.run = Run(self.folder, report=json.loads(self._stepper.finish()))
        return self.run

    def __enter__(self) -> Trainer:
        return self

    def __exit__(
        self,
        kind: typing.Optional[typing.Type[BaseException]],
        error: typing.Optional[BaseException],
        trace: typing.Optional[types.TracebackType],
    ) -> None:
        try:
            self.finish()
        except Exception as failure:
            if error is None:
                raise
            # The exception that leaves the block says what went wrong first.
            warnings.warn(f"the run has no last checkpoint: {failure}", stacklevel=2)

    def _show_notes(self) -> None:
        """Prints the notes of the run on stderr, as a training does."""
        for note in self._stepper.take_notes():
            print(note, file=sys.stderr)

    def _position(self) -> Figures:
        position: Figures = json.loads(self._stepper.position())
        return position

    def _write_column(
        self, name: str, values: Array
    ) -> typing.Tuple[str, int, typing.List[bytes]]:
        """Returns a fed column as its kind, the place of its first column and bytes."""
        import numpy

        if name not in self._columns:
            names = ", ".join(f"`{column}`" for column in self._columns)
            raise JobError(
                f"`{name}` cannot be fed: it is neither a numeric feature nor a label of the job; "
                f"these are {names}"
            )
        kind, first, width = self._columns[name]
        array = numpy.asarray(values, dtype="<f4")
        shape = array.shape
        if len(shape) != (1 if width == 1 else 2) or (width > 1 and shape[1] != width):
            wanted = "[rows]" if width == 1 else f"[rows, {width}]"
            raise JobError(f"the fed `{name}` has the shape {list(shape)}; give {wanted}")
        if not numpy.isfinite(array).all():
            raise JobError(f"the fed `{name}` has values that are not finite; replace them")
        columns = [array] if width == 1 else list(array.T)
        return kind, first, [column.tobytes() for column in columns]


def number_columns(job: Job) -> typing.Dict[str, typing.Tuple[str, int, int]]:
    """Returns the numeric features and the labels of a job: kind, first column, and width."""
    columns: typing.Dict[str, typing.Tuple[str, int, int]] = {}
    at = 0
    sections = job.to_dict()
    for name, feature in sections.get("features", {}).items():
        if feature.get("kind") in ("numeric", "vector"):
            width = int(feature.get("size", 1))
            columns[name] = ("numeric", at, width)
            at += width
    for at, name in enumerate(sections.get("labels", {})):
        columns.setdefault(name, ("label", at, 1))
    return columns
