"""Filters: from JSON or a query to the domain's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from leasehold.domain.matching import parse_json_path, parse_json_value
from leasehold.domain.oversight import EVERYTHING, MessageFilter
from leasehold.domain.types import MessageState
from leasehold.http.native.call import Call
from leasehold.http.native.problems import invalid, shown
from leasehold.http.native.reading import (
    MAX_TEXT,
    param_int,
    param_number,
    short_text,
    within,
)
from leasehold.http.native.shapes import FilterIn

MAX_AGE_S: Final = 3_153_600_000
"""A hundred years."""
MAX_COUNT: Final = 2**31 - 1

PARAMS: Final = frozenset(
    {
        *("state", "min_age_s", "max_age_s", "min_dequeue_count", "max_dequeue_count"),
        *("holder", "type", "reason", "error", "text", "json_path", "json_value"),
    }
)
"""Parameters of the query that make a filter."""

_NAMES_OF_PARAMS: Final[Mapping[str, str]] = {"states": "state", "message_type": "type"}
_AGES: Final = (0, MAX_AGE_S)
_COUNTS: Final = (0, MAX_COUNT)
_TEXTS: Final = ("holder", "message_type", "reason", "error", "text")
_STATES: Final = [state.value for state in MessageState]


def filter_of_query(call: Call) -> MessageFilter:
    """Read a filter from the query.

    Raises:
        Refused: A parameter cannot be read.
    """
    params = call.params
    if not PARAMS.intersection(params):
        return EVERYTHING
    texts = {name: params.get(_NAMES_OF_PARAMS.get(name, name)) or None for name in _TEXTS}
    states = params.get("state")
    return _checked(
        _Named(in_query=True),
        FilterIn(
            states=states.split(",") if states else None,
            min_age_s=param_number(call, "min_age_s", _AGES),
            max_age_s=param_number(call, "max_age_s", _AGES),
            min_dequeue_count=param_int(call, "min_dequeue_count", _COUNTS),
            max_dequeue_count=param_int(call, "max_dequeue_count", _COUNTS),
            json_path=params.get("json_path") or None,
            **texts,
        ),
        _json_of_query(params.get("json_value")),
    )


def filter_of_body(given: FilterIn | None) -> MessageFilter:
    """Read a filter from the member ``filter`` of a request.

    Raises:
        Refused: A member makes no sense.
    """
    if given is None:
        return EVERYTHING
    value = given.json_value
    try:
        text = None if value is None else msgspec.json.encode(value).decode()
    except RecursionError:
        raise invalid("$.filter.json_value", "`json_value` is nested too deeply.") from None
    return _checked(_Named(in_query=False), given, text)


class _Named:
    """Knows what the sender calls a member."""

    def __init__(self, *, in_query: bool) -> None:
        self._in_query = in_query

    def __call__(self, name: str) -> str:
        return _NAMES_OF_PARAMS.get(name, name) if self._in_query else f"$.filter.{name}"


def _checked(named: _Named, given: FilterIn, json_value: str | None) -> MessageFilter:
    for name, bounds in (
        ("min_age_s", _AGES),
        ("max_age_s", _AGES),
        ("min_dequeue_count", _COUNTS),
        ("max_dequeue_count", _COUNTS),
    ):
        value: Any = getattr(given, name)
        if value is not None:
            within(named(name), value, bounds)
    for name in _TEXTS:
        short_text(named(name), getattr(given, name))
    path = given.json_path
    if path is not None:
        short_text(named("json_path"), path)
        try:
            parse_json_path(path)
        except ValueError as error:
            raise invalid(named("json_path"), f"{error}.", value=path) from None
    short_text(named("json_value"), json_value, limit=64 * MAX_TEXT)
    if json_value is not None:
        try:
            parse_json_value(json_value)
        except ValueError as error:
            raise invalid(named("json_value"), f"{error}.", value=json_value) from None
    return MessageFilter(
        states=_states(named("states"), given.states),
        min_age_s=given.min_age_s,
        max_age_s=given.max_age_s,
        min_dequeue_count=given.min_dequeue_count,
        max_dequeue_count=given.max_dequeue_count,
        holder=given.holder,
        message_type=given.message_type,
        reason=given.reason,
        error=given.error,
        text=given.text,
        json_path=path,
        json_value=json_value,
    )


def _states(field: str, given: list[str] | None) -> frozenset[MessageState] | None:
    if given is None:
        return None
    for name in given or [""]:
        if name not in _STATES:
            known = ", ".join(_STATES)
            raise invalid(
                field, f"{shown(name)!r} is no state; the states are {known}.", value=name
            )
    return frozenset(MessageState(name) for name in given)


def _json_of_query(text: str | None) -> str | None:
    if not text:
        return None
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        raise invalid(
            "json_value",
            "`json_value` is not JSON.",
            value=text,
            remedy='Put a text in quotes: json_value="paid".',
        ) from None
    return text
