"""Zillion trains and serves recommendation models with huge sparse embedding tables.

    import zillion as zl

    job = zl.Job(
        name="clicks",
        features={"user": {"kind": "id"}, "item": {"kind": "id"}},
        labels={"click": {}},
        tables={"*": {"dim": 16}},
        model={"kind": "deepfm", "hidden": [64, 64]},
    )
    run = job.train(data=frame, valid=other_frame)
    print(run.metrics)
    scores = run.predict(new_frame)

The keys of a job are those of the job file (docs/JOB.md).
"""

from . import importers, nn
from ._client import Client
from ._errors import Error, InternalError, Interrupted, JobError, Refused, ServerError
from ._job import CheckReport, Job
from ._model import Inputs, Model
from ._progress import Callback, Progress
from ._read import Batch, Keys, Label, read
from ._registry import Registry
from ._run import Run, compare
from ._serve import Server, serve
from ._tables import Pulled, Tables
from ._trainer import Step, Trainer


__all__ = [
    "Batch",
    "Callback",
    "CheckReport",
    "Client",
    "Error",
    "Inputs",
    "InternalError",
    "Interrupted",
    "Job",
    "JobError",
    "Keys",
    "Label",
    "Model",
    "Progress",
    "Pulled",
    "Refused",
    "Registry",
    "Run",
    "Server",
    "ServerError",
    "Step",
    "Tables",
    "Trainer",
    "compare",
    "importers",
    "nn",
    "read",
    "serve",
]
