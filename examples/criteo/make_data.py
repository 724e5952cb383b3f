"""Writes data in the form that Criteo publishes: cells between tabs, no header, an empty cell for a missing value.

    python3 examples/criteo/make_data.py [FOLDER]

FOLDER is data/criteo if it is not given. The same files come out every time. The data is made up: it shows that the
jobs run, and its figures cannot be compared with those of the real data. Python's standard library only.
"""

import math
import random
import sys
from pathlib import Path

ROWS = {"train": 16_000, "valid": 2_000, "test": 2_000}

draw = random.Random(2014)
folder = Path(sys.argv[1] if len(sys.argv) > 1 else "data/criteo")
folder.mkdir(parents=True, exist_ok=True)

# Number of different ids of each category, and how often its value is missing.
sizes = [draw.choice([3, 20, 100, 600, 3000]) for _ in range(26)]
gaps = [draw.choice([0, 0, 0.03, 0.4]) for _ in range(26)]
names = [[f"{draw.getrandbits(32):08x}" for _ in range(size)] for size in sizes]
weight = [[draw.gauss(0, 0.35) for _ in range(size)] for size in sizes]

for name, count in ROWS.items():
    with open(folder / f"{name}.txt", "w") as file:
        for _ in range(count):
            score, cells = -1.3, []
            for place in range(13):
                number = int(draw.lognormvariate(1, 1.4))
                score += 0.1 * (place % 3 - 1) * math.log1p(number)
                cells.append("" if draw.random() < 0.2 else str(number))
            for place, size in enumerate(sizes):
                rank = int(size ** draw.random()) - 1
                score += weight[place][rank]
                cells.append("" if draw.random() < gaps[place] else names[place][rank])
            label = int(draw.random() < 1 / (1 + math.exp(-score)))
            file.write("\t".join([str(label), *cells]) + "\n")
print(f"{folder}: {', '.join(f'{count} rows in {name}.txt' for name, count in ROWS.items())}")
