"""``python -m zillion.importers``: writes the job file of another system's configuration."""

import argparse
import sys

from .. import Error
from . import easyrec, fuxictr


def main() -> int:
    """Writes the job file to standard output and the notes to standard error."""
    parser = argparse.ArgumentParser(prog="python -m zillion.importers", description=__doc__)
    systems = parser.add_subparsers(dest="system", required=True)
    of_fuxictr = systems.add_parser("fuxictr", help="a folder of FuxiCTR's YAML files")
    of_fuxictr.add_argument("folder")
    of_fuxictr.add_argument("experiment", help="the experiment in model_config.yaml")
    of_easyrec = systems.add_parser("easyrec", help="a pipeline configuration of EasyRec")
    of_easyrec.add_argument("path")
    given = parser.parse_args()
    try:
        if given.system == "fuxictr":
            imported = fuxictr(given.folder, given.experiment)
        else:
            imported = easyrec(given.path)
    except Error as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(imported.job.to_toml(), end="")
    print(imported, file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
