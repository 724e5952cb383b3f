"""What the tests share: made-up clicks, and a small job for them."""

import random
import signal

import pytest

import zillion as zl


@pytest.fixture(autouse=True)
def ctrl_c():
    """Ctrl-C raises an exception, also where a shell has started the suite in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def rows():
    """Rows whose clicks depend on the user and the item."""
    draw = random.Random(7)
    rows = []
    for _ in range(2000):
        user, item = draw.randrange(40), draw.randrange(60)
        rows.append(
            {
                "user": user,
                "item": f"item {item}",
                "tags": [f"t{draw.randrange(5)}" for _ in range(draw.randrange(3))],
                "price": round(draw.uniform(1.0, 9.0), 3),
                "click": int(draw.random() < 0.05 + 0.45 * (user % 2) + 0.45 * (item % 2)),
            }
        )
    return rows


@pytest.fixture(scope="session")
def job(tmp_path_factory):
    """A job for these rows."""
    return zl.Job(
        name="clicks",
        features={
            "user": {"kind": "id"},
            "item": {"kind": "id", "type": "string"},
            "tags": {"kind": "ids", "type": "string", "pooling": "mean"},
            "price": {"kind": "numeric", "transform": "standardise"},
        },
        labels={"click": {}},
        tables={"*": {"dim": 4}},
        model={"kind": "deepfm", "hidden": [8]},
        train={"epochs": 2, "batch_size": 128},
        run={"threads": 2, "output": str(tmp_path_factory.mktemp("unused") / "run")},
    )


@pytest.fixture(scope="session")
def run(job, rows, tmp_path_factory):
    """A run of the job that has ended."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    return job.train(rows[:1600], valid=rows[1600:1800], test=rows[1800:], out=folder, progress=False)
