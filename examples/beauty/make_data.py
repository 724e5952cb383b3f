"""Writes data in the form of Amazon Beauty: what each customer bought, in order, and attributes of items.

    python3 examples/beauty/make_data.py [FOLDER]

FOLDER is data/beauty if it is not given. The same files come out every time. The data is made up: it shows that the
job runs, and its figures cannot be compared with those of the real data. Python's standard library only.
"""

import json
import random
import sys
from pathlib import Path

CUSTOMERS, ITEMS, KINDS, ATTRIBUTES = 4000, 600, 30, 80

draw = random.Random(3)
folder = Path(sys.argv[1] if len(sys.argv) > 1 else "data/beauty")
folder.mkdir(parents=True, exist_ok=True)

# Each item is of a kind, and who has bought something of a kind buys of the same or the next kind.
kinds = [[] for _ in range(KINDS)]
with open(folder / "items.jsonl", "w") as file:
    for item in range(1, ITEMS + 1):
        kind = draw.randrange(KINDS)
        kinds[kind].append(item)
        own = {kind * 2 % ATTRIBUTES, (kind * 2 + 1) % ATTRIBUTES, draw.randrange(ATTRIBUTES)}
        file.write(json.dumps({"item_id": item, "attributes": sorted(own)}) + "\n")

with open(folder / "sequences.jsonl", "w") as file:
    for customer in range(1, CUSTOMERS + 1):
        kind, items = draw.randrange(KINDS), []
        for _ in range(draw.randint(5, 14)):
            kind = (kind + draw.choice([0, 0, 0, 1])) % KINDS
            choice = kinds[kind][int(len(kinds[kind]) ** draw.random()) - 1]
            if choice not in items:
                items.append(choice)
        file.write(json.dumps({"user_id": customer, "items": items}) + "\n")
print(f"{folder}: {CUSTOMERS} rows in sequences.jsonl, {ITEMS} rows in items.jsonl")
