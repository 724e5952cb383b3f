"""The layers, sums and products of PyTorch as nodes of a graph."""

from __future__ import annotations

import math
import typing

import torch

# The activations are listed when their module is loaded.
from . import _torch_functions as functions
from . import _torch_products as products
from ._torch_arithmetic import (
    MOVES, OPERATIONS, RESHAPES, add, elementwise, maximum, minimum, mul, number, operation,
)
from ._torch_graph import Graph, Sym, Unsupported, Value


@operation("amax")
def amax(
    graph: Graph,
    x: Sym,
    dim: typing.Union[int, typing.Sequence[int]] = (),
    keepdim: bool = False,
) -> Sym:
    return extreme(graph, x, dim, keepdim, maximum)


@operation("amin")
def amin(
    graph: Graph,
    x: Sym,
    dim: typing.Union[int, typing.Sequence[int]] = (),
    keepdim: bool = False,
) -> Sym:
    return extreme(graph, x, dim, keepdim, minimum)


def extreme(
    graph: Graph,
    x: Sym,
    dim: typing.Union[int, typing.Sequence[int]],
    keepdim: bool,
    choose: typing.Callable[[Graph, Value, Value], Sym],
) -> Sym:
    """Chooses one element along dims by comparing all in turn."""
    dims = products.dims_of(x, dim)
    groups = products.groups_of(x, dims)
    products.check_count(groups.shape[1])
    found = Sym(groups[:, 0])
    for at in range(1, groups.shape[1]):
        found = choose(graph, found, Sym(groups[:, at]))
    shape = [1 if at in dims else size for at, size in enumerate(x.shape)]
    kept = [size for at, size in enumerate(shape) if keepdim or at not in dims]
    return found.map(lambda codes: codes.reshape(kept))


@operation("sum")
def total(
    graph: Graph,
    x: Sym,
    dim: typing.Union[int, typing.Sequence[int], None] = None,
    keepdim: bool = False,
    dtype: typing.Any = None,
) -> Sym:
    return products.total(graph, x, dim, keepdim)


@operation("mean")
def mean(
    graph: Graph,
    x: Sym,
    dim: typing.Union[int, typing.Sequence[int], None] = None,
    keepdim: bool = False,
    dtype: typing.Any = None,
) -> Sym:
    found = products.total(graph, x, dim, keepdim)
    return mul(graph, found, found.codes.numel() / x.codes.numel())


@operation("linalg_vector_norm")
def norm(
    graph: Graph,
    x: Sym,
    order: float = 2,
    dim: typing.Union[int, typing.Sequence[int], None] = None,
    keepdim: bool = False,
    dtype: typing.Any = None,
) -> Sym:
    if order != 2:
        raise Unsupported("a graph has the norm of order 2 only")
    squares = products.total(graph, elementwise(graph, "square", [x]), dim, keepdim)
    return elementwise(graph, "sqrt", [squares])


@operation("_softmax", "softmax")
def softmax(graph: Graph, x: Sym, dim: int, half: typing.Any = False) -> Sym:
    return products.over(graph, x, [dim], lambda node, width: graph.add("softmax", [node], width))


@operation("_log_softmax", "log_softmax")
def log_softmax(graph: Graph, x: Sym, dim: int, half: typing.Any = False) -> Sym:
    return elementwise(graph, "ln", [softmax(graph, x, dim)])


@operation("native_layer_norm")
def layer_norm(
    graph: Graph,
    x: Sym,
    shape: typing.Sequence[int],
    weight: typing.Optional[torch.Tensor],
    bias: typing.Optional[torch.Tensor],
    eps: float,
) -> typing.Tuple[Sym, None, None]:
    size = math.prod(shape)
    scale = torch.ones(size) if weight is None else weight.reshape(-1)
    shift = torch.zeros(size) if bias is None else bias.reshape(-1)

    def normalise(node: int, width: int) -> int:
        if eps == 1e-5:
            weights = {"weight": scale.reshape(1, -1), "bias": shift.reshape(1, -1)}
            return graph.add("layer_norm", [node], width, weights=weights)
        centred = graph.add("sub", [node, graph.add("mean_columns", [node], 1)], width)
        squares = graph.add("square", [centred], width)
        variance = graph.add("mean_columns", [squares], 1)
        deviation = graph.add("sqrt", [graph.add("offset", [variance], 1, by=number(eps))], 1)
        even = graph.add("div", [centred, deviation], width)
        scaled = graph.add("mul", [even, graph.constant(scale.reshape(1, -1))], width)
        return graph.add("add", [scaled, graph.constant(shift.reshape(1, -1))], width)

    dims = list(range(len(x.shape) - len(shape), len(x.shape)))
    return products.over(graph, x, dims, normalise), None, None


@operation("native_batch_norm", "_native_batch_norm_legit_no_training", "batch_norm")
def batch_norm(
    graph: Graph,
    x: Sym,
    weight: typing.Optional[torch.Tensor],
    bias: typing.Optional[torch.Tensor],
    mean: typing.Optional[torch.Tensor],
    variance: typing.Optional[torch.Tensor],
    *rest: typing.Any,
) -> typing.Tuple[Sym, None, None]:
    if mean is None or variance is None:
        raise Unsupported("batch norm without running statistics depends on the other rows")
    eps = float(rest[-1] if len(rest) < 4 else rest[2])
    scale = (variance.double() + eps).rsqrt() * (1.0 if weight is None else weight.double())
    shift = (0.0 if bias is None else bias.double()) - mean.double() * scale
    shape = [1, -1] + [1] * (len(x.shape) - 2)
    scaled = elementwise(graph, "mul", [x, scale.float().reshape(shape)])
    return elementwise(graph, "add", [scaled, shift.float().reshape(shape)]), None, None


@operation("mm")
def mm(graph: Graph, a: Value, b: Value) -> Sym:
    return products.mm(graph, a, b)


@operation("addmm")
def addmm(
    graph: Graph, bias: Value, a: Value, b: Value, beta: float = 1, alpha: float = 1
) -> Sym:
    if beta == 1 and alpha == 1 and isinstance(bias, torch.Tensor) and bias.dim() == 1:
        return products.mm(graph, a, b, bias)
    product = products.mm(graph, a, b)
    if alpha != 1:
        product = mul(graph, product, alpha)
    if beta != 1:
        bias = mul(graph, bias, beta) if isinstance(bias, Sym) else bias * beta
    return add(graph, product, bias)


@operation("mv")
def mv(graph: Graph, a: Value, b: Value) -> Sym:
    column = b.map(lambda codes: codes.unsqueeze(1)) if isinstance(b, Sym) else as_column(b)
    return products.mm(graph, a, column).map(lambda codes: codes.squeeze(1))


def as_column(value: Value) -> torch.Tensor:
    return torch.as_tensor(value).unsqueeze(1)


@operation("linear")
def linear(
    graph: Graph, x: Sym, weight: torch.Tensor, bias: typing.Optional[torch.Tensor] = None
) -> Sym:
    flat = x.map(lambda codes: codes.reshape(-1, codes.shape[-1]))
    found = products.mm(graph, flat, weight.t(), bias)
    return found.map(lambda codes: codes.reshape(*x.shape[:-1], -1))


@operation("bmm")
def bmm(graph: Graph, a: Value, b: Value) -> Sym:
    return products.bmm(graph, a, b)


@operation(
    "scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_attention_math",
)
def attention(
    graph: Graph,
    query: Sym,
    key: Sym,
    value: Sym,
    *rest: typing.Any,
    attn_mask: typing.Optional[torch.Tensor] = None,
    scale: typing.Optional[float] = None,
    **more: typing.Any,
) -> typing.Tuple[Sym, None]:
    if any(rest) or any(more.values()) or attn_mask is not None:
        raise Unsupported("it has a mask or dropout; a graph has attention without them")
    first, second, third = (
        sym.map(lambda codes: codes.reshape(-1, *codes.shape[-2:])) for sym in (query, key, value)
    )
    turned = second.map(lambda codes: codes.transpose(1, 2))
    by = 1.0 / math.sqrt(query.shape[-1]) if scale is None else number(scale)
    scores = mul(graph, products.bmm(graph, first, turned), by)
    found = products.bmm(graph, softmax(graph, scores, -1), third)
    return found.map(lambda codes: codes.reshape(*query.shape[:-1], -1)), None


@operation("baddbmm")
def baddbmm(
    graph: Graph, x: Value, a: Value, b: Value, beta: float = 1, alpha: float = 1
) -> Sym:
    product = products.bmm(graph, a, b)
    product = product if alpha == 1 else mul(graph, product, alpha)
    if beta == 0:
        return product
    if beta != 1:
        x = mul(graph, x, beta) if isinstance(x, Sym) else x * beta
    return add(graph, product, x)


__all__ = ["MOVES", "OPERATIONS", "RESHAPES", "functions"]
