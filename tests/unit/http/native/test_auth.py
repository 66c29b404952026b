"""Who may do what: keys, inspectors, signatures."""

from __future__ import annotations

from base64 import b64decode
from typing import Any, Final

import pytest

from leasehold.auth.sas import SasTerms, make_account_sas, make_service_sas
from leasehold.auth.sharedkey import (
    format_http_date,
    sign,
)
from leasehold.auth.types import SignedRequest
from leasehold.http.native.call import read_query
from leasehold.http.native.dialect import ROUTES
from tests.unit.http.native.support import (
    ACCOUNT,
    BASE,
    INSPECTOR_KEY,
    KEY,
    MESSAGES,
    QUEUE,
    Answer,
    Native,
    path_of,
)

_VERSION: Final = "2026-10-06"
_READING: Final = {
    *("list-queues", "get-queue", "count-messages", "explain-queue", "list-jobs", "get-job"),
    "desired-workers",
    *("list-groups", "get-group"),
    *("peek", "list-messages", "get-message", "explain-message", "get-body"),
    *("trace-message", "list-events", "list-sessions", "get-session"),
    *("list-streams", "get-stream", "get-claim", "read-claim"),
    *("list-transactions", "get-transaction"),
}


def _send(native: Native, name: str, **options: Any) -> Answer:
    [route] = [route for route in ROUTES if route.name == name]
    path = path_of(route.path)
    return native.send(route.method, path, **options)


def test_account_key(native: Native) -> None:
    """The account's key may do everything; the scheme's case does not matter."""
    headers = {"authorization": f"bearer   {KEY}"}
    assert native.send("GET", QUEUE, key=None, headers=headers).status == 200


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_inspector_reads_only(native: Native, route: Any) -> None:
    """An inspector's key is let in where nothing changes, and nowhere else."""
    answer = _send(native, route.name, key=INSPECTOR_KEY)
    if not route.operations:
        return
    assert (answer.status == 403) == (route.name not in _READING)
    if answer.status == 403:
        assert answer.code == "forbidden"


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_every_route_asks_for_credentials(native: Native, route: Any) -> None:
    """Without credentials nothing of an account is told."""
    answer = _send(native, route.name, key=None)
    assert (answer.status == 401) == bool(route.operations)
    if route.operations:
        assert answer.headers["www-authenticate"] == 'Bearer realm="leasehold"'
        assert native.commands[-1].__class__.__name__ == "GetQueue"  # of the set-up


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("", QUEUE),
        ("%%%", QUEUE),
        ("é", QUEUE),
        (KEY[:-4], QUEUE),
        ("A" * 86 + "==", QUEUE),
        ("A" * 86 + "==", "/v1/accounts/nobody/queues"),
        (KEY, "/v1/accounts/other/queues"),
        (KEY, "/v1/accounts/nobody/queues"),
        (INSPECTOR_KEY, "/v1/accounts/other/queues"),
        ("a.b.c", QUEUE),
    ],
)
def test_wrong_keys(native: Native, key: str, path: str) -> None:
    """A key that is not the account's own opens nothing, nor does one for no account."""
    assert native.send("GET", path, key=key).code == "unauthenticated"


def test_unknown_accounts_cannot_be_told_apart(native: Native) -> None:
    """Somebody who tries keys does not learn which accounts there are."""
    one = native.send("GET", "/v1/accounts/nobody/queues").json
    other = native.send("GET", "/v1/accounts/other/queues").json
    assert one == other


@pytest.mark.parametrize(
    ("client_ip", "https", "taken"),
    [
        ("127.0.0.1", False, True),
        ("127.1.2.3", False, True),
        ("::1", False, True),
        ("::ffff:127.0.0.1", False, True),
        ("10.0.0.1", False, False),
        ("::ffff:10.0.0.1", False, False),
        ("", False, False),
        ("10.0.0.1", True, True),
    ],
)
def test_keys_need_a_safe_way(native: Native, client_ip: str, https: bool, taken: bool) -> None:
    """A key is taken over https or from this machine, and refused before it is looked at."""
    for key in (KEY, INSPECTOR_KEY, "wrong"):
        answer = native.send("GET", QUEUE, key=key, client_ip=client_ip, https=https)
        if not taken:
            assert answer.code == "forbidden"
            assert "https" in answer.json["detail"]
        elif key == "wrong":
            assert answer.code == "unauthenticated"
        else:
            assert answer.status == 200


def _signed(native: Native, method: str, path: str, query: str = "", **headers: str) -> Answer:
    sent = {"x-ms-date": format_http_date(native.clock.now_ms()), "x-ms-version": _VERSION}
    request = SignedRequest(
        method=method,
        path=path,
        query=read_query(query),
        headers=sent,
        version=_VERSION,
        client_ip="10.0.0.1",
        https=False,
    )
    sent["authorization"] = sign(request, ACCOUNT, b64decode(KEY))
    sent.update(headers)
    return native.send(method, path, query=query, key=None, headers=sent, client_ip="10.0.0.1")


def test_shared_key(native: Native) -> None:
    """A signed request is taken from anywhere; a changed one is not."""
    assert _signed(native, "GET", MESSAGES, "state=visible&text=a%20b+c").status == 200
    answer = _signed(native, "GET", MESSAGES, **{"x-ms-extra": "1"})
    assert answer.code == "unauthenticated"
    assert "string to sign" in answer.json["detail"]


def _sas(permissions: str, *, queue: bool = False) -> str:
    terms = SasTerms(permission=permissions, expiry="2027-01-01")
    key = b64decode(KEY)
    if queue:
        return make_service_sas(ACCOUNT, key, "orders", terms)
    return make_account_sas(ACCOUNT, key, terms)


_ITEM = {"queue": "orders", "id": "x", "receipt": "y"}
_RECEIVING = {"receive", "complete", "release", "commit"}
_CLAIMING = {
    *("attach-stream", "delete-stream", "open-claim", "extend-claim", "give-back-claim"),
    *("settle-claims", "exempt-members", "bind-claim"),
}
_HOLDING = {"hold-group", "release-group", "save-group-state"}
_SEEING_CLAIMS = {"list-streams", "get-stream", "get-claim", "read-claim"}
_IN_SESSIONS = {"open-session", "heartbeat", "end-session"}
_SEEING_SESSIONS = {"list-sessions", "get-session"}
_STAGING = {"stage", "publish", "discard", "commit"}
_SEEING_STAGED = {"list-transactions", "get-transaction"}


@pytest.mark.parametrize(
    ("permissions", "queue", "names"),
    [
        ("a", True, {"put", "put-raw"}),
        ("p", True, {*_RECEIVING, *_HOLDING, *_CLAIMING, *_SEEING_CLAIMS} - {"commit"}),
        ("u", True, {"renew"}),
        (
            "r",
            True,
            {
                *("get-queue", "count-messages", "explain-queue", "list-groups", "get-group"),
                "desired-workers",
                *("peek", "list-messages", "get-message", "explain-message", "get-body"),
                *("trace-message", *_SEEING_CLAIMS),
            },
        ),
        ("l", False, {"list-queues", "list-jobs", "get-job"}),
        ("c", False, {"create-queue"}),
        ("d", False, {"delete-queue", "purge", "remove-message", "stop-job"}),
        ("du", False, {"delete-queue", "purge", "remove-message", "stop-job", "renew"}),
        ("a", False, {"put", "put-raw", *_STAGING, *_SEEING_STAGED}),
        (
            "p",
            False,
            {
                *(*_RECEIVING, *_HOLDING, *_CLAIMING, *_SEEING_CLAIMS, *_IN_SESSIONS),
                *(*_SEEING_SESSIONS, "report-pipeline"),
            },
        ),
    ],
)
def test_signatures(native: Native, permissions: str, queue: bool, names: set[str]) -> None:
    """A signature opens the routes that its permissions stand for."""
    query = _sas(permissions, queue=queue)
    opened = set()
    for route in ROUTES:
        if route.operations and route.name != "delete-queue":
            answer = _send(native, route.name, key=None, query=query, client_ip="10.0.0.1")
            if answer.status not in {401, 403}:
                opened.add(route.name)
    answer = _send(native, "delete-queue", key=None, query=query, client_ip="10.0.0.1")
    if answer.status == 204:
        opened.add("delete-queue")
    assert opened == names


def test_a_binding_needs_the_right_to_put_as_well(native: Native) -> None:
    """For the whole account: the name of a transaction is not of the queue."""
    request = {"token": 1, "transaction": "batch-1"}
    for permissions, queue, opened in (
        ("p", False, False),
        ("ap", True, False),
        ("ap", False, True),
    ):
        query = _sas(permissions, queue=queue)
        answer = _send(native, "bind-claim", body=request, key=None, query=query)
        assert (answer.code == "stream-not-found") == opened
        assert (answer.code == "forbidden") != opened


def test_routes_without_receipts_need_several_rights(native: Native) -> None:
    """What acts without a receipt needs the right to clear, and what shows a body that to read."""
    for permissions, opened in (("du", False), ("dr", False), ("ur", False), ("dur", True)):
        query = _sas(permissions)
        answer = _send(native, "amend-message", key=None, query=query)
        assert (answer.code == "message-not-found") == opened
    for permissions, status in (("d", 403), ("a", 403), ("da", 202)):
        query = _sas(permissions)
        assert _send(native, "redrive", key=None, query=query).status == status


@pytest.mark.parametrize(
    ("permissions", "members", "status"),
    [
        ("p", {}, 404),
        ("p", {"sends": [{"queue": "orders", "body": ""}]}, 403),
        ("pa", {"sends": [{"queue": "orders", "body": ""}]}, 404),
        ("pa", {"sends": [{"queue": "other", "body": ""}]}, 401),
        ("pa", {"publish": ["x"]}, 403),
    ],
)
def test_what_settling_does_besides(
    native: Native, permissions: str, members: dict[str, Any], status: int
) -> None:
    """To send or publish with a settling needs the right to put, there or in the account."""
    body = {"token": 1, "upto": 1, **members}
    query = _sas(permissions, queue=True)
    assert _send(native, "settle-claims", body=body, key=None, query=query).status == status


@pytest.mark.parametrize(
    ("permissions", "members", "allowed"),
    [
        ("a", {"send": [{"queue": "orders", "body": ""}]}, True),
        ("p", {"send": [{"queue": "orders", "body": ""}]}, False),
        ("p", {"complete": [_ITEM]}, True),
        ("a", {"complete": [_ITEM]}, False),
        ("a", {"release": [_ITEM]}, False),
        ("p", {"renew": [{**_ITEM, "visibility_timeout_s": 1}]}, False),
        ("pu", {"renew": [{**_ITEM, "visibility_timeout_s": 1}]}, True),
        ("p", {"complete": [_ITEM], "publish": ["x"]}, False),
    ],
)
def test_each_part_of_a_commit_needs_its_right(
    native: Native, permissions: str, members: dict[str, Any], allowed: bool
) -> None:
    """A signature opens those commits all of whose parts it stands for."""
    answer = _send(native, "commit", body=members, key=None, query=_sas(permissions))
    assert (answer.status == 200) == allowed
    assert allowed or answer.code == "forbidden"


def test_signature_beside_parameters(native: Native) -> None:
    """The fields of a signature and the parameters of a call do not get in each other's way."""
    query = _sas("r", queue=True)
    assert native.send("GET", MESSAGES, query=f"limit=5&{query}", key=None).status == 200
    answer = native.send("GET", MESSAGES, query=f"{query}&limits=5", key=None)
    assert answer.json["field"] == "limits"
    other = f"{BASE}/queues/others/messages"
    assert native.send("GET", other, query=query, key=None).code == "unauthenticated"
