"""Holds answers against the OpenAPI document.

A client must ignore members that it does not know; the checks here do not, so that every member of
an answer is in the document.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final, cast

from jsonschema import Draft202012Validator

from leasehold.http.native.dialect import openapi_json
from leasehold.http.native.errors import CODES
from leasehold.http.requests import Response

METHODS: Final = frozenset({"get", "put", "post", "patch", "delete"})
_PARTS: Final = ("items", "additionalProperties", "propertyNames")
_ALTERNATIVES: Final = ("anyOf", "oneOf", "allOf")


@cache
def document() -> dict[str, Any]:
    """Return the document as a client gets it."""
    return cast("dict[str, Any]", json.loads(openapi_json()))


def follow(value: dict[str, Any]) -> dict[str, Any]:
    """Return what a reference names, or *value* itself."""
    while "$ref" in value:
        found: Any = document()
        for part in value["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        value = found
    return value


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Go over path, method in capitals, operation."""
    for path, entry in document()["paths"].items():
        for method in METHODS & entry.keys():
            yield path, method.upper(), entry[method]


@cache
def strict_components() -> dict[str, Any]:
    """Return the components with schemas that allow nothing they do not name."""
    components = json.loads(json.dumps(document()["components"]))
    for schema in components["schemas"].values():
        make_strict(schema)
    return cast("dict[str, Any]", components)


def make_strict(schema: Any) -> None:
    """Forbid members of objects that a schema does not name."""
    if not isinstance(schema, dict):
        return
    if "properties" in schema:
        schema.setdefault("additionalProperties", False)
        for part in schema["properties"].values():
            make_strict(part)
    for name in _PARTS:
        make_strict(schema.get(name))
    for name in _ALTERNATIVES:
        for part in schema.get(name, ()):
            make_strict(part)


def errors_of(schema: Mapping[str, Any], value: object) -> list[str]:
    """Return what is wrong with *value*."""
    whole = json.loads(json.dumps(schema))
    make_strict(whole)
    return [
        f"{error.json_path}: {error.message}"
        for error in _validator(json.dumps(whole)).iter_errors(value)
    ]


@cache
def _validator(schema: str) -> Draft202012Validator:
    return Draft202012Validator({**json.loads(schema), "components": strict_components()})


def find_operation(method: str, path: str) -> tuple[str, dict[str, Any]] | None:
    """Return template and operation of a request; fixed parts go before variable ones."""
    parts = path.split("/")
    found = [
        (template, operation)
        for template, its_method, operation in operations()
        if its_method == method and _fits(template.split("/"), parts)
    ]
    return min(found, key=lambda each: each[0].count("{"), default=None)


def _fits(template: list[str], parts: list[str]) -> bool:
    return len(template) == len(parts) and all(
        expected == part or (expected[:1] == "{" and part)
        for expected, part in zip(template, parts, strict=True)
    )


def check_answer(method: str, path: str, response: Response) -> None:
    """Fail unless the document has this answer to this request."""
    names = {name for name, _ in response.headers}
    assert b"request-id" in names
    found = find_operation(method, path)
    value: Any = None
    if response.body and dict(response.headers)[b"content-type"].endswith(b"json"):
        value = json.loads(response.body)
    if found is None:
        assert response.status in {400, 404, 405}
        return
    _, operation = found
    if response.status == 405:
        return
    if response.status == 404 and value["code"] == "no-such-route":
        return
    told = follow(operation["responses"][str(response.status)])
    for name, header in told["headers"].items():
        assert name.lower().encode() in names or header.get("required") is False
    content = told.get("content")
    if content is None:
        assert not response.body
        return
    kind = dict(response.headers)[b"content-type"].decode()
    assert kind in content
    if not kind.endswith("json"):
        return  # any bytes will do
    assert errors_of(content[kind]["schema"], value) == []
    if response.status >= 400:
        allowed = operation["x-problem-codes"] + document()["x-common-problem-codes"]
        assert value["code"] in allowed
        assert CODES[value["code"]].status == response.status
    elif "x-item-codes" in operation:
        lists = [part for part in value.values() if isinstance(part, list)]
        codes = {each["error"]["code"] for part in lists for each in part if "error" in each}
        # Parts of a batch that come after a failure of the server have its code.
        assert codes <= {*operation["x-item-codes"], *document()["x-common-problem-codes"]}
