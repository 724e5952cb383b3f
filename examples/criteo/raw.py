"""Writes the Parquet sample as Criteo publishes its data: tabs, no header, empty cells for missing values."""

import sys
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet

source, target = map(Path, sys.argv[1:])
target.mkdir(parents=True, exist_ok=True)
options = pyarrow.csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
for part in ("train", "valid", "test"):
    table = pyarrow.parquet.read_table(source / f"{part}.parquet")
    pyarrow.csv.write_csv(table, target / f"{part}.txt", options)
