"""Which messages a filter means."""

from __future__ import annotations

import base64
import json
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.domain.filters import (
    EVERYTHING,
    MessageFilter,
    check_filter,
    matches,
    needs_body,
    needs_detail,
    parse_json_path,
    parse_json_value,
)
from leasehold.domain.model import (
    Attempt,
    Detail,
    ErrorReport,
    Message,
    MessageState,
    Outcome,
    Poisoning,
)

NOW_MS = 1_000_000
ORDER = {"order": {"lines": [{"sku": "A1", "n": 1}, {"sku": "B2", "n": 2.0}], "paid": True}}
FAILED = Attempt(
    number=1,
    leased_at_ms=1,
    ended_at_ms=NOW_MS - 10_000,
    outcome=Outcome.FAILED,
    error=ErrorReport(text="Connection REFUSED by host", type="OSError", fingerprint="f00d"),
)
MESSAGE = Message(
    message_id="id",
    body=json.dumps(ORDER).encode(),
    inserted_at_ms=NOW_MS - 60_000,
    expires_at_ms=NOW_MS + 1,
    visible_at_ms=NOW_MS,
    dequeue_count=3,
    holder="worker-7",
    session="s1",
    priority=5,
    detail=Detail(
        message_type="order",
        group_id="acme",
        dedup_key="k-17",
        properties={"tenant": "Blue", "n": "4711"},
        failures=2,
        attempts=(FAILED,),
        poisoning=Poisoning(queue="orders", reason="max_failures", at_ms=3),
    ),
)


def found(body: bytes | str, **wanted: Any) -> bool:
    raw = body.encode() if isinstance(body, str) else body
    message = MESSAGE._replace(body=raw)
    return matches(message, MessageState.VISIBLE, MessageFilter(**wanted), NOW_MS)


YES_AND_NO: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {"states": frozenset({MessageState.VISIBLE, MessageState.LEASED})},
        {"states": frozenset({MessageState.LEASED})},
    ),
    ({"min_age_s": 60}, {"min_age_s": 60.001}),
    ({"max_age_s": 60}, {"max_age_s": 59.999}),
    ({"max_error_age_s": 10}, {"max_error_age_s": 9.999}),
    ({"min_dequeue_count": 3}, {"min_dequeue_count": 4}),
    ({"max_dequeue_count": 3}, {"max_dequeue_count": 2}),
    ({"holder": "worker-7"}, {"holder": "worker"}),
    ({"message_type": "order"}, {"message_type": "orde"}),
    ({"reason": "max_failures"}, {"reason": "buried"}),
    ({"error": "connection refused"}, {"error": "connection lost"}),
    ({"group_id": "acme"}, {"group_id": "acm"}),
    ({"error": "OSError"}, {"error": "OSErr"}),
    ({"error": "f00d"}, {"error": "f00"}),
    ({"session": "s1"}, {"session": "s"}),
    ({"min_priority": 5}, {"min_priority": 6}),
    ({"max_priority": 5}, {"max_priority": 4}),
    ({"min_failures": 2}, {"min_failures": 3}),
    ({"max_failures": 2}, {"max_failures": 1}),
    ({"property": "tenant=blu"}, {"property": "tenant=red"}),
    ({"property": "N=4711"}, {"property": "tenant=4711"}),
    ({"search": "SKU"}, {"search": "sku2"}),
    ({"search": "4711"}, {"search": "4712"}),
    ({"search": "K-17"}, {"search": "k-18"}),
    ({"search": "ACM"}, {"search": "acmes"}),
    ({"text": "SKU"}, {"text": "sku2"}),
    ({"json_path": "order.lines[0].sku"}, {"json_path": "order.lines[2].sku"}),
    (
        {"json_path": "order.lines[0].sku", "json_value": '"A1"'},
        {"json_path": "order.lines[0].sku", "json_value": '"B2"'},
    ),
    ({"json_value": json.dumps(ORDER)}, {"json_value": "{}"}),
]


@pytest.mark.parametrize(("yes", "no"), YES_AND_NO)
def test_each_condition_decides(yes: dict[str, Any], no: dict[str, Any]) -> None:
    """Each condition of a filter matches what it should, and not the next thing to it."""
    assert matches(MESSAGE, MessageState.VISIBLE, MessageFilter(**yes), NOW_MS)
    assert not matches(MESSAGE, MessageState.VISIBLE, MessageFilter(**no), NOW_MS)


def test_no_condition_is_left_untested() -> None:
    """Every field of a filter is among those that the test above tries."""
    assert {name for yes, _ in YES_AND_NO for name in yes} == {
        field.name for field in fields(MessageFilter)
    }


def test_all_conditions_must_hold() -> None:
    """One condition that does not hold is enough to leave a message out."""
    everything: dict[str, Any] = {}
    for yes, _ in reversed(YES_AND_NO):
        everything |= yes
    everything |= {"json_value": '"A1"'}
    assert matches(MESSAGE, MessageState.VISIBLE, MessageFilter(**everything), NOW_MS)
    for _, no in YES_AND_NO:
        wrong = MessageFilter(**(everything | no))
        assert not matches(MESSAGE, MessageState.VISIBLE, wrong, NOW_MS)


def test_a_message_without_detail_has_no_error_and_no_reason() -> None:
    """Asking for an error or a reason leaves out messages that have none."""
    plain = MESSAGE._replace(detail=Detail())
    for wanted in (MessageFilter(error="x"), MessageFilter(reason="x")):
        assert not matches(plain, MessageState.VISIBLE, wanted, NOW_MS)
    mute = Detail(
        attempts=(Attempt(number=1, leased_at_ms=1, ended_at_ms=2, outcome=Outcome.ENDED),)
    )
    assert not matches(
        plain._replace(detail=mute), MessageState.VISIBLE, MessageFilter(error="x"), NOW_MS
    )


@pytest.mark.parametrize(
    ("body", "text", "expected"),
    [
        ("Straße 5", "STRASSE", True),
        ("Zażółć gęślą", "ZAŻÓŁĆ", True),
        (b"\xff\xfe broken \xc3", "Broken", True),
        (b"", "", True),
        (b"", "x", False),
        ("plain", "płain", False),
        (base64.b64encode("Grüße aus Köln".encode()), "köln", True),
        (base64.b64encode(b"<order>7</order>") + b"\n", "<ORDER>", True),
        (base64.b64encode(b"\xff\xfe\xfd"), "x", False),
        ("abcd", "bc", True),
    ],
)
def test_text_is_found_as_people_read_it(body: bytes | str, text: str, expected: bool) -> None:
    """Case does not matter, nor bytes that are no text; base64 is searched decoded as well."""
    assert found(body, text=text) is expected


@pytest.mark.parametrize(
    ("body", "path", "value", "expected"),
    [
        ('{"a": 1}', "a", "1.0", True),
        ('{"a": true}', "a", "1", False),
        ('{"a": 1}', "a", "true", False),
        ('{"a": 0}', "a", "false", False),
        ('{"a": null}', "a", "null", True),
        ('{"a": null}', "a", None, True),
        ('{"a": 1}', "b", None, False),
        ('{"a": [1, {"b": true}]}', "a", '[1.0, {"b": true}]', True),
        ('{"a": [1, {"b": true}]}', "a", '[1, {"b": 1}]', False),
        ('{"a": [1, 2]}', "a", "[1]", False),
        ('{"a": [1, 2]}', "a", "2", False),
        ('{"a": {"b": 1}}', "a", "1", False),
        ('{"a": {"x": 1, "y": 2}}', "a", '{"y": 2, "x": 1}', True),
        ('{"a": {"x": 1}}', "a", '{"y": 1}', False),
        ('{"a": [1, 2, 3]}', "a[-1]", "3", True),
        ('{"a": [1, 2, 3]}', "a[-4]", None, False),
        ('{"a": {"0": 1}}', "a[0]", None, False),
        ('{"a": [1]}', "a.0", None, False),
        ('[{"a.b": 5}]', '$[0]["a.b"]', "5", True),
        ("7", "$", "7", True),
        ("\ufeff[1]", "[0]", "1", True),
        (base64.b64encode(b'{"a": 1}'), "a", "1", True),
        (base64.b64encode(b'{"a": 1}'), "b", None, False),
        ("no json", "a", None, False),
        (b"\xff", "a", None, False),
        ('{"a": ' + "[" * 100_000, "a", None, False),
        ("[" * 100 + "]" * 100, "$", "[" * 100 + "]" * 100, True),
        ("[" * 99 + "]" * 99, "$", "[" * 100 + "]" * 100, False),
        ("[" * 600 + "]" * 600, "$", "[" * 100 + "]" * 100, False),
        ("[" * 600 + "]" * 600, "[0][0]", None, True),
        ('{"a": ' + "9" * 5_000 + "}", "a", None, False),
    ],
)
def test_json_is_compared_as_json(
    body: bytes | str, path: str, value: str | None, expected: bool
) -> None:
    """Values are equal as in JSON, and a body that is none matches nothing."""
    assert found(body, json_path=path, json_value=value) is expected


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("order.lines[0].sku", ("order", "lines", 0, "sku")),
        ("$.order.lines[0].sku", ("order", "lines", 0, "sku")),
        ("$", ()),
        ("[1][2]", (1, 2)),
        ('a["b \\"c\\" [0]."].d', ("a", 'b "c" [0].', "d")),
        ("$ref", ("$ref",)),
        ("two words", ("two words",)),
    ],
)
def test_a_path_is_read_into_steps(text: str, steps: tuple[str | int, ...]) -> None:
    """A path is names and positions."""
    assert parse_json_path(text) == steps


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (".a", 1),
        ("a..b", 2),
        ("a.", 2),
        ("a[*]", 2),
        ("a[0]b", 5),
        ("a[", 2),
        ("a]", 2),
        ('a"b', 2),
        ("$.", 2),
        ("$.a.", 4),
    ],
)
def test_a_path_that_is_none_is_refused_with_the_place(text: str, place: int) -> None:
    """The error says where the path goes wrong and what could stand there."""
    with pytest.raises(ValueError, match=rf"cannot be read at character {place}: expected \.name"):
        parse_json_path(text)


def test_a_filter_is_checked_as_a_whole() -> None:
    """A path that is empty or misquoted, and a value that is no JSON, are refused."""
    with pytest.raises(ValueError, match="not empty"):
        check_filter(MessageFilter(json_path=""))
    with pytest.raises(ValueError, match="not a JSON string"):
        check_filter(MessageFilter(json_path='["\\x"]'))
    with pytest.raises(ValueError, match="not JSON"):
        check_filter(MessageFilter(json_value="{"))
    with pytest.raises(ValueError, match="more than 100 levels"):
        check_filter(MessageFilter(json_value="[" * 100_000))
    check_filter(EVERYTHING)
    check_filter(MessageFilter(json_path="a", json_value="1"))


def test_a_filter_says_what_it_must_see() -> None:
    """A store may leave out the body, or the detail, when the filter does not ask for them."""
    assert not needs_body(EVERYTHING)
    assert not needs_detail(EVERYTHING)
    assert not needs_body(MessageFilter(holder="x", error="x"))
    assert not needs_detail(MessageFilter(holder="x", text="x"))
    for wanted in (
        MessageFilter(text=""),
        MessageFilter(json_path="a"),
        MessageFilter(json_value="1"),
    ):
        assert needs_body(wanted)
    for wanted in (
        MessageFilter(message_type=""),
        MessageFilter(reason=""),
        MessageFilter(error=""),
    ):
        assert needs_detail(wanted)


@given(
    body=st.binary(max_size=40)
    | st.binary(max_size=30).map(base64.b64encode)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.just("a"), inner),
        max_leaves=5,
    ).map(lambda value: json.dumps(value).encode()),
    text=st.text(max_size=4),
    value=st.none() | st.sampled_from(["1", "null", '"a"', "[]", "{}", "NaN"]),
)
def test_no_body_makes_a_filter_fail(body: bytes, text: str, value: str | None) -> None:
    """Whatever the bytes, the answer is yes or no."""
    assert found(body, text=text) in {True, False}
    assert found(body, json_path="a[0]", json_value=value) in {True, False}


@pytest.mark.parametrize("brackets", [("[", "]"), ('{"a":[', "]}")])
def test_how_deep_a_value_may_be_does_not_depend_on_the_caller(brackets: tuple[str, str]) -> None:
    """One that can be read where it is checked can be read where it is used."""
    opening, closing = brackets
    levels = 100 // len(closing)
    value = opening * levels + "1" + closing * levels
    assert parse_json_value(value) is not None
    for deeper in (f"[{value}]", "[" * 900 + "]" * 900, "[" * 50_000 + "]" * 50_000):
        with pytest.raises(ValueError, match="more than 100 levels"):
            parse_json_value(deeper)
