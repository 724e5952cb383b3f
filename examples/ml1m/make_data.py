"""Writes data in the form of MovieLens-1M: ratings in the order of time, a table of users, a table of films.

    python3 examples/ml1m/make_data.py [FOLDER]

FOLDER is data/ml1m if it is not given. The same files come out every time. The data is made up: it shows that the
jobs run, and its figures cannot be compared with those of the real data. Python's standard library only.

`label` is 1 for 4 or 5 stars. Training rows have it, and only one in ten of them has the stars themselves (`rating`),
so that a job of two labels has rows that lack one.
"""

import csv
import random
import sys
from pathlib import Path

GENRES = ["Action", "Animation", "Comedy", "Crime", "Drama", "Horror", "Musical", "Romance", "Thriller", "War"]
USERS, FILMS = 900, 700
ROWS = {"train": 24_000, "valid": 3_000, "test": 3_000}

draw = random.Random(1)
folder = Path(sys.argv[1] if len(sys.argv) > 1 else "data/ml1m")
folder.mkdir(parents=True, exist_ok=True)


def write(name, header, rows):
    with open(folder / name, "w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])


users = [(id, draw.choice("FM"), draw.choice([1, 18, 25, 35, 45, 50, 56]), draw.randrange(21)) for id in range(1, USERS + 1)]
films = [(id, draw.randint(1930, 2000), draw.sample(GENRES, draw.randint(1, 3))) for id in range(1, FILMS + 1)]
write("users.csv", ["user_id", "gender", "age", "occupation"], users)
write("items.csv", ["item_id", "year", "genres"], ((id, year, "|".join(genres)) for id, year, genres in films))

taste = {id: {genre: draw.gauss(0, 0.8) for genre in GENRES} for id, *_ in users}
mood = {id: draw.gauss(0, 0.4) for id, *_ in users}
quality = {id: draw.gauss(0, 0.6) for id, *_ in films}
time = 978_300_000
for name, count in ROWS.items():
    rows = []
    for _ in range(count):
        user = int(USERS ** draw.random())
        film = int(FILMS ** draw.random())
        genres = films[film - 1][2]
        liking = sum(taste[user][genre] for genre in genres) / len(genres)
        stars = round(3.5 + liking + mood[user] + quality[film] + draw.gauss(0, 0.7))
        stars = min(5, max(1, stars))
        time += draw.randint(1, 90)
        shown = stars if name != "train" or draw.random() < 0.1 else ""
        rows.append([user, film, int(stars >= 4), shown, time])
    write(f"{name}.csv", ["user_id", "item_id", "label", "rating", "timestamp"], rows)
print(f"{folder}: {', '.join(f'{count} rows in {name}.csv' for name, count in ROWS.items())}; users.csv, items.csv")
