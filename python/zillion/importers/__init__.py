"""Jobs from the configurations of other systems.

    imported = zl.importers.fuxictr("config", "DeepFM_avazu")
    print(imported)                      # what was changed or not understood, line by line
    run = imported.job.train(out="runs/avazu")

``python -m zillion.importers fuxictr config DeepFM_avazu > job.toml`` writes the job file, and the
notes to standard error.
"""

from ._easyrec import easyrec
from ._fuxictr import fuxictr
from ._tree import Imported, Note


__all__ = ["Imported", "Note", "easyrec", "fuxictr"]
