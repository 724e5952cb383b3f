"""A server in a process of its own, for trials in a notebook."""

from __future__ import annotations

import atexit
import collections
import os
import subprocess
import sys
import threading
import time
import typing

from ._client import Client
from ._errors import Error

START = "listening on "


class Server:
    """A running server. It ends with ``stop``, with its ``with`` block, or with this interpreter.

    ``url`` is its address, as in ``http://127.0.0.1:40123``. ``process`` is the process of the
    server, and ``log`` has the lines of its log.
    """

    def __init__(self, process: "subprocess.Popen[str]", url: str, log: typing.Deque[str]) -> None:
        self._process = process
        self._log = log
        self.url = url

    def client(self, *, grpc: bool = False, **options: typing.Any) -> Client:
        """Returns a client of the server, over HTTP, or over gRPC with ``grpc``.

        ``options`` are the keyword arguments of ``Client``, such as ``token``.
        """
        return Client(self.grpc_url if grpc else self.url, **options)

    @property
    def grpc_url(self) -> str:
        """The same address for gRPC, as in ``grpc://127.0.0.1:40123``."""
        return "grpc" + self.url[len("http") :]

    @property
    def log(self) -> str:
        """The last lines of the server's log."""
        return "\n".join(self._log)

    @property
    def is_running(self) -> bool:
        """Whether the server has not ended."""
        return self._process.poll() is None

    def stop(self, timeout: float = 30.0) -> None:
        """Stops the server after the requests that it is working on. ``timeout`` is in seconds."""
        atexit.unregister(self.stop)
        stop(self._process, timeout)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"zillion.Server({self.url!r})"


def serve(
    registry: typing.Any,
    model: typing.Union[str, typing.Sequence[str]],
    *,
    http: str = "127.0.0.1:0",
    options: typing.Sequence[str] = (),
    timeout: float = 60.0,
) -> Server:
    """Starts a server of published versions, and returns when all models answer.

    ``registry`` is a ``Registry`` or its URL. ``model`` is a name or several, as for the option
    ``--model`` of ``zillion serve``. ``http`` is the address, whose port 0 takes a free port.
    ``options`` are further options of the command. The server ends with this interpreter, even if
    that is killed. If a model does not answer within ``timeout`` seconds, the server is stopped,
    and ``Error`` has the end of its log. With 0, the call returns when the server listens.
    """
    models = [model] if isinstance(model, str) else list(model)
    url = os.fspath(getattr(registry, "url", registry))
    arguments = ["serve", "--registry", url, "--http", http, *options]
    for name in models:
        arguments += ["--model", name]
    process = subprocess.Popen(
        [sys.executable, "-m", "zillion._watched", *arguments],
        # The server ends when this pipe is closed, which the system does when this process ends.
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        # Ctrl-C in a notebook is not for the server.
        start_new_session=True,
    )
    log: typing.Deque[str] = collections.deque(maxlen=1000)
    output = typing.cast(typing.TextIO, process.stdout)
    address = None
    for line in output:
        log.append(line.rstrip("\n"))
        if line.startswith(START):
            address = line[len(START) :].strip()
            break
    if address is None:
        stop(process, 30.0)
        output.close()
        text = "\n".join(line[7:] if line.startswith("error: ") else line for line in log)
        raise Error(f"the server did not start: {text or 'it said nothing'}")
    # A full pipe would stop the server.
    threading.Thread(target=drain, args=(output, log), name="zillion-log", daemon=True).start()
    server = Server(process, address, log)
    atexit.register(server.stop)
    try:
        wait_ready(server, timeout)
    except BaseException:
        server.stop()
        raise
    return server


def wait_ready(server: Server, timeout: float) -> None:
    """Waits until every model of a server answers."""
    client = server.client()
    until = time.monotonic() + timeout
    while timeout > 0 and not client.is_ready():
        if not server.is_running or time.monotonic() > until:
            last = "\n".join(list(server._log)[-5:])
            raise Error(f"the server at {server.url} is not ready after {timeout:g} s: {last}")
        time.sleep(0.02)


def drain(output: typing.TextIO, log: typing.Deque[str]) -> None:
    """Reads the log of a server to its end."""
    with output:
        for line in output:
            log.append(line.rstrip("\n"))


def stop(process: "subprocess.Popen[str]", timeout: float) -> None:
    """Closes the standard input of a server, which stops it, and waits for its end."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
