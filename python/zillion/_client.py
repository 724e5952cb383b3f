"""A client of a server of Zillion, over HTTP."""

from __future__ import annotations

import collections.abc
import json
import typing
import urllib.error
import urllib.parse
import urllib.request

from ._data import as_rows, plain
from ._errors import JobError, ServerError
from ._frames import is_from
from ._progress import Figures


class Client:
    """A client of the server at ``url``. It uses the standard library only.

    ``token`` is sent as a bearer token. ``timeout`` is in seconds.
    """

    def __init__(
        self, url: str, *, token: typing.Optional[str] = None, timeout: float = 10.0
    ) -> None:
        self.url = url.rstrip("/")
        self._token = token
        self._timeout = timeout
        # A proxy of the environment is not asked for a server that is usually on this network.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def predict(
        self,
        model: str,
        rows: typing.Any,
        *,
        version: typing.Optional[int] = None,
        pointer: typing.Optional[str] = None,
    ) -> typing.List[typing.Any]:
        """Returns the predictions for rows, in their order.

        ``rows`` is an iterable of dictionaries, a dictionary of columns, a data frame, or an Arrow
        table, with the columns of the model's inputs. ``version`` or ``pointer`` choose another
        version than the one that answers by default. A model with one task gives a number for
        each row, a model with several tasks a dictionary.
        """
        if version is not None and pointer is not None:
            raise JobError("a version and a pointer are both given; give one of them")
        place = f"/v1/models/{quote(model)}"
        if version is not None:
            place += f"/versions/{version}"
        if pointer is not None:
            place += f"/labels/{quote(pointer)}"
        answer = self.call(f"{place}:predict", {"instances": make_instances(rows)})
        return typing.cast(typing.List[typing.Any], answer["predictions"])

    def rank(
        self,
        model: str,
        context: typing.Mapping[str, typing.Any],
        candidates: typing.Any,
        *,
        top_k: typing.Optional[int] = None,
    ) -> Figures:
        """Returns the scores of candidates in one context, or the best ``top_k`` of them."""
        body: Figures = {"context": plain_row(context), "candidates": make_instances(candidates)}
        if top_k is not None:
            body["top_k"] = top_k
        return self.call(f"/v1/models/{quote(model)}:rank", body)

    def describe(self, model: str) -> Figures:
        """Returns the inputs and the outputs of a model."""
        return self.call(f"/v2/models/{quote(model)}")

    def versions(self, model: str) -> typing.List[Figures]:
        """Returns the open versions of a model, the newest first."""
        answer = self.call(f"/v1/models/{quote(model)}")
        return typing.cast(typing.List[Figures], answer["model_version_status"])

    def is_ready(self) -> bool:
        """Returns whether every model of the server has a version that answers."""
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

    def _send(self, place: str, body: typing.Optional[Figures]) -> bytes:
        data = None if body is None else json.dumps(body, allow_nan=False).encode()
        request = urllib.request.Request(self.url + place, data=data)
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
                f"no answer from {self.url}: {reason}; is a server running there?"
            ) from None

    def __repr__(self) -> str:
        return f"zillion.Client({self.url!r})"


def quote(name: str) -> str:
    """Returns a name as a part of a path."""
    return urllib.parse.quote(name, safe="")


def make_instances(rows: typing.Any) -> typing.List[Figures]:
    """Returns rows as a list of dictionaries that JSON can write."""
    if is_from(rows, "polars"):
        rows = rows.to_dicts()
    elif is_from(rows, "pyarrow"):
        rows = rows.to_pylist()
    found = as_rows(rows)
    if found is None or isinstance(rows, str):
        raise JobError(
            f"rows of the class {type(rows).__name__} cannot be sent; give dictionaries, a "
            "dictionary of columns, a data frame, or an Arrow table"
        )
    return [plain_row(row) for row in found]


def plain_row(row: typing.Any) -> Figures:
    """Returns a row whose values JSON can write."""
    if not isinstance(row, collections.abc.Mapping):
        raise JobError(
            f"a row of the class {type(row).__name__} cannot be sent; give a dictionary of values "
            "by column"
        )
    return {str(name): plain(value) for name, value in row.items()}


def describe_error(text: str) -> str:
    """Returns the message in the answer of a server."""
    try:
        answer = json.loads(text)
    except ValueError:
        return text.strip()
    error = answer.get("error", text) if isinstance(answer, dict) else text
    return error if isinstance(error, str) else json.dumps(error)
