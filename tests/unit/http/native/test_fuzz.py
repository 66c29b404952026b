"""Whatever is sent, the answer is one that the document has."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leasehold.http.native.dialect import ROUTES
from tests.unit.http.native.support import Native, path_of

_NAMES = st.sampled_from(
    [
        *("messages", "items", "atomic", "id", "receipt", "body", "body_base64", "json"),
        *("delay_s", "time_to_live_s", "priority", "visibility_timeout_s", "max_messages"),
        *("wait_s", "settings", "metadata", "failure_policy", "backoff", "filter", "states"),
        *("holder", "timeout_s", "token", "limit", "lease_s", "number", "upto", "exemptions"),
        *("sends", "publish", "part", "chunk", "parts", "send", "complete", "name", "queue"),
        *("progress", "error", "text", "properties", "dedup_key", "outcome", "adaptive", "x"),
    ]
)
_LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.sampled_from(["failed", "visible", "A" * 36, "00000000-0001-8a84-afc8-09158aa09ecb"]),
)
_JSON = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=4),
    max_leaves=12,
)
_QUERIES = ["limit=9", "force=true", "state=a", "after=3&limit=2", "part=1&parts=2", "chunk=0"]
_TEXT = st.text("abc-%2F0=&+é._", max_size=8)


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    route=st.sampled_from(ROUTES),
    body=st.one_of(st.dictionaries(_NAMES, _JSON, max_size=4), _JSON, st.binary(max_size=20)),
    query=st.one_of(st.just(""), _TEXT, st.sampled_from(_QUERIES)),
    item=st.one_of(st.just("x"), _TEXT.filter(lambda text: "/" not in text)),
)
def test_anything(native: Native, route: Any, body: object, query: str, item: str) -> None:
    """Nothing that a client sends is an error of the server."""
    path = path_of(route.path, item)
    assert native.send(route.method, path, body, query=query).status < 500
