"""Runs a module of PyTorch once on a few made-up rows, and writes down what it computes.

The module's own code runs, on real tensors. PyTorch shows every operation as one of ATen before it
is computed. What depends on the inputs becomes nodes of a graph; everything else (parameters,
buffers, constants) is a constant with the value that it has.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
import threading
import types
import typing

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from ._errors import JobError
from ._torch_graph import BATCH, Graph, Sym, Unsupported, decode, encode, row_of
from ._torch_ops import MOVES, OPERATIONS, RESHAPES

# What only reads the shape of a tensor.
SHAPES = {
    "empty_like", "full_like", "new_empty", "new_full", "new_ones", "new_zeros", "ones_like",
    "sym_numel", "sym_size", "sym_stride", "zeros_like",
}
# What asks for the value of a tensor.
VALUES = {"_local_scalar_dense", "equal", "is_nonzero", "item", "nonzero", "unique"}
# The operations that no graph has, but that ONNX may have.
NO_SUCH = (
    "a graph has no such operation; compute it from others (docs/PYTHON.md lists them), or before "
    "the model gets its inputs, or export with `fallback=\"onnx\"`"
)
# The tracer of this thread.
THREAD = threading.local()
HIDDEN = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(__file__) + os.sep)


def tracer_of_thread() -> typing.Optional[Tracer]:
    """Returns the tracer that follows what this thread computes, if there is one."""
    return getattr(THREAD, "tracer", None)


class Untraceable(JobError):
    """An operation that a graph cannot compute."""


class Tracer(TorchDispatchMode):
    """The tensors that depend on the inputs, and the graph that computes them."""

    def __init__(self, module: torch.nn.Module, tables: typing.Any, bind: typing.Any) -> None:
        super().__init__()
        self.graph = Graph()
        self.tables = tables
        # A function of the input and the table (and the mode of a bag) that names a feature.
        self._bind = bind
        self._known: typing.Dict[int, typing.Tuple[torch.Tensor, Sym, int]] = {}
        self._offsets: typing.Dict[str, torch.Tensor] = {}
        self._ids: typing.Dict[int, str] = {}
        self._places = {id(part): name for name, part in module.named_modules()}
        for name, parameter in module.named_parameters():
            self.graph.names[parameter.data_ptr()] = name.rpartition(".")[0] or name

    @contextlib.contextmanager
    def running(self) -> typing.Iterator[None]:
        """Traces what this thread computes in the block."""
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        THREAD.tracer = self
        try:
            with self:
                yield
        finally:
            THREAD.tracer = None
            torch.backends.mha.set_fastpath_enabled(fast)

    def keep(self, tensor: torch.Tensor, sym: Sym, changes: bool = False) -> torch.Tensor:
        """Remembers the value of a tensor. It stays alive, so that no other one has its id.

        PyTorch counts the change of a tensor in place after it was shown here.
        """
        if tensor.shape != sym.shape:
            raise Unsupported(
                f"its result has the shape {list(sym.shape)} instead of {list(tensor.shape)}"
            )
        self._known[id(tensor)] = (tensor, sym, tensor._version + changes)
        return tensor

    def find(self, tensor: typing.Any) -> typing.Optional[Sym]:
        """Returns the value of a tensor, or ``None`` if it does not depend on the inputs."""
        found = self._known.get(id(tensor))
        if found is None:
            return None
        if found[2] != tensor._version:
            raise Unsupported("it reads a tensor that was changed in place through another one")
        return found[1]

    def add_ids(self, name: str) -> int:
        """Adds the node of the ids of an input. No graph has it: a lookup replaces it."""
        node = self.graph.add("ids", [], 1, name=f"ids of {name}", feature=name)
        self._ids[node] = name
        return node

    def add_list(self, name: str, ids: torch.Tensor, offsets: torch.Tensor) -> None:
        """Adds an input of lists, whose values are in ``ids``, two in each row."""
        node = self.add_ids(name)
        rows = torch.arange(BATCH).repeat_interleave(len(ids) // BATCH)
        self.keep(ids, Sym(encode(node, rows, torch.zeros_like(rows))))
        self._offsets[name] = offsets
        # Offsets are looked at by a bag only.
        self.keep(offsets, Sym(encode(node, torch.arange(BATCH), torch.ones(BATCH).long())))

    def look_up(self, module: typing.Any, fields: typing.Any, ids: torch.Tensor) -> torch.Tensor:
        """Traces the rows of ids."""
        sym = self._ids_of(module, ids)
        dim = module.dim
        codes = torch.empty(*ids.shape, dim, dtype=torch.int64)
        width = len(fields) if isinstance(fields, list) else 1
        for at in range(width):
            table = self.tables.table(fields[at] if isinstance(fields, list) else fields)
            part = sym.codes[:, at] if isinstance(fields, list) else sym.codes
            into = codes[:, at] if isinstance(fields, list) else codes
            sources = torch.tensor([decode(code)[0] for code in part.flatten().tolist()])
            for source in sources.unique().tolist():
                name = self._ids[source]
                if name in self._offsets:
                    self.refuse(f"`{name}` has lists; use EmbeddingBag, which pools them")
                feature = self._bind(name, table, None)
                node = self.graph.add("embedding", [], dim, name=feature, features=[feature])
                chosen = (sources == source).reshape(part.shape)
                rows = row_of(part[chosen]).unsqueeze(1)
                into[chosen] = encode(node, rows, torch.arange(dim))
        rows = self.tables.pull(fields, ids.numpy(), train=False).rows
        return self.keep(torch.from_numpy(rows), Sym(codes))

    def bag(self, module: typing.Any, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """Traces the pooled rows of lists of ids."""
        sym = self._ids_of(module, ids)
        name = self._ids[decode(int(sym.codes.flatten()[0]))[0]]
        if name not in self._offsets or offsets is not self._offsets[name]:
            self.refuse(
                "a bag needs the ids and the offsets of one input as they came; give "
                "`Offsets(name)` for the parameter of the offsets"
            )
        feature = self._bind(name, self.tables.table(module.field), module.mode)
        node = self.graph.add("embedding", [], module.dim, name=feature, features=[feature])
        # The rows are not needed: only the shape is.
        pooled = torch.zeros(BATCH, module.dim)
        return self.keep(pooled, self.graph.input(node, [BATCH, module.dim]))

    def _ids_of(self, module: typing.Any, ids: torch.Tensor) -> Sym:
        if module.tables is not self.tables:
            self.refuse("the module reads other tables than those that are exported")
        sym = self.find(ids)
        if sym is None or any(
            decode(code)[0] not in self._ids for code in sym.codes.flatten().tolist()
        ):
            self.refuse(
                "the ids that it looks up are no inputs; give ids as the model gets them"
            )
        return sym

    def __torch_dispatch__(
        self,
        func: typing.Any,
        types: typing.Any,
        args: typing.Any = (),
        kwargs: typing.Any = None,
    ) -> typing.Any:
        kwargs = kwargs or {}
        leaves = tree_leaves((args, kwargs))
        if not any(id(leaf) in self._known for leaf in leaves):
            return func(*args, **kwargs)
        name = func._schema.name.split("::")[-1]
        if name in SHAPES:
            return func(*args, **kwargs)
        try:
            return self._trace(func, name, args, kwargs)
        except Unsupported as error:
            # What a value decides is not known to any exporter.
            kind = JobError if name in VALUES else Untraceable
            self.refuse(f"the operation `{func._schema.name}`: {error}", kind)

    def _trace(
        self, func: typing.Any, name: str, args: typing.Any, kwargs: typing.Any
    ) -> typing.Any:
        if name in VALUES:
            raise Unsupported("the value of a tensor decides what is computed")
        changes = func._schema.is_mutable
        base = name[:-1] if changes and name.endswith("_") else name
        known = {**OPERATIONS, "copy": copy}
        if base not in MOVES | RESHAPES and base not in known and base != "_to_copy":
            if func.has_kernel_for_dispatch_key(
                torch._C.DispatchKey.CompositeImplicitAutograd
            ):
                with self:
                    return func.decompose(*args, **kwargs)
            raise Unsupported(NO_SUCH)
        if changes and base == name:
            raise Unsupported("it changes a tensor in place; use the form that returns a new one")
        arguments = tree_map(self._symbol, (args, kwargs))
        out = func(*args, **kwargs)
        if base in RESHAPES:
            result = arguments[0][0].map(lambda codes: codes.reshape(out.shape))
        elif base == "_to_copy":
            check_types(args[0], out)
            result = arguments[0][0]
        elif base in MOVES:
            result = move(func, *arguments)
        else:
            result = known[base](self.graph, *arguments[0], **arguments[1])
        self._keep_all(out, result, changes)
        return out

    def _symbol(self, value: typing.Any) -> typing.Any:
        found = self.find(value) if isinstance(value, torch.Tensor) else None
        return value if found is None else found

    def _keep_all(self, out: typing.Any, result: typing.Any, changes: bool) -> None:
        if isinstance(out, torch.Tensor):
            self.keep(out, result, changes)
            return
        for tensor, sym in zip(out, result):
            if isinstance(sym, Sym):
                self.keep(tensor, sym)

    def refuse(
        self, problem: str, kind: typing.Type[JobError] = JobError
    ) -> typing.NoReturn:
        """Raises an error that says where the module computes what cannot be exported."""
        frame: typing.Optional[types.FrameType] = sys._getframe(1)
        layer, line = "", ""
        while frame is not None:
            owner = frame.f_locals.get("self")
            if not layer and isinstance(owner, torch.nn.Module):
                name = self._places.get(id(owner))
                layer = f"in the layer `{name}` ({type(owner).__name__}), " if name else ""
            file = frame.f_code.co_filename
            if not file.startswith(HIDDEN):
                text = linecache.getline(file, frame.f_lineno).strip()
                line = f"{file}:{frame.f_lineno}" + (f": `{text}`" if text else "")
                break
            frame = frame.f_back
        raise kind(f"the model cannot be exported: {problem} ({layer}{line})") from None


def move(func: typing.Any, args: typing.Any, kwargs: typing.Any) -> typing.Any:
    """Does an operation that moves elements on the codes."""
    is_joined = any(isinstance(leaf, Sym) for leaf in tree_leaves(args[:1], is_leaf=is_sym))
    for leaf in tree_leaves(args[:1], is_leaf=is_sym):
        if is_joined and isinstance(leaf, torch.Tensor) and leaf.numel() > 0:
            raise Unsupported("it puts constants beside values of the batch")

    def codes_of(value: typing.Any) -> typing.Any:
        return value.codes if isinstance(value, Sym) else value

    if any(isinstance(leaf, Sym) for leaf in tree_leaves(args[1:], is_leaf=is_sym)):
        raise Unsupported("the value of a tensor decides which elements are chosen")
    moved = func(*tree_map(codes_of, args, is_leaf=is_sym), **kwargs)
    if isinstance(moved, torch.Tensor):
        return Sym(moved)
    return [Sym(part) for part in moved]


def is_sym(value: typing.Any) -> bool:
    return isinstance(value, Sym)


def copy(graph: Graph, into: typing.Any, value: typing.Any, *more: typing.Any) -> Sym:
    """Returns what a tensor is after another one was copied into it."""
    if not isinstance(value, Sym):
        raise Unsupported("it replaces values of the batch by constants")
    return value.map(lambda codes: codes.expand(into.shape))


def check_types(before: torch.Tensor, after: torch.Tensor) -> None:
    """Checks that a conversion keeps ids ids, and floats floats."""
    if before.is_floating_point() != after.is_floating_point():
        raise Unsupported(f"it makes {after.dtype} of {before.dtype}")
