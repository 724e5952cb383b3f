"""Writes data in the form of Frappe: ten columns of ids that are numbered through, and a label.

    python3 examples/frappe/make_data.py [FOLDER]

FOLDER is data/frappe if it is not given. The same files come out every time. The data is made up: it shows that the
jobs run, and its figures cannot be compared with those of the real data. Python's standard library only.
"""

import csv
import math
import random
import sys
from pathlib import Path

# Number of different ids of each column.
COLUMNS = {
    "user": 600, "item": 900, "daytime": 7, "weekday": 7, "isweekend": 2,
    "homework": 3, "cost": 2, "weather": 9, "country": 40, "city": 60,
}
ROWS = {"train": 16_000, "valid": 4_000, "test": 4_000}

draw = random.Random(2019)
folder = Path(sys.argv[1] if len(sys.argv) > 1 else "data/frappe")
folder.mkdir(parents=True, exist_ok=True)

start, offset = {}, 1
for column, count in COLUMNS.items():
    start[column] = offset
    offset += count
weight = [draw.gauss(0, 0.8) for _ in range(offset)]
vector = [[draw.gauss(0, 0.5) for _ in range(4)] for _ in range(offset)]

for name, count in ROWS.items():
    with open(folder / f"{name}.csv", "w", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(["label", *COLUMNS])
        for _ in range(count):
            # Small numbers come more often, as the ids of users and apps do.
            ids = [start[column] + int(size ** draw.random()) - 1 for column, size in COLUMNS.items()]
            total = [sum(vector[id][k] for id in ids) for k in range(4)]
            pairs = sum(t * t for t in total) - sum(x * x for id in ids for x in vector[id])
            score = sum(weight[id] for id in ids) + 0.5 * pairs - 0.7
            lines.writerow([int(draw.random() < 1 / (1 + math.exp(-score))), *ids])
print(f"{folder}: {', '.join(f'{count} rows in {name}.csv' for name, count in ROWS.items())}")
