"""Steps that are taken one at a time: the same bytes as a whole run, hooks, feed and fetch."""

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
