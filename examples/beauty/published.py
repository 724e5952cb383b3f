"""Writes Amazon Beauty as the S3-Rec repository publishes it (Beauty.txt, Beauty_item2attributes.json) as JSON lines.

    python3 examples/beauty/published.py FOLDER data/beauty-published

Python's standard library only.
"""

import json
import sys
from pathlib import Path

source, target = map(Path, sys.argv[1:])
target.mkdir(parents=True, exist_ok=True)

with open(source / "Beauty.txt") as lines, open(target / "sequences.jsonl", "w") as file:
    for line in lines:
        user, *items = map(int, line.split())
        file.write(json.dumps({"user_id": user, "items": items}) + "\n")

attributes = json.loads((source / "Beauty_item2attributes.json").read_text())
with open(target / "items.jsonl", "w") as file:
    for item, own in attributes.items():
        file.write(json.dumps({"item_id": int(item), "attributes": own}) + "\n")
