"""Writes impressions and clicks of a shop as files of JSON lines, as a collector of events would.

    python3 examples/online/write_events.py [SECONDS] [--live]

Writes the events of the last SECONDS (60) at once. With --live, writes the events of each second when it has passed,
for SECONDS. Python's standard library only.
"""

import json
import math
import os
import random
import sys
import time
from pathlib import Path

USERS, ITEMS, RATE = 300, 100, 500
FOLDER = Path("data/online")

draw = random.Random(1)


def put(stream, second, events):
    """Writes a file under a hidden name, and renames it when it is complete."""
    folder = FOLDER / stream / "a"
    folder.mkdir(parents=True, exist_ok=True)
    hidden = folder / f".{second:012}"
    hidden.write_text("".join(json.dumps(event) + "\n" for event in events))
    os.rename(hidden, folder / f"{second:012}.jsonl")


def write_second(second):
    """Writes the impressions of a second, and their clicks, which come up to two seconds later."""
    shown, clicked = [], []
    for number in range(RATE):
        user, item = draw.randrange(USERS), draw.randrange(ITEMS)
        request, at = f"{second}-{number}", second * 1000 + number * 1000 // RATE
        shown.append({"request": request, "user": user, "item": item, "time": at})
        liking = 0.8 * (user % 5 - 2) + 0.8 * (item % 5 - 2) - 1.0
        if draw.random() < 1 / (1 + math.exp(-liking)):
            clicked.append({"request": request, "time": at + draw.randrange(2000)})
    put("impressions", second, shown)
    put("clicks", second, sorted(clicked, key=lambda click: click["time"]))
    return len(shown), len(clicked)


numbers = [int(text) for text in sys.argv[1:] if not text.startswith("-")]
seconds = numbers[0] if numbers else 60
is_live = "--live" in sys.argv
first = int(time.time()) - (0 if is_live else seconds)
impressions = clicks = 0
for second in range(first, first + seconds):
    if is_live:
        time.sleep(max(0, second + 1 - time.time()))
    written = write_second(second)
    impressions, clicks = impressions + written[0], clicks + written[1]
print(f"{FOLDER}: {impressions} impressions, {clicks} clicks")
