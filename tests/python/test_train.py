"""Trainings: figures, callbacks, Ctrl-C, resuming, predictions."""

import os
import signal
import threading
import time

import numpy
import pandas
import pytest

import zillion as zl

LONG = {"epochs": 5000, "checkpoint_every": 50}


def test_a_run_has_its_figures(run):
    assert not run.interrupted
    assert run.test["auc"] > 0.7
    assert list(run.metrics["epoch"]) == [1, 2]
    assert run.metrics["valid_auc"].iloc[-1] > 0.7
    assert list(run.losses.columns) == ["step", "rows", "loss"]
    assert set(run.tables["name"]) == {"user", "item", "tags"}
    again = zl.Run(run.folder)
    assert again.test["auc"] == run.test["auc"]
    assert again.plot().svg.startswith("<svg")
    assert run._repr_svg_() == again.plot().svg


def test_plots_are_chosen_by_kind(run, tmp_path):
    plot = run.plot("loss", "auc", "tables")
    for text in ("Loss", "Validation AUC", "Rows", "Bytes", "item", "training"):
        assert f">{text}</text>" in plot.svg, text
    plot.save(tmp_path / "plot.svg")
    assert (tmp_path / "plot.svg").read_text() == plot._repr_svg_()
    with pytest.raises(zl.JobError, match='unknown plot "acu"; expected one of loss, tables, auc'):
        run.plot("acu")


def test_callbacks_see_reports_and_can_stop(job, rows, tmp_path):
    seen = []

    class Stop(zl.Callback):
        def on_epoch(self, figures):
            return figures["epoch"] < 2

    callbacks = [lambda kind, figures: seen.append((kind, figures)), Stop()]
    long = job.replace(train=LONG)
    run = long.train(rows, out=tmp_path / "run", callbacks=callbacks, progress=False)
    assert run.interrupted
    assert [figures["epoch"] for kind, figures in seen if kind == "epoch"] == [1, 2]
    assert any(kind == "checkpoint" for kind, _ in seen)
    with pytest.raises(zl.Refused, match="resume=True"):
        job.train(rows, out=tmp_path / "run", progress=False)
    # The same data has the same file, so the run goes on.
    rest = long.replace(train={"epochs": 3}).train(
        rows, out=tmp_path / "run", resume=True, progress=False
    )
    assert not rest.interrupted and rest.report["epochs"] == 3


def test_overwrite_replaces_a_run(job, rows, tmp_path):
    folder = tmp_path / "run"

    def train(data, epochs, **more):
        short = job.replace(train={"epochs": epochs})
        return short.train(data, out=folder, progress=False, **more)

    # A folder that does not exist yet is as good as that of a run.
    assert train(rows, 2, overwrite=True).report["epochs"] == 2
    with pytest.raises(zl.Refused, match="overwrite=True"):
        train(rows, 1)
    with pytest.raises(zl.Error, match="choose one of the two"):
        train(rows, 1, resume=True, overwrite=True)
    assert zl.Run(folder).report["epochs"] == 2
    replaced = train(rows[:300], 1, overwrite=True)
    assert replaced.report["epochs"] == 1
    assert list(zl.Run(folder).metrics["epoch"]) == [1]
    # The data of the old run goes with it.
    assert len(list((folder / "data").iterdir())) == 1
    # A run that was killed before its first checkpoint is as good as none.
    folder = tmp_path / "killed"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "LOCK").touch()
    assert train(rows, 1, overwrite=True).report["epochs"] == 1
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "thesis.tex").write_text("all my work")
    with pytest.raises(zl.Error, match="has files, but no run"):
        train(rows, 1, overwrite=True)
    assert [path.name for path in folder.iterdir() if path.is_file()] == ["thesis.tex"]


def test_an_exception_in_a_callback_keeps_the_checkpoint(job, rows, tmp_path):
    def fail(kind, figures):
        if kind == "epoch":
            raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"):
        job.replace(train=LONG).train(
            rows, out=tmp_path / "run", callbacks=[fail], progress=False
        )
    assert zl.Run(tmp_path / "run").interrupted
    assert len(zl.Run(tmp_path / "run").predict(rows[:5])) == 5
    with pytest.raises(TypeError, match="neither a function"):
        job.train(rows, out=tmp_path / "other", callbacks=[3])


def test_ctrl_c_ends_a_training_in_good_order(job, rows, tmp_path):
    trains = threading.Event()

    def press():
        trains.wait()
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    with pytest.raises(zl.Interrupted) as caught:
        job.replace(train=LONG).train(
            rows,
            out=tmp_path / "run",
            callbacks=[lambda kind, figures: trains.set() if kind == "epoch" else None],
            progress=False,
        )
    thread.join()
    run = caught.value.run
    assert isinstance(caught.value, KeyboardInterrupt)
    assert run.interrupted and 1 <= run.report["epochs"] < 5000
    assert len(run.predict(rows[:3])) == 3


def test_other_threads_run_while_a_training_does(job, rows, tmp_path):
    done = threading.Event()
    counted = []

    def count():
        while not done.is_set():
            counted.append(time.monotonic())
            time.sleep(0.001)

    began = []
    thread = threading.Thread(target=count)
    thread.start()
    try:
        job.replace(train={"epochs": 20}).train(
            rows,
            out=tmp_path / "run",
            callbacks=[lambda kind, _: began.append(time.monotonic())],
            progress=False,
        )
    finally:
        done.set()
        thread.join()
    during = [at for at in counted if began[0] <= at <= began[-1]]
    assert len(during) > 5


def test_predictions_are_in_the_order_and_class_of_the_data(run, rows):
    frame = pandas.DataFrame(rows[:50], index=range(100, 150)).drop(columns="click")
    scores = run.predict(frame)
    assert list(scores.columns) == ["click"] and list(scores.index) == list(frame.index)
    assert scores["click"].between(0, 1).all()
    alone = run.predict(frame.iloc[[7]])
    assert alone["click"].iloc[0] == pytest.approx(scores["click"].iloc[7], rel=1e-6)
    assert run.evaluate(rows)["rows"] == 2000
    with pytest.raises(zl.Error, match="price"):
        run.predict(frame.drop(columns="price"))


def test_predictions_from_several_threads_are_the_same(run, rows):
    wanted = run.predict(rows)["click"].to_numpy()
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(run.predict(rows)["click"].to_numpy()))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and all(numpy.array_equal(scores, wanted) for scores in found)


def test_runs_are_compared(run, job, rows, tmp_path):
    other = job.replace(train={"epochs": 1}).train(rows, out=tmp_path / "b", progress=False)
    table = zl.compare([run, other])
    line = table[table["name"] == "train.epochs"].iloc[0]
    assert (line["kind"], line["run"], line["b"]) == ("setting", "2", "1")
    assert "steps" in set(table["name"])
    with pytest.raises(zl.Error, match="is not the folder of a run"):
        zl.compare([run, tmp_path])


def test_progress_is_shown(job, rows, tmp_path, capfd):
    job.train(rows, valid=rows[:100], out=tmp_path / "run")
    shown = capfd.readouterr().err
    assert "epoch 1  loss" in shown and "valid auc" in shown
