"""The files of TLS that a client is given."""

from __future__ import annotations

import os
import pathlib
import typing

from ._data import Path
from ._errors import JobError


class Tls:
    """The paths of PEM files: an authority, and a client's own certificate and key."""

    def __init__(
        self,
        authority: typing.Optional[Path],
        certificate: typing.Optional[Path],
        key: typing.Optional[Path],
    ) -> None:
        if (certificate is None) != (key is None):
            given, absent = ("certificate", "key") if key is None else ("key", "certificate")
            raise JobError(f"`{given}` is given without `{absent}`; give both of them")
        self.authority = None if authority is None else os.fspath(authority)
        self.certificate = None if certificate is None else os.fspath(certificate)
        self.key = None if key is None else os.fspath(key)
        for name, path in (("authority", authority), ("certificate", certificate), ("key", key)):
            if path is not None and not os.path.isfile(path):
                raise JobError(f"`{name}`: there is no file {os.fspath(path)}; give a PEM file")

    @property
    def is_given(self) -> bool:
        """Whether a file is given."""
        return self.authority is not None or self.certificate is not None


def read_pem(path: typing.Optional[str]) -> typing.Optional[bytes]:
    """Returns the bytes of a file, or ``None`` without a path."""
    return None if path is None else pathlib.Path(path).read_bytes()
