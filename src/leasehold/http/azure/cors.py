"""Cross-origin resource sharing: who may read answers in a browser.

Source: "Cross-Origin Resource Sharing (CORS) support for Azure Storage".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from leasehold.http.azure.call import Header
from leasehold.http.azure.errors import Fault, invalid_header
from leasehold.http.azure.properties import METHODS, Document

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
