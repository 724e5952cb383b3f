"""The publication of a model of PyTorch on tables of Zillion."""

from __future__ import annotations

import os
import pathlib
import random
import tempfile
import typing

import torch

from ._data import Path, write_file
from ._errors import JobError
from ._instances import make_instances
from ._job import Job
from ._onnx_library import name_library
from ._progress import Figures
from ._read import read
from ._tables import Tables
from ._torch_graph import BATCH, Rows, Sym, Unsupported, row_of
from ._torch_inputs import Inputs, Offsets, Settings, Spec, names_of
from ._torch_onnx import Dense, Recorder, write_onnx
from ._torch_trace import Tracer, Untraceable


class Columns:
    """The values of rows, from which the parameters of a model are made."""

    def __init__(
        self,
        inputs: Inputs,
        rows: typing.Sequence[typing.Mapping[str, typing.Any]],
        numbers: typing.Mapping[str, typing.Any],
    ) -> None:
        self.inputs, self.rows, self.numbers = inputs, rows, numbers
        self.count: typing.Any = len(rows)

    def number(self, name: str) -> torch.Tensor:
        return torch.tensor(self.numbers[name])

    def ids(self, name: str) -> torch.Tensor:
        found = [self._get(row, name) for row in self.rows]
        return torch.tensor(found, dtype=torch.int64)

    def list(self, name: str) -> typing.Tuple[torch.Tensor, torch.Tensor]:
        lists = [[int(one) for one in self._get(row, name)] for row in self.rows]
        offsets = [0]
        for entry in lists[:-1]:
            offsets.append(offsets[-1] + len(entry))
        flat = [one for entry in lists for one in entry]
        return torch.tensor(flat, dtype=torch.int64), torch.tensor(offsets)

    def _get(self, row: typing.Mapping[str, typing.Any], name: str) -> typing.Any:
        found = row.get(self.inputs.column(name))
        if found is None:
            raise JobError(
                f"a row of the sample has no value in the column `{self.inputs.column(name)}`; "
                "give rows that have all inputs"
            )
        return found

    def arguments(
        self, tracer: typing.Optional[Tracer] = None
    ) -> typing.Dict[str, torch.Tensor]:
        """Returns the values of the parameters. With a tracer, it gets to know them."""
        lists: typing.Dict[str, typing.Tuple[torch.Tensor, torch.Tensor]] = {}

        def list_of(name: str) -> typing.Tuple[torch.Tensor, torch.Tensor]:
            if name not in lists:
                lists[name] = self.list(name)
                if tracer is not None:
                    tracer.add_list(name, *lists[name])
            return lists[name]

        def single(name: str) -> torch.Tensor:
            kind = self.inputs.kind(name)
            if kind == "ids":
                return list_of(name)[0]
            if kind == "id":
                found = self.ids(name)
                if tracer is not None:
                    tracer.keep(found, tracer.graph.input(tracer.add_ids(name), found.shape))
                return found
            found = self.number(name)
            if tracer is not None:
                node = tracer.graph.add(
                    "numeric", [], self.inputs.width(name), name=name, features=[name]
                )
                tracer.keep(found, tracer.graph.input(node, found.shape))
            return found

        def several(names: typing.Sequence[str]) -> torch.Tensor:
            kinds = {self.inputs.kind(name) for name in names}
            if kinds == {"id"}:
                return torch.stack([single(name) for name in names], 1)
            if kinds <= {"numeric", "vector"}:
                if tracer is None:
                    parts = [single(name).reshape(self.count, -1) for name in names]
                    return torch.cat(parts, 1)
                found = torch.cat(
                    [self.number(name).reshape(self.count, -1) for name in names], 1
                )
                node = tracer.graph.add(
                    "numeric", [], found.shape[1], name="numbers", features=list(names)
                )
                return tracer.keep(found, tracer.graph.input(node, found.shape))
            raise JobError(
                f"the input [{', '.join(names)}] has ids and numbers, or lists; name ids and "
                "numbers apart, and each list alone"
            )

        def make(spec: Spec) -> torch.Tensor:
            if isinstance(spec, Offsets):
                return list_of(spec.name)[1]
            names = names_of(spec)
            if isinstance(spec, torch.nn.Module):
                if hasattr(spec, "mode"):
                    return typing.cast(torch.Tensor, spec(*list_of(names[0])))
                ids = several(names) if hasattr(spec, "fields") else single(names[0])
                return typing.cast(torch.Tensor, spec(ids))
            return single(spec) if isinstance(spec, str) else several(names)

        return {parameter: make(spec) for parameter, spec in self.inputs.specs.items()}


class FedColumns(Columns):
    """The values of features, from which the parameters of a model are made. Ids are zeros."""

    def __init__(
        self, inputs: Inputs, features: typing.Mapping[str, torch.Tensor], count: typing.Any
    ) -> None:
        super().__init__(inputs, [], {})
        self.features, self.count = features, count
        self._like = next(iter(features.values()))

    def number(self, name: str) -> torch.Tensor:
        found = self.features[name]
        return found.reshape(self.count) if self.inputs.kind(name) == "numeric" else found

    def ids(self, name: str) -> torch.Tensor:
        return self._like.new_zeros(self.count, dtype=torch.int64)

    def list(self, name: str) -> typing.Tuple[torch.Tensor, torch.Tensor]:
        ids = self._like.new_zeros(2 * self.count, dtype=torch.int64)
        return ids, 2 * torch.arange(self.count)


def made_up_rows(inputs: Inputs, count: int) -> typing.List[Figures]:
    """Returns rows with small ids and numbers between 0 and 1."""
    draw = random.Random(5)
    rows = []
    for _ in range(count):
        row: Figures = {}
        for name in inputs.names:
            kind = inputs.kind(name)
            if kind == "id":
                value: typing.Any = draw.randrange(1000)
            elif kind == "ids":
                value = [draw.randrange(1000) for _ in range(2)]
            elif kind == "vector":
                value = [draw.random() for _ in range(inputs.width(name))]
            else:
                value = draw.random()
            row[inputs.column(name)] = value
        rows.append(row)
    return rows


class Evaluating:
    """Puts modules into `eval` mode, and back afterwards."""

    def __init__(self, modules: typing.Sequence[torch.nn.Module]) -> None:
        self._states = [(part, part.training) for module in modules for part in module.modules()]

    def __enter__(self) -> None:
        for part, _ in self._states:
            part.training = False

    def __exit__(self, *error: typing.Any) -> None:
        for part, training in self._states:
            part.training = training


def scores_of(
    found: typing.Any, labels: typing.Sequence[str], rows: int
) -> typing.Dict[str, torch.Tensor]:
    """Returns what a model computed, a tensor of one float for each row, by label."""
    if isinstance(found, typing.Mapping):
        parts = {str(label): value for label, value in found.items()}
    elif isinstance(found, (list, tuple)):
        parts = dict(zip(labels, found)) if len(found) == len(labels) else {"": found}
    elif isinstance(found, torch.Tensor) and found.numel() == rows:
        parts = {labels[0]: found}
    elif isinstance(found, torch.Tensor) and found.shape == (rows, len(labels)):
        parts = {label: found[:, at] for at, label in enumerate(labels)}
    else:
        parts = {"": found}
    for value in parts.values():
        if not isinstance(value, torch.Tensor) or value.numel() != rows:
            parts = {}
    if sorted(parts) != sorted(labels):
        raise JobError(
            f"the model must return a score of each row for each label ({', '.join(labels)}): a "
            "tensor [rows, labels], a tuple of tensors, or a dictionary; name the labels in "
            "`labels`"
        )
    return {label: parts[label] for label in labels}


def export(
    module: torch.nn.Module,
    tables: Tables,
    registry: typing.Any,
    model: str,
    *,
    inputs: typing.Any,
    features: typing.Optional[Settings] = None,
    labels: typing.Optional[Settings] = None,
    sample: typing.Any = None,
    promote: typing.Optional[str] = "stable",
    base: bool = False,
    tolerance: float = 1e-5,
    scratch: typing.Optional[Path] = None,
    fallback: typing.Optional[str] = None,
) -> Figures:
    """Publishes tables and a dense model as a version that ``zillion serve`` loads.

    ``module`` is run once on a few rows, in ``eval`` mode, and what it computes becomes the graph
    of the version. An operation that a graph does not have is an error with its line. The model
    returns log odds, or probabilities if its last operation is a sigmoid: ``[rows]``, ``[rows,
    1]``, or one score for each of the ``labels``.

    ``inputs`` tells what fills the parameters of ``forward``, by name or in order: the name of a
    feature (``[rows]``), a list of names (``[rows, names]``), or a module of ``zillion.torch``,
    whose result the parameter is. A field of the tables is a feature of ids, any other name a
    number. For a parameter with offsets of lists, give ``Offsets(name)``.

    ``features`` and ``labels`` are the sections of a job, for settings other than these.
    ``sample`` has rows of the features. The scores of the first 64 in PyTorch must be those of the
    version, or nothing is published: they may differ by ``tolerance``, times the score if that is
    above 1. Servers check them again. Without ``sample``, rows are made up.

    A version after the first one has the rows that changed, unless ``base`` asks for all.
    ``promote`` is the pointer that moves to the version, or ``None``. ``scratch`` is a folder with
    room for the rows.

    With ``fallback="onnx"``, a model that a graph cannot compute becomes an ONNX file, which a
    server with ONNX Runtime computes. It needs the packages onnx, onnxscript and onnxruntime.

    Returns the report, with the keys version, parent, rows, step, and dense, which is graph or
    onnx.
    """
    if fallback not in (None, "onnx"):
        raise JobError(f"unknown fallback {fallback!r}; expected \"onnx\" or None")
    found = Inputs(module, tables, inputs, features or {})
    label_settings = {"label": {}} if labels is None else {n: dict(s) for n, s in labels.items()}
    parts = [spec for spec in found.specs.values() if isinstance(spec, torch.nn.Module)]
    with torch.no_grad(), Evaluating([module, *parts]):
        dense = None
        try:
            section, weights, probabilities = trace(module, found, label_settings)
        except Untraceable as error:
            problem = str(error)
        else:
            problem = ""
        if problem and fallback is None:
            raise JobError(problem)
        if problem:
            dense = record(module, found, label_settings)
            section, weights = placeholder(found, label_settings), {}
        job = Job(
            tables.sections(),
            name=model,
            features=found.features(),
            labels=label_settings,
            model=section,
        )
        rows = made_up_rows(found, 64) if sample is None else make_instances(sample)[:64]
        if not rows:
            raise JobError("`sample` has no rows; give at least one")
        with tempfile.TemporaryDirectory(prefix="zillion-") as folder:
            file = pathlib.Path(folder) / "dense.onnx"
            if dense is not None:
                name_library()
                probabilities = export_onnx(dense, found, label_settings, file)
            numbers = read_numbers(found, job, rows)
            arguments = Columns(found, rows, numbers).arguments()
            computed = scores_of(module(**arguments), list(label_settings), len(rows))
            wish = {
                "registry": os.fspath(getattr(registry, "url", registry)),
                "model": model,
                "promote": promote or "",
                "base": base,
                "sample": os.fspath(write_file(rows, pathlib.Path(folder), "sample")),
                "sample_rows": len(rows),
                "tolerance": tolerance,
                "scratch": scratch_below(scratch, tables),
                "probabilities": probabilities,
                "onnx": None if dense is None else os.fspath(file),
            }
            report = tables.publish(job, wish, {n: floats(v) for n, v in weights.items()}, {
                label: floats(score) for label, score in computed.items()
            })
            return {**report, "dense": "graph" if dense is None else "onnx"}


def scratch_below(folder: typing.Optional[Path], tables: Tables) -> str:
    """Returns the folder of temporary files: one of its own, which is removed afterwards."""
    own = os.fspath(tables.scratch())
    return own if folder is None else os.path.join(os.fspath(folder), os.path.basename(own))


def trace(
    module: torch.nn.Module, inputs: Inputs, labels: Settings
) -> typing.Tuple[Figures, typing.Dict[str, torch.Tensor], typing.List[str]]:
    """Returns the section ``[model]``, its parameters, and the labels with probabilities."""
    tracer = Tracer(module, inputs.tables, inputs.bind)
    rows = made_up_rows(inputs, BATCH)
    with tracer.running():
        arguments = Columns(inputs, rows, numbers_of(inputs, rows)).arguments(tracer)
        scores = scores_of(module(**arguments), list(labels), BATCH)
    graph = tracer.graph
    outputs: typing.Dict[str, int] = {}
    probabilities = []
    for label, score in scores.items():
        sym = tracer.find(score)
        if sym is None:
            raise JobError(
                f"the score of `{label}` does not depend on the inputs; return what the model "
                "computes from them"
            )
        node = output_of(graph, sym, label)
        if labels[label].get("kind", "binary") == "binary" and graph.nodes[node].op == {
            "op": "sigmoid"
        }:
            probabilities.append(label)
            node = graph.nodes[node].inputs[0]
        outputs[label] = node
    if len(set(outputs.values())) != len(outputs):
        raise JobError("two labels have the same score; export one of them")
    roots = list(outputs.values())
    return graph.section(outputs), graph.used_weights(roots), probabilities


def record(module: torch.nn.Module, inputs: Inputs, labels: Settings) -> Dense:
    """Returns the dense part of a model: what follows its lookups."""
    recorder = Recorder(module, inputs.tables, inputs.bind)
    rows = made_up_rows(inputs, BATCH)
    with recorder.running():
        arguments = Columns(inputs, rows, numbers_of(inputs, rows)).arguments(recorder)
        scores_of(module(**arguments), list(labels), BATCH)

    def compute(
        features: typing.Mapping[str, torch.Tensor], count: typing.Any
    ) -> typing.Sequence[torch.Tensor]:
        arguments = FedColumns(inputs, features, count).arguments()
        return list(scores_of(module(**arguments), list(labels), count).values())

    return Dense(module, recorder, list(inputs.features()), compute)


def placeholder(inputs: Inputs, labels: Settings) -> Figures:
    """Returns a section ``[model]`` that reads all features. Nothing computes it: a job has a model
    only because every job has one."""
    nodes: Figures = {"rows_of_ids": {"op": "embedding"}}
    if any("table" not in settings for settings in inputs.features().values()):
        nodes["numbers_of_row"] = {"op": "numeric"}
    nodes["all_values"] = {"op": "concat", "inputs": list(nodes)}
    outputs = {label: f"score_{at}" for at, label in enumerate(labels)}
    for name in outputs.values():
        nodes[name] = {"op": "linear", "inputs": ["all_values"], "width": 1}
    if len(outputs) == 1:
        return {"kind": "graph", "logits": "score_0", "nodes": nodes}
    return {"kind": "graph", "outputs": outputs, "nodes": nodes}


def export_onnx(
    dense: Dense, inputs: Inputs, labels: Settings, path: pathlib.Path
) -> typing.List[str]:
    """Writes the dense part of a model as an ONNX file. Returns the labels with probabilities."""
    widths = {
        name: inputs.width(name)
        if "table" not in settings
        else inputs.tables.table_dim(settings["table"])
        for name, settings in inputs.features().items()
    }
    binary = [settings.get("kind", "binary") == "binary" for settings in labels.values()]
    return write_onnx(dense, widths, binary, list(labels), path)


def numbers_of(
    inputs: Inputs, rows: typing.Sequence[Figures]
) -> typing.Dict[str, typing.List[typing.Any]]:
    """Returns the numbers of made-up rows, which no transform changes."""
    return {
        name: [row[inputs.column(name)] for row in rows]
        for name in inputs.names
        if inputs.kind(name) in ("numeric", "vector")
    }


def output_of(graph: typing.Any, sym: Sym, label: str) -> int:
    """Returns the node of a score, which has one column."""
    codes = sym.codes.reshape(-1)
    try:
        places = Rows(row_of(codes))
        ((column,),) = places.columns(codes)
        in_order = torch.equal(places.places.reshape(-1), torch.arange(BATCH))
    except Unsupported as error:
        raise JobError(f"the score of `{label}`: {error}; return one score for each row") from None
    if not in_order:
        raise JobError(f"the scores of `{label}` are not in the order of the rows; keep the order")
    return typing.cast(int, graph.gather((column,)))


def read_numbers(
    inputs: Inputs, job: Job, rows: typing.Sequence[Figures]
) -> typing.Dict[str, typing.Any]:
    """Returns the numbers of rows, transformed as a server transforms them."""
    names = [name for name in inputs.names if inputs.kind(name) in ("numeric", "vector")]
    for name in names:
        if inputs.given.get(name, {}).get("transform") == "standardise":
            raise JobError(
                f"`features.{name}.transform`: an exported model has no statistics of training "
                "data; standardise in the model, or use another transform"
            )
    if not names:
        return {}
    (batch,) = read(job, list(rows), split="valid", batch_size=len(rows))
    return {name: batch.numeric[name] for name in names}


def floats(tensor: torch.Tensor) -> bytes:
    """Returns a tensor as little-endian floats of 32 bits."""
    found = tensor.detach().to("cpu", torch.float32).contiguous().numpy()
    return typing.cast(bytes, found.astype("<f4").tobytes())


__all__ = ["Offsets", "export"]
