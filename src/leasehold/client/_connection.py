"""Where the server is and how the caller proves who they are, from arguments or a string.

The form of connection strings is that of Azure Storage, "Configure Azure Storage connection
strings". The native API lies at ``<scheme>://<host>:<port>/v1/accounts/<account>`` whether the
queue endpoint names the account in its path or in its host.
"""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from msgspec import UNSET, UnsetType

from leasehold.client._calls import (
    Credential,
    KeyAsBearer,
    SharedAccessSignature,
    SharedKey,
)
from leasehold.client.errors import InvalidConnectionString

DEFAULT_URL: Final = "http://127.0.0.1:10001"
DEVELOPMENT_ACCOUNT: Final = "devstoreaccount1"
DEVELOPMENT_KEY: Final = (  # published by Microsoft for the emulator: no secret
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
VARIABLE: Final = "AZURE_STORAGE_CONNECTION_STRING"

_DEVELOPMENT: Final = "UseDevelopmentStorage=true"
_SCHEMES: Final = frozenset({"http", "https"})
_LABEL_CHARS: Final = 63
"""Of a part of a host's name; RFC 1035 section 2.3.4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The address of a server and the account there."""

    url: str
    """Scheme, host and port, without a slash at the end."""
    account: str

    @property
    def is_https(self) -> bool:
        """Whether what is sent is encrypted."""
        return self.url.startswith("https:")

    @property
    def is_private(self) -> bool:
        """Whether a key may be sent there: encrypted, or to this very machine."""
        return self.is_https or _is_loopback(urlsplit(self.url).hostname or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionParts:
    """What a connection string says."""

    url: str
    account: str
    key: str | None = None
    sas: str | None = None


def endpoint_of(url: str, account: str) -> Endpoint:
    """Take an address apart, with or without the account at its end.

    Raises:
        ValueError: It is not one of http or https, or has parts that an address must not have. The
            text does not show the address, which may hold a secret.
    """
    if not isinstance(url, str):
        raise ValueError(f"the url is a str, not {type(url).__name__}")  # noqa: TRY004 - as all
    if not account:
        raise ValueError("the account's name is missing")
    if ";" in url and "=" in url:
        raise ValueError(
            "the url is a connection string: make the client with "
            "Client.from_connection_string(...)"
        )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError("the url is malformed") from None
    if any(char.isspace() for char in url):
        raise ValueError("the url is malformed: it holds a blank")
    if parts.scheme not in _SCHEMES or not parts.hostname:
        raise ValueError("the url must begin with http:// or https:// and name a host")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError("the url must have no user, query or fragment")
    if parts.path.strip("/") not in {"", account}:
        raise ValueError("the url's path must be empty or the account's name")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else _in_ascii(parts.hostname)
    return Endpoint(
        url=f"{parts.scheme}://{host}" + ("" if port is None else f":{port}"), account=account
    )


def _in_ascii(host: str) -> str:
    if not host.isascii():
        import idna  # noqa: PLC0415 - few names need it

        try:
            return idna.encode(host).decode()
        except idna.IDNAError:
            host = ""
    labels = host.removesuffix(".").split(".")
    if not host.isprintable() or not all(0 < len(label) <= _LABEL_CHARS for label in labels):
        raise ValueError("the url is malformed: its host cannot be one")
    return host


def credential_of(
    endpoint: Endpoint, key: str | None, sas: str | None, *, send_key: bool, token: bool
) -> Credential | None:
    """Choose how requests are authorised; None where a token provider does it.

    With nothing given, the development account has its well-known key.

    Raises:
        ValueError: Not exactly one kind of credential is given, or it is malformed, or it would
            travel unencrypted.
    """
    if key is None and sas is None and not token and endpoint.account == DEVELOPMENT_ACCOUNT:
        key = DEVELOPMENT_KEY
    if (key is not None) + (sas is not None) + token != 1:
        what = "two credentials" if key or sas or token else "no credential"
        raise ValueError(
            f"account {endpoint.account!r} has {what}: give exactly one of key, sas and "
            "token_provider"
        )
    if (send_key or token) and not endpoint.is_private:
        raise ValueError(
            "a key or token is sent as it is over https or to this machine only; "
            "use https, or let the client sign (send_key=False)"
        )
    if token:
        return None
    if sas is not None:
        return SharedAccessSignature(sas)
    assert key is not None
    return KeyAsBearer(key) if send_key else SharedKey(endpoint.account, key)


def connection_parts(text: str | UnsetType) -> ConnectionParts:
    """Read a connection string.

    Args:
        text: The string; UNSET: the environment variable AZURE_STORAGE_CONNECTION_STRING if it is
            set, else the development server on this machine.

    Raises:
        InvalidConnectionString: It is None, or a part is missing, doubled or malformed. The text
            names the part and never shows a value.
    """
    if text is UNSET:
        text = os.environ.get(VARIABLE) or _DEVELOPMENT
    if not isinstance(text, str):
        raise InvalidConnectionString(
            f"the connection string is {'None' if text is None else type(text).__name__}: give a "
            f"str, or leave the argument out for {VARIABLE} or the development account"
        )
    parts = _split(text)
    if parts.get("usedevelopmentstorage", "").lower() == "true":
        if "developmentstorageproxyuri" in parts:
            raise InvalidConnectionString(
                "DevelopmentStorageProxyUri is not supported; name the server in QueueEndpoint"
            )
        if "queueendpoint" in parts:
            # Others pass over one of the two: then two programs speak to two servers.
            raise InvalidConnectionString(
                "UseDevelopmentStorage names the server already; give AccountName, AccountKey and "
                "QueueEndpoint in its place"
            )
        return ConnectionParts(url=DEFAULT_URL, account=DEVELOPMENT_ACCOUNT, key=DEVELOPMENT_KEY)
    url = _queue_endpoint(parts)
    account = parts.get("accountname") or _account_in(url)
    try:
        endpoint = endpoint_of(url, account)
    except ValueError as error:
        raise InvalidConnectionString(f"QueueEndpoint: {error}") from None
    key, sas = parts.get("accountkey"), parts.get("sharedaccesssignature")
    if not key and not sas:
        raise InvalidConnectionString(
            "AccountKey or SharedAccessSignature is missing. Add AccountKey=KEY to it"
        )
    # With both, the signature is used, as it gives away less.
    return ConnectionParts(
        url=endpoint.url, account=account, key=None if sas else key, sas=sas or None
    )


def _split(text: str) -> dict[str, str]:
    parts: dict[str, str] = {}
    for number, part in enumerate(text.strip().split(";"), start=1):
        if not part.strip():
            continue
        name, equals, value = part.partition("=")
        if not equals:
            # It may be the rest of a secret, so it is not shown.
            raise InvalidConnectionString(
                f"part {number} of the connection string has no '='. Write NAME=VALUE;NAME=VALUE"
            )
        lower = name.strip().lower()
        if lower in parts:
            raise InvalidConnectionString(f"{name.strip()} is repeated in the connection string")
        parts[lower] = value.strip()
    if not parts:
        raise InvalidConnectionString("the connection string is empty")
    return parts


def _queue_endpoint(parts: dict[str, str]) -> str:
    given = parts.get("queueendpoint")
    if given:
        return given
    suffix, account = parts.get("endpointsuffix"), parts.get("accountname")
    if suffix and account:
        protocol = parts.get("defaultendpointsprotocol") or "https"
        return f"{protocol}://{account}.queue.{suffix}"
    raise InvalidConnectionString(
        "QueueEndpoint is missing. Add QueueEndpoint=http://HOST:PORT/ACCOUNT to it"
    )


def _account_in(url: str) -> str:
    """Return the account that an endpoint names, in its path or else in its host."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    host = parts.hostname or ""
    label, dot, _ = host.partition(".")
    if parts.path.strip("/"):
        return parts.path.strip("/")
    return label if dot and not _is_address(host) else ""


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)
