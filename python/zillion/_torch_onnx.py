"""The dense part of a model of PyTorch as an ONNX file, for operations that a graph lacks.

The model runs once on made-up rows, which shows where it looks ids up. Then PyTorch exports it with
these lookups replaced by inputs: a tensor ``[rows, dim]`` for each feature of ids, and ``[rows,
columns]`` for each number.
"""

from __future__ import annotations

import importlib.util
import logging
import pathlib
import typing
import warnings

import torch
from torch.utils._pytree import tree_leaves

from ._errors import JobError
from ._torch_graph import BATCH, COLUMN_BITS, Sym, Unsupported, decode
from ._torch_trace import THREAD, VALUES, Tracer

Tensors = typing.Sequence[torch.Tensor]
# The beginning of the names of inputs, and the names of the outputs: those that a server fills.
FEATURES = "features."
LOGITS = "logits"
# Operations that move the scores of a model without changing them.
MOVING = {
    "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose",
    "Unsqueeze",
}


class Recorder(Tracer):
    """A run of a model that shows what each lookup reads. Other operations may be any."""

    def __init__(self, module: torch.nn.Module, tables: typing.Any, bind: typing.Any) -> None:
        super().__init__(module, tables, bind)
        # The features of each lookup, one for each id of a row, and the shape of the ids of a row.
        self.lookups: typing.List[typing.Tuple[typing.List[str], typing.List[int]]] = []

    def look_up(self, module: typing.Any, fields: typing.Any, ids: torch.Tensor) -> torch.Tensor:
        """Records the features of ids."""
        found = super().look_up(module, fields, ids)
        codes = typing.cast(Sym, self.find(found)).codes[..., 0]
        rows = (codes >> COLUMN_BITS) % BATCH
        lines = codes.reshape(BATCH, -1) if codes.shape[:1] == (BATCH,) else codes[None]
        steps = torch.arange(BATCH).reshape(-1, *[1] * (codes.dim() - 1))
        if codes.shape[:1] != (BATCH,) or not bool((rows == steps).all()):
            self.refuse("the ids that it looks up are not in the order of the rows; keep the order")
        features = [self.graph.nodes[decode(code)[0]].op["features"] for code in lines[0].tolist()]
        self.lookups.append(([names[0] for names in features], list(codes.shape[1:])))
        return found

    def bag(self, module: typing.Any, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """Records the feature of a bag."""
        found = super().bag(module, ids, offsets)
        node = decode(int(typing.cast(Sym, self.find(found)).codes[0, 0]))[0]
        self.lookups.append((list(self.graph.nodes[node].op["features"]), []))
        return found

    def _trace(
        self, func: typing.Any, name: str, args: typing.Any, kwargs: typing.Any
    ) -> typing.Any:
        try:
            return super()._trace(func, name, args, kwargs)
        except Unsupported:
            if name in VALUES or any(map(self._has_ids, tree_leaves((args, kwargs)))):
                raise
        return func(*args, **kwargs)

    def _has_ids(self, leaf: typing.Any) -> bool:
        known = self._known.get(id(leaf))
        return known is not None and any(
            decode(code)[0] in self._ids for code in known[1].codes.flatten().tolist()
        )


class Fed:
    """Gives the recorded lookups, in their order, the rows that are fed."""

    def __init__(self, recorder: Recorder, features: typing.Mapping[str, torch.Tensor]) -> None:
        self._features = features
        self._lookups = iter(recorder.lookups)

    def look_up(self, module: typing.Any, fields: typing.Any, ids: torch.Tensor) -> torch.Tensor:
        """Returns the rows of the next lookup."""
        names, shape = next(self._lookups)
        parts = [self._features[name] for name in names]
        if not shape:
            return parts[0]
        rows = torch.stack(parts, 1)
        return rows.reshape(rows.shape[0], *shape, rows.shape[-1])

    def bag(self, module: typing.Any, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """Returns the pooled rows of the next lookup."""
        return self.look_up(module, None, ids)


class Dense(torch.nn.Module):
    """A model whose inputs are the values of its features, in the order of ``names``."""

    def __init__(
        self,
        module: torch.nn.Module,
        recorder: Recorder,
        names: typing.Sequence[str],
        compute: typing.Callable[[typing.Mapping[str, torch.Tensor], typing.Any], Tensors],
    ) -> None:
        super().__init__()
        self.module = module
        self._recorder, self._names, self._compute = recorder, list(names), compute

    def forward(self, values: typing.List[torch.Tensor]) -> typing.List[torch.Tensor]:
        features = dict(zip(self._names, values))
        THREAD.tracer = Fed(self._recorder, features)
        try:
            found = self._compute(features, values[0].shape[0])
        finally:
            THREAD.tracer = None
        return [score.reshape(values[0].shape[0], 1) for score in found]


def write_onnx(
    dense: Dense,
    widths: typing.Mapping[str, int],
    binary: typing.Sequence[bool],
    labels: typing.Sequence[str],
    path: pathlib.Path,
) -> typing.List[str]:
    """Writes a model as an ONNX file, and returns the labels whose scores are probabilities.

    ``widths`` has the columns of each feature. A sigmoid at the end of a score of a ``binary``
    label is left out, so that the file has log odds.
    """
    onnx = need_onnx()
    examples = [torch.rand(BATCH, width) for width in widths.values()]
    rows = torch.export.Dim("rows")
    outputs = [LOGITS, *(f"{LOGITS}/{label}" for label in labels[1:])]
    log = logging.getLogger("torch.onnx")
    level = log.level
    try:
        # Both exporters warn of their own code, and of packages that they could use.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            log.setLevel(logging.ERROR)
            program = torch.export.export(
                dense, (examples,), dynamic_shapes=([{0: rows}] * len(examples),), strict=False
            )
            written = torch.onnx.export(
                program,
                input_names=[f"{FEATURES}{name}" for name in widths],
                output_names=outputs,
                dynamo=True,
                verbose=False,
            )
        model = typing.cast(typing.Any, written).model_proto
    except JobError:
        raise
    except Exception as error:
        text = str(error).strip().splitlines() or [type(error).__name__]
        raise JobError(
            f"the model cannot be exported as ONNX: {text[0]}; PyTorch says more with "
            "`torch.export.export`"
        ) from error
    finally:
        log.setLevel(level)
    probabilities = [
        label
        for label, output, is_binary in zip(labels, outputs, binary)
        if is_binary and leave_sigmoid(onnx, model.graph, output)
    ]
    path.write_bytes(model.SerializeToString())
    return probabilities


def leave_sigmoid(onnx: typing.Any, graph: typing.Any, output: str) -> bool:
    """Lets an output be what its sigmoid reads. Returns whether its last operation was one."""
    producers = {name: node for node in graph.node for name in node.output}
    # The operations after the sigmoid, the last one first, each with the result that is read.
    chain = []
    value = output
    while value in producers and producers[value].op_type in MOVING:
        node = producers[value]
        chain.append((node, list(node.output).index(value)))
        value = node.input[0]
    last = producers.get(value)
    if last is None or last.op_type != "Sigmoid":
        return False
    chain.append((last, 0))
    value = last.input[0]
    # Other outputs may read the operations after the sigmoid too, so they are done again.
    copies = []
    for number, (node, place) in enumerate(reversed(chain[:-1])):
        copied = onnx.NodeProto()
        copied.CopyFrom(node)
        copied.name = f"{output}.log_odds.{number}"
        for at in range(len(node.output)):
            copied.output[at] = f"{output}.log_odds.{number}.{at}"
        copied.input[0] = value
        value = copied.output[place]
        copies.append(copied)
    node, place = chain[0]
    node.output[place] = f"{output}.probability"
    for node in graph.node:
        for at, name in enumerate(node.input):
            if name == output:
                node.input[at] = f"{output}.probability"
    graph.node.extend([*copies, onnx.helper.make_node("Identity", [value], [output])])
    return True


def need_onnx() -> typing.Any:
    """Returns the package `onnx`."""
    for name in ("onnx", "onnxscript"):
        if importlib.util.find_spec(name) is None:
            raise JobError(
                f"`fallback=\"onnx\"` needs the package `{name}`; install what it needs: pip install "
                "onnx onnxscript onnxruntime"
            )
    import onnx

    return onnx


__all__ = ["Dense", "Recorder", "write_onnx"]
