"""Accounts, requests and targets for the tests of signing and checking."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import unquote

from leasehold.auth.sharedkey import (
    format_http_date,
    sign,
)
from leasehold.auth.types import Account, Operation, SignedRequest, Target, parse_iso_time
from leasehold.domain.model import AccessPolicy

# The emulator's account, whose key is public.
NAME = "devstoreaccount1"
KEY_TEXT = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
KEY = b64decode(KEY_TEXT)
SECOND_KEY = bytes(range(64))
ACCOUNT = Account(name=NAME, keys=(KEY, SECOND_KEY))
ACCOUNTS = {NAME: ACCOUNT, "other": Account(name="other", keys=(b"another key",))}

NOON = "2026-11-21T12:00:00Z"
NOON_MS = parse_iso_time(NOON) or 0
HOUR_MS = 3_600_000


def no_policies(account: str, queue: str, policy_id: str) -> AccessPolicy | None:
    """Stand for a server whose queues have no stored policies."""
    return None


def query_of(text: str) -> tuple[tuple[str, str], ...]:
    """Decode a query string once, as a dialect does."""
    pairs = [part.partition("=") for part in text.split("&") if part]
    return tuple(
        (unquote(name.replace("+", " ")), unquote(value.replace("+", " ")))
        for name, _, value in pairs
    )


def request(
    method: str = "GET",
    path: str = f"/{NAME}/q1",
    query: str = "",
    headers: Mapping[str, str] | None = None,
    *,
    version: str = "2026-10-06",
    client_ip: str = "10.0.0.7",
    https: bool = True,
) -> SignedRequest:
    """Return an unsigned request."""
    return SignedRequest(
        method=method,
        path=path,
        query=query_of(query),
        headers=dict(headers or {}),
        version=version,
        client_ip=client_ip,
        https=https,
    )


def dated(**headers: str) -> dict[str, str]:
    """Return the headers every SDK sends, dated noon; underscores in names become dashes."""
    own = {name.replace("_", "-"): value for name, value in headers.items()}
    return {"x-ms-version": "2026-10-06", "x-ms-date": format_http_date(NOON_MS), **own}


def signed(
    unsigned: SignedRequest, *, key: bytes = KEY, account: str = NAME, lite: bool = False
) -> SignedRequest:
    """Return the request with an Authorization header."""
    header = sign(unsigned, account, key, lite=lite)
    return replace(unsigned, headers={**unsigned.headers, "authorization": header})


def target(
    operation: Operation = Operation.GET_QUEUE_METADATA,
    queue: str | None = "q1",
    *,
    account: str = NAME,
    secondary: bool = False,
) -> Target:
    """Return a target in the emulator's account."""
    return Target(account=account, operation=operation, queue=queue, secondary=secondary)
