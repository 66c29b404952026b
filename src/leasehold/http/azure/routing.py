"""From an address to an account, a resource and an operation; nothing here is secret.

Two styles of address exist. Host style, ``http://{account}.queue.{suffix}/{queue}``, is taken when
the first label of the host is an account of this server and the second is ``queue``, or the host
ends in ``.localhost``. Everything else is path style, ``http://{host}/{account}/{queue}``.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple, NoReturn

from leasehold.auth.types import Operation
from leasehold.http.azure.errors import Fault, invalid_parameter
from leasehold.http.percent import percent_decode

_SECONDARY: Final = "-secondary"
_FEATURES: Final = ("-ipv6", "-dualstack")
_HOST_CHARS: Final = 300
"""Longer than any host with a port (RFC 1035, section 2.3.4); what is longer is not remembered."""
_KNOWN_METHODS: Final = frozenset(
    ("GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS", "MERGE", "PATCH", "TRACE", "CONNECT")
)


class Kind(Enum):
    """What an address names."""

    ACCOUNT = "account"
    QUEUE = "queue"
    MESSAGES = "messages"
    MESSAGE = "message"


class Place(NamedTuple):
    """The account an address is at, and where."""

    account: str
    """Name without suffixes."""
    secondary: bool
    """Whether it is the account's secondary address."""
    base: str
    """The path of the account: empty in host style, ``/{account}`` with suffixes in path style."""


class Route(NamedTuple):
    """What an address names, percent-decoded once. The names are not checked yet."""

    place: Place
    kind: Kind
    queue: str = ""
    message_id: str = ""


_ACCOUNT: Final[Mapping[str, Mapping[str, Operation]]] = {
    "list": {"GET": Operation.LIST_QUEUES},
    "properties": {
        "GET": Operation.GET_SERVICE_PROPERTIES,
        "PUT": Operation.SET_SERVICE_PROPERTIES,
    },
    "stats": {"GET": Operation.GET_SERVICE_STATS},
    "userdelegationkey": {"POST": Operation.GET_USER_DELEGATION_KEY},
}
_QUEUE: Final[Mapping[str, Mapping[str, Operation]]] = {
    "": {"PUT": Operation.CREATE_QUEUE, "DELETE": Operation.DELETE_QUEUE},
    "metadata": {
        "GET": Operation.GET_QUEUE_METADATA,
        "HEAD": Operation.GET_QUEUE_METADATA,
        "PUT": Operation.SET_QUEUE_METADATA,
    },
    "acl": {
        "GET": Operation.GET_QUEUE_ACL,
        "HEAD": Operation.GET_QUEUE_ACL,
        "PUT": Operation.SET_QUEUE_ACL,
    },
}
_MESSAGES: Final[Mapping[str, Operation]] = {
    "POST": Operation.PUT_MESSAGE,
    "GET": Operation.GET_MESSAGES,
    "DELETE": Operation.CLEAR_MESSAGES,
}
_MESSAGE: Final[Mapping[str, Operation]] = {
    "PUT": Operation.UPDATE_MESSAGE,
    "DELETE": Operation.DELETE_MESSAGE,
}
_SERVICE_COMPS: Final = frozenset(("properties", "stats", "userdelegationkey"))


class Router:
    """Knows which accounts there are; *accounts* is read at each request."""

    def __init__(self, accounts: Container[str]) -> None:
        self._accounts = accounts
        self._places: dict[str, Place] = {}
        """Path-style addresses of accounts that are there, or were."""

    def find(self, raw_path: str, host: str) -> Route:
        """Find what *raw_path*, still percent-encoded, names on *host*.

        Raises:
            Fault: The path is not one of this protocol, or its encoding is broken.
        """
        place, segments = self._split_path(raw_path, host)
        return _resource(place, segments)

    def find_place(self, raw_path: str, host: str) -> Place:
        """Find the account that *raw_path* is at, whatever it names there.

        Raises:
            Fault: The path names no account, or its encoding is broken.
        """
        return self._split_path(raw_path, host)[0]

    def _split_path(self, raw_path: str, host: str) -> tuple[Place, list[str]]:
        """Return the account, and the decoded segments after it behind an empty one."""
        segments = raw_path.split("/")
        if "%" in raw_path or not raw_path.isascii():
            try:
                segments = [percent_decode(segment) for segment in segments]
            except ValueError:
                raise Fault("InvalidUri") from None
        if not segments[-1] and len(segments) > 1:
            del segments[-1]
        label = account_label(host) if len(host) <= _HOST_CHARS else ""
        if label:
            account, secondary = self._split(label)
            if account in self._accounts:
                return Place(account, secondary, ""), segments
        if len(segments) == 1 or not segments[1]:
            raise Fault("InvalidUri")
        label = segments.pop(1)
        place = self._places.get(label)
        if place is None or label not in self._accounts:
            account, secondary = self._split(label)
            place = Place(account, secondary, "/" + label)
            if label in self._accounts:
                self._places[label] = place
        return place, segments

    def _split(self, label: str) -> tuple[str, bool]:
        if label in self._accounts:
            return label, False
        for feature in _FEATURES:
            label = label.removesuffix(feature)
        account = label.removesuffix(_SECONDARY)
        return account, account != label


@lru_cache(maxsize=256)
def account_label(host: str) -> str:
    """Return the label of *host* that may be an account, or nothing for path style."""
    name = host.lower()
    if name[-1:] != "]":  # the end of an IPv6 address without a port
        name = name.partition(":")[0]
    label, _, suffix = name.partition(".")
    if suffix.partition(".")[0] == "queue" or name.endswith(".localhost"):
        return label
    return ""


def _resource(place: Place, segments: list[str]) -> Route:
    """Name what follows the account; *segments* begins with an empty one."""
    length = len(segments)
    if "" not in segments[1:] and not segments[0]:
        if length > 2 and segments[2] == "messages":  # noqa: PLR2004 - behind the queue
            if length == 3:  # noqa: PLR2004
                return Route(place, Kind.MESSAGES, segments[1])
            if length == 4:  # noqa: PLR2004 - the last is the id
                return Route(place, Kind.MESSAGE, segments[1], segments[3])
        elif length == 2:  # noqa: PLR2004
            return Route(place, Kind.QUEUE, segments[1])
        elif length == 1:
            return Route(place, Kind.ACCOUNT)
    raise Fault("InvalidUri")


def operation_of(kind: Kind, method: str, params: Mapping[str, str]) -> Operation:
    """Return the operation that *method* and ``comp``, ``restype``, ``peekonly`` ask for.

    Raises:
        Fault: The resource has no such operation.
    """
    if kind is Kind.MESSAGES:
        operation = _MESSAGES.get(method)
        if operation is None:
            _refuse_verb(method, _MESSAGES)
        if operation is Operation.GET_MESSAGES and "peekonly" in params:
            return _get_or_peek(params["peekonly"])
        return operation
    if kind is Kind.MESSAGE:
        operation = _MESSAGE.get(method)
        if operation is None:
            _refuse_verb(method, _MESSAGE)
        return operation
    comps = _ACCOUNT if kind is Kind.ACCOUNT else _QUEUE
    return _by_comp(comps, method, params)


def _get_or_peek(peek_only: str) -> Operation:
    wanted = peek_only.lower()
    if wanted == "true":
        return Operation.PEEK_MESSAGES
    if wanted in ("", "false"):
        return Operation.GET_MESSAGES
    raise invalid_parameter("peekonly", peek_only, "The value must be true or false.")


def _by_comp(
    comps: Mapping[str, Mapping[str, Operation]], method: str, params: Mapping[str, str]
) -> Operation:
    comp = params.get("comp", "").lower()
    methods = comps.get(comp)
    if comp and methods is None:
        raise invalid_parameter("comp", params["comp"], "The resource has no such component.")
    if methods is None or method not in methods:
        everywhere = {name for entry in comps.values() for name in entry}
        if not comp and method in everywhere:
            raise Fault("MissingRequiredQueryParameter", (("QueryParameterName", "comp"),))
        _refuse_verb(method, methods or everywhere)
    if comp in _SERVICE_COMPS:
        restype = params.get("restype", "")
        if not restype:
            raise Fault("MissingRequiredQueryParameter", (("QueryParameterName", "restype"),))
        if restype.lower() != "service":
            raise invalid_parameter("restype", restype, "The value must be service.")
    return methods[method]


def _refuse_verb(method: str, allowed: Mapping[str, object] | set[str]) -> NoReturn:
    if method not in _KNOWN_METHODS:
        raise Fault("InvalidHttpVerb")
    verbs = ", ".join(sorted({*allowed, "OPTIONS"}))
    raise Fault("UnsupportedHttpVerb", headers=((b"allow", verbs.encode("ascii")),))
