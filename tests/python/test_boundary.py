"""The boundary: panics, the command, what is exported."""

import pathlib
import subprocess
import sys
import sysconfig
import threading
import time

import numpy
import pytest

import zillion as zl
from zillion import _zillion

CALLS = [
    "load", "parse", "print", "effective", "validate", "check", "train", "Model", "predict",
    "evaluate", "BatchReader", "next", "plot", "descriptors", "run_command", "Tables",
    "dims", "lookup", "keep", "step", "clear_gradients", "discard", "statistics",
    "find", "save", "restore", "Stepper", "next_batch", "take_step", "take_notes",
    "end_epoch", "validate_run", "save_run", "position", "tables_of_run", "finish", "publish",
]


def calls(job, run, tmp_path):
    """Returns each call of the module with right arguments."""
    file = str(next((run.folder / "data").glob("test-*.jsonl")))
    text = job.replace(data={"train": file})._json()
    model = _zillion.Model(str(run.folder), None)
    reader = _zillion.BatchReader(text, "train", None, None)
    path = tmp_path / "job.toml"
    path.write_text(job.to_toml())

    def stepper():
        """Returns the stepper of a run in a folder of its own."""
        folder = str(tmp_path / f"stepped-{len(list(tmp_path.iterdir()))}")
        output = job.replace(data={"train": file}, run={"output": folder})._json()
        return _zillion.Stepper(output, (False, False), None, [], False)

    return {
        "load": lambda: _zillion.load(str(path)),
        "parse": lambda: _zillion.parse("name = 'a'\n"),
        "print": lambda: _zillion.print(text),
        "effective": lambda: _zillion.effective(text),
        "validate": lambda: _zillion.validate(text),
        "check": lambda: _zillion.check(text, 10),
        "train": lambda: _zillion.train(text, False, False, None, lambda kind, figures: True),
        "Model": lambda: _zillion.Model(str(run.folder), None),
        "predict": lambda: model.predict([file], None),
        "evaluate": lambda: model.evaluate([file], None),
        "BatchReader": lambda: _zillion.BatchReader(text, "train", None, None),
        "next": lambda: next(reader),
        "plot": lambda: _zillion.plot(str(run.folder), ["loss"]),
        "descriptors": _zillion.descriptors,
        "run_command": lambda: _zillion.run_command(["zillion", "check", str(tmp_path / "none")]),
        "Tables": lambda: _zillion.Tables(text_of_tables()),
        "dims": lambda: _zillion.Tables(text_of_tables()).dims(),
        "lookup": lambda: _zillion.Tables(text_of_tables()).lookup(
            [0], numpy.zeros(1, "i8"), True, numpy.zeros(2, "f4")
        ),
        "keep": lambda: _zillion.Tables(text_of_tables()).keep(1, numpy.zeros(2, "f4")),
        "step": lambda: _zillion.Tables(text_of_tables()).step(1.0),
        "clear_gradients": lambda: _zillion.Tables(text_of_tables()).clear_gradients(),
        "discard": lambda: _zillion.Tables(text_of_tables()).discard(),
        "statistics": lambda: _zillion.Tables(text_of_tables()).statistics(),
        "find": lambda: _zillion.Tables(text_of_tables()).find(0, 7),
        "save": lambda: _zillion.Tables(text_of_tables()).save(str(tmp_path / "tables")),
        "restore": lambda: _zillion.Tables(text_of_tables()).restore(str(tmp_path)),
        "Stepper": stepper,
        "next_batch": lambda: stepper().next_batch(),
        "take_step": lambda: stepper().step(next(reader)["handle"], [], 1.0),
        "take_notes": lambda: stepper().take_notes(),
        "end_epoch": lambda: stepper().end_epoch(),
        "validate_run": lambda: stepper().validate(),
        "save_run": lambda: stepper().save(),
        "position": lambda: stepper().position(),
        "tables_of_run": lambda: stepper().tables(),
        "finish": lambda: stepper().finish(),
        "publish": lambda: _zillion.Tables(text_of_tables()).publish(text, "{}", [], []),
    }


def text_of_tables():
    """Returns the JSON of a job whose only feature is an id."""
    return zl.Job(
        features={"user": {"kind": "id"}},
        labels={"label": {}},
        tables={"*": {"dim": 2}},
        model={"kind": "dnn", "hidden": [1]},
    )._json()


def test_a_panic_is_an_exception(job, run, tmp_path, monkeypatch):
    found = calls(job, run, tmp_path)
    assert list(found) == CALLS
    for name, call in found.items():
        monkeypatch.setenv("ZILLION_PYTHON_PANIC", name)
        with pytest.raises(zl.InternalError, match=f"asks for this panic of `{name}`"):
            call()
    monkeypatch.delenv("ZILLION_PYTHON_PANIC")
    # The module goes on to work.
    assert _zillion.parse("name = 'a'\n") == '{"name":"a"}'
    assert run.predict([{"user": 1, "item": "a", "tags": [], "price": 1.0}]).shape == (1, 1)


def test_another_thread_runs_during_each_call(job, run, tmp_path, monkeypatch):
    # A call writes the file and waits until the thread has removed it. The thread could not do that
    # if the call held the lock of the interpreter, and the call would fail.
    held, done, counts = tmp_path / "held", threading.Event(), dict.fromkeys(CALLS, 0)
    present = [""]

    def release():
        while not done.is_set():
            if held.exists():
                counts[present[0]] += 1
                held.unlink()
            time.sleep(0.0005)

    thread = threading.Thread(target=release)
    thread.start()
    for name, call in calls(job, run, tmp_path).items():
        present[0] = name
        monkeypatch.setenv("ZILLION_PYTHON_HOLD", f"{name}={held}")
        try:
            call()
        except zl.Error as error:
            assert "no other thread" not in str(error), name
        assert counts[name] == 1, name
    done.set()
    thread.join()


def test_the_command_is_that_of_the_binary(tmp_path):
    script = pathlib.Path(sysconfig.get_path("scripts")) / "zillion"
    for command in ([str(script)], [sys.executable, "-m", "zillion"]):
        shown = subprocess.run([*command, "--version"], capture_output=True, check=True)
        assert shown.stdout.startswith(b"zillion ")
        wrong = subprocess.run(
            [*command, "check", str(tmp_path / "none.toml"), "--json"],
            capture_output=True,
            check=False,
        )
        assert wrong.returncode == 1 and b"cannot read the job file" in wrong.stdout
        misspelt = subprocess.run([*command, "trian"], capture_output=True, check=False)
        assert misspelt.returncode == 2 and b"'train'" in misspelt.stderr


def test_exceptions_have_one_base():
    for error in (zl.JobError, zl.Refused, zl.ServerError, zl.InternalError):
        assert issubclass(error, zl.Error)
    assert issubclass(zl.Interrupted, KeyboardInterrupt)
    for name in zl.__all__:
        assert getattr(zl, name).__doc__, name
