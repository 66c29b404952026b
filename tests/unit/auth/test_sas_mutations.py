"""Forgery: a signature whose fields are changed anywhere is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations

import pytest

from leasehold.auth.authenticator import Authenticator
from leasehold.auth.delegation import DelegationRequest, issue_user_delegation_key
from leasehold.auth.sas import (
    FIELD_NAMES,
    SasTerms,
    make_account_sas,
    make_service_sas,
    make_user_delegation_sas,
)
from leasehold.auth.types import AuthError, Operation
from leasehold.domain.model import AccessPolicy
from tests.unit.auth.support import (
    ACCOUNT,
    ACCOUNTS,
    HOUR_MS,
    KEY,
    NAME,
    NOON,
    NOON_MS,
    query_of,
    request,
    target,
)

_TERMS = SasTerms(
    permission="raup",
    start=NOON,
    expiry="2026-11-21T18:00:00Z",
    addresses="10.0.0.1-10.0.0.9",
    protocol="https,http",
)
_KEY = issue_user_delegation_key(
    ACCOUNT,
    DelegationRequest(
        object_id="user",
        tenant_id="directory",
        version="2026-10-06",
        expires_at_ms=NOON_MS + 24 * HOUR_MS,
        delegated_tenant_id="elsewhere",
    ),
    now_ms=NOON_MS,
)
_TOKENS = {
    "account": make_account_sas(NAME, KEY, _TERMS),
    "service": make_service_sas(NAME, KEY, "q1", _TERMS),
    "policy": make_service_sas(
        NAME, KEY, "q1", replace(_TERMS, permission="", expiry=""), policy_id="pol"
    ),
    "delegation": make_user_delegation_sas(NAME, _KEY, "q1", _TERMS),
    "account of 2018": make_account_sas(NAME, KEY, replace(_TERMS, version="2018-11-09")),
    "service of 2014": make_service_sas(
        NAME, KEY, "q1", replace(_TERMS, version="2014-02-14", addresses="", protocol="")
    ),
}
# Values that would be welcome to somebody who wants more than was given.
_TEMPTING = {
    "sp": ["rwdlacup", "raupp", "p", "pura"],
    "st": ["2026-11-20", "2026-11-21T12:00:00+00:00", "2026-11-21"],
    "se": ["2099-01-01", "2026-11-21T18:00:01Z", "2026-11-21T18:00Z"],
    "sv": ["2015-04-05", "2018-11-09", "2020-12-06", "2026-10-06", "2026-10-07"],
    "sip": ["0.0.0.0-255.255.255.255", "10.0.0.7"],
    "spr": ["https", "https,http"],
    "ss": ["q", "bqtf"],
    "srt": ["s", "sco", "cos"],
    "si": ["pol", "other"],
    "ses": ["scope"],
    "skoid": ["admin"],
    "sktid": ["elsewhere"],
    "skt": ["2026-11-01T00:00:00Z"],
    "ske": ["2026-12-31T00:00:00Z"],
    "sks": ["b", "q"],
    "skv": ["2026-02-06"],
    "skdutid": ["directory"],
    "sduoid": ["user"],
    "sig": ["", "AAAA"],
}


def _find_policy(account: str, queue: str, policy_id: str) -> AccessPolicy:
    return AccessPolicy(policy_id=policy_id, permission="raup", expiry="2030-01-01")


def _mutants(token: str) -> Iterator[tuple[tuple[str, str], ...]]:
    pairs = list(query_of(token))
    sent = dict(pairs)
    for at, (name, value) in enumerate(pairs):
        before, after = pairs[:at], pairs[at + 1 :]
        yield (*before, *after)
        yield (*before, (name, value), (name, value), *after)
        yield (*before, (name, ""), *after)
        texts = [
            *(
                value[:i] + chr(ord(value[i]) ^ bit) + value[i + 1 :]
                for i in range(len(value))
                for bit in (1, 2, 4, 8, 16, 32, 64)
            ),
            *(value[:i] + value[i + 1 :] for i in range(len(value))),
            *(value[:i] + value[i] + value[i:] for i in range(len(value))),
            f"{value} ",
            f"{value}\n",
            f"{value},{value}",
        ]
        for text in texts:
            yield (*before, (name, text), *after)
    for name, values in _TEMPTING.items():
        others = [pair for pair in pairs if pair[0] != name]
        for value in values:
            if sent.get(name) != value:
                yield (*others, (name, value))
            yield (*pairs, (name, value))
            yield ((name, value), *pairs)
    for (first, one), (second, two) in permutations(pairs, 2):
        if one != two:
            yield tuple({**sent, first: two, second: one}.items())
            # Two fields' texts in one, as a line break would put them.
            yield tuple({**sent, first: f"{one}\n{two}", second: ""}.items())


def test_every_field_is_tempted() -> None:
    """No field is left out of the attack."""
    assert set(_TEMPTING) == FIELD_NAMES


@pytest.mark.parametrize("token", list(_TOKENS.values()), ids=list(_TOKENS))
def test_no_mutant_is_accepted(token: str) -> None:
    """A field altered, added, removed, repeated or exchanged makes the signature wrong."""
    authenticator = Authenticator(ACCOUNTS, _find_policy)
    to = target(Operation.PEEK_MESSAGES)
    genuine = request(query=token)
    assert authenticator.check(genuine, to, now_ms=NOON_MS)
    tried, accepted = 0, []
    for query in _mutants(token):
        tried += 1
        try:
            authenticator.check(replace(genuine, query=query), to, now_ms=NOON_MS)
        except AuthError:
            continue
        accepted.append(sorted(set(query) ^ set(genuine.query)))
    assert accepted == []
    assert tried > 800


@pytest.mark.parametrize("token", list(_TOKENS.values()), ids=list(_TOKENS))
def test_signatures_do_not_open_other_accounts(token: str) -> None:
    """Tokens of one account, tried on another one with every operation, open nothing."""
    authenticator = Authenticator(ACCOUNTS, _find_policy)
    for operation in Operation:
        for queue in ("q1", None):
            with pytest.raises(AuthError):
                authenticator.check(
                    request(query=token), target(operation, queue, account="other"), now_ms=NOON_MS
                )
