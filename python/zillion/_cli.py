"""Commands of `zillion` in a process of their own, for what has its code in the command line."""

from __future__ import annotations

import json
import subprocess
import sys
import typing

from ._errors import Error, JobError, Refused

# The exit codes of the command line.
ERRORS: typing.Dict[int, typing.Type[Error]] = {2: JobError, 3: Refused}


def run(arguments: typing.Sequence[str]) -> str:
    """Runs a command to its end, and returns what it prints on stdout."""
    done = subprocess.run(
        [sys.executable, "-m", "zillion", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        check=False,
    )
    if done.returncode != 0:
        raise ERRORS.get(done.returncode, Error)(describe(done.stderr, arguments))
    return done.stdout


def run_json(arguments: typing.Sequence[str]) -> typing.Any:
    """Runs a command that prints one line of JSON, and returns its value."""
    return json.loads(run([*arguments, "--json"]))


def describe(log: str, arguments: typing.Sequence[str]) -> str:
    """Returns the error in the log of a command, without the word `error`."""
    lines = log.strip().splitlines()
    for number, line in enumerate(lines):
        if line.startswith("error: "):
            return "\n".join([line[len("error: ") :], *lines[number + 1 :]])
    return log.strip() or f"the command `zillion {' '.join(arguments)}` failed without a message"
