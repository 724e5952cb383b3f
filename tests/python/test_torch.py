"""Tables under PyTorch. The suite does not install torch; without it, these tests are skipped."""

import pytest

import zillion as zl

torch = pytest.importorskip("torch", reason="torch is not installed")

import zillion.torch as zt  # noqa: E402

SGD = {"dim": 8, "optimizer": {"kind": "sgd", "lr": 0.1}}


def copy_of(tables, field, rows):
    """Returns torch's own embedding with the rows of a field."""
    start = tables.pull(field, torch.arange(rows).numpy(), train=False).rows.copy()
    own = torch.nn.Embedding(rows, start.shape[1])
    own.weight.data = torch.from_numpy(start)
    return own


def test_a_training_is_that_of_torch():
    torch.manual_seed(1)
    tables = zl.Tables({"user": SGD, "item": SGD}, threads=2)
    ours = zt.EmbeddingCollection(tables)
    theirs = torch.nn.ModuleList([copy_of(tables, field, 40) for field in ("user", "item")])
    head = torch.nn.Linear(16, 1)
    twin = torch.nn.Linear(16, 1)
    twin.load_state_dict(head.state_dict())
    optimizer = zt.Optimizer(tables, torch.optim.SGD(head.parameters(), lr=0.1))
    reference = torch.optim.SGD([*twin.parameters(), *theirs.parameters()], lr=0.1)
    for _ in range(20):
        ids, labels = torch.randint(0, 40, (64, 2)), torch.rand(64, 1)
        loss = torch.nn.functional.mse_loss(head(ours(ids).flatten(1)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rows = torch.stack([theirs[at](ids[:, at]) for at in range(2)], 1)
        wanted = torch.nn.functional.mse_loss(twin(rows.flatten(1)), labels)
        reference.zero_grad()
        wanted.backward()
        reference.step()
        torch.testing.assert_close(loss, wanted, atol=1e-6, rtol=1e-5)
    every = torch.arange(40).repeat(2, 1).t().contiguous()
    ours.eval()
    learned = torch.stack([theirs[at].weight for at in range(2)], 1)
    torch.testing.assert_close(ours(every), learned, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_bags_are_those_of_torch(mode):
    tables = zl.Tables({"tag": SGD})
    ours = zt.EmbeddingBag(tables, "tag", mode)
    weight = copy_of(tables, "tag", 20).weight.detach().clone()
    theirs = torch.nn.EmbeddingBag(20, 8, mode=mode, _weight=weight)
    ids, offsets = torch.tensor([3, 3, 5, 19, 0]), torch.tensor([0, 2, 2, 4])
    found, wanted = ours(ids, offsets), theirs(ids, offsets)
    torch.testing.assert_close(found, wanted)
    (found**2).sum().backward()
    (wanted**2).sum().backward()
    tables.step()
    ours.eval()
    learned = theirs.weight.detach() - 0.1 * theirs.weight.grad
    single = torch.arange(20)
    torch.testing.assert_close(ours(single, single), learned, atol=1e-6, rtol=1e-5)
    with pytest.raises(zl.JobError, match="offsets"):
        ours(ids, torch.tensor([1, 2]))
    with pytest.raises(zl.JobError, match="unknown mode"):
        zt.EmbeddingBag(tables, "tag", "max")


def test_evaluation_leaves_the_tables_as_they_are():
    tables = zl.Tables({"user": SGD})
    embed = zt.Embedding(tables, "user")
    with torch.no_grad():
        embed(torch.tensor([1, 2]))
    embed.eval()
    assert not embed(torch.tensor([1])).requires_grad
    assert tables.step()["pushed"] == 0 and tables.statistics()[0]["rows"] == 0
    embed.train()
    assert embed(torch.tensor([[1, 2], [3, 4]])).shape == (2, 2, 8)


def test_a_checkpoint_holds_both(tmp_path):
    def make():
        torch.manual_seed(2)
        tables = zl.Tables({"user": {"dim": 8, "optimizer": {"kind": "adagrad", "lr": 0.1}}})
        model = torch.nn.Sequential(zt.Embedding(tables, "user"), torch.nn.Linear(8, 1))
        return tables, model, zt.Optimizer(tables, torch.optim.Adam(model.parameters()))

    def train(model, optimizer, steps):
        for step in steps:
            ids = torch.arange(step, step + 30) % 50
            optimizer.zero_grad()
            (model(ids) - 1).square().mean().backward()
            optimizer.step()

    tables, model, optimizer = make()
    train(model, optimizer, range(10))
    zt.save(tmp_path / "saved", tables, model, optimizer, step=10)
    train(model, optimizer, range(10, 20))
    tables_2, model_2, optimizer_2 = make()
    assert zt.load(tmp_path / "saved", tables_2, model_2, optimizer_2) == {"step": 10}
    train(model_2, optimizer_2, range(10, 20))
    ids = torch.arange(50)
    assert torch.equal(model.eval()(ids), model_2.eval()(ids))
    with pytest.raises(zl.Error, match="is not a checkpoint"):
        zt.load(tmp_path, tables_2, model_2)


def test_cleared_gradients_move_no_row():
    constant = {"kind": "constant", "value": 0.0}
    settings = {"dim": 2, "optimizer": {"kind": "sgd", "lr": 1.0}, "initializer": constant}
    tables = zl.Tables({"user": settings})
    embed = zt.Embedding(tables, "user")
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = zt.Optimizer(tables, torch.optim.SGD([weight], lr=1.0))
    for scale in (100.0, 1.0):
        loss = (scale * (embed(torch.tensor([1])) + weight)).sum()
        optimizer.zero_grad()
        loss.backward()
    optimizer.step()
    moved = tables.explain("user", 1)["weights"]
    assert moved == weight.tolist() == [-1.0, -1.0]
