"""Writes MovieLens-1M as GroupLens publishes it (ratings.dat, users.dat, movies.dat) in the form of these jobs.

    python3 examples/ml1m/published.py ml-1m data/ml1m-published

Ratings are sorted by time: the first eight tenths train, the next tenth validates, the last tenth tests. Python's
standard library only.
"""

import csv
import sys
from pathlib import Path

source, target = map(Path, sys.argv[1:])
target.mkdir(parents=True, exist_ok=True)


def read(name):
    with open(source / name, encoding="latin-1") as file:
        return [line.rstrip("\n").split("::") for line in file]


def write(name, header, rows):
    with open(target / name, "w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])


write("users.csv", ["user_id", "gender", "age", "occupation"], (row[:4] for row in read("users.dat")))
films = ((id, title[-5:-1], genres) for id, title, genres in read("movies.dat"))
write("items.csv", ["item_id", "year", "genres"], films)

ratings = sorted(read("ratings.dat"), key=lambda row: int(row[3]))
rows = [(user, film, int(int(stars) >= 4), stars, time) for user, film, stars, time in ratings]
first, second = len(rows) * 8 // 10, len(rows) * 9 // 10
for name, part in {"train": rows[:first], "valid": rows[first:second], "test": rows[second:]}.items():
    write(f"{name}.csv", ["user_id", "item_id", "label", "rating", "timestamp"], part)
