"""The activations of PyTorch as nodes of a graph."""

from __future__ import annotations

import math
import typing

import torch

from ._torch_arithmetic import (
    OPERATIONS, Operation, absolute, add, clamp, div, elementwise, mul, neg, number, operation,
    reciprocal, sub,
)
from ._torch_graph import Graph, Sym, Value


def unary(name: str) -> Operation:
    return lambda graph, x: elementwise(graph, name, [x])


for torch_name, own in (
    ("relu", "relu"), ("sigmoid", "sigmoid"), ("tanh", "tanh"), ("silu", "silu"), ("exp", "exp"),
    ("log", "ln"), ("sqrt", "sqrt"), ("square", "square"),
):
    OPERATIONS[torch_name] = unary(own)


@operation("leaky_relu")
def leaky_relu(graph: Graph, x: Value, slope: float = 0.01) -> Sym:
    return elementwise(graph, "leaky_relu", [x], slope=number(slope))


@operation("_prelu_kernel", "prelu")
def prelu(graph: Graph, x: Value, slope: torch.Tensor) -> Sym:
    positive = elementwise(graph, "relu", [x])
    return add(graph, positive, mul(graph, sub(graph, x, positive), slope))


@operation("gelu")
def gelu(graph: Graph, x: Value, approximate: str = "none") -> Sym:
    if approximate == "tanh":
        return elementwise(graph, "gelu", [x])
    # relu(x) - |x| (1 - erf(|x| / √2)) / 2, with erf by Abramowitz & Stegun 7.1.26, whose error is
    # at most 1.5e-7.
    size = absolute(graph, x)
    t = reciprocal(graph, add(graph, mul(graph, size, 0.3275911 / math.sqrt(2)), 1.0))
    series: Value = 1.061405429
    for factor in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        series = add(graph, mul(graph, t, series), factor)
    bell = elementwise(graph, "exp", [mul(graph, elementwise(graph, "square", [x]), -0.5)])
    tail = mul(graph, mul(graph, mul(graph, size, mul(graph, t, series)), bell), 0.5)
    return sub(graph, elementwise(graph, "relu", [x]), tail)


@operation("elu")
def elu(graph: Graph, x: Value, alpha: float = 1, scale: float = 1, inner: float = 1) -> Sym:
    below = neg(graph, elementwise(graph, "relu", [neg(graph, x)]))
    curve = add(graph, elementwise(graph, "exp", [mul(graph, below, inner)]), -1.0)
    found = add(graph, elementwise(graph, "relu", [x]), mul(graph, curve, alpha))
    return found if scale == 1 else mul(graph, found, scale)


@operation("hardsigmoid")
def hardsigmoid(graph: Graph, x: Value) -> Sym:
    return div(graph, clamp(graph, add(graph, x, 3.0), 0.0, 6.0), 6.0)


@operation("hardswish")
def hardswish(graph: Graph, x: Value) -> Sym:
    return mul(graph, x, hardsigmoid(graph, x))


@operation("mish")
def mish(graph: Graph, x: Value) -> Sym:
    softened = elementwise(graph, "softplus", [x])
    return mul(graph, x, elementwise(graph, "tanh", [softened]))


@operation("log_sigmoid_forward", "log_sigmoid")
def log_sigmoid(graph: Graph, x: Value) -> typing.Tuple[Sym, None]:
    return neg(graph, elementwise(graph, "softplus", [neg(graph, x)])), None


@operation("softplus")
def softplus(graph: Graph, x: Value, beta: float = 1, threshold: float = 20) -> Sym:
    return div(graph, elementwise(graph, "softplus", [mul(graph, x, beta)]), beta)
