"""The same work as `zillion bench reader`, by pyarrow and numpy: one thread, one line of JSON.

    python peer_pyarrow.py --data train.parquet [--repeat 5]

columns: every column decoded to Arrow arrays, nothing more.
batches: what a model looks up. Whole numbers of the id columns (C*) are mixed with splitmix64, strings are
    hashed entry by entry of their dictionary (numpy has no string hash; Python's own is the fastest there
    is), missing ids become one key, offsets are built (one value a row), other numbers become float32 with
    missing ones filled; cut into batches of 4,096 rows.
"""

import argparse
import json
import resource
import time

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc
import pyarrow.parquet as pq

BATCH = 4096
pa.set_cpu_count(1)
pa.set_io_thread_count(1)


def decoded(path):
    """Record batches, a row group (or record batch) at a time, as a trainer would read them."""
    if path.endswith(".parquet"):
        file = pq.ParquetFile(path)
        for group in range(file.num_row_groups):
            yield file.read_row_group(group, use_threads=False)
    else:
        with pa.memory_map(path) as source:
            reader = pyarrow.ipc.open_file(source)
            for i in range(reader.num_record_batches):
                yield pa.Table.from_batches([reader.get_batch(i)])


def mix(x):
    z = x + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


MISSING = np.uint64(0x1234567)


def keys(array):
    """One key a row."""
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        array = array.dictionary_encode()
    if pa.types.is_dictionary(array.type):
        entries = np.array([hash(s) for s in array.dictionary.to_pylist()], dtype=np.int64).view(np.uint64)
        index = array.indices
        valid = np.asarray(index.is_valid()) if index.null_count else None
        out = entries[np.asarray(index.fill_null(0) if index.null_count else index)]
    else:
        valid = np.asarray(array.is_valid()) if array.null_count else None
        out = mix(np.asarray(array.fill_null(0) if array.null_count else array).astype(np.int64, copy=False).view(np.uint64))
    if valid is not None:
        out[~valid] = MISSING
    return out


def numbers(array):
    if array.null_count:
        array = array.fill_null(0)
    return np.asarray(array).astype(np.float32, copy=False)


def columns(path):
    rows = 0
    for table in decoded(path):
        rows += table.num_rows
    return rows


def batches(path):
    rows = 0
    for table in decoded(path):
        ids, floats = {}, {}
        for name in table.column_names:
            array = table.column(name).combine_chunks()
            if isinstance(array, pa.ChunkedArray):
                array = array.chunk(0)
            text = pa.types.is_string(array.type) or pa.types.is_dictionary(array.type)
            if text or name.upper().startswith("C"):
                ids[name] = keys(array)
            else:
                floats[name] = numbers(array)
        for start in range(0, table.num_rows, BATCH):
            end = min(start + BATCH, table.num_rows)
            batch = {name: (np.arange(end - start + 1, dtype=np.int32), x[start:end]) for name, x in ids.items()}
            batch |= {name: x[start:end] for name, x in floats.items()}
            rows += end - start
    return rows


def timed(work, path):
    start, cpu = time.perf_counter(), time.process_time()
    rows = work(path)
    return rows, rows / (time.perf_counter() - start), rows / (time.process_time() - cpu)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    runs = {"columns": [], "batches": []}
    for _ in range(args.repeat):
        runs["columns"].append(timed(columns, args.data))
        runs["batches"].append(timed(batches, args.data))
    median = lambda name, at: sorted(run[at] for run in runs[name])[args.repeat // 2]
    print(json.dumps({
        "rows": runs["columns"][0][0],
        "columns_rows_per_second": median("columns", 1),
        "batches_rows_per_second": median("batches", 1),
        "columns_rows_per_cpu_second": median("columns", 2),
        "batches_rows_per_cpu_second": median("batches", 2),
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "pyarrow": pa.__version__,
        "numpy": np.__version__,
    }))


if __name__ == "__main__":
    main()
