"""Models of PyTorch as versions. The suite does not install torch; without it, this is skipped."""

import pytest

import zillion as zl

torch = pytest.importorskip("torch", reason="torch is not installed")

import zillion.torch as zt  # noqa: E402

F = torch.nn.functional
FIELDS = ["user", "item", "shop"]
NUMBERS = ["price", "age"]


def layers(*sizes):
    parts = []
    for before, after in zip(sizes, sizes[1:]):
        parts += [torch.nn.Linear(before, after), torch.nn.ReLU(inplace=True)]
    return torch.nn.Sequential(*parts)


class DeepFM(torch.nn.Module):
    """The last float of a row is the linear weight of its id."""

    def __init__(self, dim):
        super().__init__()
        self.dim = dim
        self.deep = torch.nn.Sequential(
            layers(3 * dim + 2, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.3),
            torch.nn.Linear(16, 1),
        )
        self.linear = torch.nn.Linear(2, 1)

    def forward(self, numbers, rows):
        vectors, weights = rows[..., : self.dim], rows[..., self.dim]
        total = vectors.sum(1)
        pairs = 0.5 * (total * total - (vectors * vectors).sum(1)).sum(1)
        deep = self.deep(torch.cat([vectors.flatten(1), numbers], 1)).squeeze(1)
        return deep + pairs + weights.sum(1) + self.linear(numbers).squeeze(1)


class DCNv2(torch.nn.Module):
    """The module looks the ids up itself, and returns probabilities."""

    def __init__(self, tables, dim):
        super().__init__()
        self.embed = zt.EmbeddingCollection(tables, FIELDS)
        width = 3 * dim + 2
        self.cross = torch.nn.ModuleList([torch.nn.Linear(width, width) for _ in range(2)])
        self.deep = layers(width, 8)
        self.out = torch.nn.Linear(width + 8, 1)

    def forward(self, numbers, ids):
        first = torch.cat([self.embed(ids).flatten(1), numbers], 1)
        crossed = first
        for layer in self.cross:
            crossed = torch.addcmul(crossed, first, layer(crossed))
        return torch.sigmoid(self.out(torch.cat([crossed, self.deep(first)], 1)))


def make_tables(dim):
    return zl.Tables(
        {field: {"dim": dim, "optimizer": {"kind": "adagrad", "lr": 0.1}} for field in FIELDS},
        threads=2,
    )


def train(tables, module, scores_of, steps, start=0):
    module.train()
    optimizer = zt.Optimizer(tables, torch.optim.Adam(module.parameters(), lr=0.01))
    draw = torch.Generator().manual_seed(start)
    for _ in range(steps):
        ids = torch.randint(start, start + 30, (64, 3), generator=draw)
        numbers = torch.rand(64, 2, generator=draw)
        labels = (ids.sum(1) % 2).float()
        loss = F.mse_loss(scores_of(numbers, ids).squeeze(), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def instances(numbers, ids):
    rows = torch.cat([ids, numbers], 1).tolist()
    return [
        {**{f: int(v) for f, v in zip(FIELDS, row)}, **dict(zip(NUMBERS, row[3:]))}
        for row in rows
    ]


def test_deepfm_and_dcnv2_are_served_as_they_score_here(tmp_path):
    torch.manual_seed(3)
    registry = zl.Registry(tmp_path / "registry")
    few, more = make_tables(5), make_tables(4)
    embed, deepfm, dcnv2 = zt.EmbeddingCollection(few), DeepFM(4), DCNv2(more, 4)
    train(few, deepfm, lambda numbers, ids: deepfm(numbers, embed(ids)), 10)
    train(more, dcnv2, dcnv2, 10)
    ids, numbers = torch.randint(0, 40, (20, 3)), torch.rand(20, 2)
    rows = instances(numbers, ids)

    deepfm_inputs = {"numbers": NUMBERS, "rows": embed}
    first = zt.export(deepfm, few, registry, "deepfm", inputs=deepfm_inputs, sample=rows)
    assert (first["version"], first["parent"], first["moved"]) == (1, None, True)
    assert deepfm.training and embed.training
    zt.export(dcnv2, more, registry, "dcnv2", inputs=[NUMBERS, FIELDS], sample=rows)

    def scores():
        deepfm.eval(), dcnv2.eval(), embed.eval()
        with torch.no_grad():
            return {
                "deepfm": torch.sigmoid(deepfm(numbers, embed(ids))).tolist(),
                "dcnv2": dcnv2(numbers, ids).squeeze(1).tolist(),
            }

    with zl.serve(registry, ["deepfm", "dcnv2"]) as server:
        for model, wanted in scores().items():
            found = server.client().predict(model, rows)
            assert found == pytest.approx(wanted, abs=1e-5)
    # Another export has the rows that changed: those of 25 to 54.
    embed.train()
    train(few, deepfm, lambda numbers, ids: deepfm(numbers, embed(ids)), 5, start=25)
    second = zt.export(deepfm, few, registry, "deepfm", inputs=deepfm_inputs, sample=rows)
    assert (second["version"], second["parent"]) == (2, 1) and second["rows"] == 90
    again = zt.export(deepfm, few, registry, "deepfm", inputs=deepfm_inputs, sample=rows)
    assert again["was_there"] and again["version"] == 2
    base = zt.export(
        deepfm, few, registry, "deepfm", inputs=deepfm_inputs, base=True, promote=None
    )
    assert base["parent"] is None and base["rows"] > 90 and not base["moved"]
    assert registry.verify("deepfm")
    with zl.serve(registry, "deepfm") as server:
        client = server.client()
        assert client.versions("deepfm")[0]["version"] == "2"
        assert client.predict("deepfm", rows) == pytest.approx(scores()["deepfm"], abs=1e-5)


def test_restored_tables_continue_their_versions(tmp_path):
    torch.manual_seed(4)
    tables, module = make_tables(4), None
    module = DCNv2(tables, 4)
    train(tables, module, module, 5)
    arguments = {"inputs": [NUMBERS, FIELDS]}
    assert zt.export(module, tables, tmp_path / "r", "m", **arguments)["version"] == 1
    zt.save(tmp_path / "saved", tables, module)
    other = make_tables(4)
    restored = DCNv2(other, 4)
    zt.load(tmp_path / "saved", other, restored)
    train(other, restored, restored, 1, start=100)
    report = zt.export(restored, other, tmp_path / "r", "m", **arguments)
    # Without the list of changes, the rows are compared with those of the version.
    assert report["parent"] == 1 and 0 < report["rows"] <= 90
    # A model with other features is a base.
    sums = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 1))
    inputs = [zt.EmbeddingCollection(other, FIELDS)]
    report = zt.export(sums, other, tmp_path / "r", "m", inputs=inputs)
    assert (report["version"], report["parent"]) == (3, None)


class Operations(torch.nn.Module):
    """One score for each family of operations."""

    def __init__(self, tables):
        super().__init__()
        self.embed = zt.EmbeddingCollection(tables, FIELDS)
        self.bias = zt.Embedding(tables, "weight")
        self.tags = zt.EmbeddingBag(tables, "tag", "mean")
        self.linear, self.narrow = torch.nn.Linear(4, 4), torch.nn.Linear(14, 3)
        self.norms = torch.nn.ModuleList([torch.nn.LayerNorm(4), torch.nn.LayerNorm(4, 1e-3)])
        self.fields = torch.nn.BatchNorm1d(3)
        self.fields.running_mean.uniform_()
        self.fields.running_var.uniform_(0.5, 2)
        self.prelu = torch.nn.PReLU()
        self.query = torch.nn.Parameter(torch.randn(4))
        self.each = torch.nn.Parameter(torch.randn(3, 4, 2))

    def forward(self, ids, numbers, tags, offsets):
        rows = self.embed(ids)
        x = self.narrow(torch.cat([rows.flatten(1), numbers], 1))
        y = F.gelu(x, approximate="tanh") + F.silu(x) + F.softplus(x) + x.abs() + x.clamp(-1, 1)
        y = y - x.pow(2) / (2 + x.sigmoid()) + F.leaky_relu(x, 0.2) + F.relu6(x) + 1 / (9 + x**3)
        y += torch.maximum(x, -x) * torch.exp(-x.square()) + torch.tanh(x) + (1 - x)
        z = F.gelu(x) + F.elu(x, 0.5) + F.selu(x) + F.hardswish(x) + F.mish(x) + F.logsigmoid(x)
        z = z + x.amax(1, keepdim=True) - x.amin(1, keepdim=True) + F.hardsigmoid(x)
        i, j = torch.tril_indices(3, 3, -1)
        products = torch.bmm(rows, rows.transpose(1, 2))
        scores = torch.softmax(self.linear(rows) @ rows.transpose(1, 2) / 2, -1)
        weights = torch.softmax(rows @ self.query, 1).unsqueeze(-1)
        stacked = torch.stack(rows.unbind(1), 0)
        left, right = rows.flatten(1).chunk(2, 1)
        return {
            "activations": y.sum(1) + z.sum(1),
            "layers": self.fields(self.norms[0](self.prelu(self.linear(rows)))).mean((1, 2)),
            "norms": self.norms[1](stacked).permute(1, 0, 2).reshape(len(ids), -1)[:, ::5].sum(1)
            + F.normalize(rows[:, 0], dim=1).sum(1) + rows.norm(dim=(1, 2)),
            "products": products[:, i, j].sum(1) + products.diagonal(dim1=1, dim2=2).sum(1),
            "attention": (scores @ rows).sum((1, 2)) + (weights * rows).sum((1, 2)),
            "einsum": torch.einsum("bfd,fdk->bfk", rows, self.each).sum((1, 2))
            + torch.einsum("bi,bj->bij", left, right)[:, 1].sum(1),
            "similar": F.cosine_similarity(self.linear(rows[:, 0]), self.linear(rows[:, 1])),
            "bags": self.tags(tags, offsets).sum(1) + self.bias(ids).sum((1, 2))
            + (rows * numbers[:, :1, None]).sum((1, 2)) + (self.query * rows).sum((1, 2)),
        }


def test_operations_are_those_of_torch(tmp_path):
    torch.manual_seed(5)
    table = {"dim": 4, "initializer": {"kind": "normal", "std": 1.0}}
    tables = zl.Tables(
        {"user": table, "item": table, "weight": {"dim": 1}, "tag": table},
        fields={"user": "user", "item": "item", "shop": "item", "weight": "weight", "tag": "tag"},
        threads=2,
    )
    module = Operations(tables)
    embed = zt.EmbeddingCollection(tables, FIELDS)
    for _ in range(3):
        embed(torch.randint(0, 20, (50, 3))).square().mean().backward()
        module.tags(torch.arange(20), torch.arange(20)).square().mean().backward()
        module.bias(torch.arange(20)).square().mean().backward()
        tables.step()
    sample = [
        {
            "user": row % 20, "item": row * 7 % 23, "shop": row, "price": 0.1 * row, "old": row,
            "tag": list(range(row % 4)),
        }
        for row in range(20)
    ]
    labels = ["similar", "activations", "layers", "norms"]
    labels += ["products", "attention", "einsum", "bags"]
    zt.export(
        module,
        tables,
        tmp_path / "registry",
        "operations",
        inputs={"ids": FIELDS, "numbers": NUMBERS, "tags": "tag", "offsets": zt.Offsets("tag")},
        features={"age": {"kind": "numeric", "column": "old", "transform": "log1p"}},
        labels={label: {"kind": "number"} for label in labels},
        sample=sample,
    )
    module.eval()
    with torch.no_grad():
        lists = [row["tag"] for row in sample]
        offsets = torch.tensor([sum(map(len, lists[:at])) for at in range(len(lists))])
        wanted = module(
            torch.tensor([[row[field] for field in FIELDS] for row in sample]),
            torch.tensor([[row["price"], 0.0] for row in sample])
            + torch.tensor([[0.0, row["old"]] for row in sample]).log1p(),
            torch.tensor(sum(lists, [])),
            offsets,
        )
    with zl.serve(tmp_path / "registry", "operations") as server:
        found = server.client().predict("operations", sample)
    for label in labels:
        # The prediction of the first label has no name.
        name = "predictions" if label == labels[0] else f"predictions/{label}"
        assert [row[name] for row in found] == pytest.approx(
            wanted[label].tolist(), abs=1e-5, rel=1e-5
        ), label


def decides(rows, numbers):
    return numbers.sum(1) if numbers[0, 0].item() > 0 else rows.sum((1, 2))


def changes(rows, numbers):
    twice = numbers * 2
    twice[:, 0] += 1
    return twice.sum(1)


REFUSED = [
    (lambda rows, numbers: torch.fmod(rows, 2).sum((1, 2)), "aten::fmod.*no such operation"),
    (lambda rows, numbers: torch.sort(rows, 1)[0].sum((1, 2)), "aten::sort.*no such operation"),
    (lambda rows, numbers: numbers.sum(1) - numbers.mean(), "aten::mean.*different rows"),
    (lambda rows, numbers: numbers.flip(0).sum(1), "the order of the rows"),
    (lambda rows, numbers: torch.cat([numbers, torch.ones(len(numbers), 1)], 1), "aten::cat"),
    (lambda rows, numbers: numbers, "a score of each row for each label"),
    (lambda rows, numbers: torch.ones(len(numbers)), "does not depend on the inputs"),
    (decides, r"the value of a tensor decides.*test_torch_export.py:\d+: `return numbers.sum"),
    (changes, "changed in place"),
]


@pytest.mark.parametrize("function, text", REFUSED)
def test_what_a_graph_has_not_is_refused_by_its_line(tmp_path, function, text):
    class Model(torch.nn.Module):
        def forward(self, rows, numbers):
            return function(rows, numbers)

    tables = make_tables(4)
    inputs = [zt.EmbeddingCollection(tables), NUMBERS]
    with pytest.raises(zl.JobError, match=text):
        zt.export(Model(), tables, tmp_path / "registry", "model", inputs=inputs)
    assert not (tmp_path / "registry").exists()


class Counting(torch.nn.Module):
    """Gives other scores each time."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def forward(self, rows):
        self.count += 1
        return rows.sum((1, 2)) * self.count


def test_wrong_scores_and_wrong_inputs_are_refused(tmp_path):
    tables = make_tables(4)
    embed = zt.EmbeddingCollection(tables)
    with pytest.raises(zl.Refused, match="nothing is published"):
        zt.export(Counting(), tables, tmp_path / "r", "m", inputs=[embed])
    with pytest.raises(zl.Error, match="m"):
        zl.Registry(tmp_path / "r").list("m")
    embed.train()(torch.tensor([[1, 2, 3]]))
    with pytest.raises(zl.Error, match="a step is not ended"):
        zt.export(Counting(), tables, tmp_path / "r", "m", inputs=[embed])
    tables.discard()

    def refuse(text, inputs, tables=tables, **more):
        with pytest.raises(zl.JobError, match=text):
            zt.export(Counting(), tables, tmp_path / "r", "m", inputs=inputs, **more)

    refuse("has 2 entries, but the model takes 1: rows", [embed, embed])
    refuse("`inputs.row`: the model has no such parameter", {"row": embed})
    refuse("neither the name of a feature", {"rows": 3})
    refuse("`features.cost`: no input", [embed], features={"cost": {"kind": "numeric"}})
    refuse("`features.user.type`", [embed], features={"user": {"kind": "id", "type": "string"}})
    refuse("`features.user.kind`", [embed], features={"user": {"kind": "sequence"}})
    refuse("reads other tables", [embed], tables=make_tables(4))
    one = zt.EmbeddingCollection(tables, ["user"])
    refuse("the model reads the tables user, but the tables are user, item, shop", [one])
    refuse("no value in the column `shop`", [embed], sample=[{"user": 1, "item": 2}])
    refuse("name the labels", [embed], labels={"a": {}, "b": {}})
