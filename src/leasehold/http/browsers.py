"""What a browser on this machine may send to a server on whose requests anybody can sign.

A web page can make the browser that shows it send requests to a loopback address, and with a public
key it can sign them. Two things give it away. A page whose own name was made to mean this machine
("DNS rebinding") has that name in the Host field. A page of another origin cannot keep the browser
from saying so in Origin, or in Sec-Fetch-Site where there is no Origin.

Sources: RFC 6454, section 7 (Origin); "Fetch Metadata Request Headers" of the W3C; RFC 9110,
section 15.5.20 (421).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Final

import structlog

from leasehold.http.messages import Response

_HOST_CHARS: Final = 300
"""Longer than any host with a port (RFC 1035, section 2.3.4); what is longer is not remembered."""
_REMEMBERED: Final = 256
_TOLD: Final = 16
"""Names of strangers that are logged, each once."""
_OWN_SITES: Final = frozenset({"same-origin", "none"})
"""``none`` is what the user has typed, or a bookmark."""
_TEXT: Final = (b"content-type", b"text/plain; charset=utf-8")
_MISDIRECTED: Final = 421

_log = structlog.get_logger(__name__)


class Hosts:
    """Knows the names that this server is addressed by.

    Args:
        allowed: Names besides addresses in figures, ``localhost`` and what is under it; ``*.NAME``
            for all under one, ``*`` for all there are.
    """

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        names = {name.lower().rstrip(".") for name in allowed}
        self._names = frozenset(names) | {"localhost", ""}
        self._suffixes = (".localhost", *(name[1:] for name in names if name[:2] == "*."))
        self._any = "*" in names
        self._known: set[str] = set()
        self._told: set[str] = set()

    def knows(self, host: str) -> bool:
        """Tell whether a request with this Host field, "" if it has none, is meant for us."""
        if host in self._known:
            return True
        known = self._any or self._knows(_name_of(host))
        if known and len(self._known) < _REMEMBERED and len(host) <= _HOST_CHARS:
            self._known.add(host)
        return known

    def _knows(self, name: str) -> bool:
        if name in self._names or name.endswith(self._suffixes):
            return True
        try:
            # A page that was loaded from an address in figures is where it says it is.
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def refusal(self, host: str) -> Response:
        """Return the answer to a request with another host, and log it the first time."""
        name = _name_of(host)[:_HOST_CHARS]
        if name not in self._told and len(self._told) < _TOLD:
            self._told.add(name)
            _log.warning("server.unknown_host", host=name, setting="allowed_hosts")
        text = b"This server is not known by the host name of the request; see allowed_hosts.\n"
        return Response(_MISDIRECTED, [_TEXT], text)


def _name_of(host: str) -> str:
    """Return the name in a Host field, without the port, in lower case."""
    name = host.lower()
    if name[:1] == "[":
        return name[1:].partition("]")[0]
    return name.partition(":")[0].rstrip(".")


def is_foreign(headers: Mapping[str, str]) -> bool:
    """Tell whether a request comes from a web page that is not one of this server's own."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in _OWN_SITES
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2].lower() != headers.get("host", "")
