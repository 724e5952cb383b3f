"""A registry of published versions. Each method runs a command of `zillion model`."""

from __future__ import annotations

import os
import typing

from . import _cli
from ._data import Path
from ._progress import Figures


class Registry:
    """The registry at ``url``: a folder, ``file:///..``, ``s3://..``, ``gs://..`` or ``az://..``.

    Credentials, trusted keys and the key that signs come from the environment, as for the command
    line (docs/STORES.md, docs/SECURITY.md).
    """

    def __init__(self, url: Path) -> None:
        self.url = os.fspath(url)

    def models(self) -> typing.List[str]:
        """Returns the names of the models."""
        found = _cli.run_json(["model", "list", "--registry", self.url])
        return typing.cast(typing.List[str], found["models"])

    def list(
        self, model: str, *, limit: int = 20, before: typing.Optional[int] = None
    ) -> typing.List[Figures]:
        """Returns at most ``limit`` versions of ``model``, the newest first.

        ``before`` is a version: only older ones are listed.
        """
        arguments = [*self._model("list", model), "--limit", str(limit)]
        if before is not None:
            arguments += ["--before", str(before)]
        return typing.cast(typing.List[Figures], _cli.run_json(arguments)["versions"])

    def show(self, model: str, version: typing.Optional[int] = None) -> Figures:
        """Returns the manifest of ``version`` of ``model``, or of the newest one."""
        return self._json("show", model, version)

    def log(self, model: str, pointer: str = "stable", *, limit: int = 20) -> typing.Any:
        """Returns at most ``limit`` moves of ``pointer`` of ``model``, the newest first.

        Keys: who, when, from, to, kind, reason.
        """
        arguments = [*self._model("log", model), "--pointer", pointer, "--limit", str(limit)]
        return _cli.run_json(arguments)

    def diff(self, model: str, first: int, second: int) -> Figures:
        """Returns how the versions ``first`` and ``second`` of ``model`` differ.

        The differences are those of rows, dense parameters, graph and metrics.
        """
        arguments = [*self._model("diff", model), str(first), str(second)]
        return typing.cast(Figures, _cli.run_json(arguments))

    def explain(
        self,
        model: str,
        table: str,
        key: typing.Union[int, str],
        version: typing.Optional[int] = None,
    ) -> Figures:
        """Returns the version that wrote the row of ``key`` last, and the values of the row.

        ``table`` is a table of ``model``. ``version`` is the version whose rows are read; without
        it, the one of the pointer `stable`.
        """
        arguments = ["explain", "--registry", self.url, "--model", model, "--table", table]
        arguments += [f"--key={key}", *number(version)]
        return typing.cast(Figures, _cli.run_json(arguments))

    def promote(
        self, model: str, version: int, *, to: str = "stable", note: typing.Optional[str] = None
    ) -> str:
        """Moves the pointer ``to`` of ``model`` to ``version``, with ``note`` in its log.

        Returns a line that describes the move.
        """
        arguments = [*self._model("promote", model), str(version), "--to", to]
        return _cli.run([*arguments, *noted(note)]).strip()

    def rollback(
        self,
        model: str,
        *,
        pointer: str = "stable",
        to: typing.Optional[int] = None,
        note: typing.Optional[str] = None,
    ) -> str:
        """Moves ``pointer`` of ``model`` back to the version before, or to ``to``.

        ``note`` is kept in the log of the pointer. Returns a line that describes the move.
        """
        arguments = [*self._model("rollback", model), "--pointer", pointer]
        if to is not None:
            arguments += ["--to", str(to)]
        return _cli.run([*arguments, *noted(note)]).strip()

    def verify(self, model: str, version: typing.Optional[int] = None) -> Figures:
        """Reads and verifies all files of ``version`` of ``model``, and of its ancestors.

        Without ``version``, the newest one is verified.
        """
        return self._json("verify", model, version)

    def _model(self, command: str, model: str) -> typing.List[str]:
        return ["model", command, "--registry", self.url, "--model", model]

    def _json(self, command: str, model: str, version: typing.Optional[int]) -> Figures:
        return typing.cast(
            Figures, _cli.run_json([*self._model(command, model), *number(version)])
        )

    def __repr__(self) -> str:
        return f"zillion.Registry({self.url!r})"


def number(version: typing.Optional[int]) -> typing.List[str]:
    """Returns the argument of a version."""
    return [] if version is None else [str(version)]


def noted(note: typing.Optional[str]) -> typing.List[str]:
    """Returns the arguments of a note."""
    return [] if note is None else [f"--note={note}"]
