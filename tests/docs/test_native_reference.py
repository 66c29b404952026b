"""The pages of the native API, of queue settings and of the client name everything, and no more."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from typing import Any, Final

import msgspec
import pytest

from leasehold.client import AsyncClient, AsyncQueueHandle, Client, QueueHandle, models
from leasehold.client import errors as client_errors
from leasehold.client.retries import RetryPolicy
from leasehold.domain import explain, limits
from leasehold.domain.claims import ClaimState
from leasehold.domain.filters import MessageFilter
from leasehold.domain.limits import (
    DEFAULT_SESSION_TIMEOUT_S,
    DEFAULT_STAGING_TIMEOUT_S,
    MAX_CLAIM,
    PROGRESS_TIMEOUTS_S,
    SESSION_TIMEOUTS_S,
    STAGING_TIMEOUTS_S,
)
from leasehold.domain.model import NEVER_MS, MessageState, Outcome
from leasehold.domain.queue_settings import (
    MAX_BUDGET,
    Adapted,
    Adaptive,
    Advised,
    Backoff,
    FailurePolicy,
    LapsedReceipts,
    MnsAttributes,
    QueueSettings,
    TypeTimeout,
)
from leasehold.domain.sessions import SessionState
from leasehold.domain.transactions import TransactionState
from leasehold.engine.stats import QueueActivity
from leasehold.events.names import PHASE_NAMES, TYPE_NAMES
from leasehold.http.admission import MAX_WAITERS
from leasehold.http.azure import messages as extras
from leasehold.http.native import (
    account,
    admin,
    arrow,
    items,
    messages,
    queues,
    streams,
)
from leasehold.http.native import queues as settings_json
from leasehold.http.native.dialect import MAX_REQUEST_BODY_BYTES, ROUTES, openapi_json
from leasehold.http.native.errors import CODES
from leasehold.stores.sql import scanning
from leasehold.stores.sql.admin import NOT_YET_RETIRED
from leasehold.wire import admin as wire_admin
from leasehold.wire import flows, parts
from leasehold.wire import messages as shapes
from leasehold.wire import queues as settings_shapes
from leasehold.wire.parts import Problem
from tests.docs.pages import code, read, rows, section

API: Final = read("reference/native-api.md")
CLIENT: Final = read("reference/python-client.md")
CONFORMANCE: Final = read("reference/azure-conformance.md")
PROBLEMS: Final = read("reference/native-problems.md")
SETTINGS: Final = read("reference/queue-settings.md")

_PLACES: Final = {
    "ACCOUNT": "account",
    "ID": "id",
    "JOB": "job_id",
    "CODE": "code",
    "SESSION": "session_id",
    "STREAM": "stream",
    "GROUP": "group",
    "NUMBER": "number",
    "NAME": "name",
}
"""What the pages write for the variable parts of a path."""


def table(text: str, heading: str) -> dict[str, list[str]]:
    """Return the rows under a heading by what stands between backticks in their first cells."""
    return {
        name: row
        for row in rows(section(text, heading))
        for name in code(row[0].replace("`, `", "` `"))
    }


def number(value: float) -> str:
    """Return a number as the pages write it."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.15g}"


# --- the API ---------------------------------------------------------------------------------


def full_path(short: str) -> str:
    """Return the path that a cell of the table of routes stands for."""
    parts = re.sub("^C", "S/claims/NUMBER", short)
    parts = re.sub("^S", "Q/streams/STREAM", parts)
    parts = re.sub("^T", "A/transactions/NAME", parts)
    parts = re.sub("^Q", "A/queues/{queue}", parts)
    parts = re.sub("^A/", "/v1/accounts/ACCOUNT/", parts)
    return "/".join(
        f"{{{_PLACES[part]}}}" if part in _PLACES else part for part in parts.split("/")
    )


def routes() -> dict[str, list[str]]:
    """Return the rows of the tables of routes by name."""
    return {
        code(row[0])[0]: row
        for row in rows(section(API, "## Routes"))
        if len(row) == 4 and re.match("[A-Z]+ `", row[1])
    }


def test_every_route() -> None:
    """Name, method, path, rights needed and parameters of each route stand in one row."""
    listed = routes()
    assert set(listed) == {route.name for route in ROUTES}
    for route in ROUTES:
        _, request, needs, answer = listed[route.name]
        method, path = request.split(" ", 1)
        assert (method, full_path(code(path)[0])) == (route.method, route.path), route.name
        either = () if route.instead is None else (route.instead,)
        assert code(needs) == [*map(str, route.operations), *map(str, either)], route.name
        assert (" or " in needs) == bool(either), route.name
        known = set(code(answer)) | {name.partition("=")[0] for name in code(answer)}
        known |= {name for row in rows(section(API, "## Filters")) for name in code(row[0])}
        known |= {name for row in rows(section(API, "## Filters")) for name in code(row[1])}
        assert route.params <= known, route.name


def members(schema: Any) -> Iterator[str]:
    """Yield the names of all members in a part of the OpenAPI document."""
    if isinstance(schema, dict):
        found = schema.get("properties")
        # One schema has a member that is called so itself.
        if isinstance(found, dict) and all(isinstance(each, dict) for each in found.values()):
            yield from found
        for key, value in schema.items():
            if key not in {"example", "examples", "enum"}:
                yield from members(value)
    elif isinstance(schema, list):
        for each in schema:
            yield from members(each)


def test_every_member() -> None:
    """What the OpenAPI document has for requests and answers is named on one of the pages."""
    named = {word for page in (API, PROBLEMS, SETTINGS) for word in code(page)}
    assert set(members(json.loads(openapi_json()))) - named == set()
    assert set(QueueActivity._fields) <= named


def test_every_outcome_and_state() -> None:
    """The words for how attempts end, and for what messages are, are on the page."""
    assert set(Outcome) <= set(code(API))
    assert set(MessageState) <= set(code(API))


def test_every_explanation() -> None:
    """Each code that an explanation can have is in the table, and no other."""
    source = inspect.getsource(explain)
    found = set(re.findall(r'"([a-z]+(?:-[a-z]+)+)"', source))
    found |= {name for name in ("paused", "empty", "lapsed", "claimed") if f'"{name}"' in source}
    listed = set(table(API, "## Explanations"))
    assert found | set(MessageState) == listed


@pytest.mark.parametrize(
    "value",
    [
        limits.NATIVE.body_bytes,
        limits.NATIVE.delay_s[1],
        limits.NATIVE.lease_s[1],
        limits.NATIVE.time_to_live_s[1],
        limits.NATIVE.receive_count[1],
        limits.MAX_ITEMS,
        shapes.MAX_PEEK,
        limits.MAX_WAIT_S,
        messages.MAX_ERROR_CHARS,
        limits.PRIORITIES[1],
        streams.DEFAULT_MEMBERS,
        streams.MAX_MEMBERS,
        streams.MAX_JSON_MEMBERS,
        streams.MAX_PARTS,
        account.DEFAULT_EVENTS,
        account.MAX_EVENTS,
        limits.MAX_PROGRESS,
        limits.MAX_PUBLISHED_PARTS,
        parts.NUMBERS[1],
        parts.MAX_NAME,
        flows.MAX_PUBLISHED,
        arrow.MAX_PROPERTIES,
        arrow.MAX_BATCHES,
        MAX_CLAIM,
        *SESSION_TIMEOUTS_S,
        *PROGRESS_TIMEOUTS_S,
        DEFAULT_SESSION_TIMEOUT_S,
        DEFAULT_STAGING_TIMEOUT_S,
        *STAGING_TIMEOUTS_S,
        queues.MAX_PAGE,
        queues.DEFAULT_PAGE,
        settings_shapes.MAX_PAUSE_S,
        parts.MAX_TEXT,
        shapes.MAX_PROPERTIES_BYTES,
        settings_json.MAX_METADATA_BYTES,
        wire_admin.MAX_CANARY,
        *wire_admin.RATES_PER_S,
    ],
)
def test_limits(value: float) -> None:
    """The numbers of the table are those of the code."""
    text = section(API, "## Limits")
    assert re.search(rf"(?<![\d,.]){re.escape(number(value))}(?!\d|,\d)", text), value


def test_figures_in_prose() -> None:
    """Numbers that explain something are those of the code."""
    assert MAX_REQUEST_BODY_BYTES == 64 * 1024 * 1024
    assert messages.ANSWER_BYTES == limits.LOOK_BYTES == 4 * 1024 * 1024
    assert streams.ARROW_BYTES == 8 * 1024 * 1024
    for size in ("64 MiB where", "4 MiB of bodies", "8 MiB in Arrow"):
        assert size in section(API, "## Limits")
    assert account.MAX_HEARTBEAT_BYTES == 4 * 1024 * 1024
    assert "4 MiB" in section(API, "## Limits")
    assert number(items.PART) in section(API, "## Batches")
    assert number(NOT_YET_RETIRED) in section(API, "## Counts")
    pages = read("explanation/counts-and-pages.md")
    assert number(NOT_YET_RETIRED) in pages
    assert number(scanning.SORTED_UP_TO) in pages
    assert number(MAX_WAITERS) in read("explanation/waiting.md")


def test_every_column_of_arrow() -> None:
    """The columns of members are listed with their types; those that are taken are named."""
    listed = {name: row[1] for name, row in table(API, "## Arrow").items()}
    assert listed == {field.name: str(field.type).replace("tz=", "") for field in arrow.MEMBERS}
    assert set(arrow._COLUMNS) <= set(code(section(API, "## Arrow")))


def test_every_type_of_event() -> None:
    """The words for what happens, for phases and for states of claims are on the page."""
    assert {*TYPE_NAMES.values(), *PHASE_NAMES.values()} <= set(code(API))
    assert {*ClaimState} - {ClaimState.SETTLED} <= set(code(API))
    assert {*SessionState, *TransactionState} <= set(code(API))


def test_every_condition_of_a_filter() -> None:
    """Both forms of each condition are in the table."""
    names = {each.name for each in fields(MessageFilter)}
    both = {name for row in rows(section(API, "## Filters")) for name in code(row[0])}
    assert names == both
    queried = {
        name
        for row in rows(section(API, "## Filters"))
        for name in (code(row[0]) if row[1] == "the same" else code(row[1]))
    }
    assert queried == admin.PARAMS


# --- problems --------------------------------------------------------------------------------


def test_every_problem_code() -> None:
    """Each code has its row with its status, and the table has no other codes."""
    listed = {
        code(row[0])[0]: int(row[1])
        for row in rows(section(PROBLEMS, "## Codes")[1:])
        if code(row[0])
    }
    assert listed == {name: known.status for name, known in CODES.items()}


def test_every_member_of_a_problem() -> None:
    """What a problem can say is explained."""
    names = {each.encode_name for each in msgspec.structs.fields(Problem)} | {"type", "title"}
    listed = {name for row in rows(PROBLEMS.partition("## Codes")[0]) for name in code(row[0])}
    assert listed == names


# --- settings of queues ----------------------------------------------------------------------

PARTS: Final = {
    "## Members": QueueSettings,
    "## failure_policy": FailurePolicy,
    "## backoff": Backoff,
    "## adaptive": Adaptive,
    "## adapted": Adapted,
    "## advised": Advised,
    "## mns": MnsAttributes,
    "## timeouts_by_type": TypeTimeout,
}


@pytest.mark.parametrize("heading", PARTS)
def test_every_queue_setting(heading: str) -> None:
    """Each member is there with its range and its default."""
    part = PARTS[heading]
    listed = {code(row[0])[0]: row for row in rows(section(SETTINGS, heading)) if code(row[0])}
    assert list(listed) == [each.name for each in fields(part)]
    ranges = settings_json.RANGES.get(part, {})
    for each in fields(part):
        row = listed[each.name]
        for bound in ranges.get(each.name, ()):
            if ranges[each.name] != (1, MAX_BUDGET) and bound not in {0, NEVER_MS}:
                assert number(bound) in row[1], each.name
        if part is not Adapted:
            default = each.default
            if default is MISSING:
                assert each.default_factory is dict
                default = {}
            shown = (
                "null"
                if default is None
                else "true"
                if default is True
                else "false"
                if default is False
                else "{}"
                if default == {}
                else (number(default) if isinstance(default, int | float) else f"`{default}`")
            )
            assert row[2] == shown, each.name


def test_budgets_and_words_of_settings() -> None:
    """The range of budgets, and the words that a setting can be."""
    assert number(MAX_BUDGET) in section(SETTINGS, "## failure_policy")
    for word in (*LapsedReceipts, "fixed", "linear", "exponential"):
        assert f"`{word}`" in SETTINGS


# --- the client ------------------------------------------------------------------------------


def public(kind: type) -> dict[str, inspect.Signature]:
    """Return the public methods of a class and what they take."""
    return {
        name: inspect.signature(value)
        for name, value in inspect.getmembers(kind, callable)
        if not name.startswith("_")
    }


@pytest.mark.parametrize(
    ("kind", "twin", "heading"),
    [(Client, AsyncClient, "## Client"), (QueueHandle, AsyncQueueHandle, "## Queue handle")],
)
def test_every_method_of_the_client(kind: type, twin: type, heading: str) -> None:
    """Each method is listed with its parameters, in their order; both clients have the same."""
    listed = {}
    for row in rows(section(CLIENT, heading)):
        for text in code(row[0]):
            name, _, given = text.rstrip(")").partition("(")
            if "(" in text:
                listed[name] = [each.strip() for each in given.split(",") if each.strip()]
    expected = {
        name: [each for each in signature.parameters if each not in {"self", "cls"}]
        for name, signature in public(kind).items()
    }
    assert listed == expected
    assert {name.replace("aclose", "close") for name in public(twin)} == set(expected)


def test_arguments_of_the_client() -> None:
    """Each argument of the constructor is explained."""
    listed = {name for row in rows(section(CLIENT, "## Client")) for name in code(row[0])}
    assert set(inspect.signature(Client).parameters) - {"url", "account"} <= listed


def test_every_value_and_error_of_the_client() -> None:
    """Each public class has its row."""
    values = {name for name in models.__all__ if inspect.isclass(getattr(models, name))}
    assert values <= set(code(section(CLIENT, "## Values")))
    classes = {
        name
        for name, value in vars(client_errors).items()
        if inspect.isclass(value) and value.__module__ == client_errors.__name__
    }
    assert classes <= set(code(section(CLIENT, "## Errors")))


def test_retries_of_the_client() -> None:
    """Members and defaults are those of the code."""
    listed = table(CLIENT, "## Retries")
    policy = RetryPolicy()
    assert {each.name: number(getattr(policy, each.name)) for each in fields(policy)} == {
        name: row[1] for name, row in listed.items()
    }


# --- beyond Azure's protocol -----------------------------------------------------------------


def test_every_extension_of_the_protocol() -> None:
    """Headers and parameters that only this server knows are listed."""
    text = section(CONFORMANCE, "## Extensions")
    for name in (
        *extras._EXTRAS,
        extras.HOLDER,
        extras.DUPLICATE[0].decode(),
        extras.NEXT_MARKER.decode(),
        "include=invisible",
        "waitseconds",
        "x-leasehold-visible-messages",
        "x-leasehold-oldest-visible-age",
        "x-leasehold-visibility-timeout",
    ):
        assert name in text, name
