"""Builds the reference of the Python package from its docstrings.

    python python/reference.py FOLDER

Needs the installed package and `pdoc`; the pages of `zillion.torch` also need `torch`. A warning of
pdoc, or a public name without a docstring, is an error.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import pathlib
import sys
import typing
import warnings

# The modules whose pages are made. The page of a package leads to the modules in its `__all__`.
MODULES = ["zillion"]


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python python/reference.py FOLDER")
    # The folder of this file has the sources of the package without their library.
    here = pathlib.Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if pathlib.Path(entry).resolve() != here]
    import pdoc

    modules = list_modules()
    missing = list_missing(modules)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        pdoc.pdoc(*modules, output_directory=pathlib.Path(sys.argv[1]))
    problems = [f"{name} has no docstring" for name in missing]
    problems += [f"{one.filename}:{one.lineno}: {one.message}" for one in found]
    if problems:
        sys.exit("\n".join(problems))


def list_modules() -> typing.List[str]:
    """Returns the public modules."""
    has_torch = importlib.util.find_spec("torch") is not None
    return [*MODULES, "zillion.torch"] if has_torch else MODULES


def list_missing(modules: typing.Iterable[str]) -> typing.List[str]:
    """Returns the public names of modules that have no docstring."""
    missing = []
    for module_name in modules:
        module = importlib.import_module(module_name)
        for name, value in list_public(module).items():
            full = f"{module_name}.{name}"
            if inspect.ismodule(value):
                missing += list_missing([full])
            if not has_text(value):
                missing.append(full)
            if inspect.isclass(value):
                missing += [f"{full}.{member}" for member in list_members_without_text(value)]
    return missing


def list_public(module: typing.Any) -> typing.Dict[str, typing.Any]:
    """Returns the public names of a module: those in ``__all__``, or all that it defines."""
    names = getattr(module, "__all__", None)
    if names is not None:
        return {name: getattr(module, name) for name in names}
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    }


def list_members_without_text(public: type) -> typing.List[str]:
    """Returns the public members of a class that have no docstring, in their order.

    A method that overrides another one takes its docstring from there. The fields of a data class
    and the parameters of the constructor belong to the docstring of the class.
    """
    missing = []
    for name, value in vars(public).items():
        is_documented = inspect.isroutine(value) or isinstance(
            value, (property, classmethod, staticmethod)
        )
        if is_documented and not name.startswith("_") and not has_text(getattr(public, name)):
            missing.append(name)
    text = inspect.getdoc(public) or ""
    fields = dataclasses.fields(public) if dataclasses.is_dataclass(public) else ()
    named = [field.name for field in fields if not field.name.startswith("_")]
    if "__init__" in vars(public) and not fields:
        named = list(inspect.signature(public).parameters)
    return missing + [name for name in named if f"``{name}``" not in text]


def has_text(value: typing.Any) -> bool:
    """Returns whether a value has a docstring, its own or that of what it overrides."""
    return bool((inspect.getdoc(value) or "").strip())


if __name__ == "__main__":
    main()
