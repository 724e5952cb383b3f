"""Sums, products and functions of several elements, as nodes of a graph."""

from __future__ import annotations

import math
import typing

import torch

from ._torch_graph import (
    MOST_NODES, Columns, Graph, Rows, Sym, Unsupported, Value, list_runs, row_of,
)

# Sums of this many parts at most become one addition of parts.
MOST_PARTS = 64


def one_row(codes: torch.Tensor) -> Rows:
    """Returns the places of groups of elements, each of which must belong to one row.

    ``codes`` has a line for each group.
    """
    rows = row_of(codes)
    if not bool((rows == rows[:, :1]).all()):
        raise Unsupported("it combines different rows of a batch")
    return Rows(rows[:, 0])


def dims_of(x: Sym, dim: typing.Union[int, typing.Sequence[int], None]) -> typing.List[int]:
    count = len(x.shape)
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return list(range(count))
    dims = [dim] if isinstance(dim, int) else list(dim)
    return [at % count for at in dims]


def groups_of(x: Sym, dims: typing.Sequence[int]) -> torch.Tensor:
    """Returns the codes of the groups along ``dims``: a line for each place of the other dims."""
    kept = [at for at in range(len(x.shape)) if at not in dims]
    size = math.prod(x.shape[at] for at in dims)
    return x.codes.permute(*kept, *dims).reshape(-1, size)


def total(
    graph: Graph, x: Sym, dim: typing.Union[int, typing.Sequence[int], None], keepdim: bool
) -> Sym:
    """Adds the sum over dims."""
    dims = dims_of(x, dim)
    codes = groups_of(x, dims)
    places = one_row(codes)
    lines = places.columns(codes)
    shape = [1 if at in dims else size for at, size in enumerate(x.shape)]
    if not keepdim:
        shape = [size for at, size in enumerate(x.shape) if at not in dims]
    return places.codes(torch.Size(shape), sum_lines(graph, lines))


def sum_lines(
    graph: Graph, lines: typing.Sequence[Columns]
) -> typing.List[typing.Tuple[int, int]]:
    """Returns where the sum of each line of columns is computed."""
    size = len(lines[0])
    if size == 1:
        return [line[0] for line in lines]
    whole = all(len(list_runs(line)) == 1 for line in lines)
    if len(lines) == 1 or (whole and len(lines) <= 8):
        return [(graph.add("sum_columns", [graph.gather(line)], 1), 0) for line in lines]
    if size <= MOST_PARTS:
        parts = [tuple(line[at] for line in lines) for at in range(size)]
        if sum(len(list_runs(part)) for part in parts) <= 4 * size:
            node = graph.add("add", [graph.gather(part) for part in parts], len(lines))
            return [(node, at) for at in range(len(lines))]
    if size * len(lines) ** 2 > 1 << 24:
        raise Unsupported(f"it makes {len(lines)} sums of {size} numbers, which is too many")
    chosen = torch.eye(len(lines)).repeat_interleave(size, 0)
    node = graph.matmul(graph.gather(tuple(column for line in lines for column in line)), chosen)
    return [(node, at) for at in range(len(lines))]


def over(
    graph: Graph,
    x: Sym,
    dim: typing.Union[int, typing.Sequence[int]],
    make: typing.Callable[[int, int], int],
) -> Sym:
    """Adds a function of the elements along dims, which gives as many elements. ``make`` adds the
    node for one group, given the node of its elements and their number."""
    dims = dims_of(x, dim)
    codes = groups_of(x, dims)
    places = one_row(codes)
    lines = places.columns(codes)
    check_count(len(lines))
    found = torch.empty_like(codes)
    for place, line in enumerate(lines):
        node = make(graph.gather(line), len(line))
        one = places.codes(codes.shape[:1], [(node, 0)] * len(lines)).codes
        for row in range(len(places.places)):
            at = places.places[row][place]
            found[at] = one[at] + torch.arange(len(line))
    kept = [at for at in range(len(x.shape)) if at not in dims]
    order = [*kept, *dims]
    moved = found.reshape([x.shape[at] for at in order])
    return Sym(moved.permute([order.index(at) for at in range(len(order))]).contiguous())


def check_count(count: int) -> None:
    if count > MOST_NODES:
        raise Unsupported(f"it would become {count} nodes, which is more than {MOST_NODES}")


def mm(
    graph: Graph, a: Value, b: Value, bias: typing.Optional[torch.Tensor] = None, name: str = ""
) -> Sym:
    """Adds the product of two matrices, of which one is a constant."""
    if isinstance(a, Sym) and isinstance(b, Sym):
        whole = bmm(graph, unsqueeze(a), unsqueeze(b)).map(lambda codes: codes.squeeze(0))
        return whole
    if not isinstance(a, Sym):
        if bias is not None:
            raise Unsupported("it adds a bias to the rows of a product whose rows are constants")
        turned = mm(graph, turn(b), turn(a))
        return turned.map(lambda codes: codes.t())
    places = one_row(a.codes)
    lines = places.columns(a.codes)
    check_count(len(lines))
    weight = torch.as_tensor(b)
    width = weight.shape[1]
    parts: typing.List[int] = []
    for line in lines:
        node = graph.gather(line)
        if len(lines) == 1:
            weights = {"weight": weight}
            if bias is not None:
                weights["bias"] = bias.reshape(1, -1)
            name = name or graph.name_of(weight)
            parts.append(
                graph.add(
                    "linear", [node], width, name=name, weights=weights, width=width,
                    bias=bias is not None,
                )
            )
            continue
        product = graph.matmul(node, weight, name or graph.name_of(weight))
        if bias is not None:
            product = graph.add("add", [product, graph.constant(bias.reshape(1, -1))], width)
        parts.append(product)
    return lay_out(places, torch.Size([a.shape[0], width]), parts, width)


def lay_out(places: Rows, shape: torch.Size, nodes: typing.Sequence[int], width: int) -> Sym:
    """Returns the matrix whose line j, for each row of the batch, is the node ``nodes[j]``."""
    codes = places.codes(shape[:1], [(node, 0) for node in nodes]).codes
    return Sym(codes.unsqueeze(1) + torch.arange(width))


def unsqueeze(value: Sym) -> Sym:
    return value.map(lambda codes: codes.unsqueeze(0))


def turn(value: Value) -> Value:
    """Returns a matrix, or each of several, with rows and columns exchanged."""
    if isinstance(value, Sym):
        return value.map(lambda codes: codes.transpose(-1, -2))
    return torch.as_tensor(value).transpose(-1, -2)


def bmm(graph: Graph, a: Value, b: Value) -> Sym:
    """Adds the products of matrices one by one."""
    if not isinstance(a, Sym):
        return bmm(graph, turn(b), turn(a)).map(lambda codes: codes.transpose(1, 2))
    if not isinstance(b, Sym):
        return bmm_constant(graph, a, torch.as_tensor(b))
    count, lines, size = a.shape
    columns = b.shape[2]
    left = a.codes.unsqueeze(2).expand(count, lines, columns, size)
    right = b.codes.transpose(1, 2).unsqueeze(1).expand(count, lines, columns, size)
    if bool((row_of(left) != row_of(right)).any()):
        raise Unsupported("it combines different rows of a batch")
    places = one_row(left.reshape(-1, size))
    one_row(right.reshape(-1, size))
    firsts = places.columns(left.reshape(-1, size))
    seconds = places.columns(right.reshape(-1, size))
    return places.codes(torch.Size([count, lines, columns]), dots(graph, firsts, seconds))


def bmm_constant(graph: Graph, a: Sym, b: torch.Tensor) -> Sym:
    """Adds the products with constant matrices. Equal ones are one product."""
    found = torch.empty(a.shape[0], a.shape[1], b.shape[2], dtype=torch.int64)
    rest = list(range(len(b)))
    while rest:
        same = [at for at in rest if torch.equal(b[at], b[rest[0]])]
        rest = [at for at in rest if at not in same]
        flat = Sym(a.codes[same].reshape(-1, a.shape[2]))
        found[same] = mm(graph, flat, b[same[0]]).codes.reshape(len(same), a.shape[1], -1)
    return Sym(found)


def dots(
    graph: Graph, firsts: typing.Sequence[Columns], seconds: typing.Sequence[Columns]
) -> typing.List[typing.Tuple[int, int]]:
    """Returns where the dot product of each pair of lines is computed."""
    fields = list(dict.fromkeys(firsts))
    size = len(fields[0])
    pairs = {(a, b) for a, b in zip(firsts, seconds)}
    check_count(len(pairs))
    if len(fields) > 2 and fields == list(dict.fromkeys(seconds)):
        # All pairs of the same vectors: the interaction of DLRM, and the squares beside it.
        whole = graph.gather(tuple(column for field in fields for column in field))
        width = len(fields) * (len(fields) - 1) // 2
        node = graph.add("dot_interaction", [whole], width, dim=size)
        known = {}
        for i, first in enumerate(fields):
            for j, second in enumerate(fields[:i]):
                known[first, second] = known[second, first] = (node, i * (i - 1) // 2 + j)
        return [known.get((a, b)) or dot(graph, a, b) for a, b in zip(firsts, seconds)]
    if size > 1 and all(len(list_runs(line)) == 1 for line in [*firsts, *seconds]):
        return [dot(graph, a, b) for a, b in zip(firsts, seconds)]
    return weighted(graph, firsts, seconds)


def dot(graph: Graph, a: Columns, b: Columns) -> typing.Tuple[int, int]:
    """Returns where the dot product of two lines is computed."""
    if len(a) == 1:
        return graph.add("mul", [graph.gather(a), graph.gather(b)], 1), 0
    return graph.add("row_dot", sorted([graph.gather(a), graph.gather(b)]), 1), 0


def weighted(
    graph: Graph, firsts: typing.Sequence[Columns], seconds: typing.Sequence[Columns]
) -> typing.List[typing.Tuple[int, int]]:
    """Returns where sums of weighted vectors are computed, as attention makes them: the pairs with
    the same first line are the columns of one sum of its elements times vectors."""
    found: typing.Dict[typing.Tuple[Columns, Columns], typing.Tuple[int, int]] = {}
    check_count(len(firsts[0]) * len(set(firsts)))
    for line in dict.fromkeys(firsts):
        own = list(dict.fromkeys(b for a, b in zip(firsts, seconds) if a == line))
        terms = []
        for at, weight in enumerate(line):
            vector = graph.gather(tuple(other[at] for other in own))
            terms.append(graph.add("mul", [vector, graph.gather((weight,))], len(own)))
        node = terms[0] if len(terms) == 1 else graph.add("add", terms, len(own))
        found.update(((line, other), (node, at)) for at, other in enumerate(own))
    return [found[a, b] for a, b in zip(firsts, seconds)]
