"""Every call of an unmodified tritonclient.http, synchronous and asyncio, against a server.

Arguments: ADDRESS MODEL CONTROL, where CONTROL is "yes" where the server lets clients load and unload models.
"""

import asyncio
import sys

import numpy as np
import tritonclient.http as http
import tritonclient.http.aio as aio
from tritonclient.utils import InferenceServerException

address, model, control = sys.argv[1], sys.argv[2], sys.argv[3] == "yes"
ROWS = 64
generator = np.random.default_rng(7)


def data():
    """Columns of rows of every kind, with lists of any length."""
    lengths = generator.integers(0, 4, ROWS)
    return {
        "user": np.array([f"u{i % 60}" for i in range(ROWS)], dtype=np.object_),
        "item": generator.integers(-5, 80, ROWS),
        "tags": np.array([f"t{i}" for i in generator.integers(0, 20, lengths.sum())], dtype=np.object_),
        "tags__lengths": lengths.astype(np.int64),
        "price": (generator.random(ROWS) * 10).astype(np.float32),
        "age": generator.integers(0, 80, ROWS).astype(np.float32),
    }


TYPES = {"user": "BYTES", "item": "INT64", "tags": "BYTES", "tags__lengths": "INT64", "price": "FP32", "age": "FP32"}


def inputs(columns, binary):
    tensors = []
    for name, values in columns.items():
        tensor = http.InferInput(name, list(values.shape), TYPES[name])
        tensor.set_data_from_numpy(values, binary_data=binary)
        tensors.append(tensor)
    return tensors


def outputs(binary):
    return [http.InferRequestedOutput(name, binary_data=binary) for name in ("probabilities", "logits")]


def bits(result, name="logits"):
    values = result.as_numpy(name)
    assert values.dtype == np.float32 and values.shape == (ROWS,), (values.dtype, values.shape)
    return values.tobytes()


def refused(status, text, call):
    try:
        call()
    except InferenceServerException as error:
        assert error.status() == str(status), (error.status(), error.message())
        assert text in error.message(), error.message()
    else:
        raise AssertionError(f"not refused: {text}")


def synchronous():
    client = http.InferenceServerClient(address, concurrency=4)
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready(model)
    assert not client.is_model_ready("nothing") and not client.is_model_ready(model, "999")

    server = client.get_server_metadata()
    assert server["name"] == "zillion", server
    assert sorted(server["extensions"]) == [
        "binary_tensor_data",
        "model_configuration",
        "model_repository",
        "statistics",
    ], server
    metadata = client.get_model_metadata(model)
    named = {tensor["name"]: tensor["datatype"] for tensor in metadata["inputs"]}
    assert named == TYPES, metadata
    assert [tensor["name"] for tensor in metadata["outputs"]] == ["probabilities", "logits"], metadata
    version = metadata["versions"][-1]
    assert client.is_model_ready(model, version)
    assert client.get_model_metadata(model, version) == metadata
    config = client.get_model_config(model)
    assert (config["name"], config["max_batch_size"]) == (model, 0), config
    assert {tensor["name"] for tensor in config["input"]} == set(TYPES), config
    assert all(tensor["dims"] == [-1] for tensor in config["input"] + config["output"]), config
    assert client.get_model_config(model, version) == config

    index = client.get_model_repository_index()
    entry = [entry for entry in index if entry["name"] == model and entry.get("version") == version]
    assert entry == [{"name": model, "version": version, "state": "READY", "reason": ""}], index

    # The same scores, bit for bit, however they travel.
    columns = data()
    before = client.get_inference_statistics(model, version)["model_stats"][0]
    answers = []
    for binary_in in (False, True):
        for binary_out in (False, True):
            answer = client.infer(model, inputs(columns, binary_in), outputs=outputs(binary_out), request_id="r-7")
            response = answer.get_response()
            assert (response["id"], response["model_name"], response["model_version"]) == ("r-7", model, version)
            answers.append(answer)
    # Without outputs the client asks for all of them as bytes.
    answers.append(client.infer(model, inputs(columns, True), model_version=version, outputs=None))
    assert answers[-1].as_numpy("logits") is None
    wanted = bits(answers[0]), bits(answers[0], "probabilities")
    assert len(set(np.frombuffer(wanted[0], dtype=np.uint32))) > ROWS // 2, "scores that differ"
    for answer in answers[:-1]:
        assert (bits(answer), bits(answer, "probabilities")) == wanted
    assert bits(answers[-1], "probabilities") == wanted[1]
    # Compressed, with parameters, and several at once.
    for algorithm in ("gzip", "deflate"):
        answer = client.infer(
            model,
            inputs(columns, True),
            outputs=outputs(True),
            request_compression_algorithm=algorithm,
            response_compression_algorithm=algorithm,
            parameters={"trace": "abc", "attempt": 2, "is_test": True},
            timeout=20_000_000,
        )
        assert bits(answer) == wanted[0]
    pending = [client.async_infer(model, inputs(columns, i % 2 == 0), outputs=outputs(i % 3 == 0)) for i in range(8)]
    assert all(bits(one.get_result()) == wanted[0] for one in pending)
    after = client.get_inference_statistics(model, version)["model_stats"][0]
    count = lambda stats: stats["inference_stats"]["success"]["count"]
    assert count(after) - count(before) == 15, (before, after)
    assert after["inference_count"] - before["inference_count"] == 15 * ROWS, (before, after)
    assert after["last_inference"] > 1_600_000_000_000 and after["inference_stats"]["compute_infer"]["ns"] > 0
    every = client.get_inference_statistics()["model_stats"]
    assert (model, version) in {(stats["name"], stats["version"]) for stats in every}, every

    # What is not here says so.
    item = columns["item"]
    short = inputs({**columns, "item": item[:-1]}, True)
    refused(400, "input `", lambda: client.infer(model, short))
    refused(400, "did you mean `item`?", lambda: client.infer(model, [http.InferInput("itm", [1], "INT64").set_data_from_numpy(item[:1])]))
    refused(404, "unknown model", lambda: client.infer("nothing", inputs(columns, True)))
    refused(404, "version 999", lambda: client.infer(model, inputs(columns, True), model_version="999"))
    classes = [http.InferRequestedOutput("probabilities", class_count=2)]
    refused(400, "parameter `classification`", lambda: client.infer(model, inputs(columns, True), outputs=classes))
    refused(400, "`sequence_id`", lambda: client.infer(model, inputs(columns, True), sequence_id=9))
    refused(400, "`priority`", lambda: client.infer(model, inputs(columns, True), priority=1))
    shared = http.InferInput("item", [ROWS], "INT64").set_shared_memory("region", 8 * ROWS)
    refused(400, "shared memory is not supported", lambda: client.infer(model, [shared]))
    for call in (
        client.get_trace_settings,
        client.get_log_settings,
        client.get_system_shared_memory_status,
        client.get_cuda_shared_memory_status,
        lambda: client.update_log_settings({"log_info": True}),
        lambda: client.update_trace_settings(settings={"trace_level": ["OFF"]}),
        lambda: client.register_system_shared_memory("x", "/x", 8),
        client.unregister_system_shared_memory,
        client.unregister_cuda_shared_memory,
    ):
        refused(404, "unknown path", call)
    if control:
        client.unload_model(model, unload_dependents=True)
        assert not client.is_model_ready(model)
        state = {entry["name"]: entry["state"] for entry in client.get_model_repository_index()}
        assert state == {model: "UNAVAILABLE"}, state
        refused(404, "nothing", lambda: client.load_model("nothing"))
        refused(400, "parameter `config`", lambda: client.load_model(model, config="{}"))
        client.load_model(model)
        assert client.is_model_ready(model)
        assert bits(client.infer(model, inputs(columns, True), outputs=outputs(True))) == wanted[0]
    else:
        refused(403, "serve.model_control", lambda: client.load_model(model))
        refused(403, "serve.model_control", lambda: client.unload_model(model))
    client.close()
    return columns, wanted


async def asynchronous(columns, wanted):
    async with aio.InferenceServerClient(address) as client:
        assert await client.is_server_live() and await client.is_server_ready()
        assert await client.is_model_ready(model)
        assert (await client.get_server_metadata())["name"] == "zillion"
        version = (await client.get_model_metadata(model))["versions"][-1]
        assert (await client.get_model_config(model, version))["name"] == model
        assert any(entry["name"] == model for entry in await client.get_model_repository_index())
        assert (await client.get_inference_statistics(model))["model_stats"]
        answers = await asyncio.gather(
            *(
                client.infer(
                    model,
                    inputs(columns, i % 2 == 0),
                    outputs=outputs(i % 3 == 0),
                    request_compression_algorithm="gzip" if i % 4 == 0 else None,
                )
                for i in range(12)
            )
        )
        assert all(bits(answer) == wanted[0] for answer in answers)
        if not control:
            try:
                await client.unload_model(model)
            except InferenceServerException as error:
                assert error.status() == "403", error
            else:
                raise AssertionError("not refused")


columns, wanted = synchronous()
asyncio.run(asynchronous(columns, wanted))
print(f"{ROWS} rows, bit for bit")
