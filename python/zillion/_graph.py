"""Nodes of a model that is being traced, and the trace that collects them."""

from __future__ import annotations

import contextvars
import os
import sys
import typing

from ._errors import JobError

Section = typing.Dict[str, typing.Any]
Scalar = typing.Union[int, float]

PACKAGE = os.path.dirname(os.path.abspath(__file__))
CURRENT: contextvars.ContextVar[typing.Optional[Trace]] = contextvars.ContextVar(
    "zillion_trace", default=None
)


class Node:
    """The result of an operation in a model: a matrix ``[rows, columns]`` without values yet.

    The rows are those of the batch, the values of a list column, or constant. Operators make
    further nodes: ``a + b``, ``a - b``, ``a * b``, ``a / b`` and ``-a`` work on each element, with
    broadcast of one row or one column; ``x @ w`` is a product with a parameter; ``x ** 2`` is the
    square; ``x[:, 3:7]`` are columns. One operand may be a number.

    Nodes are made by the functions of ``zillion.nn``: ``name`` is the name in the job, ``op`` the
    operation with its ``attributes``, ``inputs`` the nodes that it reads, and ``origin`` the line
    of code that made it.
    """

    __slots__ = ("attributes", "inputs", "name", "op", "origin")
    # An array of numpy beside a node is an error, and not an array of nodes.
    __array_ufunc__ = None

    def __init__(
        self,
        op: str,
        inputs: typing.Tuple[Node, ...],
        attributes: Section,
        name: typing.Optional[str],
        origin: str,
    ) -> None:
        self.op = op
        self.inputs = inputs
        self.attributes = attributes
        self.name = name
        self.origin = origin

    def __add__(self, other: typing.Union[Node, Scalar]) -> Node:
        if isinstance(other, Node):
            return make("add", (self, other))
        return make("offset", (self,), by=to_number(other, "+"))

    __radd__ = __add__

    def __mul__(self, other: typing.Union[Node, Scalar]) -> Node:
        if isinstance(other, Node):
            return make("mul", (self, other))
        return make("scale", (self,), by=to_number(other, "*"))

    __rmul__ = __mul__

    def __neg__(self) -> Node:
        return make("scale", (self,), by=-1.0)

    def __sub__(self, other: typing.Union[Node, Scalar]) -> Node:
        if isinstance(other, Node):
            return make("sub", (self, other))
        return make("offset", (self,), by=-to_number(other, "-"))

    def __rsub__(self, other: Scalar) -> Node:
        return make("offset", (-self,), by=to_number(other, "-"))

    def __truediv__(self, other: typing.Union[Node, Scalar]) -> Node:
        divisor = other if isinstance(other, Node) else make_constant(to_number(other, "/"))
        return make("div", (self, divisor))

    def __rtruediv__(self, other: Scalar) -> Node:
        return make("div", (make_constant(to_number(other, "/")), self))

    def __matmul__(self, other: Node) -> Node:
        if not isinstance(other, Node):
            raise TypeError("`x @ w` needs a node w, such as zillion.nn.param((16, 8))")
        return make("matmul", (self, other))

    def __pow__(self, power: Scalar) -> Node:
        if power == 2:
            return make("square", (self,))
        if power == 0.5:
            return make("sqrt", (self,))
        raise TypeError(f"`x ** {power}` is not known; use a power of 2 or 0.5, or exp and ln")

    def __getitem__(self, place: object) -> Node:
        rows, columns = place if isinstance(place, tuple) and len(place) == 2 else (None, None)
        if rows != slice(None) or not isinstance(columns, slice):
            raise TypeError("take columns as x[:, start:stop]; rows of a batch cannot be taken")
        start, stop, step = columns.start or 0, columns.stop, columns.step
        is_known = isinstance(start, int) and isinstance(stop, int) and step in (None, 1)
        if not is_known or not 0 <= start < stop:
            raise TypeError(
                f"x[:, {start}:{stop}:{step}] cannot be taken: give 0 <= start < stop, without a "
                "step; the width of a node is not known while the model is traced"
            )
        return make("slice", (self,), start=start, len=stop - start)

    def __eq__(self, other: object) -> bool:
        # An identity is enough for lists and sets; `x == 0` would be silently false.
        if other is self:
            return True
        raise TypeError("nodes cannot be compared: they have no value while the model is traced")

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise TypeError(
            "a node has no value while the model is traced, so it cannot decide an `if` or `while`"
        )

    def __iter__(self) -> typing.Iterator[Node]:
        raise TypeError("a node cannot be iterated: its width is not known while it is traced")

    def __float__(self) -> float:
        raise TypeError("a node has no value while the model is traced")

    def __repr__(self) -> str:
        inputs = ", ".join(node.name or node.op for node in self.inputs)
        return f"<zillion.nn.Node {self.name or self.op}: {self.op}({inputs}), {self.origin}>"


class Trace:
    """The nodes that one call of ``Model.forward`` has made, in their order."""

    def __init__(self) -> None:
        self.nodes: typing.List[Node] = []
        # The identities of the nodes, for a quick look whether a node is one of them.
        self.ids: typing.Set[int] = set()

    def name_nodes(self) -> typing.Dict[str, Node]:
        """Gives each node without a name one of its own: the operation, and from 2 on a number."""
        named: typing.Dict[str, Node] = {}
        for node in self.nodes:
            if node.name is not None and named.setdefault(node.name, node) is not node:
                raise JobError(
                    f"two nodes have the name `{node.name}`: {named[node.name].origin} and "
                    f"{node.origin}; give one of them another name"
                )
        counts: typing.Dict[str, int] = {}
        for node in self.nodes:
            while node.name is None:
                count = counts.get(node.op, 0) + 1
                counts[node.op] = count
                name = node.op if count == 1 else f"{node.op}_{count}"
                if name not in named:
                    node.name = name
                    named[name] = node
        return named

    def check_use(self, roots: typing.Iterable[Node]) -> None:
        """Raises an error if no output depends on one of the nodes: probably a mistake."""
        used: typing.Set[int] = set()
        waiting = list(roots)
        while waiting:
            node = waiting.pop()
            if id(node) not in used:
                used.add(id(node))
                waiting.extend(node.inputs)
        read = {id(source) for node in self.nodes for source in node.inputs}
        for node in self.nodes:
            # The end of an unused branch is the line to look at.
            if id(node) not in used and id(node) not in read:
                raise JobError(
                    f"no output of the model depends on the node `{node.name}` ({node.op}), which "
                    f"is made at {node.origin}; use it, or remove the line"
                )


def make(
    op: str,
    inputs: typing.Tuple[Node, ...],
    name: typing.Optional[str] = None,
    **attributes: typing.Any,
) -> Node:
    """Adds a node to the trace of the model whose ``forward`` runs, and returns it.

    Attributes of the value ``None`` are left out, so that they have their defaults.
    """
    trace = CURRENT.get()
    if trace is None:
        raise TypeError(
            f"`{op}` makes a node of a model, so it can be called only while the `forward` of a "
            "zillion.Model runs"
        )
    for at, source in enumerate(inputs):
        if not isinstance(source, Node):
            raise TypeError(
                f"input {at + 1} of `{op}` is of the class {type(source).__name__}; give a node"
            )
        if id(source) not in trace.ids:
            raise TypeError(
                f"input {at + 1} of `{op}` was made at {source.origin} by another call of "
                "`forward`; make each node in the call that uses it"
            )
    kept = {key: value for key, value in attributes.items() if value is not None}
    node = Node(op, inputs, kept, name, find_caller())
    trace.nodes.append(node)
    trace.ids.add(id(node))
    return node


def make_constant(value: float) -> Node:
    """Returns a constant of one element."""
    return make("constant", (), value=value)


def to_number(value: object, operator: str) -> float:
    """Returns the number that stands beside a node in an expression."""
    if isinstance(value, (int, float)) or hasattr(value, "__float__"):
        return float(typing.cast(typing.SupportsFloat, value))
    raise TypeError(
        f"`{operator}` of a node and a {type(value).__name__} is not known; give a node or a number"
    )


def find_caller() -> str:
    """Returns the file and line of the first frame outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
