"""Holds the film and the user table of MovieLens-1M at half of their rows, by each policy, and prints what it costs.

    python examples/ml1m/eviction.py ../shared/data/ml1m [path of zillion] [seed ..]

Trains deep.toml without a limit, then with `max_rows` at half of the rows that the table came to, once a policy. Of a
key without a row, training and the test read the row that it would start from.
"""

import json
import subprocess
import sys
import tempfile

data = sys.argv[1]
zillion = sys.argv[2] if len(sys.argv) > 2 else "zillion"
seeds = [int(seed) for seed in sys.argv[3:]] or [1]

# An epoch has about 196 steps.
POLICIES = {
    "lfu, half-life of 5 epochs": ["eviction={ kind = 'lfu', half_life = 1000 }"],
    "lfu, half-life of an epoch": ["eviction={ kind = 'lfu', half_life = 200 }"],
    "lru": ["eviction={ kind = 'lru' }"],
    "score: shows + 2 clicks": [
        "eviction={ kind = 'score', show_weight = 1.0, click_weight = 2.0 }",
        "statistics={ decay = 0.8, every_steps = 200 }",
    ],
    "l2 norm": ["eviction={ kind = 'l2' }"],
    "none: new ids are refused": ["eviction={ kind = 'never' }"],
}


def train(seed, settings):
    with tempfile.TemporaryDirectory() as folder:
        command = [zillion, "train", "examples/ml1m/deep.toml", "--json", "--set", f"data.root={data}"]
        command += ["--set", f"seed={seed}", "--set", f"run.output={folder}/run"]
        for setting in settings:
            command += ["--set", setting]
        result = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    report = json.loads(result.stdout)
    return report["test"]["auc"], {table["name"]: table for table in report["tables"]}


for seed in seeds:
    auc, tables = train(seed, [])
    print(f"seed {seed}, no limit: test AUC {auc:.4f}, {tables['item']['rows']} films, {tables['user']['rows']} users")
    print("\n| table at half of its rows | policy | rows | evicted | refused | test AUC | loss |\n|---|---|---|---|---|---|---|")
    for name in ["item", "user"]:
        limit = tables[name]["rows"] // 2
        for policy, settings in POLICIES.items():
            settings = [f"tables.{name}.{setting}" for setting in settings + [f"max_rows={limit}"]]
            other, after = train(seed, settings)
            table = after[name]
            figures = f"{table['rows']} | {table['evicted']} | {table['refused_full']} | {other:.4f} | {auc - other:+.4f}"
            print(f"| {name} | {policy} | {figures} |", flush=True)
    print()
