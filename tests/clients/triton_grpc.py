"""Unmodified `tritonclient.grpc`, blocking and asyncio, against a server: every call that they have.

Usage: triton_grpc.py HTTP GRPC MODEL VERSION ROWS.json CONTROLLED
CONTROLLED is the address of a server that lets clients load and unload models, and has none at first.
"""

import asyncio
import queue
import sys

import grpc
import numpy as np
import tritonclient.grpc as blocking
import tritonclient.grpc.aio as aio
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

import rows as r

HTTP, GRPC, MODEL, VERSION, ROWS, CONTROLLED = sys.argv[1:]
OUTPUTS = ["probabilities", "logits"]


def inputs(tensors):
    made = []
    for name, array in tensors.items():
        tensor = blocking.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        made.append(tensor)
    return made


def outputs():
    return [blocking.InferRequestedOutput(name) for name in OUTPUTS]


def refused(status, text, call, *arguments, **more):
    try:
        call(*arguments, **more)
    except InferenceServerException as error:
        assert error.status() == f"StatusCode.{status}", error
        assert text in error.message(), error
        return
    raise AssertionError(f"{call} was not refused")


async def refused_later(status, text, call):
    try:
        await call
    except InferenceServerException as error:
        assert error.status() == f"StatusCode.{status}", error
        assert text in error.message(), error
        return
    raise AssertionError("it was not refused")


def check(result, wanted, request_id=""):
    for name in OUTPUTS:
        r.same_bits(result.as_numpy(name), wanted[name])
    response = result.get_response()
    assert response.model_name == MODEL and response.model_version == VERSION, response
    assert response.id == request_id, response.id


def describes(client):
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready(MODEL) and client.is_model_ready(MODEL, VERSION)
    assert not client.is_model_ready("nobody") and not client.is_model_ready(MODEL, "99")
    server = client.get_server_metadata()
    assert server.name == "zillion" and "statistics" in server.extensions, server
    assert client.get_server_metadata(as_json=True)["name"] == "zillion"
    metadata = client.get_model_metadata(MODEL)
    types = {tensor.name: tensor.datatype for tensor in metadata.inputs}
    assert types == {
        "user": "BYTES",
        "item": "INT64",
        "tags": "BYTES",
        "tags__lengths": "INT64",
        "price": "FP32",
        "age": "FP32",
    }, types
    assert [tensor.name for tensor in metadata.outputs] == OUTPUTS, metadata
    assert VERSION in metadata.versions and metadata.platform == "zillion", metadata
    config = client.get_model_config(MODEL, VERSION).config
    assert config.name == MODEL and config.max_batch_size == 0, config
    assert {tensor.name for tensor in config.input} == set(types), config
    assert [t.optional for t in config.input if t.name == "tags__lengths"] == [True], config
    assert int(VERSION) in config.version_policy.specific.versions, config
    as_json = client.get_model_config(MODEL, as_json=True)["config"]
    assert as_json["output"][0]["data_type"] == "TYPE_FP32", as_json
    index = client.get_model_repository_index().models
    entry = [model for model in index if model.name == MODEL and model.version == VERSION]
    assert len(entry) == 1 and entry[0].state == "READY", index
    refused("NOT_FOUND", f"`{MODEL}`", client.get_model_metadata, "nobody")
    refused("NOT_FOUND", "version 99", client.get_model_config, MODEL, "99")
    refused("INVALID_ARGUMENT", "version `x`", client.get_model_metadata, MODEL, "x")


def what_is_not_here_says_so(client):
    assert not client.get_system_shared_memory_status().regions
    assert not client.get_cuda_shared_memory_status().regions
    client.unregister_system_shared_memory()
    client.unregister_cuda_shared_memory()
    no_memory = "shared memory is not supported"
    refused("UNIMPLEMENTED", no_memory, client.register_system_shared_memory, "a", "/a", 8)
    refused("UNIMPLEMENTED", no_memory, client.register_cuda_shared_memory, "a", b"eA==", 0, 8)
    refused("NOT_FOUND", "`a`", client.get_system_shared_memory_status, "a")
    assert not client.get_trace_settings().settings and not client.get_log_settings().settings
    refused("UNIMPLEMENTED", "traces", client.update_trace_settings, settings={"trace_rate": "1"})
    refused("UNIMPLEMENTED", "log", client.update_log_settings, {"log_verbose_level": 1})
    control = "serve.model_control"
    refused("PERMISSION_DENIED", control, client.load_model, MODEL)
    refused("PERMISSION_DENIED", control, client.unload_model, MODEL)
    refused("PERMISSION_DENIED", control, client.unload_model, "nobody")


def scores(client, tensors, wanted):
    check(client.infer(MODEL, inputs(tensors), outputs=outputs()), wanted)
    named = client.infer(MODEL, inputs(tensors), VERSION, outputs(), request_id="42", timeout=10_000_000)
    check(named, wanted, "42")
    # Those by default are the probabilities alone.
    default = client.infer(MODEL, inputs(tensors))
    r.same_bits(default.as_numpy("probabilities"), wanted["probabilities"])
    assert default.as_numpy("logits") is None
    # Rows of one value, and integers of other widths, are the same rows.
    columns = {
        name: array.reshape(-1, 1) if name in ("user", "price") else array
        for name, array in tensors.items()
    }
    columns["item"] = columns["item"].astype(np.int16)
    columns["tags__lengths"] = columns["tags__lengths"].astype(np.uint8)
    check(client.infer(MODEL, inputs(columns), outputs=outputs()), wanted)
    # Many at once.
    answers = queue.Queue()
    for _ in range(20):
        client.async_infer(
            MODEL,
            inputs(tensors),
            lambda result, error: answers.put((result, error)),
            outputs=outputs(),
        )
    for _ in range(20):
        result, error = answers.get(timeout=30)
        assert error is None, error
        check(result, wanted)


def typed_contents_are_read(tensors, wanted):
    """What other clients than Triton's send: values in lists of their type instead of bytes."""
    fields = {
        "object": ("BYTES", "bytes_contents"),
        "int64": ("INT64", "int64_contents"),
        "int32": ("INT32", "int_contents"),
        "float64": ("FP64", "fp64_contents"),
    }
    request = service_pb2.ModelInferRequest(model_name=MODEL)
    for name, array in tensors.items():
        datatype, field = fields[array.dtype.name]
        tensor = request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        values = [x.encode() if isinstance(x, str) else x for x in array.tolist()]
        getattr(tensor.contents, field).extend(values)
    with grpc.insecure_channel(GRPC) as channel:
        answer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=30)
    found = np.frombuffer(answer.raw_output_contents[0], dtype="<f4")
    r.same_bits(found, wanted["probabilities"])


def bad_requests_are_refused(client, tensors):
    def with_(name, array):
        return inputs({**tensors, name: array})

    invalid = "INVALID_ARGUMENT"
    refused("NOT_FOUND", "unknown model", client.infer, "nobody", inputs(tensors))
    refused("NOT_FOUND", "version 99", client.infer, MODEL, inputs(tensors), "99")
    refused(invalid, "input `item`", client.infer, MODEL, with_("item", np.array([1], np.int64)))
    refused(invalid, "did you mean `user`?", client.infer, MODEL, with_("usr", tensors["user"]))
    refused(invalid, "input `tags`", client.infer, MODEL, with_("tags__lengths", tensors["tags__lengths"] + 1))
    refused(invalid, "not in the request", client.infer, MODEL, inputs(tensors)[1:])
    refused(invalid, "output `x`", client.infer, MODEL, inputs(tensors), outputs=[blocking.InferRequestedOutput("x")])
    refused(invalid, "keep no state", client.infer, MODEL, inputs(tensors), sequence_id=7)
    refused(invalid, "no classes", client.infer, MODEL, inputs(tensors), outputs=[blocking.InferRequestedOutput("probabilities", class_count=2)])
    shared = inputs(tensors)
    shared[0].set_shared_memory("region", 8)
    refused(invalid, "shared memory is not supported", client.infer, MODEL, shared)
    refused("UNIMPLEMENTED", "gzip", client.infer, MODEL, inputs(tensors), compression_algorithm="gzip")
    # And the next request is as if nothing had been.
    assert client.infer(MODEL, inputs(tensors)).as_numpy("probabilities") is not None


def streams_are_refused(client, tensors):
    answers = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    try:
        client.async_stream_infer(MODEL, inputs(tensors))
    except InferenceServerException as error:
        # The refusal was here first, and has been reported.
        assert "reported through provided callback" in error.message(), error
    result, error = answers.get(timeout=30)
    assert result is None and "call ModelInfer" in error.message(), (result, error)
    assert error.status() == "StatusCode.UNIMPLEMENTED", error.status()
    client.stop_stream()


def statistics_count(client, tensors):
    def of(model):
        stats = client.get_inference_statistics(model, VERSION).model_stats
        assert len(stats) == 1 and stats[0].version == VERSION, stats
        return stats[0]

    before = of(MODEL)
    # One that the version refuses, which is a failure of it.
    refused("INVALID_ARGUMENT", "", client.infer, MODEL, inputs(tensors)[1:])
    client.infer(MODEL, inputs(tensors))
    after = of(MODEL)
    rows = len(tensors["item"])
    assert after.inference_count == before.inference_count + rows
    assert after.execution_count == before.execution_count + 1
    assert after.last_inference >= before.last_inference > 0
    was, now = before.inference_stats, after.inference_stats
    assert now.success.count == was.success.count + 1 and now.fail.count == was.fail.count + 1
    for name in ("queue", "compute_input", "compute_infer", "compute_output"):
        assert getattr(now, name).count == getattr(was, name).count + 1, name
        assert getattr(now, name).ns > 0, name
    assert now.success.ns >= now.compute_infer.ns
    labels = {"model": MODEL, "version": VERSION}
    assert r.metric(HTTP, "nv_inference_count", **labels) == after.inference_count
    assert r.metric(HTTP, "nv_inference_request_success", **labels) == now.success.count
    assert r.metric(HTTP, "nv_inference_request_failure", **labels) == now.fail.count
    assert r.metric(HTTP, "nv_inference_request_duration_us", **labels) == now.success.ns // 1000
    all_models = client.get_inference_statistics(as_json=True)["model_stats"]
    assert any(model["name"] == MODEL for model in all_models), all_models
    refused("NOT_FOUND", "nobody", client.get_inference_statistics, "nobody")
    ours = {"model": MODEL, "protocol": "grpc_v2"}
    assert r.metric(HTTP, "zillion_serving_requests_total", status="200", **ours) > 0
    assert r.metric(HTTP, "zillion_serving_requests_total", status="400", **ours) > 0


def models_are_loaded_and_unloaded(tensors, wanted):
    with blocking.InferenceServerClient(CONTROLLED) as client:
        assert client.is_server_ready()

        def state():
            models = client.get_model_repository_index().models
            return {model.state for model in models if model.name == MODEL}

        for _ in range(2):
            assert state() == {"UNAVAILABLE"}, state()
            assert not client.is_model_ready(MODEL)
            refused("NOT_FOUND", "served here: none", client.infer, MODEL, inputs(tensors))
            client.load_model(MODEL)
            assert client.is_model_ready(MODEL) and state() == {"READY"}
            check(client.infer(MODEL, inputs(tensors), outputs=outputs()), wanted)
            # What is loaded stays.
            client.load_model(MODEL)
            client.unload_model(MODEL)
        refused("NOT_FOUND", f"`{MODEL}`", client.load_model, "nobody")
        refused("NOT_FOUND", "served here: none", client.unload_model, MODEL)
        refused("INVALID_ARGUMENT", "`config`", client.load_model, MODEL, config="{}")


async def asynchronous(tensors, wanted):
    async with aio.InferenceServerClient(GRPC) as client:
        assert await client.is_server_live() and await client.is_server_ready()
        assert await client.is_model_ready(MODEL, VERSION)
        assert (await client.get_server_metadata()).name == "zillion"
        assert (await client.get_model_metadata(MODEL)).name == MODEL
        assert (await client.get_model_config(MODEL)).config.name == MODEL
        assert (await client.get_model_repository_index()).models
        assert (await client.get_inference_statistics(MODEL)).model_stats
        assert not (await client.get_trace_settings()).settings
        assert not (await client.get_log_settings()).settings
        assert not (await client.get_system_shared_memory_status()).regions
        await refused_later("PERMISSION_DENIED", "serve.model_control", client.load_model(MODEL))
        await refused_later("PERMISSION_DENIED", "serve.model_control", client.unload_model(MODEL))
        at_once = [client.infer(MODEL, inputs(tensors), outputs=outputs()) for _ in range(50)]
        for result in await asyncio.gather(*at_once):
            check(result, wanted)
        await refused_later("NOT_FOUND", "unknown model", client.infer("nobody", inputs(tensors)))

        async def requests():
            yield {"model_name": MODEL, "inputs": inputs(tensors)}

        async def stream():
            async for result, error in client.stream_infer(requests()):
                assert result is None
                raise error

        try:
            await stream()
            raise AssertionError("it was not refused")
        except grpc.aio.AioRpcError as error:
            assert error.code() == grpc.StatusCode.UNIMPLEMENTED, error
            assert "call ModelInfer" in error.details(), error
    async with aio.InferenceServerClient(CONTROLLED) as client:
        await client.load_model(MODEL)
        check(await client.infer(MODEL, inputs(tensors), outputs=outputs()), wanted)
        await client.unload_model(MODEL)


def main():
    rows = r.load(ROWS)
    tensors = r.tensors(rows)
    wanted = r.scores_over_http(HTTP, MODEL, rows, OUTPUTS)
    # The address of HTTP speaks gRPC too.
    for address in (GRPC, HTTP):
        with blocking.InferenceServerClient(address) as client:
            describes(client)
            scores(client, tensors, wanted)
    with blocking.InferenceServerClient(GRPC) as client:
        what_is_not_here_says_so(client)
        bad_requests_are_refused(client, tensors)
        statistics_count(client, tensors)
        streams_are_refused(client, tensors)
    typed_contents_are_read(tensors, wanted)
    models_are_loaded_and_unloaded(tensors, wanted)
    asyncio.run(asynchronous(tensors, wanted))
    print("all right")


main()
