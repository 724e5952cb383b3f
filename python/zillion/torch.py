"""Tables of Zillion under PyTorch.

    import torch
    import zillion as zl
    import zillion.torch

    tables = zl.Tables({"user": {"dim": 16}, "item": {"dim": 16}})
    embed = zillion.torch.EmbeddingCollection(tables, ["user", "item"])
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(32, 1))
    optimizer = zillion.torch.Optimizer(tables, torch.optim.Adam(model.parameters()))

    loss = loss_of(model(embed(ids)), labels)     # ids: int64 [rows, 2]
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()                              # the rows, then the dense parameters

The rows are not parameters of the module: they have their own optimizers, those of the tables'
settings. Dense parameters stay torch's.
"""

from __future__ import annotations

import io
import os
import shutil
import pathlib
import typing

try:
    import torch
except ImportError as error:
    raise ImportError(
        "zillion.torch needs the package `torch`; install it: pip install torch"
    ) from error

from ._data import Path
from ._errors import Error, JobError
from ._progress import Figures
from ._tables import Tables
from ._torch_export import Offsets, export
from ._torch_trace import tracer_of_thread

DENSE_FILE = "dense.pt"
TABLES_FOLDER = "tables"


class _Lookup(torch.autograd.Function):
    """Reads rows in the forward pass, and keeps their gradients in the backward pass."""

    @staticmethod
    def forward(
        ctx: typing.Any,
        anchor: torch.Tensor,
        tables: Tables,
        fields: typing.Union[str, typing.List[str]],
        ids: torch.Tensor,
    ) -> torch.Tensor:
        pulled = tables.pull(fields, ids.detach().cpu().numpy())
        ctx.tables, ctx.ticket = tables, pulled.ticket
        return torch.from_numpy(pulled.rows).to(ids.device)

    @staticmethod
    def backward(ctx: typing.Any, *gradients: typing.Any) -> typing.Any:
        gradient = gradients[0].detach().to("cpu", torch.float32).contiguous()
        ctx.tables.push(ctx.ticket, gradient.numpy())
        return None, None, None, None


class _Module(torch.nn.Module):
    """What the modules share: the tables, and a lookup that trains if autograd is on."""

    def __init__(self, tables: Tables) -> None:
        super().__init__()
        self.tables = tables
        # Autograd calls `backward` only if an input needs a gradient. Rows are no inputs.
        self._anchor = torch.zeros((), requires_grad=True)

    def _look_up(
        self, fields: typing.Union[str, typing.List[str]], ids: torch.Tensor
    ) -> torch.Tensor:
        tracer = tracer_of_thread()
        if tracer is not None:
            return tracer.look_up(self, fields, ids)
        if self.training and torch.is_grad_enabled():
            return typing.cast(
                torch.Tensor, _Lookup.apply(self._anchor, self.tables, fields, ids)
            )
        pulled = self.tables.pull(fields, ids.detach().cpu().numpy(), train=False)
        return torch.from_numpy(pulled.rows).to(ids.device)


class EmbeddingCollection(_Module):
    """The rows of several fields in one call: int64 ``[rows, fields]`` to float32
    ``[rows, fields, dim]``. The tables of the fields have the same dim.

    ``tables`` are the tables, and ``fields`` the names of the fields; without them, all fields.

    In ``eval`` mode and under ``torch.no_grad``, ids are read as evaluation reads them.
    """

    def __init__(
        self, tables: Tables, fields: typing.Optional[typing.Sequence[str]] = None
    ) -> None:
        super().__init__(tables)
        self.fields = tables.fields if fields is None else list(fields)
        dims = {tables.dim(field) for field in self.fields}
        if len(dims) != 1:
            raise JobError(
                f"the fields {', '.join(self.fields)} have the dims {sorted(dims)}; use one "
                "collection for each dim"
            )
        self.dim = dims.pop()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self._look_up(self.fields, ids)


class Embedding(_Module):
    """The rows of ``field`` of ``tables``: int64 of any shape to float32 of it and ``[dim]``."""

    def __init__(self, tables: Tables, field: str) -> None:
        super().__init__(tables)
        self.field = field
        self.dim = tables.dim(field)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self._look_up(self.field, ids)


class EmbeddingBag(_Module):
    """The pooled rows of lists of ids of ``field`` of ``tables``, as ``torch.nn.EmbeddingBag``.

    ``ids`` (int64 ``[values]``) has all lists, one after the other. ``offsets`` (int64
    ``[rows]``) has the start of each list. The result is float32 ``[rows, dim]``; an empty list
    has zeros. ``mode`` is sum or mean.
    """

    def __init__(self, tables: Tables, field: str, mode: str = "mean") -> None:
        super().__init__(tables)
        if mode not in ("sum", "mean"):
            raise JobError(f"unknown mode \"{mode}\"; expected one of mean, sum")
        self.field, self.mode = field, mode
        self.dim = tables.dim(field)

    def forward(self, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        tracer = tracer_of_thread()
        if tracer is not None:
            return tracer.bag(self, ids, offsets)
        rows = self._look_up(self.field, ids)
        ends = torch.cat([offsets[1:], offsets.new_tensor([len(ids)])])
        lengths = ends - offsets
        if len(offsets) and (int(offsets[0]) != 0 or bool((lengths < 0).any())):
            raise JobError("offsets do not ascend from 0; give the start of each list")
        bag = torch.repeat_interleave(torch.arange(len(offsets), device=ids.device), lengths)
        sums = rows.new_zeros(len(offsets), self.dim).index_add(0, bag, rows)
        if self.mode == "sum":
            return sums
        return sums / lengths.clamp(min=1).unsqueeze(1)


class Optimizer:
    """Steps ``tables`` and the dense parameters together.

    ``step`` first pushes the gradients that the backward passes kept, then steps the optimizer
    ``dense``. ``rate`` multiplies the learning rates of the tables.
    """

    def __init__(
        self,
        tables: Tables,
        dense: typing.Optional[torch.optim.Optimizer] = None,
        *,
        rate: float = 1.0,
    ) -> None:
        self.tables = tables
        self.dense = dense
        self.rate = rate

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients of the rows of this step and of the dense parameters.

        ``set_to_none`` is that of torch's optimizers. Lookups of this step stay.
        """
        self.tables.clear_gradients()
        if self.dense is not None:
            self.dense.zero_grad(set_to_none=set_to_none)

    def step(self) -> Figures:
        """Ends the step, and returns the counts of changes in the tables."""
        counts = self.tables.step(rate=self.rate)
        if self.dense is not None:
            self.dense.step()
        return counts


def save(
    folder: Path,
    tables: Tables,
    model: torch.nn.Module,
    optimizer: typing.Optional[Optimizer] = None,
    **more: typing.Any,
) -> None:
    """Writes a checkpoint of the tables, the model, the dense optimizer, and ``more``.

    The folder must be new. It appears with its tables first; the file of torch is written last,
    so a folder without it is not a checkpoint.
    """
    path = pathlib.Path(folder)
    if path.exists():
        raise Error(f"{path} exists; choose another folder, or remove it")
    check_more(more)
    path.mkdir(parents=True)
    try:
        tables.save(path / TABLES_FOLDER)
        state: Figures = {"model": model.state_dict(), "more": more}
        if optimizer is not None and optimizer.dense is not None:
            state["optimizer"] = optimizer.dense.state_dict()
        temporary = path / f".{DENSE_FILE}.tmp"
        with open(temporary, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path / DENSE_FILE)
    except BaseException:
        # The same folder can be named again.
        shutil.rmtree(path, ignore_errors=True)
        raise


def check_more(more: Figures) -> None:
    """Checks that ``load`` can read the values that ``save`` is given."""
    buffer = io.BytesIO()
    try:
        torch.save(more, buffer)
        buffer.seek(0)
        torch.load(buffer, weights_only=True)
    except Exception as error:
        raise Error(
            f"a value besides the model cannot be read again ({error}); give numbers, texts, lists "
            "or tensors"
        ) from None


def load(
    folder: Path,
    tables: Tables,
    model: torch.nn.Module,
    optimizer: typing.Optional[Optimizer] = None,
) -> Figures:
    """Restores a checkpoint that ``save`` wrote, and returns its ``more``."""
    path = pathlib.Path(folder)
    if not (path / DENSE_FILE).exists():
        raise Error(f"{path} is not a checkpoint: it has no {DENSE_FILE}; give one that was saved")
    state = torch.load(path / DENSE_FILE, weights_only=True)
    tables.restore(path / TABLES_FOLDER)
    model.load_state_dict(state["model"])
    if optimizer is not None and optimizer.dense is not None:
        if "optimizer" not in state:
            raise Error(f"{path} was saved without an optimizer; load it without one")
        optimizer.dense.load_state_dict(state["optimizer"])
    return typing.cast(Figures, state["more"])


__all__ = [
    "Embedding",
    "EmbeddingBag",
    "EmbeddingCollection",
    "Offsets",
    "Optimizer",
    "export",
    "load",
    "save",
]
