"""Steps that are taken one at a time: the same bytes as a whole run, hooks, feed and fetch."""

import _thread
import signal
import threading
import time

import numpy
import pytest

import zillion as zl
from zillion import nn

SECTIONS = {
    "features": {
        "user": {"kind": "id"},
        "item": {"kind": "id", "type": "string"},
        "price": {"kind": "numeric", "transform": "standardise"},
    },
    "labels": {"click": {}},
    "tables": {"*": {"dim": 4}},
    "train": {"epochs": 2, "batch_size": 128, "checkpoint_every": 5},
    "run": {"threads": 2},
}


class Gated(zl.Model):
    """A model with a gate that the price opens."""

    def forward(self, inputs):
        gate = nn.sigmoid(nn.linear(inputs.numeric(), 1), name="gate")
        return inputs.wide(bias=True) + gate * nn.fm(inputs.embedding())


@pytest.fixture
def job():
    return zl.Job(SECTIONS, model=Gated())


@pytest.fixture
def interrupted(monkeypatch, tmp_path):
    """Returns a function that makes a call and presses Ctrl-C while the call works."""

    def interrupt(name, call):
        # The call writes this file when it begins to work, and goes on when the file is gone. That
        # is at the second signal, so the first one has reached the work.
        held, seen = tmp_path / "held", []

        def handle(*_):
            seen.append(None)
            if len(seen) == 1:
                raise KeyboardInterrupt
            held.unlink(missing_ok=True)

        def press():
            while len(seen) < 2:
                if held.exists():
                    _thread.interrupt_main()
                time.sleep(0.001)

        signal.signal(signal.SIGINT, handle)
        monkeypatch.setenv("ZILLION_PYTHON_HOLD", f"{name}={held}")
        thread = threading.Thread(target=press)
        thread.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                call()
        finally:
            thread.join()
            monkeypatch.delenv("ZILLION_PYTHON_HOLD")

    return interrupt


def files_of(folder):
    """Returns the bytes of the checkpoints of a run, without the job that they name."""
    found = sorted(p for p in (folder / "checkpoints").rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): p.read_bytes() for p in found if p.name != "MANIFEST"}


def test_steps_by_hand_give_the_bytes_of_train(job, rows, tmp_path):
    sets = {"valid": rows[1500:1700], "test": rows[1700:]}
    whole = job.train(rows[:1500], **sets, out=tmp_path / "whole", progress=False)
    losses = []
    with zl.Trainer(job, rows[:1500], **sets, out=tmp_path / "steps") as trainer:
        while not trainer.is_finished:
            for batch in trainer.batches():
                step = trainer.step(batch)
                losses.append(step.loss)
                assert len(step.scores) == 1 and step.scores[0].shape == (batch.rows,)
            figures = trainer.end_epoch()
    assert figures["epoch"] == 2 and figures["valid"]["auc"] > 0.6
    assert trainer.run.report["steps"] == len(losses) == 24
    assert losses[-1] < losses[0]
    assert files_of(tmp_path / "steps") == files_of(tmp_path / "whole")
    assert trainer.run.test == whole.test
    assert trainer.run.plot().svg == whole.plot().svg
    assert list(trainer.run.metrics["loss"]) == list(whole.metrics["loss"])


def test_batches_of_read_are_steps_too(job, rows, tmp_path):
    job.train(rows[:1500], out=tmp_path / "whole", progress=False)
    with zl.Trainer(job, rows[:1500], out=tmp_path / "steps") as trainer:
        for epoch in range(2):
            for batch in zl.read(job, rows[:1500], epoch=epoch):
                trainer.step(batch)
            trainer.end_epoch()
    assert files_of(tmp_path / "steps") == files_of(tmp_path / "whole")


def test_a_node_is_fetched_and_a_column_is_fed(job, rows, tmp_path):
    with zl.Trainer(job, rows, out=tmp_path / "run", fetch=["gate"], norms=True) as trainer:
        batches = trainer.batches()
        first = next(batches)
        before = trainer.step(first)
        assert before.fetched["gate"].shape == (128, 1) and before.scores[0].shape == (128,)
        assert 0 < before.dense_norm and len(before.table_norms) == len(trainer.tables)
        # The gate depends on the price alone, so equal prices give equal gates.
        fed = trainer.step(first, feed={"price": numpy.zeros(128)})
        assert numpy.ptp(fed.fetched["gate"]) == 0 < numpy.ptp(before.fetched["gate"])
        ones = trainer.step(first, feed={"click": numpy.ones(128)})
        log_loss = numpy.log1p(numpy.exp(-ones.scores[0].astype("f8"))).mean()
        assert ones.loss == pytest.approx(log_loss, rel=1e-5)
        with pytest.raises(zl.JobError, match="`user` cannot be fed.*`price`, `click`"):
            trainer.step(first, feed={"user": numpy.zeros(128)})
        with pytest.raises(zl.JobError, match=r"the shape \[128, 2\]; give \[rows\]"):
            trainer.step(first, feed={"price": numpy.zeros((128, 2))})
        with pytest.raises(zl.Error, match="has 3 values, but the batch has 128 rows"):
            trainer.step(first, feed={"price": numpy.zeros(3)})
        with pytest.raises(zl.JobError, match="fed label `click` has the value 5; give a number"):
            trainer.step(first, feed={"click": numpy.full(128, 5.0)})
        with pytest.raises(zl.JobError, match="not finite"):
            trainer.step(first, feed={"price": numpy.full(128, numpy.nan)})
        # A refused batch changes nothing.
        assert trainer.steps == 3
    with pytest.raises(zl.Error, match="did you mean `gate`"):
        zl.Trainer(job, rows, out=tmp_path / "other", fetch=["gat"])


def test_hooks_see_each_step_and_change_the_rates(job, rows, tmp_path):
    seen = []

    def halve(trainer, batch):
        trainer.rate = 0.5 if trainer.epoch else 1.0

    slow = zl.Trainer(job, rows[:1500], out=tmp_path / "hooks")
    run = slow.train(before=[halve], after=[lambda trainer, step: seen.append(step.step)])
    assert seen == list(range(1, 25)) and run.report["steps"] == 24
    plain = zl.Trainer(job, rows[:1500], out=tmp_path / "plain").train()
    assert list(run.losses["rows"]) == list(plain.losses["rows"])
    assert plain.report["steps"] == 24
    assert files_of(run.folder) != files_of(plain.folder)
    trainer = zl.Trainer(job, rows[:1500], out=tmp_path / "zero")
    trainer.rate = 0.0
    with trainer, pytest.raises(zl.Error, match="factor of the learning rates is 0"):
        trainer.step(next(trainer.batches()))


def test_a_hook_ends_the_run_with_a_checkpoint(job, rows, tmp_path):
    run = zl.Trainer(job, rows[:1500], out=tmp_path / "stop").train(
        after=[lambda trainer, step: step.step < 7]
    )
    assert run.report["interrupted"] and run.report["steps"] == 7

    def fail(trainer, step):
        if step.step == 9:
            raise RuntimeError("a hook of the user")

    again = zl.Trainer(job, rows[:1500], out=tmp_path / "stop", resume=True)
    assert again.steps == 7
    with pytest.raises(RuntimeError, match="a hook of the user"):
        again.train(after=[fail])
    assert again.run.report["steps"] == 9
    # The rest of the run has the bytes of one that was never interrupted.
    zl.Trainer(job, rows[:1500], out=tmp_path / "stop", resume=True).train()
    job.train(rows[:1500], out=tmp_path / "whole", progress=False)
    assert files_of(tmp_path / "stop") == files_of(tmp_path / "whole")


def test_a_finished_run_takes_no_step(job, rows, tmp_path):
    trainer = zl.Trainer(job, rows[:500], valid=rows[500:700], out=tmp_path / "run")
    with pytest.raises(zl.Error, match="the epoch has had no step"):
        trainer.end_epoch()
    batch = next(trainer.batches())
    trainer.step(batch)
    assert trainer.validate()["rows"] == 200
    trainer.save()
    run = trainer.finish()
    assert trainer.finish() is run
    with pytest.raises(zl.Error, match="the run has been finished"):
        trainer.step(batch)
    with pytest.raises(zl.Refused, match="resume=True"):
        zl.Trainer(job, rows[:500], out=tmp_path / "run")
    with pytest.raises(zl.Error, match="`train.accumulate`"):
        zl.Trainer(job.replace(train={"accumulate": 2}), rows[:500], out=tmp_path / "two")


def test_ctrl_c_ends_the_long_calls_of_a_trainer(job, rows, tmp_path, interrupted):
    sets = {"valid": rows[1500:]}
    job.train(rows[:1500], **sets, out=tmp_path / "whole", progress=False)
    # Nothing listens there, so this waits for an hour if the signal does not end it.
    ps = {"servers": ["127.0.0.1:1"], "store": str(tmp_path), "wait_seconds": 3600}
    remote = job.replace(ps=ps)
    interrupted("Stepper", lambda: zl.Trainer(remote, rows[:500], out=tmp_path / "remote"))
    folder = tmp_path / "steps"
    interrupted("Stepper", lambda: zl.Trainer(job, rows[:1500], **sets, out=folder))
    with zl.Trainer(job, rows[:1500], **sets, out=folder) as trainer:
        while not trainer.is_finished:
            for batch in trainer.batches():
                trainer.step(batch)
            epoch = trainer.epoch
            interrupted("validate_run", trainer.validate)
            interrupted("end_epoch", trainer.end_epoch)
            # The validation had no result, so the epoch has not ended, and goes on to its end.
            assert trainer.epoch == epoch
            assert trainer.validate()["rows"] == 500
            trainer.end_epoch()
    assert files_of(folder) == files_of(tmp_path / "whole")


def test_an_interrupted_end_of_an_epoch_is_resumed(job, rows, tmp_path, interrupted):
    sets = {"valid": rows[1500:], "out": tmp_path / "steps"}
    job.train(rows[:1500], valid=rows[1500:], out=tmp_path / "whole", progress=False)
    with zl.Trainer(job, rows[:1500], **sets) as trainer:
        for batch in trainer.batches():
            trainer.step(batch)
        interrupted("end_epoch", trainer.end_epoch)
    assert trainer.run.report["interrupted"] and trainer.run.report["steps"] == 12
    zl.Trainer(job, rows[:1500], **sets, resume=True).train()
    assert files_of(tmp_path / "steps") == files_of(tmp_path / "whole")


def test_batches_of_other_jobs_and_without_columns_are_refused(job, rows, tmp_path):
    given = [{**row, "trust": 1.0} for row in rows[:500]]
    weighted = job.replace(columns={"weight": "trust"})
    other = job.replace(features={"user": {"kind": "id", "table": "item"}})
    with zl.Trainer(weighted, given, out=tmp_path / "run") as trainer:
        for wrong, data, text in (
            (job, given, "read with other features or labels"),
            (other.replace(columns={"weight": "trust"}), given, "read with other features"),
            (weighted, rows[:500], r"no column of weights \(`trust`\)"),
        ):
            batch = next(zl.read(wrong, data))
            with pytest.raises(zl.Error, match=text):
                trainer.step(batch)
        assert trainer.steps == 0
        trainer.step(next(zl.read(weighted, given)))


def test_ten_thousand_steps_of_a_trainer_take_no_more_memory(rows, tmp_path):
    def resident():
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * 4096

    small = zl.Job(SECTIONS, model={"kind": "lr"}, train={"batch_size": 8, "epochs": 1})
    sizes = []
    small = small.replace(train={"checkpoint_every": 1_000_000}, run={"threads": 1})
    with zl.Trainer(small, rows[:64], out=tmp_path / "run") as trainer:
        batches = list(trainer.batches())
        for step in range(10_000):
            trainer.step(batches[step % len(batches)], feed={"price": numpy.ones(8)})
            if step in (2_000, 9_999):
                sizes.append(resident())
    assert sizes[1] - sizes[0] < 4 << 20, sizes
