"""Models in Python: what they trace to, and that they train as the model of a job file."""

import re
from pathlib import Path

import pytest

import zillion as zl
from zillion import nn

ROOT = Path(__file__).resolve().parents[2]
SECTIONS = {
    "features": {
        "user": {"kind": "id"},
        "item": {"kind": "id", "type": "string"},
        "tags": {"kind": "ids", "type": "string", "pooling": "mean"},
        "price": {"kind": "numeric", "transform": "standardise"},
    },
    "labels": {"click": {}},
    "tables": {"*": {"dim": 4}},
    "train": {"epochs": 2, "batch_size": 128},
    "run": {"threads": 2},
}
BY_HAND = """
kind = "graph"
logits = "score"

[nodes.score]
op = "add"
inputs = ["wide", "gated", "deep_score"]

[nodes.gated]
op = "mul"
inputs = ["pairs", "open"]
[nodes.pairs]
op = "fm"
inputs = "fields"
[nodes.open]
op = "sigmoid"
inputs = "gate"
[nodes.gate]
op = "linear"
inputs = "context"
width = 1
[nodes.context]
op = "embedding"
features = ["tags"]

[nodes.wide]
op = "wide"
bias = true
[nodes.fields]
op = "embedding"
[nodes.everything]
op = "concat"
inputs = ["fields", "numbers"]
[nodes.numbers]
op = "numeric"
[nodes.deep]
op = "mlp"
inputs = "everything"
hidden = [8, 4]
batch_norm = true
dropout = 0.2
[nodes.deep_score]
op = "linear"
inputs = "deep"
width = 1
"""


class Gated(zl.Model):
    """A factorisation machine whose pairs are weighed by the tags, beside an MLP."""

    def forward(self, inputs):
        fields = inputs.embedding(name="fields")
        gate = nn.linear(inputs.embedding("tags", name="context"), 1, name="gate")
        gated = nn.mul(nn.fm(fields, name="pairs"), nn.sigmoid(gate, name="open"), name="gated")
        numbers = inputs.numeric(name="numbers")
        everything = nn.concat(fields, numbers, name="everything")
        deep = nn.mlp(everything, [8, 4], batch_norm=True, dropout=0.2, name="deep")
        score = nn.linear(deep, 1, name="deep_score")
        return nn.add(inputs.wide(bias=True, name="wide"), gated, score, name="score")


class One(zl.Model):
    """A model of one expression."""

    def __init__(self, expression):
        self.expression = expression

    def forward(self, inputs):
        return self.expression(inputs)


def files_of(run):
    """Returns the bytes of the checkpoints of a run, without the job that they name."""
    folder = run.folder / "checkpoints"
    paths = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != "MANIFEST")
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_a_model_in_python_trains_to_the_bytes_of_a_job_file(rows, tmp_path):
    ours = zl.Job(SECTIONS, model=Gated())
    other = zl.Job(SECTIONS, model={"kind": "lr"}).to_toml()
    assert other.count('kind = "lr"') == 1
    by_hand = BY_HAND.strip().replace("[nodes", "[model.nodes")
    theirs = zl.Job.from_toml(other.replace('kind = "lr"', by_hand))
    runs = [
        job.train(rows[:1600], valid=rows[1600:], out=tmp_path / name, progress=False)
        for name, job in (("python", ours), ("file", theirs))
    ]
    ours_bytes, theirs_bytes = map(files_of, runs)
    assert len(ours_bytes) >= 2 and ours_bytes == theirs_bytes
    # What a user writes to disk is the same model again.
    assert zl.Job.from_toml(ours.to_toml()) == ours


@pytest.mark.parametrize(
    "expression, wanted",
    [
        (lambda x: x + 2, {"op": "offset", "by": 2.0}),
        (lambda x: 2 * x, {"op": "scale", "by": 2.0}),
        (lambda x: x - 0.5, {"op": "offset", "by": -0.5}),
        (lambda x: -x, {"op": "scale", "by": -1.0}),
        (lambda x: x**2, {"op": "square"}),
        (lambda x: x[:, 1:3], {"op": "slice", "start": 1, "len": 2}),
    ],
)
def test_operators_are_nodes(expression, wanted):
    section = One(lambda inputs: expression(inputs.embedding(name="x"))).trace()
    node = section["nodes"][section["logits"]]
    assert node == {"inputs": ["x"], **wanted}


def test_operators_compute_what_they_say(rows, tmp_path):
    # Two ways to write one function train to the same figures.
    def short(inputs):
        x = nn.linear(inputs.embedding(), 2, name="x")
        return nn.sum_columns((1 - x) * (1 - x) / 4 + 1 / (1 + x**2), name="y")

    def long(inputs):
        x = nn.linear(inputs.embedding(), 2, name="x")
        one = nn.sub(nn.constant(1, (1, 2)), x)
        square = nn.offset(nn.mul(x, x), 1)
        parts = nn.scale(nn.mul(one, one), 0.25), nn.div(nn.constant(1, (1, 2)), square)
        return nn.sum_columns(nn.add(*parts), name="y")

    losses = []
    for name, expression in (("short", short), ("long", long)):
        job = zl.Job(SECTIONS, model=One(expression))
        run = job.train(rows[:512], out=tmp_path / name, progress=False)
        losses.append(list(run.metrics["loss"])[-1])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_model_has_an_output_for_each_label():
    def both(inputs):
        deep = nn.mlp(inputs.embedding(), [8])
        return {"click": nn.linear(deep, 1), "buy": nn.linear(deep, 1)}

    section = One(both).trace()
    assert section["outputs"] == {"click": "linear", "buy": "linear_2"}
    sections = {**SECTIONS, "labels": {"click": {}, "buy": {}}}
    assert zl.Job(sections, model=One(both))["model"]["outputs"]["buy"] == "linear_2"


def test_another_model_replaces_the_old_one():
    job = zl.Job(SECTIONS, model=Gated())
    other = job.replace(model=One(lambda inputs: inputs.wide()))
    assert list(other["model"]["nodes"]) == ["wide"]
    assert job.replace(seed=3)["model"] == job["model"]


def test_errors_name_the_line_that_made_the_node(rows):
    def wrong_key(inputs):
        return nn.linear(inputs.embedding(), 1, init={"kind": "norml"})

    with pytest.raises(zl.JobError, match=r"did you mean `normal`\? \(.*test_model.py:\d+\)"):
        zl.Job(SECTIONS, model=One(wrong_key))

    def unused(inputs):
        nn.linear(inputs.embedding(), 3)
        return inputs.wide()

    with pytest.raises(zl.JobError, match=r"no output .* `linear` .*test_model.py:\d+; use it"):
        zl.Job(SECTIONS, model=One(unused))

    def shapes(inputs):
        return nn.linear(inputs.embedding(), 3) + nn.linear(inputs.embedding(), 4)

    report = zl.Job(SECTIONS, model=One(shapes)).check(rows)
    texts = [finding["text"] for finding in report.findings if finding["severity"] == "error"]
    assert re.search(r"\[B, 3\] and \[B, 4\] differ.*test_model.py:\d+\)", texts[0]), texts
    with pytest.raises(zl.JobError, match=r"two nodes have the name `a`"):
        One(lambda i: i.wide(name="a") + nn.fm(i.embedding(name="a"))).trace()
    with pytest.raises(zl.JobError, match="returned int; return a node"):
        One(lambda inputs: 3).trace()


def test_what_a_node_cannot_do_is_said():
    for expression in (
        bool,
        list,
        float,
        lambda x: x[3],
        lambda x: x[:, 5:2],
        lambda x: x[:, 0:4:0],
        lambda x: x**3,
        lambda x: x == 0,
        lambda x: x != x * 2,
    ):
        with pytest.raises(TypeError):
            One(lambda inputs, f=expression: f(inputs.embedding())).trace()
    with pytest.raises(TypeError, match="only while the `forward`"):
        nn.param((2, 2))
    kept = []

    def leak(inputs):
        kept.append(inputs.wide())
        return kept[0]

    One(leak).trace()
    with pytest.raises(TypeError, match="another call of `forward`"):
        One(lambda inputs: kept[0] + 1).trace()


def test_every_operation_of_a_job_file_has_a_function():
    text = (ROOT / "docs/JOB.md").read_text()
    table = text.split("### Operations of a graph")[1].split("An `init` is")[0]
    first = [line.split("|")[1] for line in table.splitlines() if line.startswith("|")]
    names = {name for cell in first for name in re.findall(r"`(\w+)`", cell)}
    assert len(names) > 40
    of_inputs = {"embedding", "wide", "numeric", "values"}
    functions = {"slice_columns" if name == "slice" else name for name in names - of_inputs}
    assert functions == set(nn.__all__) - {"Node"}
    assert all(hasattr(zl.Inputs, name) for name in of_inputs)
