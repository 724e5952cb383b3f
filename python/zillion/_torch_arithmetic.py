"""The functions of single elements that a graph of Zillion has, first of all arithmetic.

``OPERATIONS`` maps the name of an operation of ATen to a function of the graph and of the
arguments of the call. ``MOVES`` are the operations that only move elements.
"""

from __future__ import annotations

import math
import typing

import torch

from ._torch_graph import MOST_NODES, Columns, Graph, Rows, Sym, Unsupported, Value, row_of

Operation = typing.Callable[..., typing.Any]
Function = typing.TypeVar("Function", bound=Operation)
OPERATIONS: typing.Dict[str, Operation] = {}

# They are done on the codes of a tensor.
MOVES = {
    "alias", "cat", "chunk", "clone", "contiguous", "detach", "diagonal", "expand", "flatten",
    "flip", "gather", "index", "index_select", "lift_fresh", "movedim", "narrow", "permute",
    "repeat", "repeat_interleave", "roll", "select", "slice", "split", "split_with_sizes",
    "squeeze", "stack", "swapaxes", "t", "tile", "transpose", "tril_indices", "unbind",
    "unfold", "unsqueeze",
}
# Moves that may find other strides in the codes.
RESHAPES = {"_reshape_alias", "_unsafe_view", "reshape", "view", "view_as"}


def operation(*names: str) -> typing.Callable[[Function], Function]:
    """Returns a decorator that lists a function under the names of operations."""

    def keep(function: Function) -> Function:
        OPERATIONS.update((name, function) for name in names)
        return function

    return keep


def is_number(value: Value) -> bool:
    """Returns whether an operand is one number."""
    return not isinstance(value, Sym) and (isinstance(value, (int, float)) or value.numel() == 1)


def number(value: typing.Any) -> float:
    found = float(value)
    if not math.isfinite(found):
        raise Unsupported(f"it has the constant {found}; a graph has finite ones only")
    return found


def elementwise(
    graph: Graph, op: str, operands: typing.Sequence[Value], **attributes: typing.Any
) -> Sym:
    """Adds the function of each element of operands, which are broadcast as PyTorch does."""
    values = [v if isinstance(v, Sym) else torch.as_tensor(v) for v in operands]
    shape = torch.broadcast_shapes(*(value.shape for value in values))
    wide: typing.List[typing.Union[Sym, torch.Tensor]] = [
        value.map(lambda codes: codes.expand(shape)) if isinstance(value, Sym)
        else value.expand(shape)
        for value in values
    ]
    codes = [value.codes for value in wide if isinstance(value, Sym)]
    rows = row_of(codes[0])
    if any(bool((row_of(other) != rows).any()) for other in codes):
        raise Unsupported("it combines different rows of a batch")
    places = Rows(rows)
    lines = [
        tuple(column for (column,) in places.columns(value.codes))
        if isinstance(value, Sym)
        else places.constants(value)
        for value in wide
    ]
    parts: typing.List[typing.Tuple[int, int]] = []
    for begin, end in cut(lines):
        inputs = [part_of(graph, line, begin, end) for line in lines]
        width = max(graph.nodes[at].width for at in inputs)
        node = graph.add(op, inputs, width, **attributes)
        parts.extend((node, at if width > 1 else 0) for at in range(end - begin))
    return places.codes(shape, parts)


def cut(
    lines: typing.Sequence[typing.Union[Columns, torch.Tensor]],
) -> typing.List[typing.Tuple[int, int]]:
    """Returns the parts of the columns that one node computes. They are all columns, unless an
    operand repeats columns: then each part has one column of it, which a node broadcasts."""
    count = len(lines[0])
    begins = {0}
    for line in lines:
        if isinstance(line, torch.Tensor) or len(set(line)) in (1, count):
            continue
        changes = [at for at in range(1, count) if line[at] != line[at - 1]]
        if len(changes) + 1 > count // 2:
            # Columns that alternate are put together instead.
            continue
        begins.update(changes)
    if len(begins) > MOST_NODES:
        raise Unsupported(f"it would become {len(begins)} nodes, which is too many")
    ordered = [*sorted(begins), count]
    return list(zip(ordered, ordered[1:]))


def part_of(
    graph: Graph, line: typing.Union[Columns, torch.Tensor], begin: int, end: int
) -> int:
    """Returns the node of the columns of an operand, of one column if all are the same."""
    if isinstance(line, torch.Tensor):
        values = line[begin:end].to(torch.float32)
        if bool((values == values[0]).all()):
            values = values[:1]
        if not bool(values.isfinite().all()):
            raise Unsupported("it has a constant that is not finite")
        return graph.constant(values.reshape(1, -1))
    columns = line[begin:end]
    return graph.gather(columns[:1] if len(set(columns)) == 1 else columns)


@operation("mul")
def mul(graph: Graph, a: Value, b: Value) -> Sym:
    if is_number(b):
        return elementwise(graph, "scale", [a], by=number(b))
    return mul(graph, b, a) if is_number(a) else elementwise(graph, "mul", [a, b])


@operation("add")
def add(graph: Graph, a: Value, b: Value, alpha: float = 1) -> Sym:
    if alpha != 1:
        b = mul(graph, b, alpha) if isinstance(b, Sym) else b * alpha
    if is_number(b):
        by = number(b)
        return a if by == 0 and isinstance(a, Sym) else elementwise(graph, "offset", [a], by=by)
    return add(graph, b, a) if is_number(a) else elementwise(graph, "add", [a, b])


@operation("sub")
def sub(graph: Graph, a: Value, b: Value, alpha: float = 1) -> Sym:
    if alpha != 1:
        b = mul(graph, b, alpha) if isinstance(b, Sym) else b * alpha
    if is_number(b):
        return add(graph, a, -number(b))
    if is_number(a):
        return add(graph, neg(graph, b), a)
    return elementwise(graph, "sub", [a, b])


@operation("rsub")
def rsub(graph: Graph, a: Value, b: Value, alpha: float = 1) -> Sym:
    return sub(graph, b, a, alpha)


@operation("neg")
def neg(graph: Graph, x: Value) -> Sym:
    return mul(graph, x, -1.0)


@operation("div")
def div(graph: Graph, a: Value, b: Value, rounding_mode: typing.Optional[str] = None) -> Sym:
    if rounding_mode is not None:
        raise Unsupported("it rounds; a graph has no rounding")
    if is_number(b):
        return mul(graph, a, 1.0 / number(b))
    return elementwise(graph, "div", [a, b])


@operation("reciprocal")
def reciprocal(graph: Graph, x: Value) -> Sym:
    return elementwise(graph, "div", [1.0, x])


@operation("rsqrt")
def rsqrt(graph: Graph, x: Value) -> Sym:
    return reciprocal(graph, elementwise(graph, "sqrt", [x]))


@operation("pow")
def power(graph: Graph, x: Value, exponent: Value) -> Sym:
    by = number(exponent) if is_number(exponent) else None
    if by == 2 and isinstance(x, Sym):
        return elementwise(graph, "square", [x])
    if by == 0.5 and isinstance(x, Sym):
        return elementwise(graph, "sqrt", [x])
    if by == 1 and isinstance(x, Sym):
        return x
    if by in (3, 4) and isinstance(x, Sym):
        squared = elementwise(graph, "square", [x])
        return mul(graph, squared, x if by == 3 else squared)
    raise Unsupported("a graph has the powers 0.5, 1, 2, 3 and 4 only")


@operation("addcmul")
def addcmul(graph: Graph, x: Value, a: Value, b: Value, value: float = 1) -> Sym:
    if value != 1:
        return add(graph, x, mul(graph, mul(graph, a, b), value))
    shapes = {tuple(operand.shape) for operand in (a, b, x) if isinstance(operand, Sym)}
    if len(shapes) == 1 and all(isinstance(operand, Sym) for operand in (a, b, x)):
        return elementwise(graph, "mul_add", [a, b, x])
    return add(graph, x, mul(graph, a, b))


@operation("addcdiv")
def addcdiv(graph: Graph, x: Value, a: Value, b: Value, value: float = 1) -> Sym:
    return add(graph, x, mul(graph, div(graph, a, b), value))


@operation("abs")
def absolute(graph: Graph, x: Value) -> Sym:
    # |x| is 2 relu(x) - x, without a rounding.
    return sub(graph, mul(graph, elementwise(graph, "relu", [x]), 2.0), x)


@operation("maximum")
def maximum(graph: Graph, a: Value, b: Value) -> Sym:
    return add(graph, elementwise(graph, "relu", [sub(graph, a, b)]), b)


@operation("minimum")
def minimum(graph: Graph, a: Value, b: Value) -> Sym:
    return sub(graph, a, elementwise(graph, "relu", [sub(graph, a, b)]))


@operation("clamp", "clamp_min", "clamp_max", "hardtanh")
def clamp(
    graph: Graph,
    x: Value,
    min: typing.Optional[Value] = None,
    max: typing.Optional[Value] = None,
) -> Sym:
    x = x if min is None else maximum(graph, x, min)
    return typing.cast(Sym, x if max is None else minimum(graph, x, max))


OPERATIONS["clamp_max"] = minimum
