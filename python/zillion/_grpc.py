"""Calls of a server over gRPC.

The messages are made at run time from the descriptors in Zillion's library, which are those that
the server was built from. So there is no generated code, which would need the version of protobuf
that generated it. The descriptors have a pool of their own: a program may also use the messages of
other packages with the same names.
"""

from __future__ import annotations

import functools
import math
import struct
import typing

from . import _zillion
from ._columns import Column, make_columns
from ._errors import Error, JobError, ServerError
from ._frames import need_module
from ._progress import Figures
from ._tls import Tls, read_pem

Message = typing.Any

INFERENCE = "inference.GRPCInferenceService"
RETRIEVAL = "zillion.v1.RetrievalService"
STATUS = "tensorflow.serving.ModelService"

# The HTTP status of each code, as in the server's metrics.
HTTP_STATUS = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "OUT_OF_RANGE": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ABORTED": 409,
    "ALREADY_EXISTS": 409,
    "RESOURCE_EXHAUSTED": 413,
    "CANCELLED": 499,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}

# The server bounds the size of a request, and a client chooses the size of an answer by its rows.
OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # A proxy of the environment is not asked for a server that is usually on this network.
    ("grpc.enable_http_proxy", 0),
]


class Grpc:
    """The calls of a client over gRPC. Its connection is opened by the first call."""

    def __init__(self, url: str, token: typing.Optional[str], timeout: float, tls: Tls) -> None:
        grpc = need_module("grpc", "a client of gRPC", package="grpcio")
        self._messages = load_messages()
        self._url = url
        self._timeout = timeout
        self._metadata = [] if token is None else [("authorization", f"Bearer {token}")]
        self._failure = grpc.RpcError
        self._is_closed = False
        scheme, target = url.split("://", 1)
        if scheme == "grpcs":
            credentials = grpc.ssl_channel_credentials(
                root_certificates=read_pem(tls.authority),
                private_key=read_pem(tls.key),
                certificate_chain=read_pem(tls.certificate),
            )
            self._channel = grpc.secure_channel(target, credentials, options=OPTIONS)
        else:
            self._channel = grpc.insecure_channel(target, options=OPTIONS)

    def predict(
        self,
        model: str,
        rows: typing.List[Figures],
        version: typing.Optional[int],
        pointer: typing.Optional[str],
    ) -> typing.List[typing.Any]:
        """Sends rows as tensors, and returns their predictions."""
        if pointer is not None:
            version = int(self._find_versions(model, pointer)[0]["version"])
        named = "" if version is None else str(version)
        request = self._new_request(model, named, [(make_columns(rows), False)])
        answer = self._call(INFERENCE, "ModelInfer", request)
        outputs = [read_output(answer, at) for at in range(len(answer.outputs))]
        if len(outputs) == 1:
            return outputs[0]
        names = [output.name for output in answer.outputs]
        return [dict(zip(names, scores)) for scores in zip(*outputs)]

    def rank(
        self,
        model: str,
        context: Figures,
        candidates: typing.List[Figures],
        top_k: typing.Optional[int],
    ) -> Figures:
        """Sends a context and candidates as tensors, and returns their scores."""
        shared, columns = make_columns([context]), make_columns(candidates)
        request = self._new_request(model, "", [(columns, False), (shared, True)])
        answer = self._call(INFERENCE, "ModelInfer", request)
        if len(answer.outputs[0].shape) > 1:
            raise JobError(
                f"the model `{model}` has a probability for each class and no single score; use "
                "`predict`"
            )
        scores = read_output(answer, 0)
        ranked: Figures = {"model_version": answer.model_version, "scores": scores}
        if top_k is not None:
            ordered = [-math.inf if score is None else score for score in scores]
            # The sort is stable: of two equal scores, the earlier candidate comes first.
            best = sorted(range(len(scores)), key=lambda at: -ordered[at])[:top_k]
            ranked["top"] = [{"index": at, "score": scores[at]} for at in best]
        return ranked

    def retrieve(
        self,
        model: str,
        context: Figures,
        k: int,
        only: typing.Optional[typing.List[typing.Any]],
        exclude: typing.List[typing.Any],
        exact: typing.Optional[bool],
    ) -> Figures:
        """Sends the inputs of a user as tensors, and returns the best items."""
        request = self._messages.new("zillion.v1.RetrieveRequest", k=k, exact=exact)
        columns = make_columns([context])
        request.user.CopyFrom(self._new_request(model, "", [(columns, False)]))
        add_ids(request.exclude, exclude)
        if only is not None:
            # A list without ids is a list too.
            request.only.SetInParent()
            add_ids(request.only, only)
        answer = self._call(RETRIEVAL, "Retrieve", request)
        ids = [*answer.items.ints, *answer.items.uints, *answer.items.texts]
        return {
            "model_version": answer.model_version,
            "items": [{"id": id, "score": score} for id, score in zip(ids, answer.scores)],
            "unknown_ids": answer.unknown_ids,
            "exact": answer.exact,
        }

    def describe(self, model: str) -> Figures:
        """Returns the inputs and the outputs of a model."""
        request = self._messages.new("inference.ModelMetadataRequest", name=model)
        answer = self._call(INFERENCE, "ModelMetadata", request)

        def tensors(found: typing.Any) -> typing.List[Figures]:
            return [
                {"name": one.name, "datatype": one.datatype, "shape": list(one.shape)}
                for one in found
            ]

        return {
            "name": answer.name,
            "versions": list(answer.versions),
            "platform": answer.platform,
            "inputs": tensors(answer.inputs),
            "outputs": tensors(answer.outputs),
        }

    def versions(self, model: str) -> typing.List[Figures]:
        """Returns the open versions of a model, the newest first."""
        return self._find_versions(model, None)

    def is_ready(self) -> bool:
        """Returns whether every model has a version that answers."""
        request = self._messages.new("inference.ServerReadyRequest")
        return bool(self._call(INFERENCE, "ServerReady", request).ready)

    def close(self) -> None:
        """Closes the connection."""
        self._is_closed = True
        self._channel.close()

    def _find_versions(self, model: str, pointer: typing.Optional[str]) -> typing.List[Figures]:
        request = self._messages.new("tensorflow.serving.GetModelStatusRequest")
        request.model_spec.name = model
        if pointer is not None:
            request.model_spec.version_label = pointer
        found = self._call(STATUS, "GetModelStatus", request).model_version_status
        states = self._messages.states
        return [
            {
                "version": str(one.version),
                "state": states[one.state].name,
                "status": {"error_code": "OK", "error_message": one.status.error_message},
            }
            for one in found
        ]

    def _new_request(
        self,
        model: str,
        version: str,
        parts: typing.Sequence[typing.Tuple[typing.Mapping[str, Column], bool]],
    ) -> Message:
        """Returns the request for scores of columns, each with whether all rows share it."""
        request = self._messages.new(
            "inference.ModelInferRequest", model_name=model, model_version=version
        )
        for columns, is_shared in parts:
            for name, column in columns.items():
                for tensor_name, datatype, count, data in column.tensors(name):
                    tensor = request.inputs.add(name=tensor_name, datatype=datatype, shape=[count])
                    if is_shared:
                        tensor.parameters["shared"].bool_param = True
                    request.raw_input_contents.append(data)
        return request

    def _call(self, service: str, method: str, request: Message) -> Message:
        read = self._messages.answer(service, method).FromString
        send = self._channel.unary_unary(
            f"/{service}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=read,
        )
        try:
            return send(request, timeout=self._timeout, metadata=self._metadata)
        except self._failure as error:
            raise self._describe(error) from None
        except ValueError:
            # Another thread has closed the connection meanwhile.
            if self._is_closed:
                raise Error("the client is closed; make another one") from None
            raise

    def _describe(self, error: typing.Any) -> ServerError:
        """Returns the error of a call that failed, with its HTTP status if a server answered."""
        code, details = error.code().name, error.details() or ""
        # An answer has headers, a failure of this side has none.
        is_answered = bool(error.initial_metadata() or error.trailing_metadata())
        if code == "UNAVAILABLE" and not is_answered:
            return ServerError(
                f"no answer from {self._url}: {details}; is a server running there?"
            )
        if code == "DEADLINE_EXCEEDED" and not is_answered:
            return ServerError(
                f"no answer from {self._url} within {self._timeout:g} s; give the client a longer "
                "`timeout`, or fewer rows at a time"
            )
        return ServerError(details or code, HTTP_STATUS.get(code, 500))


class Messages:
    """The classes of the messages, by their full names."""

    def __init__(self) -> None:
        protobuf = "google.protobuf"
        pools = need_module(f"{protobuf}.descriptor_pool", "a client of gRPC", package="protobuf")
        files = need_module(f"{protobuf}.descriptor_pb2", "a client of gRPC", package="protobuf")
        self._factory = need_module(
            f"{protobuf}.message_factory", "a client of gRPC", package="protobuf"
        )
        self._pool = pools.DescriptorPool()
        for file in files.FileDescriptorSet.FromString(_zillion.descriptors()).file:
            self._pool.Add(file)
        status = self._pool.FindMessageTypeByName("tensorflow.serving.ModelVersionStatus")
        self.states = status.fields_by_name["state"].enum_type.values_by_number

    def new(self, kind: str, /, **values: typing.Any) -> Message:
        """Returns a new message."""
        found = self._pool.FindMessageTypeByName(kind)
        return self._factory.GetMessageClass(found)(**values)

    def answer(self, service: str, method: str) -> typing.Any:
        """Returns the class of the answers of a method."""
        found = self._pool.FindServiceByName(service).methods_by_name[method]
        return self._factory.GetMessageClass(found.output_type)


@functools.lru_cache(maxsize=None)
def load_messages() -> Messages:
    """Returns the messages, which all clients of the process share."""
    return Messages()


def add_ids(message: Message, ids: typing.Sequence[typing.Any]) -> None:
    """Adds ids of items to a message, all in the list of their type."""
    if all(isinstance(id, str) for id in ids):
        message.texts.extend(ids)
    else:
        # Ids of 64 bits without a sign are in a list of their own.
        is_large = any(id >= 1 << 63 for id in ids)
        (message.uints if is_large else message.ints).extend(ids)


def read_output(answer: Message, at: int) -> typing.List[typing.Any]:
    """Returns the scores of an output, one for each row. A score that is not finite is ``None``."""
    data, shape = answer.raw_output_contents[at], answer.outputs[at].shape
    floats = struct.unpack(f"<{len(data) // 4}f", data)
    scores = [value if math.isfinite(value) else None for value in floats]
    if len(shape) == 1:
        return scores
    each = shape[1]
    return [scores[start : start + each] for start in range(0, len(scores), each)]
