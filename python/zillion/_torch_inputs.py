"""What fills the parameters of a model of PyTorch: features, which tables or a job describe."""

from __future__ import annotations

import inspect
import typing

import torch

from ._errors import JobError
from ._progress import Figures
from ._tables import Tables

Spec = typing.Any
Settings = typing.Mapping[str, typing.Mapping[str, typing.Any]]
KINDS = ("id", "ids", "numeric", "vector")


class Offsets:
    """The offsets of the lists of an input, for the parameter of a model that takes them."""

    def __init__(self, name: str) -> None:
        self.name = name


class Inputs:
    """What fills the parameters of a model: features, which the tables or the job describe."""

    def __init__(
        self, module: torch.nn.Module, tables: Tables, specs: typing.Any, features: Settings
    ) -> None:
        self.module, self.tables = module, tables
        self.given = {name: dict(settings) for name, settings in features.items()}
        self.specs = self._name(specs)
        # The features that lookups read, in the order of the lookups.
        self.bound: typing.Dict[typing.Tuple[str, str], typing.Tuple[str, Figures]] = {}
        self._lists: typing.Set[str] = set()
        for spec in self.specs.values():
            if isinstance(spec, Offsets):
                self._lists.add(spec.name)
            elif hasattr(spec, "mode") and hasattr(spec, "field"):
                self._lists.add(spec.field)
        self.names = list(dict.fromkeys(n for s in self.specs.values() for n in names_of(s)))
        unused = [name for name in self.given if name not in self.names]
        if unused:
            raise JobError(
                f"`features.{unused[0]}`: no input of the model is this feature; name it in "
                "`inputs`, or remove it"
            )
        for name in self.names:
            if self.kind(name) not in KINDS:
                raise JobError(
                    f"`features.{name}.kind` is \"{self.kind(name)}\"; an exported model has the "
                    f"kinds {', '.join(KINDS)}"
                )

    def _name(self, specs: typing.Any) -> typing.Dict[str, Spec]:
        """Returns the specifications by the names of the parameters of `forward`."""
        parameters = [
            parameter.name
            for parameter in inspect.signature(self.module.forward).parameters.values()
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
        if not isinstance(specs, typing.Mapping):
            listed = list(specs)
            if len(listed) > len(parameters):
                raise JobError(
                    f"`inputs` has {len(listed)} entries, but the model takes "
                    f"{len(parameters)}: {', '.join(parameters)}"
                )
            specs = dict(zip(parameters, listed))
        for name in specs:
            if name not in parameters:
                raise JobError(
                    f"`inputs.{name}`: the model has no such parameter; it takes "
                    f"{', '.join(parameters)}"
                )
        return dict(specs)

    def kind(self, name: str) -> str:
        """Returns the kind of a feature."""
        if name in self.given:
            return str(self.given[name].get("kind", "id"))
        if name in self._lists:
            return "ids"
        return "id" if name in self.tables.fields else "numeric"

    def column(self, name: str) -> str:
        """Returns the column of the rows from which a feature is read."""
        return str(self.given.get(name, {}).get("column", name))

    def width(self, name: str) -> int:
        """Returns the number of floats of a feature of numbers."""
        return int(self.given[name].get("size", 1)) if self.kind(name) == "vector" else 1

    def bind(self, name: str, table: str, mode: typing.Optional[str]) -> str:
        """Returns the name of the job's feature that looks an input up in a table."""
        if (name, table) in self.bound:
            feature, settings = self.bound[name, table]
            if settings.get("pooling") != mode:
                raise JobError(
                    f"the lists `{name}` are pooled in two ways from the table `{table}`; use one "
                    "mode"
                )
            return feature
        settings = dict(self.given.get(name, {"kind": self.kind(name)}))
        if settings.get("type", "i64") != "i64":
            raise JobError(
                f"`features.{name}.type` is \"{settings['type']}\", but the tables have learned "
                "from integers; leave it out"
            )
        if settings.get("table", table) != table:
            raise JobError(
                f"`features.{name}.table` is `{settings['table']}`, but the model looks the ids "
                f"up in `{table}`; leave it out"
            )
        if mode is not None and settings.setdefault("pooling", mode) != mode:
            raise JobError(
                f"`features.{name}.pooling` is \"{settings['pooling']}\", but the bag has the "
                f"mode \"{mode}\"; leave it out"
            )
        settings["table"] = table
        taken = {feature for feature, _ in self.bound.values()}
        feature = name
        if feature in taken:
            # The same ids are looked up in a second table.
            feature = f"{name}_{table}"
            while feature in taken or feature in self.names:
                feature += "_"
        settings.setdefault("column", name)
        self.bound[name, table] = (feature, settings)
        return feature

    def features(self) -> typing.Dict[str, Figures]:
        """Returns the features of the job: those with tables in the order of the tables, then
        numbers. The order of tables follows from it."""
        order = self.tables.tables
        read = {table for _, table in self.bound}
        if read != set(order):
            raise JobError(
                f"the model reads the tables {', '.join(sorted(read)) or 'none'}, but the tables "
                f"are {', '.join(order)}; make `zl.Tables` with those that the model reads"
            )
        bound = sorted(self.bound.items(), key=lambda entry: order.index(entry[0][1]))
        found = {feature: settings for _, (feature, settings) in bound}
        for name in self.names:
            if self.kind(name) in ("numeric", "vector"):
                found[name] = dict(self.given.get(name, {"kind": "numeric"}))
        return found


def names_of(spec: Spec) -> typing.List[str]:
    """Returns the features of an input."""
    if isinstance(spec, str):
        return [spec]
    if isinstance(spec, Offsets):
        return [spec.name]
    if isinstance(spec, torch.nn.Module) and hasattr(spec, "fields"):
        return list(spec.fields)
    if isinstance(spec, torch.nn.Module) and hasattr(spec, "field"):
        return [str(spec.field)]
    if isinstance(spec, (list, tuple)) and spec and all(isinstance(name, str) for name in spec):
        return list(spec)
    raise JobError(
        f"an input of the class {type(spec).__name__} is neither the name of a feature, a list of "
        "names, `Offsets(name)`, nor a module of zillion.torch"
    )
