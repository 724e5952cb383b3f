"""Rows of the end-to-end model as tensors, and what HTTP says of them: what the other scripts compare with."""

import json
import urllib.request

import numpy as np


def load(path):
    with open(path) as file:
        return json.load(file)


def tensors(rows):
    """By input: an array whose type the server takes. A missing number is NaN, lists are flat with lengths."""

    def number(value):
        return np.nan if value is None else value

    return {
        "user": np.array([row["user"] for row in rows], dtype=np.object_),
        "item": np.array([row["item"] for row in rows], dtype=np.int64),
        "tags": np.array([tag for row in rows for tag in row["tags"]], dtype=np.object_),
        "tags__lengths": np.array([len(row["tags"]) for row in rows], dtype=np.int32),
        "price": np.array([number(row["price"]) for row in rows], dtype=np.float64),
        "age": np.array([number(row["age"]) for row in rows], dtype=np.float64),
    }


def http(address, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(f"http://{address}{path}", data, timeout=30) as answer:
        return answer.read()


def scores_over_http(address, model, rows, outputs):
    """By output, as 32-bit floats: JSON has every digit that they need."""
    columns = {
        "user": ("BYTES", [row["user"] for row in rows]),
        "item": ("INT64", [row["item"] for row in rows]),
        "tags": ("BYTES", [tag for row in rows for tag in row["tags"]]),
        "tags__lengths": ("INT32", [len(row["tags"]) for row in rows]),
        "price": ("FP64", [row["price"] for row in rows]),
        "age": ("FP64", [row["age"] for row in rows]),
    }
    inputs = [
        {"name": name, "datatype": datatype, "shape": [len(data)], "data": data}
        for name, (datatype, data) in columns.items()
    ]
    body = {"inputs": inputs, "outputs": [{"name": name} for name in outputs]}
    answer = json.loads(http(address, f"/v2/models/{model}/infer", body))
    return {o["name"]: np.array(o["data"], dtype=np.float32) for o in answer["outputs"]}


def metric(address, name, **labels):
    """The sum of the samples of a series that have these labels."""
    total, found = 0.0, False
    for line in http(address, "/metrics").decode().splitlines():
        head, _, value = line.rpartition(" ")
        own, _, rest = head.partition("{")
        if own == name and all(f'{k}="{v}"' in rest for k, v in labels.items()):
            total, found = total + float(value), True
    assert found, f"no series {name} with {labels}"
    return total


def same_bits(found, wanted):
    assert found.dtype == np.float32, found.dtype
    assert found.view(np.uint32).tolist() == wanted.view(np.uint32).tolist(), (found, wanted)
