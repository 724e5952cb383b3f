"""Threads of Python that share objects: the results of one thread, without a panic or a deadlock."""

import json
import threading

import numpy
import pytest

import zillion as zl

SETTINGS = {
    "user": {"dim": 4, "optimizer": {"kind": "adagrad", "lr": 0.1}},
    "item": {"dim": 4, "optimizer": {"kind": "sgd", "lr": 0.5}},
}
WORKERS = 3
STEPS = 20
IDS = 60 * WORKERS


def run_threads(*works):
    """Runs functions in threads to their ends, and raises the first exception of one of them."""
    failures = []

    def guarded(work):
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    if failures:
        raise failures[0]
    assert not any(thread.is_alive() for thread in threads), "a deadlock"


def take_part(tables, step, worker):
    """Pulls and pushes what a worker does in a step. No two workers have the same ids."""
    for field in SETTINGS:
        draw = numpy.random.default_rng([step, worker, len(field)])
        ids = draw.integers(0, IDS // WORKERS, size=40) * WORKERS + worker
        pulled = tables.pull(field, ids)
        tables.push(pulled, numpy.sin(pulled.rows + step))


def rows_of(tables):
    """Returns the bytes of all rows."""
    return [tables.pull(field, numpy.arange(IDS), train=False).rows.tobytes() for field in SETTINGS]


def test_threads_that_share_tables_give_the_rows_of_one_thread(tmp_path):
    plain = zl.Tables(SETTINGS, threads=2, seed=3)
    expected = [rows_of(plain)]
    for step in range(STEPS):
        for worker in range(WORKERS):
            take_part(plain, step, worker)
        plain.step(rate=0.5)
        expected.append(rows_of(plain))

    tables = zl.Tables(SETTINGS, threads=2, seed=3)
    begin, end = threading.Barrier(WORKERS + 1), threading.Barrier(WORKERS + 1)
    is_over, has_saved = threading.Event(), threading.Event()
    saved, seen = [], []

    def work(worker):
        def steps():
            for step in range(STEPS):
                begin.wait(60)
                take_part(tables, step, worker)
                end.wait(60)

        return steps

    def lead():
        try:
            for step in range(STEPS):
                if step == STEPS // 2:
                    # A save succeeds between two steps, so there is one of the middle.
                    assert has_saved.wait(60)
                begin.wait(60)
                end.wait(60)
                tables.step(rate=0.5)
        finally:
            is_over.set()

    def save():
        while not is_over.is_set():
            folder = tmp_path / f"saved-{len(saved)}"
            try:
                tables.save(folder)
            except zl.Error as error:
                assert "a step is not ended" in str(error)
            else:
                saved.append(folder)
                has_saved.set()

    def read():
        while not is_over.is_set():
            counters = [table["rows"] for table in tables.statistics()]
            found = tables.explain("item", 1)
            seen.append((counters, 0 if found is None else found["count"]))
            tables.pull(["user", "item"], [[1, 2]], train=False)

    run_threads(lead, save, read, read, *(work(worker) for worker in range(WORKERS)))
    assert rows_of(tables) == expected[STEPS]
    assert tables.statistics()[0]["rows"] == plain.statistics()[0]["rows"]
    assert saved and seen and max(count for _, count in seen) <= tables.explain("item", 1)["count"]
    # Each folder has the rows of one moment between two steps.
    for folder in {saved[0], saved[len(saved) // 2], saved[-1]}:
        again = zl.Tables(SETTINGS, seed=3)
        again.restore(folder)
        assert rows_of(again) == expected[json.loads((folder / "tables.json").read_text())["step"]]


def test_threads_publish_tables_that_others_read(tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    import zillion.torch

    plain, tables = (zl.Tables(SETTINGS, threads=2, seed=3) for _ in range(2))
    moments = [rows_of(plain)]
    for step in range(3):
        take_part(plain, step, 0)
        plain.step()
        moments.append(rows_of(plain))
    registry = zl.Registry(tmp_path / "registry")
    published = threading.Event()

    class Score(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.user = zillion.torch.Embedding(tables, "user")
            self.item = zillion.torch.Embedding(tables, "item")

        def forward(self, user, item):
            return (self.user(user) * self.item(item)).sum(-1)

    def publish():
        try:
            for step in range(3):
                take_part(tables, step, 0)
                tables.step()
                inputs = {"user": "user", "item": "item"}
                zillion.torch.export(
                    Score(), tables, registry, "shared", inputs=inputs, base=True
                )
        finally:
            published.set()

    def read():
        while not published.is_set():
            for field, found in enumerate(rows_of(tables)):
                assert found in [moment[field] for moment in moments]
            tables.statistics()

    run_threads(publish, read, read)
    assert [row["version"] for row in registry.list("shared")] == [3, 2, 1]
    assert rows_of(tables) == moments[3]


def test_threads_that_share_a_trainer_train_each_batch_once(job, rows, tmp_path):
    def train(folder, count):
        # With rates of 0 almost, the loss of a batch does not depend on the batches before it.
        losses, figures = [], []
        with zl.Trainer(job, rows[:1500], valid=rows[1500:], out=folder) as trainer:
            trainer.rate = 1e-30
            is_over = threading.Event()

            def take():
                for batch in trainer.batches():
                    losses.append((batch.rows, trainer.step(batch).loss))

            def look():
                while not is_over.is_set():
                    figures.append(trainer.validate())
                    assert trainer.tables and trainer.epoch == 0 and not trainer.is_finished
                    trainer.save()

            def takers():
                try:
                    run_threads(*[take] * count)
                finally:
                    is_over.set()

            run_threads(takers, *[look] * (count - 1))
            pushed = [table["counters"]["pushed"] for table in trainer.tables]
            assert trainer.steps == len(losses) == 12
            figures.append(trainer.validate())
            loss = trainer.end_epoch()["loss"]
        assert trainer.run.report["steps"] == 12
        logloss = {figure["logloss"] for figure in figures}
        return sorted(losses), pushed, logloss, pytest.approx(loss)

    assert train(tmp_path / "many", 4) == train(tmp_path / "one", 1)


def test_threads_that_share_a_run_get_its_predictions(run, rows):
    wanted = run.predict(rows).to_numpy()
    figures = run.evaluate(rows)

    def predict(start):
        def work():
            for at in range(start, start + 3):
                found = run.predict(rows[at * 100 : at * 100 + 100]).to_numpy()
                numpy.testing.assert_array_equal(found, wanted[at * 100 : at * 100 + 100])
            assert run.evaluate(rows) == figures

        return work

    run_threads(*(predict(start) for start in range(0, 12, 3)))


def test_threads_that_share_a_reader_get_each_batch_once(job, rows):
    whole = [batch.rows for batch in zl.read(job, rows)]
    reader = zl.read(job, rows)
    lock, found = threading.Lock(), []

    def take():
        # A generator of Python is for one thread at a time.
        while True:
            with lock:
                batch = next(reader, None)
            if batch is None:
                return
            found.append(batch.rows)

    run_threads(*[take] * 3)
    assert sorted(found) == sorted(whole)
