"""Results as data frames: of pandas if it is installed, otherwise as lists of dictionaries."""

from __future__ import annotations

import importlib
import typing

Rows = typing.List[typing.Dict[str, typing.Any]]


def find_module(name: str) -> typing.Any:
    """Returns a module, or ``None`` if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def need_module(name: str, purpose: str, *, package: typing.Optional[str] = None) -> typing.Any:
    """Returns a module, or raises an error that says what needs it.

    ``package`` is the name under which it is installed, if that is another one.
    """
    module = find_module(name)
    if module is None:
        package = name if package is None else package
        raise ImportError(
            f"{purpose} needs the package `{package}`; install it: pip install {package}"
        )
    return module


def make_frame(rows: Rows) -> typing.Any:
    """Returns rows as a data frame of pandas, or as they are without pandas."""
    pandas = find_module("pandas")
    return rows if pandas is None else pandas.DataFrame(rows)


def is_from(data: typing.Any, package: str) -> bool:
    """Returns whether the class of ``data`` is from a package, without importing it."""
    return any(base.__module__.split(".")[0] == package for base in type(data).__mro__)
