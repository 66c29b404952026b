"""Get and Set Queue Service Properties, and the document in which they are kept.

The document is JSON with the keys ``logging``, ``hour``, ``minute`` and ``cors``. Logging and
metrics are kept and given back so that tools which set them work; only the CORS rules have an
effect.

Source: "Set Queue Service Properties" and "Cross-Origin Resource Sharing (CORS) support".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from leasehold.http.azure.errors import Fault
from leasehold.http.azure.parameters import whole_number
from leasehold.http.azure.xml_in import Element, invalid_document
from leasehold.http.azure.xml_nodes import (
    child_texts,
    children_by_name,
    invalid_value,
    missing_node,
)
from leasehold.http.azure.xml_out import element, parent

DOCUMENT_KIND: Final = "azure-service-properties"
Document: TypeAlias = dict[str, Any]

MAX_RULES: Final = 5
MAX_RULE_BYTES: Final = 2048
MAX_ORIGINS: Final = 64
MAX_HEADERS: Final = 64
MAX_PREFIXES: Final = 2
MAX_ENTRY_CHARS: Final = 256
MAX_DAYS: Final = 365
MAX_AGE_S: Final = 2**31 - 1

METHODS: Final = frozenset(("DELETE", "GET", "HEAD", "MERGE", "POST", "OPTIONS", "PUT", "PATCH"))
_BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False}
_SECTIONS: Final = {
    "Logging": "logging",
    "HourMetrics": "hour",
    "MinuteMetrics": "minute",
    "Cors": "cors",
}
_SECTIONS_BEFORE_CORS: Final = {"Logging": "logging", "Metrics": "hour"}
_RULE_NODES: Final = (
    "AllowedOrigins",
    "AllowedMethods",
    "MaxAgeInSeconds",
    "ExposedHeaders",
    "AllowedHeaders",
)


def load(content: str | None) -> Document:
    """Return the properties of an account from its document, or the defaults: everything off."""
    if content is not None:
        document: Document = json.loads(content)
        return document
    off = {"version": "1.0", "enabled": False, "include_apis": None, "days": None}
    return {
        "logging": {
            "version": "1.0",
            "delete": False,
            "read": False,
            "write": False,
            "days": None,
        },
        "hour": dict(off),
        "minute": dict(off),
        "cors": [],
    }


def dump(document: Document) -> str:
    """Return the document as it is kept."""
    return json.dumps(document, separators=(",", ":"), sort_keys=True)


def read_properties(root: Element, *, cors: bool) -> Document:
    """Return the part of the document that a request replaces.

    Args:
        root: ``StorageServiceProperties`` of the request.
        cors: Whether the version has CORS rules, and hour and minute metrics in place of one.

    Raises:
        Fault: The structure or a value is wrong.
    """
    if root.name != "StorageServiceProperties":
        raise invalid_document("The root element must be StorageServiceProperties", at=root)
    sections = _SECTIONS if cors else _SECTIONS_BEFORE_CORS
    readers = {"logging": _read_logging, "cors": _read_rules}
    return {
        sections[name]: readers.get(sections[name], _read_metrics)(node)
        for name, node in children_by_name(root, tuple(sections)).items()
    }


def _read_logging(node: Element) -> Document:
    nodes = children_by_name(node, ("Version", "Delete", "Read", "Write", "RetentionPolicy"))
    return {
        "version": _required(nodes, "Version").text(),
        "delete": _boolean(_required(nodes, "Delete")),
        "read": _boolean(_required(nodes, "Read")),
        "write": _boolean(_required(nodes, "Write")),
        "days": _read_retention(_required(nodes, "RetentionPolicy")),
    }


def _read_metrics(node: Element) -> Document:
    nodes = children_by_name(node, ("Version", "Enabled", "IncludeAPIs", "RetentionPolicy"))
    enabled = _boolean(_required(nodes, "Enabled"))
    return {
        "version": _required(nodes, "Version").text(),
        "enabled": enabled,
        "include_apis": _boolean(_required(nodes, "IncludeAPIs")) if enabled else None,
        "days": _read_retention(_required(nodes, "RetentionPolicy")),
    }


def _read_retention(node: Element) -> int | None:
    """Return the days for which data is kept, or None when retention is off."""
    nodes = children_by_name(node, ("Enabled", "Days"))
    if not _boolean(_required(nodes, "Enabled")):
        return None
    return _integer(_required(nodes, "Days"), 1, MAX_DAYS)


def _read_rules(node: Element) -> list[Document]:
    rules = []
    size = 0
    for child in node.children():
        if child.name != "CorsRule":
            raise Fault("UnsupportedXmlNode", (("XmlNodeName", child.name),))
        rules.append(_read_rule(child))
        size += sum(len(text.encode()) for text in child_texts(child, _RULE_NODES).values())
    if len(rules) > MAX_RULES:
        raise invalid_document(f"At most {MAX_RULES} CORS rules are allowed", at=node)
    if size > MAX_RULE_BYTES:
        raise invalid_document(f"The CORS rules are larger than {MAX_RULE_BYTES} bytes", at=node)
    return rules


def _read_rule(node: Element) -> Document:
    nodes = children_by_name(node, _RULE_NODES)
    origins = _entries(_required(nodes, "AllowedOrigins"), MAX_ORIGINS)
    methods = [
        method.upper() for method in _entries(_required(nodes, "AllowedMethods"), len(METHODS))
    ]
    if not origins:
        raise invalid_value(nodes["AllowedOrigins"], "A rule must allow an origin")
    if not methods or not METHODS.issuperset(methods):
        raise invalid_value(nodes["AllowedMethods"], "A method is not known, or none is given")
    return {
        "origins": origins,
        "methods": methods,
        "allowed_headers": _headers(_required(nodes, "AllowedHeaders")),
        "exposed_headers": _headers(_required(nodes, "ExposedHeaders")),
        "max_age_s": _integer(_required(nodes, "MaxAgeInSeconds"), 0, MAX_AGE_S),
    }


def _headers(node: Element) -> list[str]:
    entries = _entries(node, MAX_HEADERS + MAX_PREFIXES)
    prefixes = sum(entry.endswith("*") and entry != "*" for entry in entries)
    if prefixes > MAX_PREFIXES or len(entries) - prefixes > MAX_HEADERS:
        raise invalid_value(
            node, f"At most {MAX_HEADERS} headers and {MAX_PREFIXES} prefixes are allowed"
        )
    return entries


def _entries(node: Element, limit: int) -> list[str]:
    entries = [entry.strip() for entry in node.text().split(",")]
    entries = [entry for entry in entries if entry]
    if len(entries) > limit or any(len(entry) > MAX_ENTRY_CHARS for entry in entries):
        raise invalid_value(
            node, f"At most {limit} entries of {MAX_ENTRY_CHARS} characters are allowed"
        )
    if not all(entry.isascii() and entry.isprintable() for entry in entries):
        raise invalid_value(node, "An entry is not printable ASCII")
    return entries


def _required(nodes: Mapping[str, Element], name: str) -> Element:
    node = nodes.get(name)
    if node is None:
        raise missing_node(name)
    return node


def _boolean(node: Element) -> bool:
    value = _BOOLEANS.get(node.text().strip().lower())
    if value is None:
        raise invalid_value(node, "The value must be true or false")
    return value


def _integer(node: Element, minimum: int, maximum: int) -> int:
    try:
        value = whole_number(node.name, node.text().strip())
    except Fault:
        value = minimum - 1
    if not minimum <= value <= maximum:
        raise invalid_value(node, f"The value must be a number from {minimum} to {maximum}")
    return value


def write_properties(document: Document, *, cors: bool) -> bytes:
    """Write ``StorageServiceProperties``, in the form of versions with or without CORS."""
    logging = document["logging"]
    nodes = [
        parent(
            "Logging",
            element("Version", logging["version"]),
            element("Read", _word(logging["read"])),
            element("Write", _word(logging["write"])),
            element("Delete", _word(logging["delete"])),
            _retention(logging["days"]),
        ),
        _metrics("HourMetrics" if cors else "Metrics", document["hour"]),
    ]
    if cors:
        nodes.append(_metrics("MinuteMetrics", document["minute"]))
        nodes.append(parent("Cors", *(_rule(rule) for rule in document["cors"])))
    return parent("StorageServiceProperties", *nodes)


def _metrics(name: str, metrics: Document) -> bytes:
    nodes = [
        element("Version", metrics["version"]),
        element("Enabled", _word(metrics["enabled"])),
    ]
    if metrics["include_apis"] is not None:
        nodes.append(element("IncludeAPIs", _word(metrics["include_apis"])))
    return parent(name, *nodes, _retention(metrics["days"]))


def _retention(days: int | None) -> bytes:
    enabled = element("Enabled", _word(days is not None))
    if days is None:
        return parent("RetentionPolicy", enabled)
    return parent("RetentionPolicy", enabled, element("Days", str(days)))


def _rule(rule: Document) -> bytes:
    return parent(
        "CorsRule",
        element("AllowedMethods", ",".join(rule["methods"])),
        element("AllowedOrigins", ",".join(rule["origins"])),
        element("AllowedHeaders", ",".join(rule["allowed_headers"])),
        element("ExposedHeaders", ",".join(rule["exposed_headers"])),
        element("MaxAgeInSeconds", str(rule["max_age_s"])),
    )


def _word(value: bool) -> str:
    return "true" if value else "false"
