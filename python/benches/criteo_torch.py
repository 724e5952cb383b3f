"""DeepFM or DCNv2 in PyTorch on tables of Zillion, on a click log shaped like Criteo's.

    python criteo_torch.py criteo.parquet --model deepfm --rows 300000 --steps 30 --warm 5

The file has the columns I1 .. I13, C1 .. C26 and label (`zillion data synth` writes one). The
first four fifths of the rows train, the rest is scored unless `--steps` ends the pass. Prints one
line of JSON. With `--memory 12`, the rows of the six fields with the most ids have 2 MiB of memory
each, and their other rows are on the disk.
"""

import argparse
import json
import resource
import tempfile
import time

import numpy as np
import pyarrow.parquet
import torch

import zillion as zl
import zillion.torch as zt

NUMBERS, FIELDS = 13, 26
# The fields with the most ids.
LARGEST = ["C3", "C4", "C12", "C16", "C21", "C24"]


def mlp(sizes, last=False):
    layers = []
    for at, (before, after) in enumerate(zip(sizes, sizes[1:])):
        layers.append(torch.nn.Linear(before, after))
        if last or at + 2 < len(sizes):
            layers.append(torch.nn.ReLU())
    return torch.nn.Sequential(*layers)


class DeepFM(torch.nn.Module):
    """The last float of a row is the linear weight of its id."""

    def __init__(self, dim):
        super().__init__()
        self.dim = dim
        self.deep = mlp([FIELDS * dim + NUMBERS, 400, 400, 400, 1])
        self.linear = torch.nn.Linear(NUMBERS, 1)

    def forward(self, numbers, rows):
        vectors, weights = rows[..., : self.dim], rows[..., self.dim]
        total = vectors.sum(1)
        pairs = 0.5 * (total * total - (vectors * vectors).sum(1)).sum(1)
        deep = self.deep(torch.cat([vectors.flatten(1), numbers], 1)).squeeze(1)
        return deep + pairs + weights.sum(1) + self.linear(numbers).squeeze(1)


class DCNv2(torch.nn.Module):
    def __init__(self, dim):
        super().__init__()
        width = FIELDS * dim + NUMBERS
        self.cross = torch.nn.ModuleList([torch.nn.Linear(width, width) for _ in range(3)])
        self.deep = mlp([width, 512, 256, 128], last=True)
        self.out = torch.nn.Linear(width + 128, 1)

    def forward(self, numbers, rows):
        first = torch.cat([rows.flatten(1), numbers], 1)
        crossed = first
        for layer in self.cross:
            crossed = torch.addcmul(crossed, first, layer(crossed))
        return self.out(torch.cat([crossed, self.deep(first)], 1)).squeeze(1)


def load(path, rows):
    table = pyarrow.parquet.read_table(path)
    table = table.slice(0, rows) if rows else table
    stack = lambda letter, count: np.stack(  # noqa: E731
        [table.column(f"{letter}{at + 1}").to_numpy() for at in range(count)], 1
    )
    numbers = np.ascontiguousarray(stack("I", NUMBERS), dtype=np.float32)
    ids = np.ascontiguousarray(stack("C", FIELDS), dtype=np.int64)
    labels = table.column("label").to_numpy().astype(np.float32)
    return torch.from_numpy(numbers), torch.from_numpy(ids), torch.from_numpy(labels)


def auc(labels, scores):
    order = np.argsort(scores, kind="stable")
    values, counts = np.unique(scores[order], return_counts=True)
    ends = np.cumsum(counts)
    ranks = np.repeat(ends - (counts - 1) / 2, counts)
    positive = labels[order] > 0.5
    ones = positive.sum()
    return (ranks[positive].sum() - ones * (ones + 1) / 2) / (ones * (len(labels) - ones))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("--model", choices=["deepfm", "dcnv2"], default="deepfm")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--warm", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compile", action="store_true", help="torch.compile the dense part")
    parser.add_argument("--memory", type=float, help="MiB of the rows of the largest fields")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    torch.manual_seed(0)

    width = chosen.dim + 1 if chosen.model == "deepfm" else chosen.dim
    settings = {
        "dim": width,
        "optimizer": {"kind": "rowwise_adagrad", "lr": 0.02},
        "initializer": {"kind": "normal", "std": 0.01},
    }
    folder = tempfile.TemporaryDirectory()
    spill = None
    if chosen.memory is not None:
        spill = {field: f"{int(chosen.memory * 1024 / len(LARGEST))} KiB" for field in LARGEST}
    tables = zl.Tables(
        {f"C{at + 1}": settings for at in range(FIELDS)},
        threads=chosen.threads,
        spill=spill,
        spill_folder=folder.name if spill else None,
    )
    embed = zt.EmbeddingCollection(tables)
    model = {"deepfm": DeepFM, "dcnv2": DCNv2}[chosen.model](chosen.dim)
    optimizer = zt.Optimizer(tables, torch.optim.Adam(model.parameters(), lr=1e-3))
    scores_of = torch.compile(model) if chosen.compile else model
    loss_of = torch.nn.BCEWithLogitsLoss()

    numbers, ids, labels = load(chosen.data, chosen.rows)
    trained = len(labels) * 4 // 5
    steps = trained // chosen.batch
    steps = min(steps, chosen.steps) if chosen.steps else steps
    times = [time.perf_counter()]
    parts = dict.fromkeys(["rows", "forward", "backward", "step"], 0.0)
    for step in range(steps):
        if step == chosen.warm:
            parts = dict.fromkeys(parts, 0.0)
        part = slice(step * chosen.batch, (step + 1) * chosen.batch)
        marks = [time.perf_counter()]
        rows = embed(ids[part])
        marks.append(time.perf_counter())
        loss = loss_of(scores_of(numbers[part], rows), labels[part])
        marks.append(time.perf_counter())
        optimizer.zero_grad()
        loss.backward()
        marks.append(time.perf_counter())
        optimizer.step()
        marks.append(time.perf_counter())
        for name, begin, end in zip(parts, marks, marks[1:]):
            parts[name] += end - begin
        times.append(marks[-1])

    measured = max(1, len(times) - 1 - chosen.warm)
    begin = times[-1 - measured]
    result = {
        "model": chosen.model,
        "torch": torch.__version__,
        "threads": chosen.threads,
        "compile": chosen.compile,
        "steps": steps,
        "samples_s": round(measured * chosen.batch / (times[-1] - begin), 1),
        "ms_per_part": {name: round(1e3 * spent / measured, 2) for name, spent in parts.items()},
        "table_rows": sum(table["rows"] for table in tables.statistics()),
        "table_mib": round(sum(table["bytes"] for table in tables.statistics()) / 2**20, 1),
        "rows_on_disk": sum(
            table["spill"]["cold_rows"] for table in tables.statistics() if table["spill"]
        ),
    }
    if not chosen.steps:
        embed.eval()
        model.eval()
        scores = []
        with torch.no_grad():
            for start in range(trained, len(labels), 8192):
                part = slice(start, start + 8192)
                scores.append(model(numbers[part], embed(ids[part])))
        found = auc(labels[trained:].numpy(), torch.cat(scores).numpy())
        result["test_auc"] = round(float(found), 5)
    result["peak_rss_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(json.dumps(result))


if __name__ == "__main__":
    main()
