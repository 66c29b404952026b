"""The query: decoded once, read strictly."""

from __future__ import annotations

from urllib.parse import quote, quote_plus, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.http.azure.call import (
    parse_query,
    timeout_s,
    whole_number,
)
from leasehold.http.azure.errors import Fault
from leasehold.http.requests import percent_decode

_NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
_VALUES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@given(_VALUES)
def test_percent_decoding_undoes_quoting(text: str) -> None:
    """Whatever a client quotes comes back, once decoded."""
    assert percent_decode(quote(text, safe="")) == text


@pytest.mark.parametrize(
    "text", ["%", "%4", "%zz", "a%2", "%%41", "% 41", "%+4", "%ff", "%c3%28", "%ed%a0%80", "é"]
)
def test_broken_percent_encoding_is_refused(text: str) -> None:
    """Half an escape, no hexadecimal digits, no UTF-8 and raw non-ASCII are errors."""
    with pytest.raises(ValueError):  # noqa: PT011 - which kind does not matter
        percent_decode(text)


def test_decoding_happens_once() -> None:
    """A percent sign that was quoted twice stays quoted once."""
    assert percent_decode("%2541") == "%41"


@given(st.text(st.characters(codec="ascii"), max_size=30))
def test_decoding_agrees_with_the_library_where_it_accepts(text: str) -> None:
    """The strict decoder accepts less than the library's, and means the same."""
    try:
        decoded = percent_decode(text)
    except ValueError:
        return
    assert decoded == unquote(text, errors="strict")


@given(st.lists(st.tuples(_NAMES, _VALUES), max_size=5))
def test_query_keeps_order_and_values(pairs: list[tuple[str, str]]) -> None:
    """Names and values come back in the order sent."""
    raw = "&".join(f"{quote_plus(name)}={quote_plus(value)}" for name, value in pairs)
    assert parse_query(raw)[0] == tuple(pairs)


@pytest.mark.parametrize(
    ("raw", "pairs", "params"),
    [
        ("", (), {}),
        ("&&", (), {}),
        ("comp", (("comp", ""),), {"comp": ""}),
        ("comp=", (("comp", ""),), {"comp": ""}),
        ("=x", (("", "x"),), {"": "x"}),
        ("a=b=c", (("a", "b=c"),), {"a": "b=c"}),
        ("NumOfMessages=2", (("NumOfMessages", "2"),), {"numofmessages": "2"}),
        ("a=1+2", (("a", "1 2"),), {"a": "1 2"}),
        ("a=1%2B2", (("a", "1+2"),), {"a": "1+2"}),
        ("a=1&A=2", (("a", "1"), ("A", "2")), {"a": "1,2"}),
        ("a=/", (("a", "/"),), {"a": "/"}),
    ],
)
def test_query_forms(raw: str, pairs: object, params: object) -> None:
    """Names are looked up in lower case; a repeated one has no value of its own choosing."""
    assert parse_query(raw) == (pairs, params)


_PARTS = st.sampled_from(
    [
        "popreceipt=",
        "popreceipt=a%2Bb",
        "PopReceipt=x",
        "xpopreceipt=y",
        "popreceipt",
        "",
        "sig=%3D",
    ]
)


@given(st.lists(_PARTS, max_size=4), st.booleans())
def test_what_is_remembered_changes_nothing(parts: list[str], long: bool) -> None:
    """Receipts are left out of what is remembered, wherever and however often they stand."""
    raw = "&".join([*parts, "x=" + "y" * 2_000] if long else parts)
    pairs = [(unquote(name), unquote(value)) for name, _, value in map(_split, parts) if name]
    pairs += [("x", "y" * 2_000)] if long else []
    params: dict[str, str] = {}
    for name, value in pairs:
        key = name.lower()
        params[key] = f"{params[key]},{value}" if key in params else value
    for _ in range(2):
        found = parse_query(raw)
        assert found == (tuple(pairs), params)
        found[1]["changed"] = "by who has asked"


def _split(part: str) -> tuple[str, str, str]:
    return part.partition("=")


@pytest.mark.parametrize("raw", ["a=%", "a=%zz", "%c3=1", "a=é", "a=%ff&b=1"])
def test_broken_query_cannot_be_parsed(raw: str) -> None:
    """A query with broken encoding is refused whole."""
    with pytest.raises(Fault) as caught:
        parse_query(raw)
    assert (caught.value.code, caught.value.status) == ("RequestUrlFailedToParse", 400)


@pytest.mark.parametrize(
    "text",
    ["+5", " 5", "5 ", "1_0", "5.0", "0x5", "1e3", "-", "--5", "5-", "٣", "²", "", "\n5", "9" * 20],
)  # fmt: skip
def test_other_numbers_are_refused(text: str) -> None:
    """What the built-in conversion would also take is not a number here."""
    with pytest.raises(Fault) as caught:
        whole_number("n", text)
    assert caught.value.code == "InvalidQueryParameterValue"
    assert caught.value.details[:2] == (("QueryParameterName", "n"), ("QueryParameterValue", text))


@given(st.text(max_size=25))
def test_any_text_is_a_number_or_refused(text: str) -> None:
    """No text makes the reading fail in another way, or gives a number it does not show."""
    try:
        value = whole_number("n", text)
    except Fault:
        return
    assert text.isascii()
    assert text.lstrip("-").isdigit()
    assert value == int(text)


@pytest.mark.parametrize(
    ("params", "expected"),
    [({}, 30), ({"timeout": ""}, 30), ({"timeout": "5"}, 5), ({"timeout": "31"}, 30)],
)
def test_timeout_is_capped(params: dict[str, str], expected: int) -> None:
    """More than 30 seconds silently become 30."""
    assert timeout_s(params) == expected


@pytest.mark.parametrize("text", ["-1", "soon", "1.5"])
def test_invalid_timeout_is_refused(text: str) -> None:
    """A timeout must be a number of seconds."""
    with pytest.raises(Fault) as caught:
        timeout_s({"timeout": text})
    assert caught.value.code == "InvalidQueryParameterValue"
