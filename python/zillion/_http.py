"""Calls of a server over HTTP, with the standard library."""

from __future__ import annotations

import json
import ssl
import typing
import urllib.error
import urllib.parse
import urllib.request

from ._errors import ServerError
from ._progress import Figures
from ._tls import Tls


class Http:
    """The calls of a client over HTTP/1.1. A call opens a connection of its own."""

    def __init__(self, url: str, token: typing.Optional[str], timeout: float, tls: Tls) -> None:
        self._url = url
        self._token = token
        self._timeout = timeout
        # A proxy of the environment is not asked for a server that is usually on this network.
        handlers: typing.List[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        if url.startswith("https://"):
            handlers.append(urllib.request.HTTPSHandler(context=make_context(tls)))
        self._opener = urllib.request.build_opener(*handlers)

    def predict(
        self,
        model: str,
        rows: typing.List[Figures],
        version: typing.Optional[int],
        pointer: typing.Optional[str],
    ) -> typing.List[typing.Any]:
        """Sends rows as JSON, and returns their predictions."""
        place = f"/v1/models/{quote(model)}"
        if version is not None:
            place += f"/versions/{version}"
        if pointer is not None:
            place += f"/labels/{quote(pointer)}"
        answer = self.call(f"{place}:predict", {"instances": rows})
        return typing.cast(typing.List[typing.Any], answer["predictions"])

    def rank(
        self,
        model: str,
        context: Figures,
        candidates: typing.List[Figures],
        top_k: typing.Optional[int],
    ) -> Figures:
        """Sends a context and candidates as JSON, and returns their scores."""
        body: Figures = {"context": context, "candidates": candidates}
        if top_k is not None:
            body["top_k"] = top_k
        return self.call(f"/v1/models/{quote(model)}:rank", body)

    def retrieve(
        self,
        model: str,
        context: Figures,
        k: int,
        only: typing.Optional[typing.List[typing.Any]],
        exclude: typing.List[typing.Any],
        exact: typing.Optional[bool],
    ) -> Figures:
        """Sends the inputs of a user as JSON, and returns the best items."""
        body: Figures = {"context": context, "k": k, "exclude": exclude}
        if only is not None:
            body["only"] = only
        if exact is not None:
            body["exact"] = exact
        return self.call(f"/v1/models/{quote(model)}:retrieve", body)

    def describe(self, model: str) -> Figures:
        """Returns the inputs and the outputs of a model."""
        return self.call(f"/v2/models/{quote(model)}")

    def versions(self, model: str) -> typing.List[Figures]:
        """Returns the open versions of a model, the newest first."""
        answer = self.call(f"/v1/models/{quote(model)}")
        return typing.cast(typing.List[Figures], answer["model_version_status"])

    def is_ready(self) -> bool:
        """Returns whether every model has a version that answers."""
        try:
            self._send("/v2/health/ready", None)
        except ServerError as error:
            if error.status == 503:
                return False
            raise
        return True

    def call(self, place: str, body: typing.Optional[Figures] = None) -> Figures:
        """Sends a request, a POST if it has a body, and returns the answer as a dictionary."""
        return typing.cast(Figures, json.loads(self._send(place, body)))

    def close(self) -> None:
        """Does nothing, because no connection is kept."""

    def _send(self, place: str, body: typing.Optional[Figures]) -> bytes:
        data = None if body is None else json.dumps(body, allow_nan=False).encode()
        request = urllib.request.Request(self._url + place, data=data)
        if data is not None:
            request.add_header("Content-Type", "application/json")
        if self._token is not None:
            request.add_header("Authorization", f"Bearer {self._token}")
        try:
            with self._opener.open(request, timeout=self._timeout) as answer:
                return typing.cast(bytes, answer.read())
        except urllib.error.HTTPError as error:
            text = error.read().decode("utf-8", "replace")
            raise ServerError(describe_error(text) or str(error), error.code) from None
        except (urllib.error.URLError, TimeoutError, OSError) as error:
            reason = getattr(error, "reason", error)
            raise ServerError(
                f"no answer from {self._url}: {reason}; is a server running there?"
            ) from None


def make_context(tls: Tls) -> ssl.SSLContext:
    """Returns the settings of TLS for connections over HTTP."""
    context = ssl.create_default_context(cafile=tls.authority)
    if tls.certificate is not None:
        context.load_cert_chain(tls.certificate, tls.key)
    return context


def quote(name: str) -> str:
    """Returns a name as a part of a path."""
    return urllib.parse.quote(name, safe="")


def describe_error(text: str) -> str:
    """Returns the message in the answer of a server."""
    try:
        answer = json.loads(text)
    except ValueError:
        return text.strip()
    error = answer.get("error", text) if isinstance(answer, dict) else text
    return error if isinstance(error, str) else json.dumps(error)
