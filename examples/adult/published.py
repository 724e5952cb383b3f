"""Writes Adult as the UCI repository publishes it (adult.data, adult.test) in the form of this job.

    python3 examples/adult/published.py FOLDER data/adult-published

The last tenth of adult.data validates; adult.test tests. Python's standard library only.
"""

import csv
import sys
from pathlib import Path

COLUMNS = [
    "age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation", "relationship",
    "race", "sex", "capital_gain", "capital_loss", "hours_per_week", "native_country",
]

source, target = map(Path, sys.argv[1:])
target.mkdir(parents=True, exist_ok=True)


def read(name):
    rows = (line.rstrip(".\n").split(", ") for line in open(source / name))
    return [[int(row[-1] == ">50K"), *row[:-1]] for row in rows if len(row) == len(COLUMNS) + 1]


def write(name, rows):
    with open(target / name, "w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([["label", *COLUMNS], *rows])


train = read("adult.data")
first = len(train) * 9 // 10
write("train.csv", train[:first])
write("valid.csv", train[first:])
write("test.csv", read("adult.test"))
