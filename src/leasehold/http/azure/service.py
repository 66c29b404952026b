"""Service properties, with the CORS rules in force, and service statistics.

Source: "Operations on the account (Queue Storage)".
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from leasehold.auth.authenticator import Grant
from leasehold.auth.delegation import (
    DelegationRequest,
    UserDelegationKey,
    issue_user_delegation_key,
)
from leasehold.auth.types import Account, NotAllowed, parse_iso_time
from leasehold.domain.command import Perform
from leasehold.domain.commands import (
    GetAccountDocument,
    SetAccountDocument,
)
from leasehold.domain.errors import LeaseholdError, OutOfRange
from leasehold.http.azure.call import DELEGATED_TENANT_SINCE, Call, rfc1123, whole_number
from leasehold.http.azure.errors import Fault, invalid_header, invalid_parameter
from leasehold.http.azure.xml import (
    child_texts,
    children_by_name,
    element,
    invalid_document,
    invalid_value,
    missing_node,
    parent,
    parse_tree,
)
from leasehold.http.requests import Header, Response
from leasehold.http.xml import Element

_FRESH_MS: Final = 30_000
"""Another server may have changed the properties; the service itself takes as long to tell."""


class AccountService:
    """The properties of all accounts; remembers their CORS rules, which every answer needs."""

    def __init__(self, perform: Perform) -> None:
        self._perform = perform
        self.known_rules: dict[str, tuple[tuple[CorsRule, ...], int]] = {}
        """The CORS rules of accounts as known, and until when they may be gone by."""
        self._fetching = asyncio.Lock()
        self._setting = asyncio.Lock()

    async def get_properties(self, call: Call) -> Response:
        """Answer Get Queue Service Properties."""
        document = await self._load(call.account)
        root = write_properties(document, cors=call.version.cors)
        return call.reply_xml(200, root)

    async def set_properties(self, call: Call) -> Response:
        """Answer Set Queue Service Properties; what the request leaves out stays as it is."""
        sections = read_properties(parse_tree(call.request.body), cors=call.version.cors)
        # Reading and writing are two commands; a second writer must not come between them.
        async with self._setting:
            document = await self._load(call.account) | sections
            content = dump(document)
            kind = DOCUMENT_KIND
            await self._perform(SetAccountDocument(call.account, kind, content))
        self.known_rules[call.account] = rules_of(document), call.now_ms + _FRESH_MS
        return call.reply(202)

    async def get_stats(self, call: Call) -> Response:
        """Answer Get Queue Service Stats: the secondary address serves the same store."""
        if not call.route.place.secondary:
            raise invalid_parameter(
                "comp", call.params["comp"], "Only the secondary endpoint has statistics."
            )
        replication = parent(
            "GeoReplication",
            element("Status", "live"),
            element("LastSyncTime", rfc1123(call.now_ms).decode()),
        )
        return call.reply_xml(200, parent("StorageServiceStats", replication))

    async def current_rules(self, account: str, now_ms: int) -> tuple[CorsRule, ...]:
        """Return the CORS rules of an account; the last known ones if the store cannot tell.

        Of many requests at a time one asks the store. The others go by the rules known so far, or
        wait if none are.
        """
        known = self.known_rules.get(account)
        if known is not None and (now_ms < known[1] or self._fetching.locked()):
            return known[0]
        async with self._fetching:
            fresh = self.known_rules.get(account)
            if fresh is not None and now_ms < fresh[1]:
                return fresh[0]
            try:
                rules = rules_of(await self._load(account))
            except LeaseholdError:
                if known is None:
                    return ()
                rules = known[0]
            if self.known_rules.get(account) is known:  # else they were set meanwhile
                self.known_rules[account] = rules, now_ms + _FRESH_MS
            return rules

    async def _load(self, account: str) -> Document:
        result = await self._perform(GetAccountDocument(account, DOCUMENT_KIND))
        return load(result.content)


# --- properties --------------------------------------------------------------------------------
#
# Get and Set Queue Service Properties, and the document in which they are kept.
#
# The document is JSON with the keys ``logging``, ``hour``, ``minute`` and ``cors``. Logging and
# metrics are kept and given back so that tools which set them work; only the CORS rules have an
# effect.
#
# Source: "Set Queue Service Properties" and "Cross-Origin Resource Sharing (CORS) support".


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


# --- cors --------------------------------------------------------------------------------------
#
# Cross-origin resource sharing: who may read answers in a browser.
#
# Source: "Cross-Origin Resource Sharing (CORS) support for Azure Storage".


_VARY: Final = (b"vary", b"Origin")
_CREDENTIALS: Final = (b"access-control-allow-credentials", b"true")
_ADDED_LATER: Final = ("Content-Length", "Date", "Server")


@dataclass(frozen=True, slots=True, kw_only=True)
class CorsRule:
    """One rule of an account."""

    origins: frozenset[str]
    """Exact origins, or ``*`` for any."""
    methods: frozenset[str]
    allowed_headers: tuple[str, ...]
    """Lower-case names; one that ends in ``*`` is a prefix."""
    exposed_headers: tuple[str, ...]
    max_age_s: int

    def admits(self, origin: str | None, method: str) -> bool:
        """Tell whether the rule is for this origin and method; None is no origin at all."""
        return method in self.methods and ("*" in self.origins or origin in self.origins)

    def allows(self, header: str) -> bool:
        """Tell whether a request may carry this header."""
        return any(_matches(pattern, header.lower()) for pattern in self.allowed_headers)


def _matches(pattern: str, header: str) -> bool:
    return header.startswith(pattern[:-1]) if pattern.endswith("*") else header == pattern


def rules_of(document: Document) -> tuple[CorsRule, ...]:
    """Return the rules of an account's service properties, in their order."""
    return tuple(
        CorsRule(
            origins=frozenset(rule["origins"]),
            methods=frozenset(rule["methods"]),
            allowed_headers=tuple(name.lower() for name in rule["allowed_headers"]),
            exposed_headers=tuple(rule["exposed_headers"]),
            max_age_s=rule["max_age_s"],
        )
        for rule in document["cors"]
    )


def preflight_headers(rules: Sequence[CorsRule], headers: Mapping[str, str]) -> tuple[Header, ...]:
    """Answer a preflight request.

    The first rule for the origin and the method decides; it must allow every header asked for.

    Raises:
        Fault: A header of the preflight itself is missing or wrong, or the answer is no.
    """
    origin = headers.get("origin", "")
    if not origin:
        raise invalid_header("Origin", "")
    method = headers.get("access-control-request-method", "")
    if method not in METHODS:
        raise invalid_header("Access-Control-Request-Method", method)
    asked = headers.get("access-control-request-headers", "")
    names = [name.strip() for name in asked.split(",") if name.strip()]
    rule = next((rule for rule in rules if rule.admits(origin, method)), None)
    if rule is None or not all(rule.allows(name) for name in names):
        raise Fault("CorsPreflightFailure")
    answer = [
        *_allow_origin(rule, origin),
        (b"access-control-allow-methods", method.encode("ascii")),
        (b"access-control-max-age", b"%d" % rule.max_age_s),
        _CREDENTIALS,
    ]
    if names:
        answer.append((b"access-control-allow-headers", asked.encode("latin-1", "replace")))
    return tuple(answer)


def _allow_origin(rule: CorsRule, origin: str) -> list[Header]:
    if "*" in rule.origins:
        return [(b"access-control-allow-origin", b"*")]
    # Other origins get another answer, which a shared cache has to know.
    return [(b"access-control-allow-origin", origin.encode("latin-1", "replace")), _VARY]


def add_headers(
    rules: Sequence[CorsRule], method: str, origin: str | None, headers: list[Header]
) -> None:
    """Add to the *headers* of an answer what the rules say about it.

    Args:
        rules: The rules of the account, of which there is at least one.
        method: The method of the request.
        origin: Its Origin header, or None.
        headers: The answer's headers so far; they are what ``*`` exposes.
    """
    rule = next((rule for rule in rules if rule.admits(origin, method)), None)
    cacheable = method in ("GET", "HEAD")
    if rule is None:
        if cacheable:
            headers.append(_VARY)
        return
    exposed = _exposed(rule, headers)
    allowed = _allow_origin(rule, origin or "")
    headers.append(allowed[0])
    if exposed:
        headers.append((b"access-control-expose-headers", exposed))
    if len(allowed) > 1:
        headers.append(_CREDENTIALS)
        if cacheable:
            headers.append(_VARY)


def _exposed(rule: CorsRule, headers: Sequence[Header]) -> bytes:
    present = [name.decode("latin-1") for name, _ in headers] + list(_ADDED_LATER)
    names: dict[str, None] = {}
    for pattern in rule.exposed_headers:
        if not pattern.endswith("*"):
            names[pattern] = None
            continue
        names.update((name, None) for name in present if _matches(pattern.lower(), name.lower()))
    return ",".join(names).encode("latin-1", "replace")


# --- delegation --------------------------------------------------------------------------------
#
# Get User Delegation Key: a key for signing shared access signatures, for the bearer of a token.
#
# Source: "Get User Delegation Key (Azure Queue Storage)".


_MAX_ID_CHARS = 128
_REASONS = {
    "start": "The start must be at most seven days ahead",
    "expiry": "The expiry must be later than now and the start, by at most seven days",
}


def get_delegation_key(call: Call, account: Account, grant: Grant) -> Response:
    """Answer Get User Delegation Key.

    Raises:
        Fault: The request's body is not one, or asks for a time that is not to be had.
        NotAllowed: The grant is not that of a user.
    """
    if grant.object_id is None or grant.tenant_id is None:
        raise NotAllowed
    root = parse_tree(call.request.body)
    if root.name != "KeyInfo":
        raise invalid_document("The root element must be KeyInfo", at=root)
    known = ["Start", "Expiry"]
    if call.version.text >= DELEGATED_TENANT_SINCE:
        known.append("DelegatedUserTid")
    nodes = children_by_name(root, known)
    if "Expiry" not in nodes:
        raise missing_node("Expiry")
    wish = DelegationRequest(
        object_id=grant.object_id,
        tenant_id=grant.tenant_id,
        version=call.version.text,
        expires_at_ms=_moment(nodes["Expiry"]),
        starts_at_ms=_moment(nodes["Start"]) if "Start" in nodes else None,
        delegated_tenant_id=_tenant(nodes.get("DelegatedUserTid")),
    )
    try:
        key = issue_user_delegation_key(account, wish, now_ms=call.now_ms)
    except OutOfRange as error:
        node = nodes.get("Start" if error.field == "start" else "Expiry", root)
        raise invalid_value(node, _REASONS[error.field]) from None
    return call.reply_xml(200, _render(key))


def _moment(node: Element) -> int:
    at_ms = parse_iso_time(node.text().strip())
    if at_ms is None:
        raise invalid_value(node, "The time is not in ISO 8601 form")
    return at_ms


def _tenant(node: Element | None) -> str:
    text = "" if node is None else node.text().strip()
    # It becomes a field of a string to sign, where a line break would make it two.
    if node is not None and (len(text) > _MAX_ID_CHARS or not text.isprintable()):
        raise invalid_value(node, "The tenant is not an identifier")
    return text


def _render(key: UserDelegationKey) -> bytes:
    scope = key.scope
    nodes = [
        element("SignedOid", scope.object_id),
        element("SignedTid", scope.tenant_id),
        element("SignedStart", scope.start),
        element("SignedExpiry", scope.expiry),
        element("SignedService", scope.service),
        element("SignedVersion", scope.version),
    ]
    if scope.delegated_tenant_id:
        nodes.append(element("SignedDelegatedUserTid", scope.delegated_tenant_id))
    nodes.append(element("Value", b64encode(key.value).decode("ascii")))
    return parent("UserDelegationKey", *nodes)
