"""Where a request ends: the one question a server and the proxies before it must agree on.

Rules: RFC 9112 sections 3.2 (target), 6.1 and 6.3 (length), 11.2 (what happens where two programs
read them differently). The parser in front has already refused most of what breaks them; here are
the ones it lets pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

Field = tuple[bytes, bytes]

FRAMING_FIELDS: Final = frozenset({b"host", b"content-length", b"transfer-encoding", b"expect"})
_VERSIONS: Final = frozenset({"1.0", "1.1"})
"""The parser takes others for one of these, and a request without a version for 0.9."""
_FIELD_OVERHEAD_BYTES: Final = 3  # a colon and a line break


class Framing(NamedTuple):
    """What the header says of the body."""

    has_body: bool
    expects_continue: bool
    """Whether the client waits for "100 Continue" before it sends the body."""


def read_framing(fields: Iterable[Field], version: str) -> Framing | None:
    """Read those *fields* that are in FRAMING_FIELDS; None if they are ambiguous.

    Args:
        fields: Names in lower case.
        version: Of HTTP, such as "1.1".
    """
    if version not in _VERSIONS:
        return None
    hosts, has_body, expects = 0, False, False
    for name, value in fields:
        if name == b"host":
            hosts += 1
        elif name == b"content-length":
            has_body = int(value) > 0
        elif name == b"transfer-encoding":
            if version != "1.1" or value.lower() != b"chunked":
                return None
            has_body = True
        else:
            expects = value.lower() == b"100-continue"
    if hosts != 1 and (hosts or version != "1.0"):
        return None
    return Framing(has_body, expects)


def read_target(target: bytes, method: bytes, fields: Iterable[Field]) -> bytes | None:
    """Return path and query of a request; None if the target will not do.

    An absolute address is taken if it agrees with the Host field.
    """
    if b"#" in target:
        return None
    if target[:1] == b"/" or (target == b"*" and method == b"OPTIONS"):
        return target
    scheme, _, rest = target.partition(b"://")
    authority, slash, rest = rest.partition(b"/")
    hosts = [value.lower() for name, value in fields if name == b"host"]
    if scheme.lower() not in (b"http", b"https") or not slash or hosts != [authority.lower()]:
        return None
    return slash + rest


def header_size(fields: Iterable[Field]) -> int:
    """Return how many bytes *fields* take on the wire, optional spaces not counted."""
    return sum(len(name) + len(value) + _FIELD_OVERHEAD_BYTES for name, value in fields)


def without_upgrade(method: bytes, target: bytes, fields: Iterable[Field]) -> bytes:
    """Return a header as it would be without its Upgrade field."""
    lines = [b"%b %b HTTP/1.1" % (method, target)]
    lines += [b"%b: %b" % field for field in fields if field[0] != b"upgrade"]
    return b"\r\n".join((*lines, b"", b""))
