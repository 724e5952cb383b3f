"""``python -m zillion``: the command line."""

from ._command import main

main()
