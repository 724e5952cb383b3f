"""The operations of a model in Python, for the ``forward`` of a ``zillion.Model``.

Each function makes one node, whose keys and defaults are those of the same operation in a job file
(docs/JOB.md, *Operations of a graph*). B are the rows of the batch, V the values of a list.
``name`` is the name of the node in the job, which its parameters and ``predict --fetch`` have as
well; without it, the node has the name of its operation and a number.
"""

from __future__ import annotations

import typing

from ._graph import Node, make

Name = typing.Optional[str]
Init = typing.Optional[typing.Mapping[str, typing.Any]]
"""Initial values, such as ``{"kind": "normal", "std": 0.1}``; Xavier normal without it."""

__all__ = [
    "Node",
    "add",
    "batch_norm",
    "bias",
    "concat",
    "constant",
    "cross",
    "cross_v2",
    "div",
    "dot_interaction",
    "dropout",
    "exp",
    "fm",
    "gelu",
    "layer_norm",
    "leaky_relu",
    "linear",
    "ln",
    "matmul",
    "mean_columns",
    "mean_rows",
    "mlp",
    "mul",
    "mul_add",
    "offset",
    "param",
    "prelu",
    "relu",
    "repeat",
    "row_dot",
    "safe_div",
    "scale",
    "segment_mean",
    "segment_softmax",
    "segment_sum",
    "sigmoid",
    "silu",
    "slice_columns",
    "softmax",
    "softplus",
    "sqrt",
    "square",
    "sub",
    "sum_columns",
    "sum_rows",
    "tanh",
]


def param(
    shape: typing.Tuple[int, int], *, init: Init = None, name: Name = None
) -> Node:
    """Returns a learned parameter of ``shape = (rows, columns)``."""
    return make("param", (), name, shape=list(shape), init=init)


def constant(
    value: float, shape: typing.Tuple[int, int] = (1, 1), *, name: Name = None
) -> Node:
    """Returns a constant with the same number in every element of ``shape = (rows, columns)``."""
    return make("constant", (), name, value=value, shape=list(shape))


def mlp(
    x: Node,
    hidden: typing.Sequence[int],
    *,
    activation: typing.Optional[str] = None,
    batch_norm: bool = False,
    dropout: float = 0.0,
    name: Name = None,
) -> Node:
    """Returns the last hidden layer of an MLP: ``[r, columns]`` to ``[r, hidden[-1]]``.

    Each layer is linear, with batch norm if it is set, the activation ("relu" by default), and
    dropout of the share ``dropout`` of the units in training.
    """
    return make(
        "mlp",
        (x,),
        name,
        hidden=list(hidden),
        activation=activation,
        batch_norm=batch_norm,
        dropout=dropout,
    )


def cross_v2(
    x0: Node,
    x: typing.Optional[Node] = None,
    *,
    layers: int = 3,
    low_rank: typing.Optional[int] = None,
    name: Name = None,
) -> Node:
    """Returns cross layers ``x0 * (x @ W + b) + x`` over x0, in its shape (Wang et al. 2021).

    ``low_rank`` is the rank of the matrices W; without it, they are full.
    """
    inputs = (x0,) if x is None else (x0, x)
    return make("cross_v2", inputs, name, layers=layers, low_rank=low_rank)


def relu(x: Node, *, name: Name = None) -> Node:
    """Returns ``max(x, 0)`` of each element, in the shape of x."""
    return make("relu", (x,), name)


def prelu(x: Node, *, name: Name = None) -> Node:
    """Returns ``x``, and ``a * x`` below zero, with a learned ``a`` for each column of x."""
    return make("prelu", (x,), name)


def sigmoid(x: Node, *, name: Name = None) -> Node:
    """Returns ``1 / (1 + exp(-x))`` of each element, in the shape of x."""
    return make("sigmoid", (x,), name)


def tanh(x: Node, *, name: Name = None) -> Node:
    """Returns the hyperbolic tangent of each element, in the shape of x."""
    return make("tanh", (x,), name)


def gelu(x: Node, *, name: Name = None) -> Node:
    """Returns the Gaussian error linear unit of each element, in its tanh form."""
    return make("gelu", (x,), name)


def silu(x: Node, *, name: Name = None) -> Node:
    """Returns ``x * sigmoid(x)`` of each element, in the shape of x."""
    return make("silu", (x,), name)


def softplus(x: Node, *, name: Name = None) -> Node:
    """Returns ``ln(1 + exp(x))`` of each element, in the shape of x."""
    return make("softplus", (x,), name)


def square(x: Node, *, name: Name = None) -> Node:
    """Returns ``x ** 2`` of each element, in the shape of x."""
    return make("square", (x,), name)


def sqrt(x: Node, *, name: Name = None) -> Node:
    """Returns the square root of each element, in the shape of x."""
    return make("sqrt", (x,), name)


def exp(x: Node, *, name: Name = None) -> Node:
    """Returns ``exp(x)`` of each element, in the shape of x."""
    return make("exp", (x,), name)


def ln(x: Node, *, name: Name = None) -> Node:
    """Returns the natural logarithm of each element, in the shape of x."""
    return make("ln", (x,), name)


def leaky_relu(x: Node, slope: float = 0.01, *, name: Name = None) -> Node:
    """Returns ``x``, and ``slope * x`` below zero, in the shape of x."""
    return make("leaky_relu", (x,), name, slope=slope)


def scale(x: Node, by: float, *, name: Name = None) -> Node:
    """Returns ``by * x``."""
    return make("scale", (x,), name, by=by)


def offset(x: Node, by: float, *, name: Name = None) -> Node:
    """Returns ``x + by``."""
    return make("offset", (x,), name, by=by)


def add(*x: Node, name: Name = None) -> Node:
    """Returns the sum of two or more nodes, with broadcast of one row or one column."""
    return make("add", x, name)


def mul(*x: Node, name: Name = None) -> Node:
    """Returns the product of the elements of two or more nodes, with broadcast."""
    return make("mul", x, name)


def sub(a: Node, b: Node, *, name: Name = None) -> Node:
    """Returns ``a - b``, with broadcast."""
    return make("sub", (a, b), name)


def div(a: Node, b: Node, *, name: Name = None) -> Node:
    """Returns ``a / b``, with broadcast."""
    return make("div", (a, b), name)


def safe_div(a: Node, b: Node, *, name: Name = None) -> Node:
    """Returns ``a / b``, and 0 where b is 0, with broadcast."""
    return make("safe_div", (a, b), name)


def mul_add(a: Node, b: Node, c: Node, *, name: Name = None) -> Node:
    """Returns ``a * b + c``, in the shape of a."""
    return make("mul_add", (a, b, c), name)


def linear(
    x: Node, width: int, *, bias: bool = True, init: Init = None, name: Name = None
) -> Node:
    """Returns ``x @ W + b``: ``[r, columns]`` to ``[r, width]``, with weights of its own."""
    return make("linear", (x,), name, width=width, bias=bias, init=init)


def matmul(x: Node, w: Node, *, name: Name = None) -> Node:
    """Returns the product of x and w; w is computed from parameters and constants only."""
    return make("matmul", (x, w), name)


def bias(x: Node, *, name: Name = None) -> Node:
    """Returns ``x + b``, with one learned b for each column."""
    return make("bias", (x,), name)


def concat(*x: Node, name: Name = None) -> Node:
    """Returns the columns of two or more nodes side by side."""
    return make("concat", x, name)


def slice_columns(x: Node, start: int, len: int, *, name: Name = None) -> Node:
    """Returns ``len`` columns of x, from the column ``start`` on, counted from 0."""
    return make("slice", (x,), name, start=start, len=len)


def sum_columns(x: Node, *, name: Name = None) -> Node:
    """Returns the sum of each row: ``[r, columns]`` to ``[r, 1]``."""
    return make("sum_columns", (x,), name)


def mean_columns(x: Node, *, name: Name = None) -> Node:
    """Returns the mean of each row: ``[r, columns]`` to ``[r, 1]``."""
    return make("mean_columns", (x,), name)


def sum_rows(w: Node, *, name: Name = None) -> Node:
    """Returns the sum of each column of a value of parameters: ``[1, columns]``."""
    return make("sum_rows", (w,), name)


def mean_rows(w: Node, *, name: Name = None) -> Node:
    """Returns the mean of each column of a value of parameters: ``[1, columns]``."""
    return make("mean_rows", (w,), name)


def softmax(x: Node, *, name: Name = None) -> Node:
    """Returns the softmax of each row."""
    return make("softmax", (x,), name)


def row_dot(a: Node, b: Node, *, name: Name = None) -> Node:
    """Returns the dot product of each pair of rows: two of ``[r, n]`` to ``[r, 1]``."""
    return make("row_dot", (a, b), name)


def fm(x: Node, *, dim: typing.Optional[int] = None, name: Name = None) -> Node:
    """Returns the sum of the dot products of all pairs of vectors in x: ``[r, 1]``.

    ``dim`` is the number of floats of a vector, needed where x is not made of vectors.
    Rendle, Factorization Machines, 2010.
    """
    return make("fm", (x,), name, dim=dim)


def dot_interaction(x: Node, *, dim: typing.Optional[int] = None, name: Name = None) -> Node:
    """Returns the dot product of each pair of vectors in x: ``[r, n * (n - 1) / 2]``.

    ``dim`` is the number of floats of a vector, needed where x is not made of vectors.
    Naumov et al., Deep Learning Recommendation Model, 2019.
    """
    return make("dot_interaction", (x,), name, dim=dim)


def repeat(x: Node, values: Node, *, name: Name = None) -> Node:
    """Returns the row of x for each value of the row's list: ``[B, n]`` to ``[V, n]``."""
    return make("repeat", (x, values), name)


def segment_sum(values: Node, *, name: Name = None) -> Node:
    """Returns the sum over each list, 0 for an empty list: ``[V, n]`` to ``[B, n]``."""
    return make("segment_sum", (values,), name)


def segment_mean(values: Node, *, name: Name = None) -> Node:
    """Returns the mean over each list, 0 for an empty list: ``[V, n]`` to ``[B, n]``."""
    return make("segment_mean", (values,), name)


def segment_softmax(values: Node, *, name: Name = None) -> Node:
    """Returns the softmax over each list, for each column: ``[V, n]``."""
    return make("segment_softmax", (values,), name)


def batch_norm(x: Node, *, name: Name = None) -> Node:
    """Returns x normalised over the batch (Ioffe and Szegedy 2015)."""
    return make("batch_norm", (x,), name)


def layer_norm(x: Node, *, name: Name = None) -> Node:
    """Returns x normalised over its columns (Ba, Kiros and Hinton 2016)."""
    return make("layer_norm", (x,), name)


def dropout(x: Node, rate: float, *, name: Name = None) -> Node:
    """Returns x with the share ``rate`` of its elements set to zero in training."""
    return make("dropout", (x,), name, rate=rate)


def cross(
    x0: Node, x: typing.Optional[Node] = None, *, layers: int = 3, name: Name = None
) -> Node:
    """Returns cross layers ``x0 * (x @ w) + b + x`` over x0, in its shape (Wang et al. 2017)."""
    return make("cross", (x0,) if x is None else (x0, x), name, layers=layers)
