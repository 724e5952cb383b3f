"""A configuration as a tree that remembers its lines, and which of its keys were read."""

from __future__ import annotations

import typing

from .._errors import JobError
from .._job import Job


class Note(typing.NamedTuple):
    """A remark about one line of the configuration."""

    file: str
    line: int
    key: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: `{self.key}`: {self.text}"


class Imported:
    """A job that was made from the configuration of another system.

    ``job`` is the job. ``notes`` lists, in the order of the lines, what the job does otherwise,
    and what was not understood and is left out.
    """

    def __init__(self, job: Job, notes: typing.Iterable[Note]) -> None:
        self.job = job
        self.notes: typing.List[Note] = sorted(set(notes))

    def __str__(self) -> str:
        return "\n".join(map(str, self.notes)) or "every key of the configuration was understood"

    def __repr__(self) -> str:
        return f"zillion.importers.Imported(job={self.job!r}, notes={len(self.notes)})"


class Entry:
    """A value of a configuration, with its line."""

    def __init__(self, key: str, value: typing.Any, line: int) -> None:
        self.key = key
        self.value = value
        self.line = line
        self.is_read = False


class Section:
    """The entries of one part of a configuration. A key may occur several times."""

    def __init__(self, file: str, path: str, line: int, notes: typing.List[Note]) -> None:
        self.file = file
        self.path = path
        self.line = line
        self.entries: typing.List[Entry] = []
        self._notes = notes

    def child(self, key: str, line: int) -> Section:
        """Makes a part of this part. The caller adds it with ``add``."""
        path = f"{self.path}.{key}" if self.path else key
        return Section(self.file, path, line, self._notes)

    def add(self, key: str, value: typing.Any, line: int) -> None:
        """Adds an entry."""
        self.entries.append(Entry(key, value, line))

    def name_of(self, key: str) -> str:
        """Returns the whole name of a key."""
        return f"{self.path}.{key}" if self.path else key

    def note(self, key: str, text: str) -> None:
        """Adds a note about a key of this part, or about the part if it has no such key."""
        lines = [entry.line for entry in self.entries if entry.key == key]
        self._notes.append(Note(self.file, lines[0] if lines else self.line, self.name_of(key), text))

    def error(self, key: str, text: str) -> JobError:
        """Makes an error that names the line of a key."""
        lines = [entry.line for entry in self.entries if entry.key == key]
        line = lines[0] if lines else self.line
        return JobError(f"{self.file}:{line}: `{self.name_of(key)}`: {text}")

    def all(self, key: str) -> typing.List[typing.Any]:
        """Returns the values of a key, which may occur several times or hold a list."""
        values: typing.List[typing.Any] = []
        for entry in self.entries:
            if entry.key == key:
                entry.is_read = True
                values.extend(entry.value if isinstance(entry.value, list) else [entry.value])
        return [value for value in values if value is not None]

    def get(self, key: str, default: typing.Any = None) -> typing.Any:
        """Returns the last value of a key, which is neither a list nor a part."""
        value = default
        for entry in self.entries:
            if entry.key != key:
                continue
            entry.is_read = True
            if isinstance(entry.value, (list, Section)):
                raise self.error(key, "is a list or a part here, but one value is expected")
            value = default if entry.value is None else entry.value
        return value

    def number(self, key: str, default: typing.Any = None) -> typing.Any:
        """Returns a number."""
        value = self.get(key, default)
        if value is default or isinstance(value, bool):
            return value
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise self.error(key, f"{value!r} is not a number") from None
        if number != number or number in (float("inf"), float("-inf")):
            raise self.error(key, f"{value!r} is not a finite number")
        return int(number) if number.is_integer() and "." not in str(value) else number

    def integers(self, key: str) -> typing.Optional[typing.List[int]]:
        """Returns a list of whole numbers; ``None`` if the key is missing."""
        if all(entry.key != key for entry in self.entries):
            return None
        try:
            return [int(value) for value in self.all(key)]
        except (TypeError, ValueError):
            raise self.error(key, "is not a list of whole numbers") from None

    def part(self, key: str) -> typing.Optional[Section]:
        """Returns the last part with this name; ``None`` if there is none."""
        parts = self.parts(key)
        return parts[-1] if parts else None

    def parts(self, key: str) -> typing.List[Section]:
        """Returns the parts with this name."""
        found = self.all(key)
        for value in found:
            if not isinstance(value, Section):
                raise self.error(key, "is a value here, but a part with keys is expected")
        return found

    def ignore(self, *keys: str) -> None:
        """Takes keys as read that say nothing about the job."""
        for entry in self.entries:
            entry.is_read |= entry.key in keys

    def note_rest(self) -> None:
        """Adds a note for each key that nobody has read, here and in all parts below."""
        for entry in self.entries:
            values = entry.value if isinstance(entry.value, list) else [entry.value]
            if not entry.is_read and entry.value is not None:
                text = "is not understood and is left out"
                name = self.name_of(entry.key)
                self._notes.append(Note(self.file, entry.line, name, text))
                continue
            for value in values:
                if isinstance(value, Section):
                    value.note_rest()


ACTIVATIONS = {
    "relu": "relu",
    "leakyrelu": "leaky_relu",
    "leaky_relu": "leaky_relu",
    "prelu": "prelu",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "gelu": "gelu",
    "silu": "silu",
    "swish": "silu",
    "dice": "dice",
}


def set_activation(section: Section, key: str, model: typing.Dict[str, typing.Any], name: str) -> None:
    """Sets an activation of a model by its name in the configuration, if it is there."""
    wanted = section.all(key)
    if not wanted:
        return
    # Names such as `tf.nn.relu` end with the function.
    names = [str(value).lower().rsplit(".", 1)[-1] for value in wanted]
    if len(set(names)) > 1:
        section.note(key, f"the layers have different activations; all of them get {names[0]}")
    found = ACTIVATIONS.get(names[0])
    if found is None:
        section.note(key, f"there is no activation {names[0]}; the default is used")
    else:
        model[name] = found
