"""Tables for models outside of Zillion, with numpy."""

import shutil
import threading

import numpy
import pytest

import zillion as zl

SGD = {"dim": 4, "optimizer": {"kind": "sgd", "lr": 0.5}}


def test_a_step_is_the_formula_of_the_optimizer():
    tables = zl.Tables({"item": SGD}, seed=3)
    ids = numpy.array([7, 8, 7])
    pulled = tables.pull("item", ids)
    assert pulled.rows.shape == (3, 4) and (pulled.rows[0] == pulled.rows[2]).all()
    before = pulled.rows.copy()
    gradients = numpy.arange(12, dtype=numpy.float32).reshape(3, 4)
    tables.push(pulled, gradients)
    assert tables.step() == {
        "pushed": 2, "created": 2, "waiting": 0, "evicted": 0, "refused": 0, "refused_full": 0,
        "nonfinite": 0,
    }
    after = tables.pull("item", ids, train=False).rows
    numpy.testing.assert_allclose(after[0], before[0] - 0.5 * (gradients[0] + gradients[2]))
    numpy.testing.assert_allclose(after[1], before[1] - 0.5 * gradients[1])
    found = tables.explain("item", 7)
    assert found["count"] == 1
    numpy.testing.assert_array_equal(numpy.float32(found["weights"]), after[0])
    assert tables.explain("item", 9) is None


def test_lookups_of_a_step_are_summed_by_key():
    shared = {"item": SGD}
    one = zl.Tables(shared, fields={"item": "item", "last": "item"})
    two = zl.Tables(shared, fields={"item": "item", "last": "item"})
    draw = numpy.random.default_rng(5)
    ids = draw.integers(0, 50, size=(300, 2))
    gradients = draw.normal(size=(300, 2, 4)).astype(numpy.float32)
    pulled = one.pull(["item", "last"], ids)
    one.push(pulled, gradients)
    one.step()
    # The same as lookups of one field each, in several parts.
    for part in (slice(0, 100), slice(100, 300)):
        first = two.pull("item", ids[part, 0])
        second = two.pull("last", ids[part, 1])
        two.push(first, gradients[part, 0])
        two.push(second, gradients[part, 1])
    unused = two.pull("item", [1000])
    two.step()
    every = numpy.arange(50)
    numpy.testing.assert_allclose(
        one.pull("item", every, train=False).rows,
        two.pull("item", every, train=False).rows,
        rtol=1e-5,
    )
    assert two.explain("item", 1000) is None
    with pytest.raises(zl.Error, match="a step that has ended"):
        two.push(unused, numpy.zeros((1, 4)))


def test_the_number_of_threads_changes_no_bit():
    draw = numpy.random.default_rng(6)
    ids = draw.integers(0, 500, size=(2000, 2))
    gradients = draw.normal(size=(2000, 2, 4)).astype(numpy.float32)
    found = []
    for threads in (1, 3):
        tables = zl.Tables({"a": SGD, "b": SGD}, threads=threads)
        for _ in range(3):
            tables.push(tables.pull(["a", "b"], ids), gradients)
            tables.step(rate=0.5)
        found.append(tables.pull(["a", "b"], ids, train=False).rows.tobytes())
    assert found[0] == found[1]


def test_saved_tables_go_on_as_if_nothing_had_been(tmp_path):
    settings = {"item": {"dim": 4, "optimizer": {"kind": "adagrad", "lr": 0.1}}}
    draw = numpy.random.default_rng(7)
    batches = [draw.integers(0, 100, size=200) for _ in range(6)]

    def train(tables, batches):
        for ids in batches:
            pulled = tables.pull("item", ids)
            tables.push(pulled, numpy.sin(pulled.rows + 1))
            tables.step()

    whole = zl.Tables(settings)
    train(whole, batches)
    parts = zl.Tables(settings)
    train(parts, batches[:3])
    parts.save(tmp_path / "saved")
    again = zl.Tables(settings)
    again.restore(tmp_path / "saved")
    train(again, batches[3:])
    every = numpy.arange(100)
    assert (
        again.pull("item", every, train=False).rows.tobytes()
        == whole.pull("item", every, train=False).rows.tobytes()
    )
    with pytest.raises(zl.Error, match="exists"):
        whole.save(tmp_path / "saved")
    # A restore that finds no tables changes nothing, and the present step goes on.
    before = whole.pull("item", every)
    with pytest.raises(zl.Error, match="no saved tables"):
        whole.restore(tmp_path)
    whole.push(before, numpy.ones((100, 4)))
    assert whole.step()["pushed"] == 100
    # One that ends in the middle leaves rows of two moments, which nothing may read.
    shutil.copytree(tmp_path / "saved", tmp_path / "damaged")
    for file in (tmp_path / "damaged").rglob("*"):
        if file.is_file() and file.name != "tables.json":
            file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(zl.Error):
        whole.restore(tmp_path / "damaged")
    for call in (
        lambda: whole.pull("item", [1]),
        lambda: whole.pull("item", [1], train=False),
        lambda: whole.save(tmp_path / "mixed"),
        lambda: whole.explain("item", 1),
        whole.step,
    ):
        with pytest.raises(zl.Error, match="`restore` has failed.*restore them again"):
            call()
    assert not (tmp_path / "mixed").exists()
    whole.restore(tmp_path / "saved")
    train(whole, batches[3:])
    assert (
        again.pull("item", every, train=False).rows.tobytes()
        == whole.pull("item", every, train=False).rows.tobytes()
    )


def test_tables_ten_times_their_memory_learn_the_same(tmp_path):
    settings = {"item": {"dim": 16, "optimizer": {"kind": "adagrad", "lr": 0.1}}}
    small = zl.Tables(settings, spill={"item": "1 MiB"}, spill_folder=tmp_path, threads=2)
    large = zl.Tables(settings, threads=2)
    rows = 80_000
    for start in [*range(0, rows, 4000), *range(0, 20_000, 4000)]:
        ids = numpy.arange(start, start + 4000)
        for tables in (small, large):
            pulled = tables.pull("item", ids)
            tables.push(pulled, numpy.cos(pulled.rows))
            tables.step()
    found = small.statistics()[0]
    assert found["rows"] == rows and found["spill"]["cold_rows"] > 0.8 * rows
    assert large.statistics()[0]["bytes"] > 10 * (1 << 20)
    ids = numpy.arange(0, rows, 7)
    assert (
        small.pull("item", ids, train=False).rows.tobytes()
        == large.pull("item", ids, train=False).rows.tobytes()
    )


def test_ten_thousand_steps_take_no_more_memory():
    def resident():
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * 4096

    tables = zl.Tables({"item": SGD}, threads=1)
    ids = numpy.arange(64)
    gradients = numpy.full((64, 4), 1e-3, dtype=numpy.float32)
    sizes = []
    for step in range(10_000):
        tables.push(tables.pull("item", ids), gradients)
        tables.step()
        if step in (2_000, 9_999):
            sizes.append(resident())
    assert sizes[1] - sizes[0] < 4 << 20, sizes


def test_threads_share_tables_without_a_lost_update():
    tables = zl.Tables({"item": SGD}, threads=2)
    start = tables.pull("item", [1, 2], train=False).rows.copy()
    failures = []

    def work():
        for _ in range(300):
            try:
                tables.pull("item", numpy.arange(100), train=False)
                tables.explain("item", 1)
                tables.statistics()
            except zl.Error as error:
                failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(300):
        pulled = tables.pull("item", [1, 2])
        tables.push(pulled, numpy.ones((2, 4)))
        tables.step(rate=0.01)
    for thread in threads:
        thread.join()
    assert not failures
    after = tables.pull("item", [1, 2], train=False).rows
    numpy.testing.assert_allclose(after, start - 300 * 0.5 * 0.01, rtol=1e-3)


def test_what_does_not_fit_is_refused():
    with pytest.raises(zl.JobError, match="unknown key `tables.item.dimm`; did you mean `dim`"):
        zl.Tables({"item": {"dimm": 4}})
    with pytest.raises(zl.JobError, match="`tables.item.dense`"):
        zl.Tables({"item": {"dim": 4, "dense": True}})
    with pytest.raises(zl.JobError, match="no field reads the table `item`"):
        zl.Tables({"item": SGD}, fields={})
    with pytest.raises(zl.JobError, match="`spill` needs `spill_folder`"):
        zl.Tables({"item": SGD}, spill={"item": "1 MiB"})
    tables = zl.Tables({"item": SGD, "user": {**SGD, "dim": 8}})
    with pytest.raises(zl.JobError, match="unknown field `itm`"):
        tables.pull("itm", [1])
    with pytest.raises(zl.JobError, match="different dims"):
        tables.pull(["item", "user"], [[1, 2]])
    with pytest.raises(zl.JobError, match="of the type float64"):
        tables.pull("item", [1.5])
    with pytest.raises(zl.JobError, match=r"give \[rows, 2\]"):
        tables.pull(["item", "user"], [1, 2])
    pulled = tables.pull("item", [1])
    with pytest.raises(zl.JobError, match="gradients have the shape"):
        tables.push(pulled, numpy.zeros((2, 4)))
    with pytest.raises(zl.JobError, match="learning rates is 0"):
        tables.step(rate=0)
    tables.push(pulled, numpy.full((1, 4), numpy.nan))
    assert tables.step()["nonfinite"] == 1
    for _ in range(1024):
        tables.pull("item", [1])
    with pytest.raises(zl.Error, match="1024 lookups"):
        tables.pull("item", [1])
    tables.discard()
    tables.pull("item", [1])


def test_memory_is_shared_with_other_libraries():
    tables = zl.Tables({"user": SGD}, threads=1)
    ids = numpy.array([[3], [4]])

    class Exported:
        """An object that shares its memory only by DLPack."""

        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    pulled = tables.pull(["user"], Exported(ids))
    same = numpy.from_dlpack(pulled.rows)
    assert numpy.shares_memory(same, pulled.rows)
    # A buffer, a view with gaps, and an object of DLPack give the same rows.
    assert (tables.pull(["user"], memoryview(ids)).rows == pulled.rows).all()
    gaps = numpy.array([[3, 9], [4, 9]])[:, :1]
    assert (tables.pull(["user"], gaps).rows == pulled.rows).all()
    # So do ids that are not aligned, which are copied.
    odd = numpy.frombuffer(b"x" + ids.tobytes(), "<i8", 2, offset=1).reshape(2, 1)
    assert (tables.pull(["user"], odd).rows == pulled.rows).all()
    tables.discard()
    pulled = tables.pull(["user"], ids)
    gradients = numpy.ones_like(pulled.rows)
    tables.push(pulled, Exported(gradients))
    # The gradients are summed at once, so their memory can be used again.
    gradients[:] = 100
    tables.step()
    rows = tables.pull(["user"], ids, train=False).rows
    assert numpy.allclose(rows, pulled.rows - SGD["optimizer"]["lr"])
