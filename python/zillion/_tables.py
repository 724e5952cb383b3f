"""Tables for models outside of Zillion: rows by id, and gradients that train them."""

from __future__ import annotations

import json
import os
import tempfile
import typing

from . import _zillion
from ._data import Path
from ._errors import JobError
from ._frames import need_module
from ._job import Job
from ._progress import Figures

Array = typing.Any


class Tables:
    """Embedding tables that get a row when an id first trains. They need no vocabulary.

    ``tables`` has the settings of each table, with the keys of ``[tables.X]`` in a job file: dim,
    optimizer, initializer, admission, eviction, max_rows, and so on. ``fields`` maps the names by
    which ids are looked up to tables; without it, each table is a field.

    ``threads`` is the number of compute threads. ``seed`` is that of the initial rows. ``spill``
    maps tables to the memory of their rows, as in ``{"user": "1 GiB"}``; their other rows are in
    files in ``spill_folder``. ``max_bytes`` is the memory of all tables together.

    ``servers`` has the addresses of parameter servers that hold the rows, started by
    ``zillion ps serve``. ``store`` is the folder that they share with this process, and ``name``
    is the folder below it that belongs to these tables, which begin empty. ``ps`` has further
    keys of the section ``[ps]`` of a job file: token_file, tls_ca, deadline_seconds,
    wait_seconds, and so on. If a server is lost, calls raise ``Error`` until ``restore``.

    Ids are int64 and become keys as those of a feature with ``kind = "id"`` do.
    """

    def __init__(
        self,
        tables: typing.Mapping[str, typing.Mapping[str, typing.Any]],
        *,
        fields: typing.Optional[typing.Mapping[str, str]] = None,
        threads: typing.Optional[int] = None,
        seed: int = 0,
        spill: typing.Optional[typing.Mapping[str, str]] = None,
        spill_folder: typing.Optional[Path] = None,
        max_bytes: typing.Optional[str] = None,
        servers: typing.Optional[typing.Sequence[str]] = None,
        store: typing.Optional[Path] = None,
        name: str = "tables",
        ps: typing.Optional[typing.Mapping[str, typing.Any]] = None,
    ) -> None:
        need_module("numpy", "zl.Tables")
        named = [name for name in tables if name != "*"]
        chosen = {name: name for name in named} if fields is None else dict(fields)
        unused = sorted(set(named) - set(chosen.values()))
        if unused:
            raise JobError(f"no field reads the table `{unused[0]}`; add one to `fields`")
        run: Figures = {} if threads is None else {"threads": threads}
        if spill:
            if spill_folder is None:
                raise JobError("`spill` needs `spill_folder`, the folder of the files with rows")
            run.update(spill=dict(spill), spill_folder=os.fspath(spill_folder))
        shared: typing.Dict[str, Figures] = {}
        if servers is not None or ps is not None:
            if isinstance(servers, str):
                raise JobError("`servers` is one text; give a list of addresses (host:port)")
            section = dict(ps or {})
            if servers is not None:
                section["servers"] = list(servers)
            if store is None:
                raise JobError(
                    "`servers` need `store`, the folder that they share with this process"
                )
            section["store"] = os.fspath(store)
            run["output"] = os.path.join(section["store"], name)
            shared["ps"] = section
        elif store is not None:
            raise JobError("`store` is the folder of servers; name them in `servers`")
        job = Job(
            name="tables",
            seed=seed,
            features={
                field: {"kind": "id", "table": table} if field != table else {"kind": "id"}
                for field, table in chosen.items()
            },
            labels={"label": {}},
            tables=tables,
            # The job has a model only because every job has one.
            model={"kind": "dnn", "hidden": [1]},
            train={} if max_bytes is None else {"max_table_bytes": max_bytes},
            run=run,
            **shared,
        )
        self._tables = _zillion.Tables(job._json())
        self._fields = chosen
        # What a job that reads these tables has in common with theirs.
        self._sections: Figures = {"seed": seed, "tables": dict(tables), "run": run}
        self._places = {name: at for at, (name, _) in enumerate(self._tables.dims())}
        self._dims = dict(self._tables.dims())

    @property
    def fields(self) -> typing.List[str]:
        """The names of the fields."""
        return list(self._places)

    @property
    def tables(self) -> typing.List[str]:
        """The names of the tables, in the order of the fields."""
        return list(dict.fromkeys(self._fields.values()))

    def table(self, field: str) -> str:
        """Returns the name of the table of a field."""
        self._place(field)
        return self._fields[field]

    def dim(self, field: str) -> int:
        """Returns the number of floats of a row of ``field``."""
        self._place(field)
        return self._dims[field]

    def table_dim(self, table: str) -> int:
        """Returns the number of floats of a row of ``table``."""
        return next(self._dims[field] for field, name in self._fields.items() if name == table)

    def pull(
        self, fields: typing.Union[str, typing.Sequence[str]], ids: Array, *, train: bool = True
    ) -> Pulled:
        """Returns the rows of ids, float32.

        ``fields`` is the name of a field, or a list of names. With one field, ``ids`` has any
        shape and the rows have that shape and ``[dim]``. With a list of fields, ``ids`` has the
        shape ``[rows, fields]``, and the rows have the shape ``[rows, fields, dim]``. An id without
        a row reads its initial row.

        ``ids`` is an array of numpy, or what has the buffer protocol or DLPack, such as a tensor of
        torch on the CPU; it is not copied if it is contiguous and of 64 bits. The rows are an array
        of numpy, which torch (``torch.from_numpy``) and others take over without a copy.

        With ``train``, the lookup belongs to the present step: give its gradients to ``push``,
        then call ``step``. Without it, ids are read as evaluation reads them.
        """
        numpy = need_module("numpy", "zl.Tables")
        names = [fields] if isinstance(fields, str) else list(fields)
        found = _as_array(numpy, ids)
        if found.dtype.kind not in "iu" or found.dtype == numpy.uint64:
            raise JobError(f"ids are of the type {found.dtype}; give integers of 64 bits at most")
        found = numpy.require(found, dtype="<i8", requirements=["C", "A"])
        if not isinstance(fields, str) and (found.ndim != 2 or found.shape[1] != len(names)):
            raise JobError(
                f"ids have the shape {list(found.shape)}; give [rows, {len(names)}], one id for "
                "each field"
            )
        places = [self._place(name) for name in names]
        dim = self._dims[names[0]] if names else 0
        rows = numpy.empty((*found.shape, dim), dtype="<f4")
        return Pulled(self._tables.lookup(places, found, train, rows), rows)

    def push(self, pulled: typing.Union[Pulled, int], gradients: Array) -> None:
        """Adds the gradients of pulled rows to those of the step.

        ``pulled`` is what ``pull`` returned, or its ticket. ``gradients`` has the shape of the rows
        (float32), and is read in place as ``ids`` of ``pull`` are. Gradients of the same id are
        summed at once, so the memory can be used again. A row whose sum is not finite does not
        change.
        """
        numpy = need_module("numpy", "zl.Tables")
        found = numpy.require(_as_array(numpy, gradients), dtype="<f4", requirements=["C", "A"])
        ticket = pulled
        if isinstance(pulled, Pulled):
            if found.shape != pulled.rows.shape:
                raise JobError(
                    f"gradients have the shape {list(found.shape)}; give that of the rows, "
                    f"{list(pulled.rows.shape)}"
                )
            ticket = pulled.ticket
        self._tables.keep(typing.cast(int, ticket), found)

    def step(self, *, rate: float = 1.0) -> Figures:
        """Applies the gradients of the step to the rows, and returns the counts of changes.

        ``rate`` multiplies the learning rates of the tables in this step.
        """
        return typing.cast(Figures, json.loads(self._tables.step(rate)))

    def clear_gradients(self) -> None:
        """Drops the gradients that ``push`` has kept for this step. Its lookups stay."""
        self._tables.clear_gradients()

    def discard(self) -> None:
        """Ends the step without a change."""
        self._tables.discard()

    def statistics(self) -> typing.List[Figures]:
        """Returns the sizes and the counters of the tables: name, rows, bytes, counters, spill."""
        return typing.cast(typing.List[Figures], json.loads(self._tables.statistics()))

    def explain(self, field: str, id: int) -> typing.Optional[Figures]:
        """Returns the row of ``id`` in the table of ``field``, or ``None`` if it has none.

        Keys: weights (``[dim]`` floats), count (of pushes).
        """
        found = self._tables.find(self._place(field), int(id))
        return None if found is None else {"weights": found[0], "count": found[1]}

    def save(self, folder: Path) -> None:
        """Writes the tables to the new folder ``folder``, which appears whole or not at all.

        With servers, each writes its own rows, so the folder must lie below ``store``.
        """
        self._tables.save(os.fspath(folder))

    def restore(self, folder: Path) -> None:
        """Replaces all rows by those of ``folder``, which ``save`` wrote.

        The settings of the tables must be the same, except for their limits. If a server was lost,
        this waits for it to be back, and Ctrl-C ends the wait. If ``folder`` has no saved tables,
        nothing changes; if the restore fails later, the tables refuse all else until another one.
        """
        self._tables.restore(os.fspath(folder))

    def sections(self) -> Figures:
        """Returns the sections of a job that reads these tables: seed, tables, run."""
        return dict(self._sections)

    def scratch(self) -> str:
        """Returns the path of a folder that only these tables use. It need not exist."""
        return os.path.join(tempfile.gettempdir(), f"zillion-export-{os.getpid()}-{id(self):x}")

    def publish(
        self,
        job: Job,
        wish: typing.Mapping[str, typing.Any],
        weights: typing.Mapping[str, bytes],
        scores: typing.Mapping[str, bytes],
    ) -> Figures:
        """Publishes the tables as a version of a job. Use ``zillion.torch.export``."""
        report = self._tables.publish(
            job._json(), json.dumps(wish), list(weights.items()), list(scores.items())
        )
        return typing.cast(Figures, json.loads(report))

    def _place(self, field: str) -> int:
        place = self._places.get(field)
        if place is None:
            raise JobError(f"unknown field `{field}`; expected one of {', '.join(self._places)}")
        return place

    def __repr__(self) -> str:
        return f"zillion.Tables({self._dims})"


def _as_array(numpy: typing.Any, values: Array) -> typing.Any:
    """Returns the values as an array of ``numpy``, in the same memory where that is possible."""
    if not isinstance(values, numpy.ndarray) and hasattr(values, "__dlpack__"):
        try:
            return numpy.from_dlpack(values)
        except (BufferError, RuntimeError, TypeError, ValueError):
            # Memory of a device, or a type that DLPack does not have.
            pass
    return numpy.asarray(values)


class Pulled:
    """The rows of a lookup: ``rows`` (float32 ``[.., dim]``), and the ``ticket`` of the lookup."""

    def __init__(self, ticket: int, rows: Array) -> None:
        self.ticket = ticket
        self.rows = rows
