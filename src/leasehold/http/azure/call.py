"""One request on its way through the dialect: what it says of itself, and the answers made for it.

From an address to an account, a resource and an operation; the query, read strictly; the version
of the protocol. Nothing here is secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple, NoReturn, TypeAlias

from leasehold.auth.authenticator import Grant
from leasehold.auth.sharedkey import format_http_date
from leasehold.auth.types import EPOCH, Operation, Pairs, format_iso_time, parse_iso_time
from leasehold.domain.limits import (
    AZURE,
    AZURE_BEFORE_2011_08_18,
    AZURE_BEFORE_2017_07_29,
    Limits,
    check_range,
)
from leasehold.http.app import BaseCall, RequestIds
from leasehold.http.azure.errors import Fault, invalid_header, invalid_parameter
from leasehold.http.azure.xml import PROLOG, element, parent
from leasehold.http.requests import (
    MAX_HOST_CHARS,
    MAX_INTEGER_CHARS,
    Header,
    Response,
    percent_decode,
)

_CONTENT_TYPE: Final = (b"content-type", b"application/xml")
_NO_CACHE: Final = (b"cache-control", b"no-cache")
_CLIENT_REQUEST_ID: Final = "x-ms-client-request-id"
_CLIENT_REQUEST_ID_CHARS: Final = 1024


def request_ids(entropy: bytes | None = None) -> RequestIds:
    """Return ids of the form the service uses: a GUID whose last six digits are zero.

    The first eight digits count, the rest is drawn once per process.
    """
    drawn = (os.urandom(13) if entropy is None else entropy).hex()
    tail = f"-{drawn[:4]}-4{drawn[4:7]}-8{drawn[7:10]}-{drawn[10:16]}000000"
    return RequestIds(b"%08x" + tail.encode(), int(drawn[16:24], 16))


class Call(BaseCall):
    """What is known so far about a request. The dialect fills it in, stage by stage."""

    __slots__ = (
        "entered",
        "max_body_bytes",
        "pairs",
        "params",
        "route",
        "text",
        "version",
    )
    route: Route
    """Set before any operation reads its request."""
    entered: tuple[Operation, Grant]
    """What is wanted and who wants it, once the credentials have been found good."""

    def __init__(self) -> None:
        self.version: Version = UNREADABLE
        self.pairs: Pairs = ()
        self.params: dict[str, str] = {}
        self.account = ""
        self.max_body_bytes: int | None = None
        """What is set for the queue, in place of the version's limit; for what brings a body."""
        self.text: bytes | None = None
        """The text of the message in the body, if it was too long to be read at once."""
        self.operation = "unknown"

    @property
    def actor(self) -> str:
        """Who asks, for the event log; known once the credentials are."""
        return self.entered[1].actor

    def reply(self, status: int, *extra: Header) -> Response:
        """Return an answer without a body."""
        return Response(status, self._headers(*extra))

    def reply_xml(self, status: int, root: bytes) -> Response:
        """Return an answer with a body; *root* is its root element."""
        if self.request.method == "HEAD":
            return Response(status, self._headers())
        return Response(status, self._headers(_CONTENT_TYPE), PROLOG + root)

    def reply_fault(self, fault: Fault) -> Response:
        """Return an error."""
        extra = fault.headers
        if self.version.error_code_header:
            extra += ((b"x-ms-error-code", fault.code.encode("ascii")),)
        if self.request.method == "HEAD":
            return Response(fault.status, self._headers(*extra))
        request_id = self.request_id.decode("ascii")
        message = f"{fault.message}\nRequestId:{request_id}\nTime:{iso8601(self.now_ms)}"
        root = parent(
            "Error",
            element("Code", fault.code),
            element("Message", message),
            *(element(name, value) for name, value in fault.details),
        )
        return Response(fault.status, self._headers(_CONTENT_TYPE, *extra), PROLOG + root)

    def _headers(self, *extra: Header) -> list[Header]:
        version = self.version
        headers = [(b"x-ms-request-id", self.request_id), *extra]
        if version.header is not None:
            headers.append(version.header)
        if version.echoes_client_request_id:
            client_id = self.request.headers.get(_CLIENT_REQUEST_ID)
            if client_id and _is_echoed(client_id):
                headers.append((b"x-ms-client-request-id", client_id.encode("ascii")))
        if self.request.method == "GET":
            headers.append(_NO_CACHE)
        return headers


def _is_echoed(text: str) -> bool:
    return (
        text.isascii()
        and text.isprintable()
        and " " not in text
        and len(text) <= _CLIENT_REQUEST_ID_CHARS
    )


# --- dates -------------------------------------------------------------------------------------
#
# Times as the protocol writes them: RFC 1123 in most places, ISO 8601 in a few.


_FRACTION_DIGITS: Final = 7  # the service counts in units of 100 ns


@lru_cache(maxsize=8192)
def _rfc1123_of_second(second: int) -> bytes:
    return format_http_date(second * 1000).encode("ascii")


def rfc1123(time_ms: int) -> bytes:
    """Write Unix milliseconds as RFC 1123 in GMT; the fraction of a second is dropped."""
    return _rfc1123_of_second(time_ms // 1000)


def iso8601(time_ms: int) -> str:
    """Write Unix milliseconds as ISO 8601 in UTC with seven fraction digits."""
    moment = EPOCH + timedelta(milliseconds=time_ms)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03}0000Z"


def normal_iso8601(text: str) -> str:
    """Rewrite a time of a policy in UTC with seven fraction digits.

    Raises:
        ValueError: It is not of a form that :func:`~leasehold.auth.types.parse_iso_time` takes.
    """
    at_ms = parse_iso_time(text)
    if at_ms is None:
        raise ValueError(text)
    try:
        seconds = format_iso_time(at_ms)[:-1]
    except OverflowError:
        raise ValueError(text) from None
    fraction = text.partition(".")[2].rstrip("Z").partition("+")[0].partition("-")[0]
    return f"{seconds}.{fraction:0<{_FRACTION_DIGITS}.{_FRACTION_DIGITS}}Z"


# --- addresses ---------------------------------------------------------------------------------
#
# Two styles of address exist. Host style, ``http://{account}.queue.{suffix}/{queue}``, is taken
# when the first label of the host is an account of this server and the second is ``queue``, or the
# host ends in ``.localhost``. Everything else is path style, ``http://{host}/{account}/{queue}``.


_SECONDARY: Final = "-secondary"
_FEATURES: Final = ("-ipv6", "-dualstack")
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
        label = account_label(host) if len(host) <= MAX_HOST_CHARS else ""
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


# --- parameters --------------------------------------------------------------------------------
#
# The query of a request: decoded once, then read strictly.


Params: TypeAlias = Mapping[str, str]

_MAX_TIMEOUT_S: Final = 30
_REMEMBERED_CHARS: Final = 256
"""Longer values are not remembered, which bounds the memory of the cache."""
_REMEMBERED_QUERY_CHARS: Final = 1024
_RECEIPT: Final = "popreceipt="


def parse_query(raw: str) -> tuple[Pairs, dict[str, str]]:
    """Take a query string apart.

    Returns:
        The names and values in the order sent, and the same by lower-case name. The values of a
        repeated name are joined with a comma, so that none of them is silently preferred.

    Raises:
        Fault: The query is not ASCII, or its percent-encoding is broken.
    """
    if not raw:
        return (), {}
    if len(raw) > _REMEMBERED_QUERY_CHARS:
        return _parse(raw)
    at = raw.find(_RECEIPT)
    if at < 0:
        pairs, params = _parse_before(raw)
        return pairs, params.copy()
    end = raw.find("&", at)
    if at or end < 0:
        return _parse(raw)
    # A receipt is of one use, and what stands behind it of many.
    pairs, params = _parse_before(raw[end + 1 :])
    ((name, receipt),), _ = _parse(raw[:end])
    if "popreceipt" in params or not receipt:
        return _parse(raw)
    return ((name, receipt), *pairs), {"popreceipt": receipt, **params}


def _parse(raw: str) -> tuple[Pairs, dict[str, str]]:
    if "%" in raw or "+" in raw or not raw.isascii():
        pairs = _decoded_pairs(raw)
    else:
        pairs = [
            (name, value)
            for name, _, value in [part.partition("=") for part in raw.split("&")]
            if name or value
        ]
    params = {name.lower(): value for name, value in pairs}
    if len(params) != len(pairs):
        params = {}
        for name, value in pairs:
            key = name.lower()
            params[key] = f"{params[key]},{value}" if key in params else value
    return tuple(pairs), params


# A client sends the same signature with each request, and asks for messages in the same words.
_parse_before = lru_cache(maxsize=1024)(_parse)


def _decoded_pairs(raw: str) -> list[tuple[str, str]]:
    pairs = []
    try:
        for part in raw.replace("+", " ").split("&"):
            name, _, value = part.partition("=")
            if name or value:
                pairs.append((_decoded(name), _decoded(value)))
    except ValueError:
        raise Fault("RequestUrlFailedToParse") from None
    return pairs


def _decoded(text: str) -> str:
    if "%" not in text:
        if not text.isascii():
            raise ValueError(text)
        return text
    return _decoded_before(text) if len(text) <= _REMEMBERED_CHARS else percent_decode(text)


# A client sends the same signature, times and permissions with each request.
_decoded_before = lru_cache(maxsize=4096)(percent_decode)


def whole_number(name: str, text: str) -> int:
    """Read a parameter that must be ASCII digits with an optional minus sign.

    Raises:
        Fault: It is something else; ``int`` would take underscores, spaces and foreign digits.
    """
    digits = text[1:] if text[:1] == "-" else text
    if len(digits) <= MAX_INTEGER_CHARS and digits.isascii() and digits.isdigit():
        return int(text)
    raise invalid_parameter(name, text, "Failed to parse the value as a whole number.")


def optional_integer(params: Params, name: str, default: int, bounds: tuple[int, int]) -> int:
    """Read an integer parameter within *bounds*; absent or empty gives *default*.

    Raises:
        Fault: It is not a whole number.
        OutOfRange: It is outside the bounds.
    """
    text = params.get(name)
    if not text:
        return default
    value = whole_number(name, text)
    check_range(name, value, bounds)
    return value


def required(params: Params, name: str) -> str:
    """Read a parameter that must be there.

    Raises:
        Fault: It is absent or empty.
    """
    text = params.get(name)
    if not text:
        raise Fault("MissingRequiredQueryParameter", (("QueryParameterName", name),))
    return text


def required_integer(params: Params, name: str, bounds: tuple[int, int]) -> int:
    """Read an integer parameter that must be there, within *bounds*.

    Raises:
        Fault: It is absent, empty or not a whole number.
        OutOfRange: It is outside the bounds.
    """
    value = whole_number(name, required(params, name))
    check_range(name, value, bounds)
    return value


def timeout_s(params: Params) -> int:
    """Return how long the client is willing to wait, at most 30 seconds (the default as well).

    Raises:
        Fault: The timeout is not a whole number, or negative.
    """
    text = params.get("timeout")
    if not text:
        return _MAX_TIMEOUT_S
    value = whole_number("timeout", text)
    if value < 0:
        raise invalid_parameter("timeout", text, "The value must not be negative.")
    return min(value, _MAX_TIMEOUT_S)


# --- versions ----------------------------------------------------------------------------------
#
# Protocol versions: which one a request is under, and what that version can do.
#
# A version is a date. Any well-formed date from the oldest supported one on is taken and echoed: a
# server that refuses what it does not know breaks with every new client library. A date between
# two versions has the features of the earlier.
#
# Source: "Versioning for Azure Storage" and "Previous Azure Storage service versions".


OLDEST: Final = "2009-09-19"
"""The string to sign of earlier versions is another one."""
NEWEST: Final = "2026-10-06"

UPDATE_MESSAGE_SINCE: Final = "2011-08-18"
DELAYED_PUT_SINCE: Final = "2011-08-18"
UPDATE_WITHIN_LIFE_SINCE: Final = "2012-02-12"
"""Until then a message may be hidden beyond its expiry, which takes precedence: so the team's
announcement of Update Message. The documentation of the operation refuses it."""
ACL_SINCE: Final = "2012-02-12"
CORS_SINCE: Final = "2013-08-15"
STATS_SINCE: Final = "2013-08-15"
SAS_FORBIDDEN_SINCE: Final = "2015-04-05"
PUT_ANSWER_SINCE: Final = "2016-05-31"
UNLIMITED_TIME_TO_LIVE_SINCE: Final = "2017-07-29"
ERROR_CODE_HEADER_SINCE: Final = "2017-07-29"
CLIENT_REQUEST_ID_SINCE: Final = "2019-02-02"
CHALLENGE_SINCE: Final = "2019-12-12"
DELEGATION_KEY_SINCE: Final = "2026-02-06"
DELEGATED_TENANT_SINCE: Final = "2026-04-06"

_WELL_FORMED: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
HEADER: Final = "x-ms-version"


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One version and its features."""

    text: str
    """As the client wrote it, ``YYYY-MM-DD``."""
    header: tuple[bytes, bytes] | None
    """The echo; None when the client named no version, or none that exists."""
    limits: Limits
    put_answers: bool
    """Put Message answers with the message's id, times and receipt; else with an empty body."""
    delayed_put: bool
    """Put Message takes visibilitytimeout."""
    update_past_expiry: bool
    """Update Message may hide a message until after it expires; it is removed then all the same."""
    cors: bool
    """CORS rules, hour and minute metrics, ServiceEndpoint in the list; else the older forms."""
    error_code_header: bool
    """Errors carry x-ms-error-code."""
    echoes_client_request_id: bool
    challenges: bool
    """A request without credentials gets 401 and a challenge; else 404."""
    sas_forbidden: bool
    """A refused shared access signature gets 403; else 404."""


def _version(text: str, *, echo: bool) -> Version:
    if text < DELAYED_PUT_SINCE:
        limits = AZURE_BEFORE_2011_08_18
    elif text < UNLIMITED_TIME_TO_LIVE_SINCE:
        limits = AZURE_BEFORE_2017_07_29
    else:
        limits = AZURE
    return Version(
        text=text,
        header=(b"x-ms-version", text.encode("ascii")) if echo else None,
        limits=limits,
        put_answers=text >= PUT_ANSWER_SINCE,
        delayed_put=text >= DELAYED_PUT_SINCE,
        update_past_expiry=text < UPDATE_WITHIN_LIFE_SINCE,
        cors=text >= CORS_SINCE,
        error_code_header=text >= ERROR_CODE_HEADER_SINCE,
        echoes_client_request_id=text >= CLIENT_REQUEST_ID_SINCE,
        challenges=text >= CHALLENGE_SINCE,
        sas_forbidden=text >= SAS_FORBIDDEN_SINCE,
    )


UNSTATED: Final = _version(OLDEST, echo=False)
"""For a request that names no version: it can only be an anonymous one."""
UNREADABLE: Final = _version(NEWEST, echo=False)
"""For the error about a version, or an address, that could not be read; and for a preflight, in
which a browser has no way to name one."""


@lru_cache(maxsize=256)
def read_version(text: str) -> Version:
    """Return the version called *text*.

    Raises:
        ValueError: It is not a date, or older than :data:`OLDEST`.
    """
    if _WELL_FORMED.fullmatch(text) is None or text < OLDEST:
        raise ValueError(text)
    date.fromisoformat(text)
    return _version(text, echo=True)


def choose_version(headers: Mapping[str, str], params: Mapping[str, str]) -> Version:
    """Return the version a request is under.

    That is its ``x-ms-version``; with a shared access signature, else its ``api-version``, else
    its ``sv``.

    Raises:
        Fault: The version is not one, or a request with an Authorization header names none.
    """
    text = headers.get(HEADER)
    if text is not None:
        try:
            return read_version(text)
        except ValueError:
            raise invalid_header(HEADER, text) from None
    for name in ("api-version", "sv") if "sig" in params else ():
        text = params.get(name)
        if text:
            try:
                return read_version(text)
            except ValueError:
                raise invalid_parameter(name, text, "This is not a version.") from None
    if "authorization" in headers:
        raise Fault("MissingRequiredHeader", (("HeaderName", HEADER),))
    return UNSTATED
