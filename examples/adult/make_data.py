"""Writes data in the form of Adult, a census: eight columns of texts, six of numbers, and a label.

    python3 examples/adult/make_data.py [FOLDER]

FOLDER is data/adult if it is not given. The same files come out every time. The data is made up: it shows that the
job runs, and its figures cannot be compared with those of the real data. Python's standard library only.
"""

import csv
import math
import random
import sys
from pathlib import Path

TEXTS = {
    "workclass": ["Private", "Self-emp", "Local-gov", "State-gov", "Federal-gov"],
    "education": ["HS-grad", "Some-college", "Bachelors", "Masters", "Assoc-voc", "11th", "Doctorate"],
    "marital_status": ["Married", "Never-married", "Divorced", "Widowed"],
    "occupation": ["Craft-repair", "Sales", "Exec-managerial", "Prof-specialty", "Adm-clerical", "Transport"],
    "relationship": ["Husband", "Wife", "Own-child", "Unmarried", "Not-in-family"],
    "race": ["White", "Black", "Asian", "Other"],
    "sex": ["Female", "Male"],
    "native_country": ["United-States", "Mexico", "Germany", "Philippines", "India"],
}
NUMBERS = ["age", "education_num", "hours_per_week", "capital_gain", "capital_loss"]
ROWS = {"train": 12_000, "valid": 2_000, "test": 4_000}

draw = random.Random(1996)
folder = Path(sys.argv[1] if len(sys.argv) > 1 else "data/adult")
folder.mkdir(parents=True, exist_ok=True)

weight = {(column, text): 0 if column in ("race", "sex") else draw.gauss(0, 0.5) for column, texts in TEXTS.items() for text in texts}
pair = {(a, b): draw.gauss(0, 0.7) for a in TEXTS["education"] for b in TEXTS["occupation"]}

for name, count in ROWS.items():
    with open(folder / f"{name}.csv", "w", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(["label", *TEXTS, *NUMBERS])
        for _ in range(count):
            texts = {column: draw.choice(texts) for column, texts in TEXTS.items()}
            age = draw.randint(17, 90)
            hours = int(min(99, max(1, draw.gauss(40, 12))))
            level = TEXTS["education"].index(texts["education"]) + 7
            gain = round(draw.lognormvariate(8, 1)) if draw.random() < 0.08 else 0
            loss = round(draw.gauss(1850, 250)) if draw.random() < 0.05 else 0
            score = sum(weight[part] for part in texts.items())
            score += pair[texts["education"], texts["occupation"]] + 0.02 * (hours - 40)
            score += 2.5 * (gain > 5000) - ((age - 48) / 16) ** 2 - 0.3
            label = int(draw.random() < 1 / (1 + math.exp(-score)))
            # The census writes "?" for a value that is not known.
            known = [text if draw.random() > 0.02 else "?" for text in texts.values()]
            lines.writerow([label, *known, age, level, hours, gain, loss])
print(f"{folder}: {', '.join(f'{count} rows in {name}.csv' for name, count in ROWS.items())}")
