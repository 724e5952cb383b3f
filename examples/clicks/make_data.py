"""Writes a small click log of a film shop, and a table of its users, as CSV files.

    python3 examples/clicks/make_data.py [FOLDER]

FOLDER is data/clicks if it is not given. The same files come out every time. Python's standard library only.
"""

import csv
import math
import random
import sys
from pathlib import Path

GENRES = ["action", "comedy", "crime", "drama", "family", "horror", "romance", "war"]
USERS, ITEMS = 3000, 1500
ROWS = {"train-1": 30_000, "train-2": 30_000, "valid": 6_000, "test": 6_000}

draw = random.Random(1)


def vector(scale):
    return [draw.gauss(0, scale) for _ in range(6)]


def popular(count):
    """Returns a number below `count`; small numbers come more often, as ids of users and items do."""
    return int(count ** draw.random()) - 1


def write(path, header, rows):
    with open(path, "w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])


folder = Path(sys.argv[1] if len(sys.argv) > 1 else "data/clicks")
folder.mkdir(parents=True, exist_ok=True)

taste = [vector(1) for _ in range(USERS)]
age = [draw.randint(14, 80) for _ in range(USERS)]
item = [vector(1) for _ in range(ITEMS)]
price = [round(math.exp(draw.gauss(1.5, 0.8)), 2) for _ in range(ITEMS)]
genres = [draw.sample(GENRES, draw.randint(1, 3)) for _ in range(ITEMS)]
liked = {genre: draw.gauss(0, 0.6) for genre in GENRES}

write(folder / "users.csv", ["user", "age"], ((f"u{user}", age[user]) for user in range(USERS)))

watched = [[] for _ in range(USERS)]
for name, count in ROWS.items():
    rows = []
    for _ in range(count):
        user, film = popular(USERS), popular(ITEMS)
        score = 0.8 * sum(a * b for a, b in zip(taste[user], item[film])) - 0.4 * math.log(price[film])
        score += sum(liked[genre] for genre in genres[film]) + (0.5 if age[user] < 30 else -0.2) - 0.8
        click = int(draw.random() < 1 / (1 + math.exp(-score)))
        history = "|".join(map(str, watched[user][-20:]))
        paid = "" if draw.random() < 0.03 else price[film]
        rows.append([f"u{user}", film, "|".join(genres[film]), paid, history, click])
        if click:
            watched[user].append(film)
    write(folder / f"{name}.csv", ["user", "item", "genres", "price", "watched", "click"], rows)
print(f"{folder}: {', '.join(f'{count} rows in {name}.csv' for name, count in ROWS.items())}; users.csv")
