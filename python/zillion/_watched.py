"""``python -m zillion._watched``: the command line, until standard input is closed."""

from ._command import main_while_parent_lives

main_while_parent_lives()
