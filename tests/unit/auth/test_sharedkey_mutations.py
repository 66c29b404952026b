"""Forgery: a signed request that is changed anywhere is refused."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from leasehold.auth.authenticator import Authenticator
from leasehold.auth.types import AuthError, Operation, SignedRequest
from tests.unit.auth.support import (
    ACCOUNTS,
    NAME,
    NOON_MS,
    dated,
    no_policies,
    request,
    signed,
    target,
)

_PUT = signed(
    request(
        "POST",
        f"/{NAME}/q1/messages",
        "visibilitytimeout=30&messagettl=604800",
        dated(
            content_length="94",
            content_md5="1B2M2Y8AsgTpgAmY7PhCfg==",
            content_type="application/xml",
            x_ms_client_request_id="791898e2-0fcd-456b-a110-4aaf1215a8e4",
        ),
    )
)
_CREATE = signed(
    request(
        "PUT",
        f"/{NAME}/q1",
        "timeout=30",
        dated(content_length="0", x_ms_meta="{'Foo': 'Bar'}", x_ms_meta_foo="Bar"),
    )
)
_DATED_ONLY = signed(
    request("DELETE", f"/{NAME}/q1/messages/a", "popreceipt=AAAA", {"date": dated()["x-ms-date"]})
)
_SIGNED_HEADERS = (
    *("content-encoding", "content-language", "content-length", "content-md5", "content-type"),
    *("date", "if-modified-since", "if-match", "if-none-match", "if-unmodified-since", "range"),
)


def _texts(text: str) -> Iterator[str]:
    """Yield *text* with each character flipped, doubled, dropped or changed in case."""
    for at, char in enumerate(text):
        for bit in (1, 2, 4, 8, 16, 64):
            yield text[:at] + chr(ord(char) ^ bit) + text[at + 1 :]
        yield text[:at] + char.swapcase() + text[at + 1 :]
        yield text[:at] + char + text[at:]
        yield text[:at] + text[at + 1 :]
        yield f"{text[:at]}%{ord(char):02x}{text[at + 1 :]}"
    yield text + "x"
    yield ""


def _with_header(genuine: SignedRequest, name: str, value: str | None) -> SignedRequest:
    headers = {key: text for key, text in genuine.headers.items() if key != name}
    if value is not None:
        headers[name] = value
    return replace(genuine, headers=headers)


def _with_query(genuine: SignedRequest, *pairs: tuple[str, str]) -> SignedRequest:
    return replace(genuine, query=tuple(pairs))


def _header_mutants(genuine: SignedRequest) -> Iterator[SignedRequest]:
    for name, value in genuine.headers.items():
        yield _with_header(genuine, name, None)
        yield _with_header(genuine, name, f"{value},{value}")
        for text in _texts(value):
            yield _with_header(genuine, name, text)
    for name in _SIGNED_HEADERS:
        if name not in genuine.headers and not (name == "date" and "x-ms-date" in genuine.headers):
            yield _with_header(genuine, name, "0" if name != "content-length" else "1")
    for name in ("x-ms-meta-new", "x-ms-a", "x-ms-zzz", "x-ms-"):
        yield _with_header(genuine, name, "")
        yield _with_header(genuine, name, "x")


def _query_mutants(genuine: SignedRequest) -> Iterator[SignedRequest]:
    pairs = list(genuine.query)
    yield _with_query(genuine, *pairs, ("new", "1"))
    yield _with_query(genuine, *pairs, ("", ""))
    yield _with_query(genuine, *pairs, ("comp", "acl"))
    for at, (name, value) in enumerate(pairs):
        before, after = pairs[:at], pairs[at + 1 :]
        yield _with_query(genuine, *before, *after)
        yield _with_query(genuine, *before, (name, value), (name, value), *after)
        yield _with_query(genuine, *before, (f"{name}:{value}", ""), *after)
        for text in _texts(value):
            yield _with_query(genuine, *before, (name, text), *after)
        for text in _texts(name):
            yield _with_query(genuine, *before, (text, value), *after)
    if len(pairs) > 1:
        (first, one), (second, two) = sorted(pairs)
        yield _with_query(genuine, (first, f"{one}\n{second}:{two}"))
        yield _with_query(genuine, (first, two), (second, one))


def _mutants(genuine: SignedRequest) -> Iterator[SignedRequest]:
    for text in _texts(genuine.method):
        yield replace(genuine, method=text)
    for text in _texts(genuine.path):
        yield replace(genuine, path=text)
    yield from _header_mutants(genuine)
    yield from _query_mutants(genuine)


def _meaning(asked: SignedRequest) -> object:
    """Return what a request says: names in any case, no blanks around values, no empty length."""
    headers = {name: value.strip(" \t\r\n") for name, value in asked.headers.items()}
    if headers.get("content-length") in ("", "0"):
        del headers["content-length"]
    query = sorted((name.lower(), value) for name, value in asked.query)
    return asked.method, asked.path, query, headers


def _same(mutant: SignedRequest, genuine: SignedRequest) -> bool:
    return _meaning(mutant) == _meaning(genuine)


@pytest.mark.parametrize("genuine", [_PUT, _CREATE, _DATED_ONLY], ids=["put", "create", "delete"])
def test_no_mutant_is_accepted(genuine: SignedRequest) -> None:
    """One change anywhere that means something makes the signature wrong."""
    authenticator = Authenticator(ACCOUNTS, no_policies)
    to = target(Operation.PUT_MESSAGE)
    assert authenticator.check(genuine, to, now_ms=NOON_MS)
    tried, accepted = 0, []
    for mutant in _mutants(genuine):
        if _same(mutant, genuine):
            continue
        tried += 1
        try:
            authenticator.check(mutant, to, now_ms=NOON_MS)
        except AuthError:
            continue
        accepted.append(mutant)
    assert accepted == []
    assert tried > 1_000


def test_no_pair_of_changes_is_accepted() -> None:
    """Two changes at once do not make up for each other."""
    authenticator = Authenticator(ACCOUNTS, no_policies)
    draw = random.Random(20261121)
    once = [mutant for mutant in _mutants(_PUT) if not _same(mutant, _PUT)]
    for first in draw.sample(once, 40):
        for second in draw.sample(list(_query_mutants(first)), 20):
            if _same(second, _PUT):
                continue  # the second change has taken the first one back
            with pytest.raises(AuthError):
                authenticator.check(second, target(Operation.PUT_MESSAGE), now_ms=NOON_MS)


def test_order_of_parameters_does_not_matter() -> None:
    """The order of parameters says nothing, so changing it is no forgery."""
    authenticator = Authenticator(ACCOUNTS, no_policies)
    turned = replace(_PUT, query=_PUT.query[::-1])
    assert authenticator.check(turned, target(Operation.PUT_MESSAGE), now_ms=NOON_MS)


@pytest.mark.parametrize("lite", [False, True])
def test_forms_are_not_exchangeable(lite: bool) -> None:
    """A signature of one form is not accepted under the other form's name."""
    authenticator = Authenticator(ACCOUNTS, no_policies)
    genuine = signed(request(headers=dated()), lite=lite)
    old, new = ("SharedKeyLite", "SharedKey") if lite else ("SharedKey", "SharedKeyLite")
    forged = genuine.headers["authorization"].replace(old, new, 1)
    with pytest.raises(AuthError):
        authenticator.check(
            _with_header(genuine, "authorization", forged), target(), now_ms=NOON_MS
        )
