"""A client of a server of Zillion, over HTTP or gRPC."""

from __future__ import annotations

import typing

from ._data import Path, plain
from ._errors import Error, JobError
from ._grpc import Grpc
from ._http import Http
from ._instances import make_instances, plain_row
from ._progress import Figures
from ._tls import Tls

# The schemes of addresses, and whether connections have TLS.
SCHEMES = {"http": False, "https": True, "grpc": False, "grpcs": True}


class Client:
    """A client of the server at ``url``: ``http://host:port`` or ``grpc://host:port``.

    Both give the same answers. HTTP needs the standard library only. gRPC needs the packages
    ``grpcio`` and ``protobuf``, keeps its connection, and sends large requests in less time.
    ``https://`` and ``grpcs://`` are the same with TLS.

    ``token`` is sent as a bearer token. ``timeout`` is the time in seconds that a call may take.
    With TLS, ``authority`` is the PEM file of the authority that signed the server's certificate;
    without it, the usual authorities are trusted. ``certificate`` and ``key`` are the PEM files of
    the client's own certificate.
    """

    def __init__(
        self,
        url: str,
        *,
        token: typing.Optional[str] = None,
        timeout: float = 10.0,
        authority: typing.Optional[Path] = None,
        certificate: typing.Optional[Path] = None,
        key: typing.Optional[Path] = None,
    ) -> None:
        self.url = url.rstrip("/")
        scheme = self.url.split("://")[0] if "://" in self.url else ""
        if scheme not in SCHEMES:
            raise JobError(
                f"the address {url!r} begins with none of {', '.join(f'{s}://' for s in SCHEMES)}; "
                "give one such as http://127.0.0.1:8080"
            )
        tls = Tls(authority, certificate, key)
        if tls.is_given and not SCHEMES[scheme]:
            raise JobError(
                f"files of TLS are given, but {url!r} has no TLS; give an address that begins with "
                f"{scheme}s://"
            )
        kind: typing.Type[typing.Union[Http, Grpc]] = Http if scheme.startswith("http") else Grpc
        self._opened = kind(self.url, token, timeout, tls)
        self._is_closed = False

    def predict(
        self,
        model: str,
        rows: typing.Any,
        *,
        version: typing.Optional[int] = None,
        pointer: typing.Optional[str] = None,
    ) -> typing.List[typing.Any]:
        """Returns the predictions of ``model`` for ``rows``, in their order.

        ``rows`` is an iterable of dictionaries, a dictionary of columns, a data frame, or an Arrow
        table, with the columns of the model's inputs. ``version`` or ``pointer`` choose another
        version than the one that answers by default.

        A model with one task gives a number for each row: a probability, or the prediction of a
        label that is a number. A label of classes gives a list with a probability for each class.
        A model with several tasks gives a dictionary of numbers by output. Numbers have the
        precision of float32.
        """
        if version is not None and pointer is not None:
            raise JobError("a version and a pointer are both given; give one of them")
        return self._calls.predict(model, make_instances(rows), version, pointer)

    def rank(
        self,
        model: str,
        context: typing.Mapping[str, typing.Any],
        candidates: typing.Any,
        *,
        top_k: typing.Optional[int] = None,
    ) -> Figures:
        """Returns the scores of ``candidates`` in one ``context``, by the first task of ``model``.

        ``context`` is a dictionary of the values that all candidates share, and ``candidates`` are
        rows as for ``predict``. The answer has ``model_version`` and ``scores``, one for each
        candidate; with ``top_k``, also ``top``: index and score of the best ones, the best first.
        """
        most = None if top_k is None else read_count("top_k", top_k, 0)
        shared, rows = plain_row(context), make_instances(candidates)
        twice = sorted(set(shared).intersection(name for row in rows for name in row))
        if twice:
            raise JobError(
                f"`{twice[0]}` is both in the context and in the candidates; give it in one of them"
            )
        return self._calls.rank(model, shared, rows, most)

    def retrieve(
        self,
        model: str,
        context: typing.Mapping[str, typing.Any],
        *,
        k: int = 10,
        only: typing.Optional[typing.Sequence[typing.Union[int, str]]] = None,
        exclude: typing.Sequence[typing.Union[int, str]] = (),
        exact: typing.Optional[bool] = None,
    ) -> Figures:
        """Returns the ``k`` items with the highest scores for a user, by a ``model`` of two towers.

        ``context`` is a dictionary of the inputs of the user's tower. ``only`` are the ids of the
        only items that may be returned, and ``exclude`` those of items that may not. ``exact``
        chooses between the exact and the approximate search; without it, the server does.

        The answer has ``model_version``; ``items``, the best first, each with id and score;
        ``unknown_ids``, the number of given ids that the version has no item for; and ``exact``.
        """
        most = read_count("k", k, 1)
        ids = [None if given is None else plain(list(given)) for given in (only, exclude)]
        for name, given in zip(("only", "exclude"), ids):
            check_ids(name, given or [])
        return self._calls.retrieve(model, plain_row(context), most, ids[0], ids[1] or [], exact)

    def describe(self, model: str) -> Figures:
        """Returns the inputs and the outputs of ``model``: name, datatype and shape of each."""
        return self._calls.describe(model)

    def versions(self, model: str) -> typing.List[Figures]:
        """Returns the open versions of ``model``, the newest first."""
        return self._calls.versions(model)

    def is_ready(self) -> bool:
        """Returns whether every model of the server has a version that answers."""
        return self._calls.is_ready()

    def call(self, place: str, body: typing.Optional[Figures] = None) -> Figures:
        """Sends a request over HTTP, and returns the answer as a dictionary.

        ``place`` is the path, as in ``/v1/models/clicks``. With a ``body``, the request is a POST
        of its JSON.
        """
        calls = self._calls
        if not isinstance(calls, Http):
            raise JobError(
                f"`call` sends a path of HTTP, but the client speaks gRPC ({self.url}); use a "
                "client with an address that begins with http://"
            )
        return calls.call(place, body)

    def close(self) -> None:
        """Closes the connection. A client in a ``with`` block is closed at its end."""
        self._is_closed = True
        self._opened.close()

    @property
    def _calls(self) -> typing.Union[Http, Grpc]:
        if self._is_closed:
            raise Error("the client is closed; make another one")
        return self._opened

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"zillion.Client({self.url!r})"


def read_count(name: str, count: typing.Any, least: int) -> int:
    """Returns the number of results that a call asks for."""
    number = None if isinstance(count, bool) or not hasattr(count, "__index__") else int(count)
    if number is None or number < least:
        raise JobError(f"`{name}` is {count!r}; give an integer of at least {least}")
    if number >= 1 << 32:
        raise JobError(f"`{name}` is {number}, more than there can be items; give a smaller number")
    return number


def check_ids(name: str, ids: typing.Sequence[typing.Any]) -> None:
    """Raises an error if ids of items cannot be those of one catalogue."""
    if all(isinstance(id, str) for id in ids):
        return
    if not all(type(id) is int for id in ids):
        raise JobError(
            f"the ids in `{name}` are not all integers or all texts; give ids of one type"
        )
    if min(ids) < -(1 << 63) or max(ids) >= 1 << 64:
        raise JobError(f"the ids in `{name}` are not all integers of 64 bits; correct them")
    if min(ids) < 0 and max(ids) >= 1 << 63:
        raise JobError(
            f"the ids in `{name}` are negative and above the largest integer with a sign; give ids "
            "of one catalogue"
        )
