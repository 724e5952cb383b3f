"""The command `zillion`."""

from __future__ import annotations

import os
import signal
import sys
import sysconfig
import threading

from . import _zillion
from ._onnx_library import name_library

# The variable with the path of the program, which commands that start further processes use.
PROGRAM = "ZILLION_PROGRAM"


def main() -> None:
    """Runs the command that the arguments of the process name, and ends the process."""
    # The command has its own handling of signals, as in the binary.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    script = sys.argv[0]
    if script.endswith(".py") or not os.access(script, os.X_OK):
        script = os.path.join(sysconfig.get_path("scripts"), "zillion")
    os.environ[PROGRAM] = os.path.abspath(script)
    name_library()
    code = _zillion.run_command(["zillion", *sys.argv[1:]])
    sys.stdout.flush()
    sys.exit(code)


def main_while_parent_lives() -> None:
    """Runs a command that ends in good order when its standard input is closed.

    The process that started the command holds the other end, so the command ends with it.
    """

    def wait() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="parent", daemon=True).start()
    main()
