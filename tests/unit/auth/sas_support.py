"""What the tests of shared access signatures share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from leasehold.auth.authenticator import Authenticator, Grant
from leasehold.auth.sas import (
    SasTerms,
    make_account_sas,
    make_service_sas,
)
from leasehold.auth.types import (
    Operation,
    SignedRequest,
)
from tests.unit.auth.support import (
    ACCOUNTS,
    KEY,
    NAME,
    NOON_MS,
    no_policies,
    query_of,
    request,
    target,
)

LATER = "2030-01-01T00:00:00Z"
TERMS = SasTerms(permission="raup", expiry=LATER)


def check(
    token: str,
    *,
    operation: Operation = Operation.PEEK_MESSAGES,
    queue: str | None = "q1",
    now_ms: int = NOON_MS,
    asked: SignedRequest | None = None,
) -> Grant:
    """Check a request that carries *token* with a new authenticator."""
    arrived = replace(asked or request(), query=query_of(token))
    authenticator = Authenticator(ACCOUNTS, no_policies)
    return authenticator.check(arrived, target(operation, queue), now_ms=now_ms)


def account_sas(**changes: str) -> str:
    """Return an account signature with some of the usual terms changed."""
    return make_account_sas(NAME, KEY, replace(TERMS, **changes))


def service_sas(**changes: str) -> str:
    """Return a service signature on q1 with some of the usual terms changed."""
    return make_service_sas(NAME, KEY, "q1", replace(TERMS, **changes))


MAKERS = pytest.mark.parametrize("make", [account_sas, service_sas])
Maker = Callable[..., str]
