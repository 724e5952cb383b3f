"""TF-Serving's REST API as its clients use it: plain requests of JSON.

Arguments: ADDRESS MODEL.
"""

import base64
import json
import sys
import urllib.error
import urllib.request

address, model = sys.argv[1], sys.argv[2]


def ask(path, body=None, status=200):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{address}/v1/models/{model}{path}", data)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            got, text = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        got, text = error.code, error.read()
        assert set(json.loads(text)) == {"error"}, text
    assert got == status, (path, body, got, text)
    return json.loads(text)


def row(i):
    return {
        "user": f"u{i % 50}",
        "item": i % 80,
        "tags": [f"t{j}" for j in range(i % 4)],
        "price": i / 10,
        "age": None if i % 10 == 0 else i,
    }


rows = [row(i) for i in range(50)]

# Status: version numbers are text, the newest comes first.
status = ask("")["model_version_status"]
versions = [one["version"] for one in status]
assert versions == sorted(versions, key=int, reverse=True) and len(versions) > 1, versions
assert all(one["state"] == "AVAILABLE" and one["status"] == {"error_code": "OK", "error_message": ""} for one in status)
assert ask(f"/versions/{versions[-1]}")["model_version_status"] == [status[-1]]
stable = ask("/labels/stable")["model_version_status"]
canary = ask("/labels/canary")["model_version_status"]
assert stable == [status[0]] and canary == [status[-1]], (stable, canary)
ask("/versions/999", status=404)
ask("/labels/nightly", status=404)

# Metadata: one signature, and what it takes and gives.
metadata = ask("/metadata")
assert metadata["model_spec"] == {"name": model, "signature_name": "", "version": versions[0]}, metadata
signature = metadata["metadata"]["signature_def"]["signature_def"]["serving_default"]
assert signature["method_name"] == "tensorflow/serving/predict"
assert set(signature["inputs"]) == set(rows[0]) and set(signature["outputs"]) == {"probabilities"}, signature
assert signature["inputs"]["user"]["dtype"] == "DT_STRING"
assert [dim["size"] for dim in signature["inputs"]["tags"]["tensor_shape"]["dim"]] == ["-1", "-1"]
assert ask("/labels/canary/metadata")["model_spec"]["version"] == versions[-1]
assert ask(f"/versions/{versions[-1]}/metadata")["model_spec"]["version"] == versions[-1]

# Predict, in rows and in columns; `serving_default` is the signature.
predictions = ask(":predict", {"instances": rows})["predictions"]
assert len(predictions) == len(rows) and all(0 < p < 1 for p in predictions)
columns = {name: [row[name] for row in rows] for name in rows[0]}
assert ask(":predict", {"inputs": columns, "signature_name": "serving_default"})["outputs"] == predictions
assert ask("/labels/stable:predict", {"instances": rows})["predictions"] == predictions
assert ask(f"/versions/{versions[0]}:predict", {"instances": rows})["predictions"] == predictions
old = ask("/labels/canary:predict", {"instances": rows})["predictions"]
assert old != predictions
assert ask(f"/versions/{versions[-1]}:predict", {"instances": rows})["predictions"] == old
# Text in base64, and every value as a list of one.
encoded = [{**row, "user": {"b64": base64.b64encode(row["user"].encode()).decode()}} for row in rows]
assert ask(":predict", {"instances": encoded})["predictions"] == predictions
listed = [{name: v if isinstance(v, list) else [v] for name, v in row.items()} for row in rows]
assert ask(":predict", {"instances": listed})["predictions"] == predictions
# Numbers as text, as a file would have them.
texts = [{**row, "item": str(row["item"]), "price": str(row["price"])} for row in rows]
assert ask(":predict", {"instances": texts})["predictions"] == predictions

# Examples with a context.
context, examples = {"user": "u7"}, [{k: v for k, v in row.items() if k != "user"} for row in rows]
merged = ask(":predict", {"instances": [{**row, **context} for row in rows]})["predictions"]
assert ask(":regress", {"context": context, "examples": examples})["results"] == merged
classes = ask(":classify", {"context": context, "examples": examples})["results"]
assert [[label for label, _ in one] for one in classes] == [["0", "1"]] * len(rows)
assert [one[1][1] for one in classes] == merged and all(abs(a[1] + b[1] - 1) < 1e-6 for a, b in classes)

# What cannot be answered is said by name and row.
def error(path, body, status=400):
    return ask(path, body, status)["error"]


assert "`other`" in error(":predict", {"instances": rows, "signature_name": "other"})
assert "did you mean `instances`" in error(":predict", {"instance": rows})
assert "input `item`, row 3" in error(":predict", {"instances": rows[:3] + [{**rows[3], "item": "seven"}]})
assert "input `tags`, row 1" in error(":predict", {"instances": [rows[0], {**rows[1], "tags": "a|b"}]})
assert "input `price`, row 1 of `instances`" in error(":predict", {"instances": [rows[0], {**rows[1], "price": {}}]})
assert "input `age`, row 1 of `instances`" in error(":predict", {"instances": [rows[0], {k: v for k, v in rows[1].items() if k != "age"}]})
assert "examples" in error(":regress", {"instances": rows})
assert "unknown path" in error(":explain", {"instances": rows}, 404)
print(f"{len(rows)} rows over {len(versions)} versions")
