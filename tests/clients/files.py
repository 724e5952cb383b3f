"""Opens what `zillion model export` and `zillion data convert` have written, with the tools that people use.

    files.py rows EXPORTED WANTED       Parquet rows against what the test knows of them
    files.py dense EXPORTED WANTED      safetensors
    files.py layer FILE WANTED          a layer of the registry
    files.py score EXPORTED WANTED DOC  ONNX: the Python of the document against `zillion predict`
    files.py data FOLDER WANTED         converted files

WANTED is a JSON file that the test has made. Any difference ends with an exception.
"""

import json
import sys
import types
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq


def load(path):
    return json.loads(Path(path).read_text())


def same(found, wanted, what):
    assert found == wanted, f"{what}: found {found!r}, wanted {wanted!r}"


def rows(folder, wanted):
    """Every tool has the same rows, which are those that the layers have."""
    folder, wanted = Path(folder), load(wanted)
    about = load(folder / "export.json")
    same(sorted(t["name"] for t in about["tables"]), sorted(wanted), "tables")
    for table in about["tables"]:
        path, own = folder / table["path"], wanted[table["name"]]
        arrow, pandas, polars = pq.read_table(path), pd.read_parquet(path), pl.read_parquet(path)
        keys = [int(row["key"]) for row in own["rows"]]
        for tool, found in [
            ("pyarrow", arrow["key"].to_pylist()),
            ("pandas", pandas["key"].tolist()),
            ("polars", polars["key"].to_list()),
        ]:
            same(found, keys, f"{table['name']} by {tool}")
        same(str(pandas["key"].dtype), "uint64", "the type of keys")
        counts = [row["count"] for row in own["rows"]]
        same(arrow["count"].to_pylist(), counts, "counts by pyarrow")
        same(polars["count"].to_list(), counts, "counts by polars")
        missing = [row["is_missing_of"] for row in own["rows"]]
        same(arrow["is_missing_of"].to_pylist(), missing, "missing values by pyarrow")
        same(polars["is_missing_of"].to_list(), missing, "missing values by polars")
        if own["ids"] is None:
            assert "id" not in arrow.column_names, f"{table['name']} has ids"
            assert arrow.schema.metadata[b"zillion.no_ids_because"], "no reason is given"
        else:
            ids = [None if row["id"] is None else int(row["id"]) for row in own["rows"]]
            same(arrow["id"].to_pylist(), ids, "ids by pyarrow")
            same(polars["id"].to_list(), ids, "ids by polars")
            same(str(arrow.schema.field("id").type), own["ids"], "the type of ids")
            # A column with a null becomes one of floats in pandas: those without keep theirs.
            found = pandas["id"][pandas["is_missing_of"].isna()]
            same([int(i) for i in found], [i for i in ids if i is not None], "ids by pandas")
        same(arrow.schema.metadata[b"zillion.table"].decode(), table["name"], "metadata")
        at = 0
        for segment in table["segments"]:
            name, dim = segment["column"], segment["dim"]
            floats = np.array([row["weights"][at : at + dim] for row in own["rows"]], np.float32)
            at += dim
            by_pandas = np.stack(pandas[name].to_numpy()) if len(pandas) else floats
            by_polars = polars[name].to_numpy() if len(polars) else floats
            by_arrow = arrow[name].combine_chunks().flatten().to_numpy().reshape(-1, dim)
            same(str(polars[name].dtype), f"Array(Float32, shape=({dim},))", "the type by polars")
            for found in (by_pandas, by_polars, by_arrow):
                assert found.dtype == np.float32 and np.array_equal(found, floats), f"{name} differs"
    for file in about["files"]:
        same((folder / file["path"]).stat().st_size, file["bytes"], file["path"])
        if file["what"] == "side":
            assert pa.ipc.open_file(str(folder / file["path"])).read_all().num_rows > 0


def dense(folder, wanted):
    from safetensors.numpy import load_file

    found = load_file(str(Path(folder) / "dense.safetensors"))
    for name, shape in load(wanted).items():
        same(list(found[name].shape), shape, name)
        same(str(found[name].dtype), "float32", name)
    same(sorted(found), sorted(load(wanted)), "parameters")

    import onnx

    model = onnx.load(str(Path(folder) / "graph.onnx"))
    onnx.checker.check_model(model, full_check=True)
    initializers = {i.name: onnx.numpy_helper.to_array(i) for i in model.graph.initializer}
    for name, values in found.items():
        if name in initializers:
            assert np.array_equal(initializers[name], values), f"{name} differs in ONNX"


def layer(path, wanted):
    """A layer's own file, as the registry has it."""
    table = pa.ipc.open_file(path).read_all()
    wanted = load(wanted)
    same(table.column_names, ["key", "weights", "count", "tombstone"], "columns of a layer")
    same(table["key"].to_pylist(), [int(k) for k in wanted["keys"]], "keys of a layer")
    same(table["tombstone"].to_pylist(), wanted["tombstones"], "tombstones of a layer")
    with pa.memory_map(path) as mapped:
        same(pa.ipc.open_file(mapped).read_all().num_rows, table.num_rows, "a mapped layer")
    same(pl.read_ipc(path).height, table.num_rows, "a layer by polars")


def score(folder, wanted, doc):
    """The code of the document, as it stands there, scores as the program does."""
    import onnx

    onnx.checker.check_model(onnx.load(str(Path(folder) / "graph.onnx")), full_check=True)
    wanted = load(wanted)
    # In the place of a package: texts' keys, as the test has made them.
    keys = {text: int(key) for text, key in wanted["texts"].items()}
    stand_in = types.ModuleType("xxhash")
    stand_in.xxh3_64_intdigest = lambda text: keys[text.decode()]
    sys.modules["xxhash"] = stand_in

    text = Path(doc).read_text()
    code = text.split("```python\n", 1)[1].split("```", 1)[0]
    scope = {}
    exec(compile(code, "FILES.md", "exec"), scope)
    exported = scope["Exported"](folder)
    found = exported.score(wanted["data"])
    same(sorted(found), sorted(wanted["outputs"]), "outputs")
    worst = 0.0
    for name, values in wanted["outputs"].items():
        if values is None:
            continue
        own = np.array(values, np.float64)
        scores = found[name].astype(np.float64).reshape(-1)
        same(scores.shape, own.shape, name)
        error = np.abs(scores - own) / np.maximum(1.0, np.abs(own))
        worst = max(worst, float(error.max()))
        assert error.max() < 1e-5, f"{name}: {error.max()} at row {error.argmax()}"
        assert own.std() > 0, f"{name} is the same for all rows: it shows nothing"
    # A batch of one and an empty one: the dimension is symbolic.
    for count in (1, 0):
        some = {k: v[:count] for k, v in wanted["data"].items()}
        for name, values in exported.score(some).items():
            same(values.shape[0], count, f"{name} of {count} rows")
            assert np.allclose(values, found[name][:count], rtol=1e-5, atol=1e-5), name
    print(f"{worst:.2e}")


def data(folder, wanted):
    """Converted files, by every tool, against the rows that the test has written."""
    wanted = load(wanted)
    folder = Path(folder)
    files = [folder] if folder.is_file() else sorted(folder.glob("part-*"))
    assert files, "no parts"
    tables, pandas, polars = [], [], []
    for file in files:
        if file.suffix == ".parquet":
            tables.append(pq.read_table(file))
            pandas.append(pd.read_parquet(file))
            polars.append(pl.read_parquet(file))
        else:
            tables.append(pa.ipc.open_file(str(file)).read_all())
            pandas.append(pd.read_feather(file))
            polars.append(pl.read_ipc(file))
    table, frame, other = pa.concat_tables(tables), pd.concat(pandas), pl.concat(polars)
    same(table.column_names, list(wanted["types"]), "columns")
    for name, type_ in wanted["types"].items():
        same(str(table.schema.field(name).type), type_, f"the type of {name}")
        values = wanted["columns"][name]
        same(table[name].to_pylist(), values, f"{name} by pyarrow")
        same(other[name].to_list(), values, f"{name} by polars")
        by_pandas = [
            None if not isinstance(v, np.ndarray) and pd.isna(v) else v for v in frame[name].tolist()
        ]
        plain = [v.tolist() if isinstance(v, np.ndarray) else v for v in by_pandas]
        same(plain, values, f"{name} by pandas")


if __name__ == "__main__":
    {"rows": rows, "dense": dense, "layer": layer, "score": score, "data": data}[sys.argv[1]](
        *sys.argv[2:]
    )
