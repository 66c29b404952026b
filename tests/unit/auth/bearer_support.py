"""What the tests of bearer tokens share."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from base64 import urlsafe_b64encode
from dataclasses import replace
from typing import Any

from leasehold.auth.authenticator import Authenticator, Grant
from leasehold.auth.bearer import (
    BearerConfig,
    BearerToken,
    BearerVerifier,
)
from leasehold.auth.types import (
    Operation,
    SignedRequest,
)
from tests.unit.auth.issuer import AUDIENCE, ISSUER, jwk_of, rsa_key
from tests.unit.auth.support import (
    ACCOUNTS,
    NAME,
    NOON_MS,
    no_policies,
    request,
    target,
)

CONFIG = BearerConfig(
    issuers=frozenset((ISSUER,)),
    audiences=frozenset((AUDIENCE,)),
    key_set={"keys": [jwk_of(rsa_key())]},
)


def verify(text: str, config: BearerConfig = CONFIG, *, now_ms: int = NOON_MS) -> BearerToken:
    """Check a token with a new verifier."""
    return asyncio.run(BearerVerifier(config).verify(text, account=NAME, now_ms=now_ms))


def carrying(text: str, query: str = "", **changes: Any) -> SignedRequest:
    """Return a request with a bearer token."""
    asked = request(query=query, headers={"authorization": f"Bearer {text}"})
    return replace(asked, **changes)


def check(
    arrived: SignedRequest,
    operation: Operation = Operation.PEEK_MESSAGES,
    *,
    config: BearerConfig | None = CONFIG,
    account: str = NAME,
) -> Grant:
    """Check a request with a bearer token as a dialect does."""
    bearer = None if config is None else BearerVerifier(config)
    authenticator = Authenticator(ACCOUNTS, no_policies, bearer)
    to = target(operation, account=account)
    return asyncio.run(authenticator.check_bearer(arrived, to, now_ms=NOON_MS))


def signed_by_hand(header: dict[str, Any], body: bytes, secret: bytes | None) -> str:
    parts = [json.dumps(header).encode(), body]
    text = b".".join(urlsafe_b64encode(part).rstrip(b"=") for part in parts)
    signature = b"" if secret is None else hmac.digest(secret, text, hashlib.sha256)
    return (text + b"." + urlsafe_b64encode(signature).rstrip(b"=")).decode()
