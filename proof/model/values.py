"""Values as TLC prints them: numbers, texts, sets, sequences, records and functions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

_TOKEN: Final = re.compile(r'\s*(<<|>>|\|->|:>|@@|\[|\]|\{|\}|\(|\)|,|"[^"]*"|-?\d+|\w+)')
_HEAD: Final = re.compile(r"^(?:State \d+: <|STATE_\d+ ==)(\w+)?.*$", re.MULTILINE)
_VARIABLE: Final = re.compile(r"^(?:/\\ )?(\w+) = ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class State:
    """One state of a behaviour."""

    action: str | None
    """Name of the operator that led there, as far as TLC says; it names no arguments."""
    variables: dict[str, Any] = field(default_factory=dict)
    """By name. Sequences are lists, sets are sorted lists, records and functions dictionaries."""


def read_value(text: str) -> Any:
    """Return what a printed value is.

    Raises:
        ValueError: It is none.
    """
    tokens = _TOKEN.findall(text)
    value, rest = _value(tokens, 0)
    if rest != len(tokens):
        raise ValueError(text)
    return value


def _value(tokens: list[str], at: int) -> tuple[Any, int]:
    token = tokens[at]
    if token in {"<<", "{"}:
        values, after = _several(tokens, at + 1, ">>" if token == "<<" else "}")
        return (values if token == "<<" else sorted(values, key=repr)), after
    if token in {"[", "("}:
        signs = ("|->", ",", "]") if token == "[" else (":>", "@@", ")")
        return _pairs(tokens, at + 1, *signs)
    return _plain(token), at + 1


def _plain(token: str) -> str | bool | int:
    if token[0] == '"':
        return token[1:-1]
    if token in {"TRUE", "FALSE"}:
        return token == "TRUE"
    return int(token)


def _several(tokens: list[str], at: int, end: str) -> tuple[list[Any], int]:
    values = []
    while tokens[at] != end:
        value, at = _value(tokens, at)
        values.append(value)
        at += tokens[at] == ","
    return values, at + 1


def _pairs(
    tokens: list[str], at: int, arrow: str, between: str, end: str
) -> tuple[dict[Any, Any], int]:
    pairs: dict[Any, Any] = {}
    while tokens[at] != end:
        key, at = (tokens[at], at + 1) if arrow == "|->" else _value(tokens, at)
        if tokens[at] != arrow:
            raise ValueError(tokens[at])
        pairs[key], at = _value(tokens, at + 1)
        at += tokens[at] == between
    return pairs, at + 1


def read_states(text: str) -> Iterator[State]:
    """Yield the states of a behaviour that TLC has printed, or written to the file of a walk."""
    heads = list(_HEAD.finditer(text))
    for place, head in enumerate(heads):
        end = heads[place + 1].start() if place + 1 < len(heads) else len(text)
        body = text[head.end() : end].strip().split("\n\n")[0]
        names = list(_VARIABLE.finditer(body))
        variables = {
            name[1]: read_value(
                body[name.end() : names[n + 1].start() if n + 1 < len(names) else len(body)]
            )
            for n, name in enumerate(names)
        }
        yield State(head[1], variables)
