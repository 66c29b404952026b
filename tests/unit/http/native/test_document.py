"""The OpenAPI document: complete, true, and in step with the table of routes."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, cast

import msgspec
import pytest
from jsonschema import Draft202012Validator

from leasehold import __version__
from leasehold.domain.admin import JobKind, JobState
from leasehold.domain.claims import ClaimState
from leasehold.domain.limits import (
    DEFAULT_SESSION_TIMEOUT_S,
    DEFAULT_STAGING_TIMEOUT_S,
    MAX_CLAIM,
    MAX_ITEMS,
    MAX_PROGRESS,
    MAX_PUBLISHED_PARTS,
    MAX_SAVED_BYTES,
    MAX_WAIT_S,
    NATIVE,
    NEVER,
    PRIORITIES,
    PROGRESS_TIMEOUTS_S,
    SESSION_TIMEOUTS_S,
    STAGING_TIMEOUTS_S,
)
from leasehold.domain.model import DEFAULT_PRIORITY, MessageState, Outcome
from leasehold.domain.queue_settings import BackoffKind, LapsedReceipts, QueueSettings
from leasehold.domain.sessions import SessionState
from leasehold.domain.transactions import TransactionState
from leasehold.http.native.call import Route
from leasehold.http.native.dialect import ROUTES
from leasehold.http.native.errors import CODES
from leasehold.http.native.queues import RANGES
from leasehold.wire import admin, flows, messages, parts, queues, schemas
from leasehold.wire.flows import CHUNKS, MAX_PUBLISHED
from leasehold.wire.parts import MAX_NAME, NUMBERS
from tests.unit.http.native.checking import document, errors_of, follow, operations
from tests.unit.http.native.support import ACCOUNT, Native

NAMES = {"account": ACCOUNT, "queue": "orders", "id": "x", "job_id": "x"}
NAMES |= {"session_id": "x", "stream": "s", "number": "1", "name": "n", "group": "g"}
"""What stands in the paths of requests that the tests make of the document."""
_OPEN_STATUSES = {"400", "413", "500"}
_OUR_STATUSES = {*_OPEN_STATUSES, "401", "403", "503"}


def _operation(route: Route) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    entry = document()["paths"][route.path]
    operation = entry[route.method.lower()]
    parameters = [*entry.get("parameters", []), *operation.get("parameters", [])]
    return operation, [follow(parameter) for parameter in parameters]


def test_routes_and_document_have_the_same_operations() -> None:
    """Each route is in the document and each operation of the document has a route."""
    told = {(path, method, each["operationId"]) for path, method, each in operations()}
    assert told == {(route.path, route.method, route.name) for route in ROUTES}


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_parameters(route: Route) -> None:
    """The document has the parameters of path and query that the route takes."""
    _, parameters = _operation(route)
    in_path = [part[1:-1] for part in route.path.split("/") if part.startswith("{")]
    assert [each["name"] for each in parameters if each["in"] == "path"] == in_path
    assert {each["name"] for each in parameters if each["in"] == "query"} == route.params
    assert all(each.get("description") for each in parameters)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_statuses_and_codes(route: Route) -> None:
    """The statuses of an operation are those of its codes, and nothing else but success."""
    operation, _ = _operation(route)
    codes = set(operation["x-problem-codes"])
    common = _OUR_STATUSES if route.operations else _OPEN_STATUSES
    refusals = common | {str(CODES[code].status) for code in codes}
    if route.name == "problem" or route.path.startswith("/v1/test/"):
        refusals.add("404")
    assert {status for status in operation["responses"] if status >= "400"} == refusals
    assert not codes & set(document()["x-common-problem-codes"])
    assert ("security" in operation) == (not route.operations)
    if "{queue}" in route.path:
        assert {"invalid-queue-name", "queue-not-found"} <= codes


def test_codes_are_complete() -> None:
    """Every code can come from somewhere, and the document knows no others."""
    told = set(document()["x-common-problem-codes"])
    for _, _, operation in operations():
        told |= {*operation["x-problem-codes"], *operation.get("x-item-codes", ())}
    assert told == set(CODES)
    assert document()["components"]["schemas"]["Code"]["enum"] == list(CODES)


@pytest.mark.parametrize("name", list(document()["components"]["schemas"]))
def test_schemas_are_schemas(name: str) -> None:
    """Every schema is one, and something refers to it."""
    Draft202012Validator.check_schema(document()["components"]["schemas"][name])
    assert f"'#/components/schemas/{name}'" in str(document())


def _examples(value: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any], Any]]:
    """Go over all examples: where they stand, the schema beside them, and what they are."""
    if isinstance(value, dict):
        if "schema" in value and "example" in value:
            yield path, value["schema"], value["example"]
        for name, part in value.items():
            yield from _examples(part, f"{path}/{name}")
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from _examples(part, f"{path}/{number}")


@pytest.mark.parametrize(
    ("schema", "example"),
    [pytest.param(schema, each, id=path) for path, schema, each in _examples(document())],
)
def test_examples(schema: dict[str, Any], example: Any) -> None:
    """Every example is what the schema beside it describes."""
    assert errors_of(schema, example) == []


def test_every_body_has_an_example() -> None:
    """Whoever writes a client sees what to send."""
    for _, _, operation in operations():
        for media in operation.get("requestBody", {}).get("content", {}).values():
            assert "example" in media, operation["operationId"]


def test_examples_of_requests_are_taken(native: Native) -> None:
    """What the document shows as a request is not refused as unreadable."""
    for path, method, operation in operations():
        body = operation.get("requestBody")
        if body is None:
            continue
        content = body["content"]
        raw = content.get("application/octet-stream")
        example = raw["example"].encode() if raw else content["application/json"]["example"]
        answer = native.send(method, path.format(**NAMES), example)
        assert answer.status in {200, 201, 202, 204, 404, 409}, (path, answer.json)


def test_needed_bodies_are_marked(native: Native) -> None:
    """Those that are refused without; the routes of the test mode are not served here."""
    marked, refused = set(), set()
    for path, method, operation in operations():
        body = operation.get("requestBody")
        if body is None or path.startswith("/v1/test/"):
            continue
        if body.get("required"):
            marked.add(operation["operationId"])
        if native.send(method, path.format(**NAMES)).status == 400:
            refused.add(operation["operationId"])
    assert marked == refused


def test_limits_in_the_document() -> None:
    """The document's figures are those in force."""
    schemas = document()["components"]["schemas"]

    def bounds(name: str, member: str) -> tuple[Any, Any]:
        schema = schemas[name]["properties"][member]
        return schema["minimum"], schema["maximum"]

    assert bounds("PutItem", "delay_s") == bounds("ReleaseItem", "delay_s") == NATIVE.delay_s
    assert bounds("PutItem", "priority") == bounds("Received", "priority") == PRIORITIES
    low, high = NATIVE.time_to_live_s
    lives = schemas["PutItem"]["properties"]["time_to_live_s"]["anyOf"]
    assert lives == [
        {"const": NEVER, "type": "integer"},
        {"minimum": low, "maximum": high, "type": "integer"},
        {"type": "null"},
    ]
    assert bounds("ReceiveRequest", "max_messages") == NATIVE.receive_count
    assert bounds("ReceiveRequest", "visibility_timeout_s") == NATIVE.lease_s
    assert bounds("ReceiveRequest", "wait_s") == bounds("PurgeRequest", "wait_s") == (0, MAX_WAIT_S)
    assert bounds("RenewItem", "visibility_timeout_s") == NATIVE.renew_s
    for name in ("RenewItem", "QueuedRenew"):
        assert schemas[name]["properties"]["saved"]["x-max-bytes"] == MAX_SAVED_BYTES
    assert bounds("OpenSessionRequest", "timeout_s") == SESSION_TIMEOUTS_S
    assert bounds("OpenSessionRequest", "progress_timeout_s") == PROGRESS_TIMEOUTS_S
    assert bounds("OpenClaimRequest", "limit") == (1, MAX_CLAIM)
    assert bounds("OpenClaimRequest", "lease_s") == NATIVE.lease_s
    assert bounds("TokenRequest", "token") == bounds("SettleRequest", "upto") == NUMBERS
    assert bounds("Exemption", "number") == bounds("OpenClaimRequest", "max_bytes") == NUMBERS
    assert bounds("StageRequest", "timeout_s") == STAGING_TIMEOUTS_S
    assert bounds("StageRequest", "chunk") == CHUNKS
    for name in ("PutRequest", "StageRequest"):
        assert schemas[name]["properties"]["messages"]["maxItems"] == MAX_ITEMS
    assert schemas["CommitRequest"]["properties"]["publish"]["maxItems"] == MAX_PUBLISHED
    assert schemas["PartsRequest"]["properties"]["parts"]["maxItems"] == MAX_PUBLISHED_PARTS
    assert schemas["HeartbeatRequest"]["properties"]["progress"]["maxProperties"] == MAX_PROGRESS
    assert schemas["Name"]["maxLength"] == MAX_NAME
    for part, ranges in RANGES.items():
        for member, allowed in ranges.items():
            assert bounds(_shape_of(part).__name__, member) == allowed, member


def _shape_of(part: type) -> type[msgspec.Struct]:
    """Return the shape of a part of the settings."""
    name = "Settings" if part is QueueSettings else part.__name__
    return cast("type[msgspec.Struct]", getattr(queues, name))


def test_defaults_in_the_document() -> None:
    """What the document says of members that are left out is so."""
    schemas = document()["components"]["schemas"]

    def default(name: str, member: str) -> Any:
        return schemas[name]["properties"][member]["default"]

    assert default("OpenSessionRequest", "timeout_s") == DEFAULT_SESSION_TIMEOUT_S
    assert default("StageRequest", "timeout_s") == DEFAULT_STAGING_TIMEOUT_S
    assert default("Received", "priority") == DEFAULT_PRIORITY
    for part in RANGES:
        shape = _shape_of(part)
        assert [each.name for each in fields(part)] == [*shape.__struct_fields__]
        assert msgspec.convert(part(), shape, from_attributes=True) == shape()


def _answers() -> Iterator[tuple[str, type[msgspec.Struct]]]:
    """Go over the schemas that are made of what the server sends, with their shapes."""
    for name in document()["components"]["schemas"]:
        own = {told: shape for shape, told in schemas._RENAMED.items()}.get(name, name)
        for module in (parts, messages, queues, admin, flows):
            shape = vars(module).get(own)
            if name != "Problem" and inspect.isclass(shape) and issubclass(shape, msgspec.Struct):
                if not shape.__struct_config__.forbid_unknown_fields:
                    yield name, shape
                break


@pytest.mark.parametrize(("name", "shape"), [*_answers()])
def test_answers_leave_out_or_have_null(name: str, shape: type[msgspec.Struct]) -> None:
    """What is required is always written, and what can be left out is never null."""
    told = document()["components"]["schemas"][name]
    given = {each.name: None for each in msgspec.structs.fields(shape) if each.required}
    written = json.loads(msgspec.json.encode(shape(**given)))
    if not issubclass(shape, queues.Part):
        assert set(told.get("required", ())) == set(written)
    for member in told["properties"].keys() - written.keys():
        assert "null" not in str(told["properties"][member].get("type"))


def test_words_in_the_document() -> None:
    """The document has the states and outcomes that there are."""
    schemas = document()["components"]["schemas"]
    assert set(schemas["State"]["enum"]) == set(MessageState)
    assert set(schemas["Claim"]["properties"]["state"]["enum"]) == set(ClaimState)
    assert set(schemas["Session"]["properties"]["state"]["enum"]) == set(SessionState)
    assert set(schemas["Transaction"]["properties"]["state"]["enum"]) == set(TransactionState)
    assert set(schemas["Attempt"]["properties"]["outcome"]["enum"]) == set(Outcome)
    assert set(schemas["Job"]["properties"]["kind"]["enum"]) == set(JobKind)
    assert set(schemas["Job"]["properties"]["state"]["enum"]) == set(JobState)
    assert set(schemas["Backoff"]["properties"]["kind"]["enum"]) == {*BackoffKind, None}
    lapsed = schemas["Settings"]["properties"]["lapsed_receipts"]["enum"]
    assert set(lapsed) == {*LapsedReceipts, None}


def test_document_is_open_to_all(native: Native) -> None:
    """The document and the pages of the codes need no credentials."""
    answer = native.send("GET", "/v1/openapi.json", key=None)
    assert answer.json["info"]["version"] == __version__
    assert answer.json["openapi"].startswith("3.1")
    for code, entry in CODES.items():
        page = native.send("GET", f"/v1/problems/{code}", key=None)
        assert (page.status, page.json["title"]) == (200, entry.title)
    assert native.send("GET", "/v1/problems/none", key=None).code == "no-such-route"
