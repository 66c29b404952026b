"""Proof of who is calling: signatures and keys. Nothing here shows a secret in its repr."""

from __future__ import annotations

import binascii
from base64 import b64decode
from email.utils import formatdate
from typing import Final, NamedTuple, Protocol
from urllib.parse import parse_qsl

from leasehold.auth.sharedkey import sign
from leasehold.auth.types import BadSignature, Pairs, SignedRequest

PROTOCOL_VERSION: Final = "2026-10-06"
"""Which of Azure's forms of the string to sign is used."""


class Unsigned(NamedTuple):
    """The parts of a request that a signature covers."""

    method: str
    path: str
    """As it will be sent, percent-encoded."""
    query: Pairs
    """Decoded names and values, in the order sent."""
    headers: dict[str, str]
    """Names in lower case."""


class Credential(Protocol):
    """Something that makes a request acceptable to the server."""

    @property
    def query(self) -> Pairs:
        """Query parameters to add to every request."""
        ...

    def headers(self, unsigned: Unsigned, /) -> dict[str, str]:
        """Return the headers to add."""
        ...


class SharedKey:
    """Signs each request with the account key, which never leaves this process.

    Source: Azure Storage, "Authorize with Shared Key".
    """

    __slots__ = ("_account", "_key")
    query: Pairs = ()

    def __init__(self, account: str, key: str) -> None:
        self._account = account
        self._key = _decoded(key)

    def headers(self, unsigned: Unsigned, /) -> dict[str, str]:
        """See :class:`Credential`.

        Raises:
            ValueError: A value of the query holds a line break, which cannot be signed.
        """
        # The date is that of the wall clock, which the server compares with its own.
        dated = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": PROTOCOL_VERSION}
        request = SignedRequest(
            method=unsigned.method,
            path=unsigned.path,
            query=unsigned.query,
            headers=unsigned.headers | dated,
            version=PROTOCOL_VERSION,
            client_ip="",
            https=False,
        )
        try:
            dated["authorization"] = sign(request, self._account, self._key)
        except BadSignature as error:
            raise ValueError(f"This request cannot be signed. {error.detail}") from None
        return dated


class KeyAsBearer:
    """Sends the key itself. The endpoint has been checked to be private."""

    __slots__ = ("_key",)
    query: Pairs = ()

    def __init__(self, key: str) -> None:
        _decoded(key)
        self._key = key.strip()

    def headers(self, _unsigned: Unsigned, /) -> dict[str, str]:
        """See :class:`Credential`."""
        return bearer(self._key)


class SharedAccessSignature:
    """A signature that a holder of the key has made, as query parameters."""

    __slots__ = ("_query",)

    def __init__(self, text: str) -> None:
        self._query: Pairs = tuple(parse_qsl(text.strip().lstrip("?"), keep_blank_values=True))
        if "sig" not in dict(self._query):
            raise ValueError("the shared access signature has no 'sig' part")

    @property
    def query(self) -> Pairs:
        """See :class:`Credential`."""
        return self._query

    def headers(self, _unsigned: Unsigned, /) -> dict[str, str]:
        """See :class:`Credential`."""
        return {}


def bearer(token: str) -> dict[str, str]:
    """Return the headers that carry a bearer token."""
    return {"authorization": f"Bearer {token}", "x-ms-version": PROTOCOL_VERSION}


def _decoded(key: str) -> bytes:
    try:
        decoded = b64decode(key.strip(), validate=True)
    except (binascii.Error, ValueError):
        decoded = b""
    if not decoded:
        raise ValueError("the account key is not base64, or empty")
    return decoded
