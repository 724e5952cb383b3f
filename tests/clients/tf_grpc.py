"""TensorFlow Serving's requests by plain grpcio against a server, with the messages that `min_tfs_client` carries
(generated from TensorFlow's own files, without TensorFlow), and by that client itself, unmodified.

Usage: tf_grpc.py HTTP GRPC MODEL VERSION ROWS.json
"""

import os
import sys

# Messages generated years ago need the Python implementation of protobuf.
os.environ["PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"] = "python"

import grpc
import numpy as np
from min_tfs_client.requests import TensorServingClient
from min_tfs_client.tensors import ndarray_to_tensor_proto, tensor_proto_to_ndarray
from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.tensor_pb2 import TensorProto
from tensorflow.core.framework.tensor_shape_pb2 import TensorShapeProto
from tensorflow_serving.apis.classification_pb2 import ClassificationRequest
from tensorflow_serving.apis.get_model_metadata_pb2 import GetModelMetadataRequest, SignatureDefMap
from tensorflow_serving.apis.get_model_status_pb2 import GetModelStatusRequest, ModelVersionStatus
from tensorflow_serving.apis.inference_pb2 import MultiInferenceRequest
from tensorflow_serving.apis.model_management_pb2 import ReloadConfigRequest
from tensorflow_serving.apis.model_service_pb2_grpc import ModelServiceStub
from tensorflow_serving.apis.predict_pb2 import PredictRequest
from tensorflow_serving.apis.prediction_service_pb2_grpc import PredictionServiceStub
from tensorflow_serving.apis.regression_pb2 import RegressionRequest

import rows as r

HTTP, GRPC, MODEL, VERSION, ROWS = sys.argv[1:]


def texts(tensors):
    """Text as the type that numpy has for it, which is what this client knows."""
    return {n: a.astype(np.str_) if a.dtype == np.object_ else a for n, a in tensors.items()}


def request(tensors, **spec):
    made = PredictRequest()
    made.model_spec.name = MODEL
    for name, value in spec.items():
        if name == "version":
            made.model_spec.version.value = value
        else:
            setattr(made.model_spec, name, value)
    for name, array in tensors.items():
        made.inputs[name].CopyFrom(ndarray_to_tensor_proto(array))
    return made


def refused(code, text, call, message):
    try:
        call(message, timeout=30)
    except grpc.RpcError as error:
        assert error.code() == getattr(grpc.StatusCode, code), error
        assert text in error.details(), error
        return
    raise AssertionError(f"it was not refused: {message}")


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
        assert output.dtype == types_pb2.DT_FLOAT, output
        r.same_bits(tensor_proto_to_ndarray(output), wanted["probabilities"])
        assert answer.model_spec.version.value == int(VERSION), answer.model_spec
        assert answer.model_spec.signature_name == "serving_default", answer.model_spec
    both = request(tensors)
    both.output_filter.extend(["logits", "probabilities"])
    outputs = stub.Predict(both, timeout=30).outputs
    for name in ("logits", "probabilities"):
        r.same_bits(tensor_proto_to_ndarray(outputs[name]), wanted[name])
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
    r.same_bits(tensor_proto_to_ndarray(output), wanted["probabilities"])


def one_value_stands_for_all(stub, rows):
    same = [dict(rows[0], tags=["t1"], age=None) for _ in rows]
    tensors = texts(r.tensors(same))
    short = request(tensors)
    price = TensorProto(
        dtype=types_pb2.DT_DOUBLE,
        tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=len(rows))]),
        double_val=[same[0]["price"]],
    )
    short.inputs["price"].CopyFrom(price)
    whole, brief = (stub.Predict(x, timeout=30).outputs["probabilities"] for x in (request(tensors), short))
    assert whole == brief


def describes(predictions, models):
    asked = GetModelMetadataRequest(metadata_field=["signature_def"])
    asked.model_spec.name = MODEL
    answer = predictions.GetModelMetadata(asked, timeout=30)
    signatures = SignatureDefMap()
    assert answer.metadata["signature_def"].Unpack(signatures), answer
    signature = signatures.signature_def["serving_default"]
    types = {name: info.dtype for name, info in signature.inputs.items()}
    assert types == {
        "user": types_pb2.DT_STRING,
        "item": types_pb2.DT_INT64,
        "tags": types_pb2.DT_STRING,
        "tags__lengths": types_pb2.DT_INT64,
        "price": types_pb2.DT_FLOAT,
        "age": types_pb2.DT_FLOAT,
    }, types
    assert signature.method_name == "tensorflow/serving/predict", signature
    assert set(signature.outputs) == {"probabilities", "logits"}, signature
    assert answer.model_spec.version.value == int(VERSION), answer.model_spec
    del asked.metadata_field[:]
    refused("INVALID_ARGUMENT", "`signature_def`", predictions.GetModelMetadata, asked)

    status = GetModelStatusRequest()
    status.model_spec.name = MODEL
    for label in (None, "stable"):
        if label:
            status.model_spec.version_label = label
        versions = models.GetModelStatus(status, timeout=30).model_version_status
        mine = [v for v in versions if v.version == int(VERSION)]
        assert len(mine) == 1 and mine[0].state == ModelVersionStatus.AVAILABLE, versions
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
    refused(invalid, "DT_COMPLEX64: input `item`", predict, with_("item", np.array([1j], np.complex64)))
    refused(invalid, "input `item`", predict, with_("item", np.array([1.5])))
    refused(invalid, "no `inputs`", predict, request({}))
    nobody = request(tensors)
    nobody.model_spec.name = "nobody"
    refused("NOT_FOUND", "does not serve it", predict, nobody)
    refused("UNIMPLEMENTED", "ask by Predict", predictions.Classify, ClassificationRequest())
    refused("UNIMPLEMENTED", "ask by Predict", predictions.Regress, RegressionRequest())
    refused("UNIMPLEMENTED", "ask by Predict", predictions.MultiInference, MultiInferenceRequest())
    reload = models.HandleReloadConfigRequest
    refused("UNIMPLEMENTED", "zillion model promote", reload, ReloadConfigRequest())


def main():
    rows = r.load(ROWS)
    tensors = texts(r.tensors(rows))
    wanted = r.scores_over_http(HTTP, MODEL, rows, ["probabilities", "logits"])
    for address in (GRPC, HTTP):
        with grpc.insecure_channel(address) as channel:
            predictions, models = PredictionServiceStub(channel), ModelServiceStub(channel)
            predicts(predictions, tensors, wanted)
            one_value_stands_for_all(predictions, rows)
            describes(predictions, models)
            what_cannot_be_answered_is_refused(predictions, models, tensors)
    host, port = GRPC.rsplit(":", 1)
    client = TensorServingClient(host=host, port=int(port))
    answer = client.predict_request(MODEL, tensors, timeout=30, model_version=int(VERSION))
    r.same_bits(tensor_proto_to_ndarray(answer.outputs["probabilities"]), wanted["probabilities"])
    ours = {"model": MODEL, "protocol": "grpc_tf"}
    assert r.metric(HTTP, "zillion_serving_requests_total", status="200", **ours) > 0
    assert r.metric(HTTP, "zillion_serving_requests_total", status="400", **ours) > 0
    print("all right")


main()
