"""Callbacks of a training, and the one that shows progress."""

from __future__ import annotations

import sys
import typing

Figures = typing.Dict[str, typing.Any]


class Callback:
    """A base class of callbacks. A subclass overrides what it needs.

    Each method gets the figures of a report. If a method returns ``False``, the run writes a
    checkpoint and ends. If it raises an exception, the same happens, and the exception leaves
    ``Job.train``.
    """

    def on_step(self, figures: Figures) -> typing.Optional[bool]:
        """Is called a few times a second.

        Keys: step, epoch, row, epoch_rows, loss, auc (by task), samples_per_second, seconds_left.
        """

    def on_epoch(self, figures: Figures) -> typing.Optional[bool]:
        """Is called after each epoch.

        Keys: epoch, loss, regulariser, valid (figures of the validation), rate_scale, seconds,
        is_best.
        """

    def on_checkpoint(self, figures: Figures) -> typing.Optional[bool]:
        """Is called after each checkpoint. Keys: step, seconds, bytes."""

    def on_version(self, figures: Figures) -> typing.Optional[bool]:
        """Is called after each published version, or a failed attempt with version ``None``.

        Keys: version, seconds.
        """

    def on_note(self, figures: Figures) -> typing.Optional[bool]:
        """Is called with a message for people. Key: text."""


class Progress(Callback):
    """A callback that shows the progress on ``stream`` or stderr, in terminals and notebooks."""

    def __init__(self, stream: typing.Optional[typing.TextIO] = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._width = 0

    def on_step(self, figures: Figures) -> None:
        # A line that is written again and again would fill a log.
        if not (self._stream.isatty() or "ipykernel" in sys.modules):
            return
        share = ""
        if figures["epoch_rows"]:
            share = f"  {100 * figures['row'] / figures['epoch_rows']:.0f} %"
        auc = next((auc for auc in figures["auc"].values() if auc is not None), None)
        shown = "" if auc is None else f"  auc {auc:.4f}"
        line = (
            f"epoch {figures['epoch']}{share}  step {figures['step']}  loss {figures['loss']:.5f}"
            f"{shown}  {figures['samples_per_second']:.0f} samples/s"
        )
        self._stream.write("\r" + line.ljust(self._width))
        self._stream.flush()
        self._width = len(line)

    def on_epoch(self, figures: Figures) -> None:
        valid = figures["valid"] or {}
        shown = "".join(
            f"  valid {name} {valid[name]:.5f}"
            for name in ("auc", "logloss", "rmse")
            if isinstance(valid.get(name), float)
        )
        best = "  best" if figures["is_best"] else ""
        self._say(
            f"epoch {figures['epoch']}  loss {figures['loss']:.5f}{shown}"
            f"  {figures['seconds']:.1f} s{best}"
        )

    def on_note(self, figures: Figures) -> None:
        self._say(figures["text"])

    def _say(self, line: str) -> None:
        start = "\r" if self._width else ""
        self._stream.write(f"{start}{line.ljust(self._width)}\n")
        self._stream.flush()
        self._width = 0
