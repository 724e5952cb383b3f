"""Data from memory, in all its classes, and batches."""

import json
import types

import numpy
import pandas
import polars
import pyarrow
import pytest

import zillion as zl


class Dataset:
    """What Zillion uses of a data set of the package `datasets`, which is not installed here."""

    __module__ = "datasets.arrow_dataset"

    def __init__(self, table):
        self.table = table
        self.features = types.SimpleNamespace(arrow_schema=table.schema)

    def __len__(self):
        return len(self.table)

    def __iter__(self):
        return iter(self.table.to_pylist())

    def with_format(self, kind):
        assert kind == "arrow"
        return self

    def iter(self, batch_size):
        return (self.table.slice(at, 7) for at in range(0, min(len(self), batch_size), 7))


class Splits(dict):
    """A dictionary of splits of that package."""

    __module__ = "datasets.dataset_dict"

    def with_format(self, kind):
        raise AssertionError(kind)


def frames(rows):
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return {
        "iterator": iter(rows),
        "columns": columns,
        "pandas": pandas.DataFrame(rows),
        "polars": polars.DataFrame(rows),
        "lazy": polars.LazyFrame(rows),
        "pyarrow": pyarrow.Table.from_pylist(rows),
        "reader": pyarrow.Table.from_pylist(rows).to_reader(),
        "batch": pyarrow.RecordBatch.from_pylist(rows),
        "dataset": Dataset(pyarrow.Table.from_pylist(rows)),
    }


def test_every_class_of_data_has_the_same_scores(run, rows):
    rows = rows[:30]
    wanted = run.predict(rows)["click"].to_numpy()
    for name, data in frames(rows).items():
        scores = run.predict(data)
        values = numpy.asarray(scores["click"])
        assert numpy.array_equal(values, wanted), name
        if name in ("polars", "lazy"):
            assert isinstance(scores, polars.DataFrame)
        elif name in ("pyarrow", "reader", "batch"):
            assert isinstance(scores, pyarrow.Table)
        else:
            assert isinstance(scores, pandas.DataFrame)


def test_every_class_of_data_trains_the_same(job, rows, tmp_path):
    rows = rows[:400]
    found = {}
    for name in ("pandas", "polars", "iterator"):
        data = frames(rows)[name]
        run = job.train(data, test=rows, out=tmp_path / name, progress=False)
        found[name] = run.test["logloss"]
    assert len(set(found.values())) == 1, found


def test_files_are_read_in_place(run, job, rows, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert numpy.array_equal(run.predict(path)["click"], run.predict(rows)["click"])
    assert len(run.predict([str(path), str(path)])) == 2 * len(rows)
    with pytest.raises(zl.JobError, match="`data.format`"):
        job.replace(data={"format": "csv"}).train(rows, out=tmp_path / "run")


def test_missing_values_and_numpy_scalars_are_rows(run, rows):
    odd = [
        {"user": numpy.int64(1), "item": "item 1", "tags": numpy.array(["t1"]), "price": 2.0},
        {"user": 1, "item": "item 1", "tags": ["t1"], "price": numpy.float64(2.0)},
        {"user": None, "item": None, "tags": None, "price": 2.0},
    ]
    scores = run.predict(odd)["click"]
    assert scores[0] == scores[1] and 0 < scores[2] < 1


def test_data_that_is_none_is_refused(run, job, tmp_path):
    cases = [
        (3, "is not data"),
        ([], "has no rows"),
        ([1, 2], "row 0 is of the class int"),
        (Splits(train=1, test=2), r"Splits has several splits \(train, test\)"),
        ([{"user": object()}], "row 0: a value of the class object"),
        ({"user": [1, 2], "item": ["a"]}, "different numbers of rows"),
    ]
    for data, message in cases:
        with pytest.raises(zl.JobError, match=message):
            run.predict(data)
    with pytest.raises(zl.JobError, match="`train`.*has no rows"):
        job.train(iter([]), out=tmp_path / "run")
    assert not list((tmp_path / "run").rglob("*.tmp"))


def test_batches_are_what_the_trainer_reads(job, rows):
    batches = list(zl.read(job, rows, batch_size=600))
    assert [batch.rows for batch in batches] == [600, 600, 600, 200]
    first = batches[0]
    assert list(first.sparse) == ["user", "item", "tags"]
    user, tags = first.sparse["user"], first.sparse["tags"]
    assert user.offsets is None and user.keys.shape == (600,) and user.keys.dtype == numpy.uint64
    assert tags.offsets.shape == (601,) and tags.offsets[-1] == len(tags.keys)
    lengths = numpy.diff(tags.offsets)
    assert list(lengths) == [len(row["tags"]) for row in rows[:600]]
    clicks = numpy.concatenate([batch.labels["click"].values for batch in batches])
    assert list(clicks) == [row["click"] for row in rows]
    price = numpy.concatenate([batch.numeric["price"] for batch in batches])
    assert abs(price.mean()) < 1e-3 and abs(price.std() - 1) < 1e-3


def test_shuffled_batches_have_the_same_rows(job, rows):
    plain = numpy.concatenate([b.sparse["item"].keys for b in zl.read(job, rows)])
    orders = [
        numpy.concatenate([b.sparse["item"].keys for b in zl.read(job, rows, epoch=epoch)])
        for epoch in (0, 1, 0)
    ]
    assert numpy.array_equal(orders[0], orders[2])
    assert not numpy.array_equal(orders[0], orders[1])
    assert numpy.array_equal(numpy.sort(orders[0]), numpy.sort(plain))


def test_reading_takes_the_rows_of_a_training(job, rows, tmp_path):
    def count(job, **more):
        return sum(batch.rows for batch in zl.read(job, rows, **more))

    half = job.replace(data={"sample": 0.5})
    assert 800 < count(half) < 1200
    # Every row of the other splits counts.
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    of_file = half.replace(data={"train": str(tmp_path / "rows.jsonl")})
    assert count(of_file, split="valid") == len(rows)
    fewer = job.replace(data={"negatives": {"keep": 0.25, "label": "click"}})
    clicks = [label for b in zl.read(fewer, rows) for label in b.labels["click"].values]
    assert sum(clicks) == sum(row["click"] for row in rows)
    assert len(clicks) < len(rows)
    fixed = job.replace(data={"shuffle": False}, train={"drop_last": True})
    batches = list(zl.read(fixed, rows, batch_size=600, epoch=0))
    assert [batch.rows for batch in batches] == [600, 600, 600]
    assert list(batches[0].labels["click"].values) == [row["click"] for row in rows[:600]]


def test_reading_keeps_groups_whole(job, rows):
    grouped = job.replace(
        columns={"group": "user"}, train={"loss": {"click": {"kind": "pairwise"}}}
    )
    ordered = sorted(rows, key=lambda row: row["user"])
    batches = list(zl.read(grouped, ordered, batch_size=300, epoch=1))
    groups = [set(batch.group) for batch in batches]
    assert len(groups) > 3 and sum(map(len, groups)) == len({row["user"] for row in rows})


def test_reading_names_what_is_wrong(job, rows):
    with pytest.raises(zl.JobError, match="unknown split"):
        next(zl.read(job, rows, split="tests"))
    with pytest.raises(zl.Error, match="user"):
        next(zl.read(job, [{**row, "user": "x"} for row in rows[:5]]))


def test_batches_have_vectors_beside_numbers():
    job = zl.Job(
        name="vectors",
        features={
            "emb": {"kind": "vector", "size": 3},
            "price": {"kind": "numeric"},
            "user": {"kind": "id"},
        },
        labels={"click": {}},
        tables={"*": {"dim": 2}},
        model={"kind": "dnn", "hidden": [4]},
    )
    rows = [{"emb": [i, 2.0, 3.0], "price": 9.0 + i, "user": i, "click": i % 2} for i in range(4)]
    (batch,) = zl.read(job, rows)
    assert batch.numeric["emb"].tolist() == [[i, 2.0, 3.0] for i in range(4)]
    assert batch.numeric["price"].tolist() == [9.0, 10.0, 11.0, 12.0]


def test_a_refused_run_leaves_the_folder_of_another_as_it_was(job, rows, tmp_path):
    job.train(rows[:400], out=tmp_path / "run", progress=False)
    before = sorted(path.name for path in (tmp_path / "run" / "data").iterdir())
    with pytest.raises(zl.Refused):
        job.train(rows[400:800], out=tmp_path / "run", progress=False)
    assert sorted(path.name for path in (tmp_path / "run" / "data").iterdir()) == before
