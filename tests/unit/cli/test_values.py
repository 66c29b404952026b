"""Values of options."""

from __future__ import annotations

import click
import pytest

from leasehold.cli.values import FRACTIONAL, LENGTH, TIME_TO_LIVE, Bounds, JsonValue, Length, Pair


@pytest.mark.parametrize(
    ("text", "length_s"),
    [
        ("30", 30),
        ("0", 0),
        ("90s", 90),
        ("5m", 300),
        ("5 min", 300),
        ("2h", 7200),
        ("1.5h", 5400),
        ("7D", 604800),
        ("2w", 1209600),
    ],
)
def test_length(text: str, length_s: int) -> None:
    """Seconds, or a number with its unit."""
    assert LENGTH.convert(text, None, None) == length_s


@pytest.mark.parametrize("text", ["", "soon", "-5", "5 x", "1e3", "0.5", "5m30s", "inf"])
def test_no_length(text: str) -> None:
    """The message says how to write one."""
    with pytest.raises(click.BadParameter):
        LENGTH.convert(text, None, None)


def test_fractions_where_the_server_takes_them() -> None:
    """Waiting times may be shorter than a second."""
    assert FRACTIONAL.convert("0.25", None, None) == 0.25


def test_special_lengths() -> None:
    """A word can stand for a number, which is then understood too."""
    assert TIME_TO_LIVE.convert("never", None, None) == -1
    assert TIME_TO_LIVE.convert("-1", None, None) == -1
    with pytest.raises(click.BadParameter, match="'never'"):
        TIME_TO_LIVE.convert("always", None, None)
    with pytest.raises(click.BadParameter):
        Length().convert("-1", None, None)


def test_pairs_bounds_and_json() -> None:
    """Names with values, two lengths, and JSON or else a text."""
    assert Pair().convert("a=b=c", None, None) == ("a", "b=c")
    assert Bounds().convert("5s:1h", None, None) == (5, 3_600)
    values = [JsonValue().convert(text, None, None) for text in ("4", '"4"', "null", "Paris")]
    assert values == [(4,), ("4",), (None,), ("Paris",)]
    for kind, text in ((Pair(), "a"), (Pair(), "=b"), (Bounds(), "5"), (Bounds(), "a:b")):
        with pytest.raises(click.BadParameter):
            kind.convert(text, None, None)
