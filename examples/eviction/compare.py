"""Trains a job with a table held at half of its rows, once for each eviction policy, and prints what that costs.

    python3 examples/eviction/compare.py examples/ml1m/fm.toml --data data/ml1m --table item

The first run has no limit. Each other run has `max_rows` at half of the rows that the table reached in the first one.
The last lines shrink the first run's checkpoint to half of the rows (`zillion table shrink`), without any training. A
key without a row reads as the row that it would start from, in training and in the test. Python's standard library only.
"""

import argparse
import glob
import json
import subprocess
import tempfile

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("job", help="a job with test files")
parser.add_argument("--data", required=True, help="folder of the data (data.root)")
parser.add_argument("--table", action="append", required=True, help="a dynamic table to limit (repeatable)")
parser.add_argument("--zillion", default="zillion", help="path of the binary")
parser.add_argument("--seed", action="append", type=int, help="seeds of the runs (repeatable); absent: 1")
parser.add_argument("--share", type=float, default=0.5, help="share of the rows that stay")
parser.add_argument("--set", action="append", default=[], dest="settings", help="a setting of every run (repeatable)")
parser.add_argument("--only", action="append", help="first letters of a policy's name, to run it alone (repeatable)")
args = parser.parse_args()


def policies(epoch):
    """Yields the name and the table's settings of each policy; `epoch` is the number of steps of an epoch."""
    yield "lfu, half-life of 5 epochs", [f"eviction={{ kind = 'lfu', half_life = {5 * epoch} }}"]
    yield "lfu, half-life of an epoch", [f"eviction={{ kind = 'lfu', half_life = {epoch} }}"]
    yield "lru", ["eviction={ kind = 'lru' }"]
    yield "score: shows + 2 clicks", [
        "eviction={ kind = 'score', show_weight = 1.0, click_weight = 2.0 }",
        f"statistics={{ decay = 0.8, every_steps = {epoch} }}",
    ]
    yield "l2 norm", ["eviction={ kind = 'l2' }"]
    yield "unseen for a third of an epoch", [f"eviction={{ kind = 'unseen', steps = {max(epoch // 3, 1)} }}"]
    yield "none: new ids are refused", ["eviction={ kind = 'never' }"]


def call(*command):
    result = subprocess.run([args.zillion, *command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if result.returncode:
        raise SystemExit(f"{' '.join(command)}\n{result.stderr}")
    return json.loads(result.stdout)


def train(folder, seed, settings):
    command = ["train", args.job, "--set", f"data.root={args.data}", "--set", f"seed={seed}"]
    command += ["--set", f"run.output={folder}"]
    for setting in args.settings + settings:
        command += ["--set", setting]
    report = call(*command)
    return report, report["test"]["auc"], {table["name"]: table for table in report["tables"]}


def line(*cells):
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def shrunk(run, table, keep, by):
    """Returns the rows and the test AUC of a run's checkpoint after its table was shrunk to `keep` rows."""
    with tempfile.TemporaryDirectory() as folder:
        report = call("table", "shrink", run, "--table", table, "--keep-rows", str(keep), "--by", by,
                      "--out", f"{folder}/small", "--eval", *glob.glob(f"{args.data}/test.*"))
    return report["after"]["rows"], report["evaluated"]["after"]["auc"]


for seed in args.seed or [1]:
    with tempfile.TemporaryDirectory() as folder:
        report, auc, tables = train(f"{folder}/free", seed, [])
        epoch = max(report["steps"] // max(report["epochs"], 1), 1)
        held = ", ".join(f"{tables[name]['rows']} rows of `{name}`" for name in args.table)
        print(f"seed {seed}, {epoch} steps an epoch, no limit: test AUC {auc:.4f}, {held}\n")
        line("table", "policy", "rows", "evicted", "refused", "test AUC", "loss")
        line(*["---"] * 7)
        for name in args.table:
            limit = int(tables[name]["rows"] * args.share)
            for policy, settings in policies(epoch):
                if args.only and not any(policy.startswith(begin) for begin in args.only):
                    continue
                # A policy that goes by time alone needs no limit.
                capped = [] if policy.startswith("unseen") else [f"max_rows={limit}"]
                settings = [f"tables.{name}.{setting}" for setting in settings + capped]
                with tempfile.TemporaryDirectory() as other:
                    _, test, after = train(f"{other}/run", seed, settings)
                table = after[name]
                line(name, policy, table["rows"], table["evicted"], table["refused_full"], f"{test:.4f}", f"{auc - test:+.4f}")
            for by in ["count", "norm", "last_step"]:
                rows, test = shrunk(f"{folder}/free", name, limit, by)
                line(name, f"shrunk after training, by {by}", rows, "", "", f"{test:.4f}", f"{auc - test:+.4f}")
        print()
