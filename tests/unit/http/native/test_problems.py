"""The table of errors, and the texts of the codes."""

from __future__ import annotations

import inspect
import json
from base64 import b64decode

import pytest

from leasehold.auth import types as auth
from leasehold.auth.sas import SasTerms, make_account_sas, make_service_sas
from leasehold.domain import errors
from leasehold.http.native.errors import CODES, TABLE, document, problem_of
from tests.unit.http.native.checking import errors_of
from tests.unit.http.native.support import ACCOUNT, BASE, KEY, MESSAGES, QUEUE, Native

_ERRORS: list[type[Exception]] = [
    kind
    for module, root in ((errors, errors.LeaseholdError), (auth, auth.AuthError))
    for _, kind in inspect.getmembers(module, inspect.isclass)
    if issubclass(kind, root)
]
_EXAMPLES: dict[type[Exception], Exception] = {
    errors.InvalidQueueName: errors.InvalidQueueName("a_b", "characters"),
    errors.AccountMoved: errors.AccountMoved("shop"),
    errors.LeaseLost: errors.LeaseLost("lapsed"),
    errors.ReceiptMalformed: errors.ReceiptMalformed("x" * 300),
    errors.OutOfRange: errors.OutOfRange(field="limit", value=9, minimum=1, maximum=8),
    errors.VisibilityPastExpiry: errors.VisibilityPastExpiry("renew", 60),
    errors.BodyTooLarge: errors.BodyTooLarge(size_bytes=70_000, limit_bytes=65_536),
    errors.MessageLeased: errors.MessageLeased(None, 1),
    errors.SessionOver: errors.SessionOver("lost", "no heartbeat for 16 s"),
    errors.StaleToken: errors.StaleToken(4),
    errors.ClaimOutOfTurn: errors.ClaimOutOfTurn(7),
    errors.ClaimSettled: errors.ClaimSettled(6),
    errors.ClaimLapsed: errors.ClaimLapsed(1_767_225_600_000),
    errors.ClaimBroken: errors.ClaimBroken(10, 1),
    errors.MemberNotFound: errors.MemberNotFound("x" * 300),
    errors.StagedNotFound: errors.StagedNotFound("name", "part"),
    errors.ChunkOutOfTurn: errors.ChunkOutOfTurn(2),
    errors.BodyUnreadable: errors.BodyUnreadable("x", "missing"),
}


def _example(kind: type[Exception]) -> Exception:
    return _EXAMPLES.get(kind) or kind()


@pytest.mark.parametrize("kind", _ERRORS)
def test_every_error_has_a_problem(kind: type[Exception]) -> None:
    """Each error of the domain and of authentication has an entry of its own."""
    assert kind in TABLE
    error = _example(kind)
    assert isinstance(error, errors.LeaseholdError | auth.AuthError)
    found = problem_of(error)
    assert found.status == CODES[found.code].status
    shown = json.loads(json.dumps(document(found)))
    assert errors_of({"$ref": "#/components/schemas/Problem"}, shown) == []
    assert found.remedy
    assert found.detail[-1] in ".'"


def test_table_has_no_strangers() -> None:
    """The table names nothing that is no error of ours."""
    assert set(TABLE) == set(_ERRORS)


def test_subclass_is_treated_as_its_parent() -> None:
    """An error that the table does not know yet is answered as the one it is a kind of."""

    class _Unheard(errors.Unavailable):
        pass

    assert problem_of(_Unheard()).code == "store-unavailable"


@pytest.mark.parametrize("code", CODES)
def test_codes(code: str) -> None:
    """Every code has words for people, which are sentences."""
    entry = CODES[code]
    assert 400 <= entry.status <= 599
    assert not entry.title.endswith(".")
    assert entry.meaning.endswith(".")
    assert entry.remedy.endswith(".")
    assert "{account}" not in entry.remedy + entry.meaning


@pytest.mark.parametrize(
    ("error", "facts"),
    [
        (errors.InvalidQueueName("x" * 64, "length"), {"value": "x" * 64, "reason": "length"}),
        (errors.LeaseLost("foreign"), {"reason": "foreign"}),
        (errors.ReceiptMalformed("x"), {"value": "x"}),
        (
            errors.OutOfRange(field="limit", value=9, minimum=1, maximum=8),
            {"field": "limit", "value": 9, "minimum": 1, "maximum": 8},
        ),
        (errors.VisibilityPastExpiry("put", 60), {"value": 60}),
        (errors.BodyTooLarge(size_bytes=9, limit_bytes=8), {"value": 9, "limit": 8}),
        (errors.MessageLeased("me", 5), {"holder": "me", "until_ms": 5}),
        (errors.StoreFull(), {"retry_after_s": 1}),
        (errors.SessionOver("ended", None), {"state": "ended"}),
        (errors.StaleToken(4), {"token": 4}),
        (errors.ClaimOutOfTurn(7), {"expected": 7}),
        (errors.ClaimSettled(6), {"last_settled": 6}),
        (errors.ClaimSettled(6, "tx"), {"last_settled": 6, "settled_with": "tx"}),
        (errors.ClaimLapsed(5), {"until_ms": 5}),
        (errors.ClaimBroken(10, 1), {"size": 10, "lost": 1}),
        (errors.MemberNotFound("m"), {"value": "m"}),
        (errors.StagedNotFound("name"), {"value": "name"}),
        (errors.StagedNotFound("name", "part"), {"value": "part"}),
        (errors.ChunkOutOfTurn(2), {"expected": 2}),
    ],
)
def test_facts(error: errors.LeaseholdError, facts: dict[str, object]) -> None:
    """What an error knows is told to programs."""
    shown = document(problem_of(error))
    assert {name: shown.get(name) for name in facts} == facts


def test_missing_queue(native: Native) -> None:
    """The queue, the account and queues with similar names are named, and how to make it."""
    for name in ("mails", "Orders2", "o"):
        native.send("PUT", f"{BASE}/queues/{name}")
    missing = native.send("POST", f"{BASE}/queues/ordres/messages/receive", {})
    assert (missing.status, missing.code) == (404, "queue-not-found")
    assert missing.json["value"] == "ordres"
    assert missing.json["detail"] == (
        f"There is no queue `ordres` in account `{ACCOUNT}`. Near: `orders`, `Orders2`."
    )
    assert missing.json["remedy"] == f"Create it: PUT {BASE}/queues/ordres."
    unlike = native.send("GET", f"{BASE}/queues/zebra").json["detail"]
    assert unlike == f"There is no queue `zebra` in account `{ACCOUNT}`."


@pytest.mark.parametrize(
    ("permission", "of_queue", "is_told"),
    [("p", True, False), ("p", False, False), ("pl", False, True)],
)
def test_near_names_need_the_right_to_list(
    native: Native, permission: str, of_queue: bool, is_told: bool
) -> None:
    """A signature for one queue, or for receiving alone, learns no other names."""
    terms = SasTerms(permission=permission, expiry="2027-01-01")
    key = b64decode(KEY)
    query = (
        make_service_sas(ACCOUNT, key, "ordres", terms)
        if of_queue
        else make_account_sas(ACCOUNT, key, terms)
    )
    path = f"{BASE}/queues/ordres/messages/receive"
    answer = native.send("POST", path, {}, key=None, query=query)
    assert answer.code == "queue-not-found"
    assert ("orders" in answer.json["detail"]) == is_told


def test_long_values_are_cut() -> None:
    """A refusal does not send back everything that was sent."""
    assert len(problem_of(errors.ReceiptMalformed("x" * 5_000)).value) == 101


@pytest.mark.parametrize("digits", [20, 309, 4_000])
def test_absurd_numbers_are_shown_as_text(native: Native, digits: int) -> None:
    """A number that hardly any reader of JSON can hold is cut, and no error of the server's."""
    body = f'{{"messages":[{{"body":"a","delay_s":{"9" * digits}}}]}}'.encode()
    [result] = native.post(MESSAGES, body)["results"]
    assert result["error"]["code"] == "out-of-range"
    assert result["error"]["value"].startswith("9" * 20)
    assert len(result["error"]["value"]) <= 101


@pytest.mark.parametrize(
    ("method", "path", "body", "query"),
    [
        ("POST", MESSAGES, {"x" * 9_000: 1}, ""),
        ("POST", MESSAGES, {"messages": [{"body": "a", "x" * 9_000: 1}]}, ""),
        ("PATCH", QUEUE, {"settings": {"x" * 9_000: 1}}, ""),
        ("PATCH", QUEUE, {"settings": {"lapsed_receipts": "x" * 9_000}}, ""),
        ("POST", f"{QUEUE}/purge", {"filter": {"states": ["x" * 9_000]}}, ""),
        ("GET", MESSAGES, None, "x" * 9_000),
        ("GET", MESSAGES, None, "state=" + "x" * 9_000),
    ],
)
def test_a_problem_does_not_give_back_all_that_was_sent(
    native: Native, method: str, path: str, body: object, query: str
) -> None:
    """Long names and values are cut wherever they are shown."""
    answer = native.send(method, path, body, query=query)
    assert answer.code == "invalid-request"
    assert len(str(answer.json)) < 1_500
    assert "xxx" in answer.json["detail"]
