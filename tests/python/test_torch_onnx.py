"""Models of PyTorch as ONNX files. The suite does not install torch; without it, this is skipped."""

import importlib.util
import os
import time

import pytest

import zillion as zl

torch = pytest.importorskip("torch", reason="torch is not installed")

import zillion.torch as zt  # noqa: E402

F = torch.nn.functional
FIELDS = ["user", "item"]
NUMBERS = ["price", "age"]
LABELS = {"click": {}, "cost": {"kind": "number"}}


class Sorted(torch.nn.Module):
    """Two labels behind operations that no graph has: a GRU over sorted rows, and a remainder."""

    def __init__(self, tables):
        super().__init__()
        self.embed = zt.EmbeddingCollection(tables, FIELDS)
        self.shop = zt.Embedding(tables, "shop")
        self.tags = zt.EmbeddingBag(tables, "tag", "mean")
        self.gru = torch.nn.GRU(4, 6, batch_first=True)
        self.click, self.cost = torch.nn.Linear(18, 1), torch.nn.Linear(18, 1)

    def forward(self, ids, shop, tags, offsets, numbers, place):
        state = self.gru(torch.sort(self.embed(ids), 1)[0])[0][:, -1]
        parts = [state, self.shop(shop), self.tags(tags, offsets), numbers, place]
        x = torch.fmod(torch.cat(parts, 1), 0.7)
        return torch.sigmoid(self.click(x)).squeeze(1), self.cost(x)


INPUTS = {
    "ids": FIELDS,
    "shop": "shop",
    "tags": "tag",
    "offsets": zt.Offsets("tag"),
    "numbers": NUMBERS,
    "place": "place",
}
FEATURES = {
    "age": {"kind": "numeric", "column": "old", "transform": "log1p"},
    "place": {"kind": "vector", "size": 2},
}


def make_tables():
    table = {"dim": 4, "initializer": {"kind": "normal", "std": 1.0}}
    return zl.Tables({name: table for name in [*FIELDS, "shop", "tag"]}, threads=2)


def make_rows(count, start=0):
    return [
        {
            "user": start + row % 7, "item": start + row * 5 % 11, "shop": row % 3,
            "tag": [start + one for one in range(row % 4)],
            "price": 0.1 * row, "old": row, "place": [0.3 * row % 1, 0.7 * row % 1],
        }
        for row in range(count)
    ]


def arguments(rows):
    lists = [row["tag"] for row in rows]
    age = torch.tensor([float(row["old"]) for row in rows]).log1p()
    return (
        torch.tensor([[row[field] for field in FIELDS] for row in rows]),
        torch.tensor([row["shop"] for row in rows]),
        torch.tensor(sum(lists, []), dtype=torch.int64),
        torch.tensor([sum(map(len, lists[:at])) for at in range(len(lists))]),
        torch.stack([torch.tensor([row["price"] for row in rows]), age], 1),
        torch.tensor([row["place"] for row in rows]),
    )


def train(tables, module, rows):
    module.train()
    optimizer = zt.Optimizer(tables, torch.optim.Adam(module.parameters(), lr=0.05))
    for _ in range(3):
        click, cost = module(*arguments(rows))
        loss = F.mse_loss(click, torch.arange(len(rows)) % 2.0) + cost.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def export(module, tables, registry, **more):
    return zt.export(
        module, tables, registry, "sorted", inputs=INPUTS, features=FEATURES, labels=LABELS, **more
    )


@pytest.fixture(scope="module")
def needs_onnx(tmp_path_factory):
    """Skips a test if the library was built without ONNX, and then checks what it says."""
    if importlib.util.find_spec("onnxscript") is None:
        pytest.skip("onnxscript is not installed")
    registry = tmp_path_factory.mktemp("probe") / "registry"
    tables = make_tables()
    try:
        report = export(Sorted(tables), tables, registry, fallback="onnx")
    except zl.Error as error:
        assert "(its feature `onnx`); build it with this feature" in str(error)
        with pytest.raises(zl.Error):
            zl.Registry(registry).list("sorted")
        pytest.skip("the library is built without the feature onnx")
    assert report["dense"] == "onnx"


def assert_served(client, module, rows):
    module.eval()
    with torch.no_grad():
        click, cost = module(*arguments(rows))
    found = client.predict("sorted", rows)
    names = ["probabilities", "predictions/cost"]
    for name, wanted in zip(names, [click, cost.squeeze(1)]):
        scores = [row[name] for row in found]
        assert scores == pytest.approx(wanted.tolist(), abs=1e-6, rel=1e-6), name


def test_other_operations_are_served_as_they_score_here(tmp_path, needs_onnx):
    torch.manual_seed(6)
    tables = make_tables()
    module, registry = Sorted(tables), zl.Registry(tmp_path / "registry")
    rows = make_rows(40)
    train(tables, module, rows)
    module.train()
    first = export(module, tables, registry, sample=rows, fallback="onnx")
    assert (first["version"], first["parent"], first["dense"]) == (1, None, "onnx")
    assert module.training
    with zl.serve(registry, "sorted") as server:
        client = server.client()
        assert_served(client, module, rows)
        # More rows than a session computes at once.
        assert_served(client, module, make_rows(1500))
        few = make_rows(5, start=100)
        train(tables, module, few)
        second = export(module, tables, registry, sample=few, fallback="onnx")
        assert (second["version"], second["parent"]) == (2, 1) and second["rows"] < first["rows"]
        until = time.monotonic() + 30
        while client.versions("sorted")[0]["version"] != "2":
            assert time.monotonic() < until, server.log
            time.sleep(0.02)
        assert_served(client, module, few + rows)
    assert registry.verify("sorted")
    shown = registry.list("sorted")
    assert len(shown) == 2
    # Another export of the same state is the same version.
    again = export(module, tables, registry, sample=few, fallback="onnx")
    assert again["was_there"] and again["version"] == 2


def test_what_no_server_could_compute_is_refused(tmp_path, needs_onnx, monkeypatch):
    tables = zl.Tables({"user": {"dim": 4}, "item": {"dim": 4}}, threads=2)

    def refuse(error, text, function, **more):
        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.embed = zt.EmbeddingCollection(tables, FIELDS)

            def forward(self, ids, numbers):
                return function(self.embed(ids), ids, numbers)

        with pytest.raises(error, match=text):
            zt.export(
                Model(), tables, tmp_path / "registry", "m", inputs=[FIELDS, NUMBERS],
                **{"fallback": "onnx", **more},
            )

    def decides(rows, ids, numbers):
        return numbers.sum(1) if rows[0, 0, 0].item() > 0 else rows.sum((1, 2))

    refuse(zl.JobError, "the value of a tensor decides", decides)
    refuse(zl.JobError, "computes with ids", lambda rows, ids, numbers: torch.fmod(ids, 2).sum(1))

    def mixed(rows, ids, numbers):
        return torch.fmod(rows, 2).sum((1, 2)) - numbers.mean()

    refuse(zl.Refused, "nothing is published", mixed)
    refuse(zl.JobError, "export with `fallback=\"onnx\"`", mixed, fallback=None)
    refuse(zl.JobError, "unknown fallback 'tensorrt'", mixed, fallback="tensorrt")
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "onnx" else found(name)
    )
    refuse(zl.JobError, "needs the package `onnx`; install", mixed)


def test_a_model_that_a_graph_can_compute_becomes_one(tmp_path):
    tables = zl.Tables({"user": {"dim": 4}}, threads=1)
    sums = torch.nn.Sequential(torch.nn.Linear(4, 1))
    inputs = [zt.Embedding(tables, "user")]
    report = zt.export(sums, tables, tmp_path / "r", "m", inputs=inputs, fallback="onnx")
    assert report["dense"] == "graph"


def test_a_missing_library_is_named(tmp_path, needs_onnx):
    tables = make_tables()
    module = Sorted(tables)
    registry = tmp_path / "registry"
    export(module, tables, registry, fallback="onnx")
    known = os.environ.get("ORT_DYLIB_PATH")
    os.environ["ORT_DYLIB_PATH"] = str(tmp_path / "nothing.so")
    try:
        with pytest.raises(zl.Error, match="(?s)is not ready.*set ORT_DYLIB_PATH to the path"):
            zl.serve(registry, "sorted", timeout=2)
    finally:
        if known is None:
            del os.environ["ORT_DYLIB_PATH"]
        else:
            os.environ["ORT_DYLIB_PATH"] = known
