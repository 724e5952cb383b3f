"""Prepares MovieLens-1M for two tasks: `like` (4 or 5 stars) and `ok` (3 or more).

The training file knows the stars of liked films only: its dislikes have a label and no rating. Stars that are
known where the answer is yes and unknown where it is no teach nothing but "yes", so here they count as
missing, and `ok` is learned from the first 80,000 ratings of the validation file, which have all their stars
(and both labels). The other 20,021 validate; the test file stays what it is.
"""

import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet as parquet

source, target = map(Path, sys.argv[1:])
target.mkdir(parents=True, exist_ok=True)
columns = ["user_id", "item_id", "label", "rating"]
train, valid, test = (
    parquet.read_table(source / f"{part}.parquet", columns=columns) for part in ("train", "valid", "test")
)
unknown = pyarrow.nulls(train.num_rows, train.schema.field("rating").type)
train = train.set_column(columns.index("rating"), "rating", unknown)
parts = {
    "train": pyarrow.concat_tables([train, valid.slice(0, 80_000)]).combine_chunks(),
    "valid": valid.slice(80_000),
    "test": test,
}
for part, table in parts.items():
    parquet.write_table(table, target / f"{part}.parquet", compression="zstd", row_group_size=65_536)
for side in ("users", "items"):
    parquet.write_table(parquet.read_table(source / f"{side}.parquet"), target / f"{side}.parquet")
