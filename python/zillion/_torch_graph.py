"""A graph of Zillion (`[model] kind = "graph"`) that is built from tensors of PyTorch.

The value of a tensor is told by its *codes*: an int64 tensor of the same shape, whose elements
name the node, the row of the batch and the column where the element is computed. An operation
that only moves elements (view, transpose, cat, slices) is done on the codes and makes no node. An
operation that computes asks for the columns of a row, which every row must have in the same way,
because a graph treats all rows of a batch alike.
"""

from __future__ import annotations

import re
import typing

import torch

from ._progress import Figures

# The number of rows of the batch that is traced.
BATCH = 3
COLUMN_BITS = 24
# The largest number of slices that put together a value. Above it, a product with a matrix of
# zeros and ones chooses the columns.
MOST_SLICES = 64
# The largest number of nodes that one operation may become.
MOST_NODES = 4096

# The columns of one row: pairs of a node and a column, in order.
Columns = typing.Tuple[typing.Tuple[int, int], ...]


class Unsupported(Exception):
    """An operation that has no counterpart in a graph. The text is the reason."""


class Sym:
    """A tensor that depends on the inputs of the model: its codes."""

    def __init__(self, codes: torch.Tensor) -> None:
        self.codes = codes

    @property
    def shape(self) -> torch.Size:
        return self.codes.shape

    def map(self, move: typing.Callable[[torch.Tensor], torch.Tensor]) -> Sym:
        """Returns the tensor whose elements are moved."""
        return Sym(move(self.codes))


# An operand: a tensor that depends on the inputs, a tensor that does not, or a number.
Value = typing.Union[Sym, torch.Tensor, float]


def encode(node: int, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    return ((node * BATCH + rows) << COLUMN_BITS) | columns


def row_of(codes: torch.Tensor) -> torch.Tensor:
    return (codes >> COLUMN_BITS) % BATCH


class Rows:
    """The places of a tensor that belong to each row of the batch."""

    def __init__(self, rows: torch.Tensor) -> None:
        flat = rows.reshape(-1)
        order = torch.argsort(flat, stable=True)
        counts = torch.bincount(flat, minlength=BATCH)
        if len(set(counts.tolist())) != 1:
            raise Unsupported("the rows of a batch have different numbers of elements in it")
        # The places of row r, in order: places[r]
        self.places = order.reshape(BATCH, -1)

    def columns(self, codes: torch.Tensor) -> typing.List[Columns]:
        """Returns the columns of each place of a row. ``codes`` has one line for each element."""
        lines = codes.reshape(self.places.numel(), -1)[self.places]
        steps = torch.arange(BATCH).reshape(BATCH, 1, 1) << COLUMN_BITS
        if not bool((lines - steps == lines[:1]).all()):
            raise Unsupported("the result of a row depends on other rows, or on its place")
        return [tuple(decode(code) for code in line) for line in lines[0].tolist()]

    def constants(self, values: torch.Tensor) -> torch.Tensor:
        """Returns a constant for the elements of a row, which must be the same in each row."""
        lines = values.reshape(self.places.numel(), -1)[self.places]
        same = (lines == lines[:1]) | (lines != lines)
        if not bool(same.all()):
            raise Unsupported("a constant differs between the rows of a batch")
        return lines[0]

    def codes(self, like: torch.Size, parts: typing.Sequence[typing.Tuple[int, int]]) -> Sym:
        """Returns the tensor of the given shape whose element j of each row is ``parts[j]``."""
        nodes = torch.tensor([node for node, _ in parts], dtype=torch.int64)
        columns = torch.tensor([column for _, column in parts], dtype=torch.int64)
        codes = torch.empty(self.places.numel(), dtype=torch.int64)
        for row in range(BATCH):
            codes[self.places[row]] = ((nodes * BATCH + row) << COLUMN_BITS) | columns
        return Sym(codes.reshape(like))


def decode(code: int) -> typing.Tuple[int, int]:
    """Returns the node and the column of a code."""
    return (code >> COLUMN_BITS) // BATCH, code & ((1 << COLUMN_BITS) - 1)


class Node:
    """A node of the graph: its operation with attributes, and the number of its columns."""

    def __init__(
        self, name: str, op: Figures, inputs: typing.Sequence[int], width: int
    ) -> None:
        self.name = name
        self.op = op
        self.inputs = tuple(inputs)
        self.width = width


class Graph:
    """Nodes, and the values of their parameters."""

    def __init__(self) -> None:
        self.nodes: typing.List[Node] = []
        self.weights: typing.Dict[str, torch.Tensor] = {}
        # The names of the layers of the model, by the address of their weights.
        self.names: typing.Dict[int, str] = {}
        self._names: typing.Set[str] = {"loss", "probabilities", "rows"}
        self._known: typing.Dict[typing.Any, int] = {}

    def add(
        self,
        op: str,
        inputs: typing.Sequence[int],
        columns: int,
        *,
        name: str = "",
        weights: typing.Optional[typing.Mapping[str, torch.Tensor]] = None,
        **attributes: typing.Any,
    ) -> int:
        """Adds a node, or returns the same one if it exists. ``weights`` are its parameters."""
        values = {end: value.detach().to(torch.float32) for end, value in (weights or {}).items()}
        key = (
            op,
            tuple(inputs),
            repr(attributes),
            tuple((end, value.numpy().tobytes()) for end, value in values.items()),
        )
        if key in self._known:
            return self._known[key]
        if len(self.nodes) >= 1 << 20 or columns >= 1 << COLUMN_BITS:
            raise Unsupported("the graph would be too large")
        chosen = self._choose(name or op)
        self.nodes.append(Node(chosen, {"op": op, **attributes}, inputs, columns))
        for end, value in values.items():
            self.weights[f"{chosen}.{end}" if end else chosen] = value
        self._known[key] = len(self.nodes) - 1
        return len(self.nodes) - 1

    def name_of(self, weight: torch.Tensor) -> str:
        """Returns the name of the layer that has a weight, or an empty text."""
        return self.names.get(weight.data_ptr(), "")

    def _choose(self, name: str) -> str:
        """Returns a name that no node has."""
        plain = re.sub(r"[^A-Za-z0-9_-]+", "_", name).strip("_") or "node"
        chosen, count = plain, 1
        while chosen in self._names:
            count += 1
            chosen = f"{plain}_{count}"
        self._names.add(chosen)
        return chosen

    def input(self, node: int, shape: typing.Sequence[int]) -> Sym:
        """Returns the tensor ``[batch, ..]`` of the columns of a node."""
        width = self.nodes[node].width
        rows = torch.arange(BATCH).reshape(BATCH, 1).expand(BATCH, width)
        return Sym(encode(node, rows, torch.arange(width)).reshape(list(shape)))

    def gather(self, columns: Columns) -> int:
        """Returns the node with the given columns side by side."""
        runs = list_runs(columns)
        if len(runs) > MOST_SLICES:
            return self._select(columns)
        parts = [self.slice(node, start, length) for node, start, length in runs]
        return parts[0] if len(parts) == 1 else self.add("concat", parts, len(columns))

    def slice(self, node: int, start: int, length: int) -> int:
        """Returns the node of some columns of a node."""
        if self.nodes[node].op["op"] == "ids":
            raise Unsupported(
                "it computes with ids; look them up, or compute before the model gets them"
            )
        if start == 0 and length == self.nodes[node].width:
            return node
        return self.add("slice", [node], length, start=start, len=length)

    def _select(self, columns: Columns) -> int:
        """Chooses columns by a product with a matrix of zeros and ones, which is exact."""
        nodes = sorted({node for node, _ in columns})
        begins, width = {}, 0
        for node in nodes:
            begins[node] = width
            width += self.nodes[node].width
        if width * len(columns) > 1 << 24:
            raise Unsupported(f"it moves {len(columns)} single columns, which is too many")
        whole = nodes[0] if len(nodes) == 1 else self.add("concat", nodes, width)
        chosen = torch.zeros(width, len(columns))
        for at, (node, column) in enumerate(columns):
            chosen[begins[node] + column, at] = 1.0
        return self.matmul(whole, chosen)

    def constant(self, value: torch.Tensor, name: str = "") -> int:
        """Returns the node of a matrix of constants."""
        rows, width = value.shape
        return self.add(
            "param", [], width, name=name or "constant", weights={"": value}, shape=[rows, width]
        )

    def matmul(self, x: int, weight: torch.Tensor, name: str = "") -> int:
        """Returns the product of a node and a constant matrix."""
        matrix = self.constant(weight, f"{name}_weight" if name else "")
        return self.add("matmul", [x, matrix], weight.shape[1], name=name)

    def reachable(self, roots: typing.Sequence[int]) -> typing.Set[int]:
        """Returns the nodes on which the given ones depend."""
        found: typing.Set[int] = set()
        waiting = list(roots)
        while waiting:
            node = waiting.pop()
            if node not in found:
                found.add(node)
                waiting.extend(self.nodes[node].inputs)
        return found

    def section(self, outputs: typing.Mapping[str, int]) -> Figures:
        """Returns the section ``[model]`` whose outputs are the given nodes by label."""
        used = sorted(self.reachable(list(outputs.values())))
        nodes = {}
        for at in used:
            node = self.nodes[at]
            nodes[node.name] = dict(node.op)
            if node.inputs:
                nodes[node.name]["inputs"] = [self.nodes[other].name for other in node.inputs]
        names = {label: self.nodes[node].name for label, node in outputs.items()}
        if len(names) == 1:
            return {"kind": "graph", "logits": next(iter(names.values())), "nodes": nodes}
        return {"kind": "graph", "outputs": names, "nodes": nodes}

    def used_weights(self, roots: typing.Sequence[int]) -> typing.Dict[str, torch.Tensor]:
        """Returns the parameters of the nodes on which the given ones depend."""
        names = {self.nodes[node].name for node in self.reachable(roots)}
        return {
            name: value for name, value in self.weights.items() if name.split(".")[0] in names
        }


def list_runs(columns: Columns) -> typing.List[typing.Tuple[int, int, int]]:
    """Returns the runs of neighbouring columns of one node: node, first column, length."""
    runs: typing.List[typing.Tuple[int, int, int]] = []
    for node, column in columns:
        if runs and runs[-1][0] == node and runs[-1][1] + runs[-1][2] == column:
            runs[-1] = (node, runs[-1][1], runs[-1][2] + 1)
        else:
            runs.append((node, column, 1))
    return runs
