"""Measures ONNX Runtime on the model of `zillion bench serve`: a DeepFM of Criteo's shape.

The table is a numpy array that is indexed by row number: 26 fields of 16 + 1 floats, and 13 numbers. The graph has the
FM term and an MLP of 400-400-400-1. Each request has new ids. With --shared-fields N, the first N fields have one value
for the whole request; with --split, the graph multiplies their columns once (a context product of one row, added to the
product of the other columns). With --int8, the products are quantised by ONNX Runtime's dynamic quantisation.
The output is one line of JSON: latency with the lookup, and of the graph alone, in milliseconds.
"""
import argparse, json, os, tempfile, time

parser = argparse.ArgumentParser()
parser.add_argument("--candidates", type=int, default=1000)
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--requests", type=int, default=0)
parser.add_argument("--rows", type=int, default=2_000_000)
parser.add_argument("--shared-fields", type=int, default=0)
parser.add_argument("--split", action="store_true")
parser.add_argument("--int8", action="store_true")
a = parser.parse_args()
os.environ["OMP_NUM_THREADS"] = str(a.threads)
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
import onnxruntime as ort

FIELDS, NUMBERS, DIM, WIDTH = 26, 13, 16, 400
shared = a.shared_fields if a.split else 0
random = np.random.default_rng(0)
nodes, weights = [], []


def weight(name, *shape):
    value = (random.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
    weights.append(numpy_helper.from_array(value, name))
    return name


def constant(name, values):
    weights.append(numpy_helper.from_array(np.array(values, np.int64), name))
    return name


def op(kind, inputs, output, **attributes):
    nodes.append(helper.make_node(kind, inputs, [output], **attributes))
    return output


one = constant("axis1", [1])
end17 = constant("w_from", [DIM])
op("Slice", ["emb", constant("v0", [0]), end17, constant("ax2", [2])], "v")
op("Slice", ["emb", end17, constant("v17", [DIM + 1]), "ax2"], "w3")
op("ReduceSum", ["w3", constant("axes12", [1, 2])], "w", keepdims=0)
op("ReduceSum", ["v", one], "sum", keepdims=0)
op("Mul", ["v", "v"], "vv")
op("ReduceSum", ["vv", one], "squares", keepdims=0)
if shared:
    op("Slice", ["context", "v0", end17, "ax2"], "cv")
    op("Slice", ["context", end17, "v17", "ax2"], "cw3")
    op("ReduceSum", ["cw3", "axes12"], "cw", keepdims=0)
    op("ReduceSum", ["cv", one], "csum", keepdims=0)
    op("Mul", ["cv", "cv"], "cvv")
    op("ReduceSum", ["cvv", one], "csquares", keepdims=0)
    op("Add", ["sum", "csum"], "sum_all")
    op("Add", ["squares", "csquares"], "squares_all")
    op("Add", ["w", "cw"], "w_all")
total, squares, linear = ("sum_all", "squares_all", "w_all") if shared else ("sum", "squares", "w")
op("Mul", [total, total], "ss")
op("Sub", ["ss", squares], "pairs")
op("ReduceSum", ["pairs", one], "fm2", keepdims=0)
weights.append(numpy_helper.from_array(np.float32(0.5), "half"))
op("Mul", ["fm2", "half"], "fm")
op("Reshape", ["v", constant("flat", [-1, (FIELDS - shared) * DIM])], "vf")
op("Concat", ["vf", "dense"], "x", axis=1)
op("MatMul", ["x", weight("W1", (FIELDS - shared) * DIM + NUMBERS, WIDTH)], "m1")
if shared:
    op("Reshape", ["cv", constant("cflat", [1, shared * DIM])], "cf")
    op("MatMul", ["cf", weight("C1", shared * DIM, WIDTH)], "c0")
    op("Add", ["c0", weight("b1", WIDTH)], "c1")
    op("Add", ["m1", "c1"], "a1")
else:
    op("Add", ["m1", weight("b1", WIDTH)], "a1")
op("Relu", ["a1"], "h1")
for layer in (2, 3):
    op("MatMul", [f"h{layer - 1}", weight(f"W{layer}", WIDTH, WIDTH)], f"m{layer}")
    op("Add", [f"m{layer}", weight(f"b{layer}", WIDTH)], f"a{layer}")
    op("Relu", [f"a{layer}"], f"h{layer}")
op("MatMul", ["h3", weight("W4", WIDTH, 1)], "m4")
op("MatMul", ["dense", weight("L", NUMBERS, 1)], "l")
op("Add", ["m4", "l"], "logit0")
op("Squeeze", ["logit0", one], "logit1")
op("Add", ["logit1", "fm"], "logit2")
op("Add", ["logit2", linear], "logit")
op("Sigmoid", ["logit"], "p")
f32 = TensorProto.FLOAT
inputs = [helper.make_tensor_value_info("dense", f32, ["n", NUMBERS]), helper.make_tensor_value_info("emb", f32, ["n", FIELDS - shared, DIM + 1])]
if shared:
    inputs.append(helper.make_tensor_value_info("context", f32, [1, shared, DIM + 1]))
graph = helper.make_graph(nodes, "deepfm", inputs, [helper.make_tensor_value_info("p", f32, ["n"])], weights)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
onnx.checker.check_model(model)
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "model.onnx")
    onnx.save(model, path)
    if a.int8:
        from onnxruntime.quantization import QuantType, quantize_dynamic
        quantize_dynamic(path, path + ".int8", weight_type=QuantType.QInt8, per_channel=True)
        path += ".int8"
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = a.threads, 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
table = random.standard_normal((a.rows, DIM + 1), dtype=np.float32) * 0.01
n = a.candidates
requests = a.requests or {1: 3000, 100: 1000, 500: 400}.get(n, 250)
wanted = []
for _ in range(64):
    ids = (random.zipf(1.2, (n, FIELDS)) * 7919 + random.integers(0, 50000, (n, FIELDS))) % a.rows
    ids[:, : a.shared_fields] = ids[:1, : a.shared_fields]
    wanted.append((ids, random.standard_normal((n, NUMBERS), dtype=np.float32)))


def look_up(ids):
    feed = {"emb": np.take(table, ids[:, shared:].ravel(), axis=0).reshape(len(ids), FIELDS - shared, DIM + 1)}
    if shared:
        feed["context"] = np.take(table, ids[0, :shared], axis=0).reshape(1, shared, DIM + 1)
    return feed


latency, engine = [], []
for i in range(requests + 30):
    ids, dense = wanted[i % 64]
    begin = time.perf_counter()
    feed = look_up(ids)
    middle = time.perf_counter()
    session.run(None, {"dense": dense, **feed})
    end = time.perf_counter()
    if i >= 30:
        latency.append(end - begin)
        engine.append(end - middle)
percentile = lambda values, p: round(float(np.percentile(values, p)) * 1e3, 4)
print(json.dumps({"engine": "onnxruntime", "version": ort.__version__, "candidates": n, "threads": a.threads, "shared_fields": a.shared_fields, "split": a.split, "int8": a.int8,
                  "p50_ms": percentile(latency, 50), "p99_ms": percentile(latency, 99), "engine_p50_ms": percentile(engine, 50), "candidates_per_second": round(n / float(np.mean(latency)))}))
