"""The exceptions of the package. Their texts are those of the command line."""

from __future__ import annotations

import typing

if typing.TYPE_CHECKING:
    from ._run import Run


class Error(Exception):
    """An operation failed. The text names the subject, the problem and the remedy."""


class JobError(Error):
    """A job or an argument is wrong. The text names the key and, if one is near, the right one."""


class Refused(Error):
    """A guard refused the operation, because it would destroy data or certainly fail."""


class ServerError(Error):
    """A server answered with an error, or did not answer.

    ``message`` is the text. ``status`` is the HTTP status, or ``None`` without an answer; over
    gRPC, the HTTP status with the meaning of the code.
    """

    def __init__(self, message: str, status: typing.Optional[int] = None) -> None:
        super().__init__(message)
        self.status = status


class InternalError(Error):
    """Zillion itself has a fault: a panic in Rust. The process can go on."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended a training. ``run`` is the run; its newest checkpoint is kept.

    ``Job.train(resume=True)`` goes on from it.
    """

    def __init__(self, run: "Run") -> None:
        super().__init__(f"the training was interrupted; its checkpoint is in {run.folder}")
        self.run = run
