"""TensorFlow Serving's requests by plain grpcio against a server.

The messages are those that the package `min_tfs_client` carries, generated from TensorFlow's own files: not ours. Its
modules were made for a protobuf of years ago and cannot be imported any more, so that the descriptors are taken out of
them.

Usage: tf_grpc.py HTTP GRPC MODEL VERSION ROWS.json
"""

import ast
import importlib.metadata
import sys

import grpc
import numpy as np
from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory, wrappers_pb2

import rows as r

HTTP, GRPC, MODEL, VERSION, ROWS = sys.argv[1:]


def published():
    """The descriptors of all files that prediction and model service are made of."""
    modules = {str(f): f for f in importlib.metadata.files("min-tfs-client")}
    pool = descriptor_pool.DescriptorPool()
    known = set()

    def add(proto):
        known.add(proto.name)
        for needed in proto.dependency:
            if needed not in known:
                add(read(needed))
        pool.Add(proto)

    def read(name):
        proto = descriptor_pb2.FileDescriptorProto()
        for module in (any_pb2, wrappers_pb2):
            if module.DESCRIPTOR.name == name:
                module.DESCRIPTOR.CopyToProto(proto)
                return proto
        tree = ast.parse(modules[name.removesuffix(".proto") + "_pb2.py"].read_text())
        found = [k.value for k in ast.walk(tree) if isinstance(k, ast.keyword) and k.arg == "serialized_pb"]
        # Either bytes, or text that stands for them.
        literal = found[0] if isinstance(found[0], ast.Constant) else found[0].args[0]
        value = literal.value
        proto.ParseFromString(value if isinstance(value, bytes) else value.encode("latin1"))
        return proto

    for name in ("prediction_service", "model_service"):
        add(read(f"tensorflow_serving/apis/{name}.proto"))
    return pool


POOL = published()


def message(name):
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(name))


def number(enum, name):
    return POOL.FindEnumTypeByName(enum).values_by_name[name].number


def dtype(name):
    return number("tensorflow.DataType", name)


TensorProto = message("tensorflow.TensorProto")

# The list of each type, and the type's name in TensorFlow.
LISTS = {
    "str": ("string_val", "DT_STRING"),
    "int64": ("int64_val", "DT_INT64"),
    "int32": ("int_val", "DT_INT32"),
    "float64": ("double_val", "DT_DOUBLE"),
    "complex64": ("scomplex_val", "DT_COMPLEX64"),
}


def tensor_of(array):
    kind = "str" if array.dtype.kind == "U" else array.dtype.name
    field, name = LISTS[kind]
    tensor = TensorProto(dtype=dtype(name))
    for size in array.shape:
        tensor.tensor_shape.dim.add(size=size)
    values = array.ravel().tolist()
    if kind == "str":
        values = [value.encode() for value in values]
    if kind != "complex64":
        getattr(tensor, field).extend(values)
    return tensor


def scores_of(tensor):
    assert tensor.dtype == dtype("DT_FLOAT"), tensor
    sizes = [dim.size for dim in tensor.tensor_shape.dim]
    return np.array(tensor.float_val, dtype=np.float32).reshape(sizes)


class Service:
    """The methods of a service as plain callables."""

    def __init__(self, channel, name):
        for method in POOL.FindServiceByName(name).methods:
            call = channel.unary_unary(
                f"/{name}/{method.name}",
                request_serializer=lambda request: request.SerializeToString(),
                response_deserializer=message(method.output_type.full_name).FromString,
            )
            setattr(self, method.name, call)


def texts(tensors):
    """Text as the type that numpy has for it, which is what this client knows."""
    return {n: a.astype(np.str_) if a.dtype == np.object_ else a for n, a in tensors.items()}


def request(tensors, **spec):
    made = message("tensorflow.serving.PredictRequest")()
    made.model_spec.name = MODEL
    for name, value in spec.items():
        if name == "version":
            made.model_spec.version.value = value
        else:
            setattr(made.model_spec, name, value)
    for name, array in tensors.items():
        made.inputs[name].CopyFrom(tensor_of(array))
    return made


def refused(code, text, call, request):
    try:
        call(request, timeout=30)
    except grpc.RpcError as error:
        assert error.code() == getattr(grpc.StatusCode, code), error
        assert text in error.details(), error
        return
    raise AssertionError(f"it was not refused: {request}")


def predicts(stub, tensors, wanted):
    for spec in (
        {},
        {"version": int(VERSION)},
        {"version_label": "stable"},
        {"signature_name": "serving_default"},
    ):
        answer = stub.Predict(request(tensors, **spec), timeout=30)
        assert list(answer.outputs) == ["probabilities"], answer
        output = answer.outputs["probabilities"]
        r.same_bits(scores_of(output), wanted["probabilities"])
        assert answer.model_spec.version.value == int(VERSION), answer.model_spec
        assert answer.model_spec.signature_name == "serving_default", answer.model_spec
    both = request(tensors)
    both.output_filter.extend(["logits", "probabilities"])
    outputs = stub.Predict(both, timeout=30).outputs
    for name in ("logits", "probabilities"):
        r.same_bits(scores_of(outputs[name]), wanted[name])
    # Numbers as bytes, the way `tf.make_tensor_proto` puts them.
    content = request(tensors)
    for name in ("item", "price", "age", "tags__lengths"):
        array = tensors[name]
        tensor = content.inputs[name]
        kind, shape = tensor.dtype, tensor.tensor_shape
        content.inputs[name].CopyFrom(
            TensorProto(dtype=kind, tensor_shape=shape, tensor_content=array.tobytes())
        )
    output = stub.Predict(content, timeout=30).outputs["probabilities"]
    r.same_bits(scores_of(output), wanted["probabilities"])


def one_value_stands_for_all(stub, rows):
    same = [dict(rows[0], tags=["t1"], age=None) for _ in rows]
    tensors = texts(r.tensors(same))
    short = request(tensors)
    price = TensorProto(dtype=dtype("DT_DOUBLE"), double_val=[same[0]["price"]])
    price.tensor_shape.dim.add(size=len(rows))
    short.inputs["price"].CopyFrom(price)
    whole, brief = (stub.Predict(x, timeout=30).outputs["probabilities"] for x in (request(tensors), short))
    assert whole == brief


def describes(predictions, models):
    asked = message("tensorflow.serving.GetModelMetadataRequest")(metadata_field=["signature_def"])
    asked.model_spec.name = MODEL
    answer = predictions.GetModelMetadata(asked, timeout=30)
    signatures = message("tensorflow.serving.SignatureDefMap")()
    packed = answer.metadata["signature_def"]
    assert packed.type_url.endswith("/tensorflow.serving.SignatureDefMap"), packed
    signatures.ParseFromString(packed.value)
    signature = signatures.signature_def["serving_default"]
    types = {name: info.dtype for name, info in signature.inputs.items()}
    assert types == {
        "user": dtype("DT_STRING"),
        "item": dtype("DT_INT64"),
        "tags": dtype("DT_STRING"),
        "tags__lengths": dtype("DT_INT64"),
        "price": dtype("DT_FLOAT"),
        "age": dtype("DT_FLOAT"),
    }, types
    assert signature.method_name == "tensorflow/serving/predict", signature
    assert set(signature.outputs) == {"probabilities", "logits"}, signature
    assert answer.model_spec.version.value == int(VERSION), answer.model_spec
    del asked.metadata_field[:]
    refused("INVALID_ARGUMENT", "`signature_def`", predictions.GetModelMetadata, asked)

    status = message("tensorflow.serving.GetModelStatusRequest")()
    status.model_spec.name = MODEL
    available = number("tensorflow.serving.ModelVersionStatus.State", "AVAILABLE")
    for label in (None, "stable"):
        if label:
            status.model_spec.version_label = label
        versions = models.GetModelStatus(status, timeout=30).model_version_status
        mine = [v for v in versions if v.version == int(VERSION)]
        assert len(mine) == 1 and mine[0].state == available, versions
        assert mine[0].status.error_code == 0, versions
    status.model_spec.version_label = "nightly"
    refused("NOT_FOUND", "`nightly`", models.GetModelStatus, status)
    status.model_spec.name = "nobody"
    refused("NOT_FOUND", "`nobody`", models.GetModelStatus, status)


def what_cannot_be_answered_is_refused(predictions, models, tensors):
    def with_(name, array):
        return request({**tensors, name: array})

    predict = predictions.Predict
    invalid = "INVALID_ARGUMENT"
    refused("NOT_FOUND", "version 99", predict, request(tensors, version=99))
    refused("NOT_FOUND", "`nightly`", predict, request(tensors, version_label="nightly"))
    refused(invalid, "serving_default", predict, request(tensors, signature_name="other"))
    refused(invalid, "version -1", predict, request(tensors, version=-1))
    refused(invalid, "did you mean `user`?", predict, with_("usr", tensors["user"]))
    refused(invalid, "input `item`: a feature cannot be a tensor of dtype DT_COMPLEX64", predict, with_("item", np.array([1j], np.complex64)))
    refused(invalid, "input `item`", predict, with_("item", np.array([1.5])))
    refused(invalid, "no `inputs`", predict, request({}))
    nobody = request(tensors)
    nobody.model_spec.name = "nobody"
    refused("NOT_FOUND", "unknown model", predict, nobody)
    refused("UNIMPLEMENTED", "call Predict", predictions.Classify, message("tensorflow.serving.ClassificationRequest")())
    refused("UNIMPLEMENTED", "call Predict", predictions.Regress, message("tensorflow.serving.RegressionRequest")())
    refused("UNIMPLEMENTED", "call Predict", predictions.MultiInference, message("tensorflow.serving.MultiInferenceRequest")())
    reload = models.HandleReloadConfigRequest
    refused("UNIMPLEMENTED", "zillion model promote", reload, message("tensorflow.serving.ReloadConfigRequest")())


def main():
    rows = r.load(ROWS)
    tensors = texts(r.tensors(rows))
    wanted = r.scores_over_http(HTTP, MODEL, rows, ["probabilities", "logits"])
    for address in (GRPC, HTTP):
        with grpc.insecure_channel(address) as channel:
            predictions = Service(channel, "tensorflow.serving.PredictionService")
            models = Service(channel, "tensorflow.serving.ModelService")
            predicts(predictions, tensors, wanted)
            one_value_stands_for_all(predictions, rows)
            describes(predictions, models)
            what_cannot_be_answered_is_refused(predictions, models, tensors)
    ours = {"model": MODEL, "protocol": "grpc_tf"}
    assert r.metric(HTTP, "zillion_serving_requests_total", status="200", **ours) > 0
    assert r.metric(HTTP, "zillion_serving_requests_total", status="400", **ours) > 0
    print("all right")


main()
