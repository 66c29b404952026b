"""The schemas of the shapes, for the OpenAPI document."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

import msgspec

from leasehold.wire import admin, flows, messages, parts, queues

REF: Final = "#/components/schemas/"

_MODULES: Final = (parts, messages, queues, admin, flows)
_RENAMED: Final = {
    "CancelMessage": "CancelRequest",
    "CancelRequest": "CancelView",
    "LeaseInfo": "LeaseView",
    "Problem": "ProblemFacts",
    "Progress": "ProgressView",
    "ReportedError": "ErrorReport",
    "SessionInfo": "Session",
    "TransactionInfo": "Transaction",
}
"""Names in the document of shapes that have another one for the users of the client."""
_KINDS: Final = ("Ms", "Name", "QueueName", "ShortText", "State")
"""Kinds of members that parameters refer to as well."""
_NULL: Final = {"type": "null"}


def make_schemas(wanted: set[str]) -> dict[str, Any]:
    """Return the schemas of shapes by their name in the document.

    Args:
        wanted: Names that something refers to. What these refer to comes with them.
    """
    shapes = {
        name: kind
        for module in _MODULES
        for name, kind in vars(module).items()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    }
    texts = _texts_of_members()
    roots = [kind for name, kind in shapes.items() if _RENAMED.get(name, name) in wanted]
    _, found = msgspec.json.schema_components([*roots, parts.Problem], ref_template=REF + "{name}")
    made = {
        _RENAMED.get(name, name): _renamed(_schema_of(shapes[name], each, texts))
        for name, each in found.items()
    }
    made |= {name: msgspec.json.schema(getattr(parts, name)) for name in _KINDS}
    facts = made["ProblemFacts"]
    about = {
        "type": {"type": "string", "description": "`/v1/problems/` followed by the code."},
        "title": {"type": "string"},
    }
    made["Problem"] = {
        **facts,
        "required": [*about, *facts["required"]],
        "properties": {**about, **facts["properties"]},
    }
    return made


def _renamed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_renamed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    name = str(schema.get("$ref", "")).removeprefix(REF)
    changed = {key: _renamed(each) for key, each in schema.items()}
    return {**changed, "$ref": REF + _RENAMED[name]} if name in _RENAMED else changed


def _schema_of(
    kind: type[msgspec.Struct], found: Mapping[str, Any], texts: Mapping[tuple[str, str], str]
) -> dict[str, Any]:
    """Return the schema of a shape as it is used, given what its types say.

    In a request what need not be there can be null. An answer leaves out what there is nothing to
    say of, or has null for it, as is set for the shape; never both. A part of the settings is both
    a patch and an answer.
    """
    config = kind.__struct_config__
    is_request, is_patch = config.forbid_unknown_fields, issubclass(kind, queues.Part)
    is_answer = not is_request and not is_patch
    leaves_out = is_answer and config.omit_defaults
    required, properties = [], {}
    for member in msgspec.structs.fields(kind):
        name = member.encode_name
        said = dict(found["properties"][name])
        default = said.pop("default", None)
        is_optional = member.default is msgspec.UNSET
        if is_optional or (leaves_out and member.default is None):
            said = _without_null(said)
        said = _flat(said, nullable=is_patch)
        # An empty list or object says no more than that it may be left out; generators of clients
        # refuse it beside null.
        if default not in (None, [], {}) and (is_patch or (leaves_out and "const" not in said)):
            said["default"] = default
        if (is_answer and not leaves_out and not is_optional) or (member.required and not is_patch):
            required.append(name)
        for base in reversed(kind.__mro__):
            if (base.__name__, name) in texts:
                said["description"] = texts[base.__name__, name]
        properties[name] = said
    schema = {"type": "object", "description": _prose(kind.__doc__ or ""), "properties": properties}
    if required:
        schema["required"] = required
    return schema if is_answer else {**schema, "additionalProperties": False}


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    rest = [each for each in schema.get("anyOf", ()) if each != _NULL]
    return _merged(schema, rest[0]) if len(rest) == 1 else schema


def _flat(schema: dict[str, Any], *, nullable: bool) -> dict[str, Any]:
    """Return a schema that says with its type that there can be null, and not with a choice."""
    choice = schema.get("anyOf", [])
    if choice[1:] == [_NULL] and "$ref" not in choice[0]:
        # What was said of the whole, such as the type, is stronger.
        schema, nullable = _merged(schema, choice[0]), "type" not in schema
    if not nullable or not schema.keys() & {"type", "enum"}:
        return schema
    changed = dict(schema)
    if "type" in schema:
        changed["type"] = [schema["type"], "null"]
        if "anyOf" in schema:  # generators of clients look for types in there
            schema = {
                **schema,
                "anyOf": [{**each, "type": schema["type"]} for each in schema["anyOf"]],
            }
    for name, null in (("enum", None), ("anyOf", _NULL)):
        if name in schema:
            changed[name] = [*schema[name], null]
    return changed


def _merged(schema: dict[str, Any], choice: dict[str, Any]) -> dict[str, Any]:
    return {**choice, **{name: each for name, each in schema.items() if name != "anyOf"}}


def _texts_of_members() -> dict[tuple[str, str], str]:
    """Return what stands below the members of shapes, by shape and member."""
    texts = {}
    for module in _MODULES:
        for kind in ast.parse(inspect.getsource(module)).body:
            if not isinstance(kind, ast.ClassDef):
                continue
            for member, below in pairwise(kind.body):
                match member, below:
                    case (
                        ast.AnnAssign(target=ast.Name(id=name)),
                        ast.Expr(value=ast.Constant(value=str(text))),
                    ):
                        texts[kind.name, name] = _prose(text)
    return texts


def _prose(text: str) -> str:
    """Return a docstring as Markdown, with the words of JSON."""
    joined = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(text))
    return re.sub(r"\bNone\b", "null", joined).replace("``", "`")
