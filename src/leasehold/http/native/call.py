"""One request on its way through the dialect: what it may use, what it says, and its answers.

Reading what a client sends, the query, JSON, and values with limits, is here as well.
"""

from __future__ import annotations

import asyncio
import difflib
import importlib
import os
import re
from asyncio import Lock
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar, cast
from urllib.parse import unquote_to_bytes

import msgspec

from leasehold.auth.authenticator import CredentialKind, Grant
from leasehold.auth.sas import FIELD_NAMES
from leasehold.auth.types import Operation, Pairs
from leasehold.domain.admin import Job
from leasehold.domain.claims import OpenClaim, Opened
from leasehold.domain.command import Perform
from leasehold.domain.errors import InvalidQueueName
from leasehold.domain.limits import MAX_ITEMS, check_queue_name
from leasehold.domain.model import Queue
from leasehold.engine.long_poll import Gone
from leasehold.engine.stats import QueueActivity
from leasehold.http.admission import LongReceive
from leasehold.http.app import BaseCall, RequestIds
from leasehold.http.native.errors import (
    Refused,
    document,
    invalid,
    out_of_range,
    problem,
    problem_of,
    shown,
)
from leasehold.http.requests import Header, Response
from leasehold.http.test_mode import Controls
from leasehold.wire.flows import MAX_PUBLISHED
from leasehold.wire.parts import MAX_NAME, MAX_TEXT, NUMBERS, AnyJson

_T = TypeVar("_T")

MAX_SINGLE_BYTES: Final = 1024 * 1024
"""Largest body of a request that is no batch. Read JSON takes some 40 times its bytes."""
_LONGEST_NAME: Final = 64
"""No member or parameter has a name of so many characters."""
_BROKEN_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_PLACE: Final = re.compile(r" - at `(?:key in )?(?P<path>[^`]*)`$")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(?P<name>.*)`")
_MISSING: Final = re.compile(r"Object missing required field `(?P<name>.*)`")
_KINDS: Final = re.compile(r"Expected `(?P<expected>[a-z |]+)`, got `(?P<got>[a-z]+)`")
_KIND_WORDS: Final = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}
_UNITS: Final = {"_s": " of seconds", "_ms": " of milliseconds", "_bytes": " of bytes"}
"""By how the name of a member ends."""
_WHOLE: Final = re.compile(r"-?[0-9]{1,19}")
_DECIMAL: Final = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,15})?")
_SWITCHES: Final = {"true": True, "false": False}
_ENCODE: Final = msgspec.json.Encoder().encode
_JSON: Final = (b"content-type", b"application/json")
_PROBLEM: Final = (b"content-type", b"application/problem+json")
_NO_STORE: Final = (b"cache-control", b"no-store")


class WaitForJob(Protocol):
    """Waits for a job that the engine carries on in the background."""

    async def __call__(self, account: str, job_id: str, wait_s: float) -> Job:
        """Return the job when it is over, or as it is after *wait_s* seconds.

        Raises:
            JobNotFound: There is no such job.
        """
        ...


class OpenWholeClaim(Protocol):
    """Opens a claim of any size, and waits for messages if there are none."""

    async def __call__(self, command: OpenClaim, wait_s: float, gone: Gone | None = None) -> Opened:
        """Open a claim, step by step, until it takes no more.

        Args:
            command: The claim.
            wait_s: Longest wait for a first message, 0 to 60 seconds.
            gone: Done when the client has gone.

        Raises:
            LeaseholdError: As for :class:`~leasehold.domain.claims.OpenClaim`.
        """
        ...


class Authorize(Protocol):
    """Lets a request do something more than its route asks for."""

    async def __call__(self, call: Call, operation: Operation, queue: str | None) -> object:
        """Return if the sender may do *operation* to *queue*, or to the account if it is None.

        Raises:
            AuthError: The sender may not.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What the operations of the dialect lean on."""

    perform: Perform
    """Carries a command out durably; raises LeaseholdError where it is refused."""
    receive: LongReceive
    """Carries a receive out, and waits for a message."""
    find_queue: Callable[[str, str], Queue | None]
    """Returns a queue of an account as the last batch left it."""
    activity: Callable[[str, str], QueueActivity]
    """Says what has happened in a queue of an account since the server started."""
    wait_for_job: WaitForJob
    open_claim: OpenWholeClaim | None = None
    """Opens a claim; without it, it is opened by ``perform`` and never waits for messages."""
    controls: Controls | None = None
    """What tests may do to the server; None outside test mode."""
    settings_lock: Lock = field(default_factory=Lock)
    """Held by what reads settings, changes them and writes them back."""


def request_ids() -> RequestIds:
    """Return ids that are not used twice: drawn once per process, and counted."""
    return RequestIds(os.urandom(8).hex().encode("ascii") + b"-%08x")


class Call(BaseCall):
    """What is known so far about a request. The dialect fills it in, stage by stage."""

    __slots__ = (
        "authorize",
        "grant",
        "item",
        "number",
        "pairs",
        "params",
        "queue",
        "route",
        "services",
    )
    route: Route
    """Set once the address has been read."""

    def __init__(self, services: Services, authorize: Authorize) -> None:
        self.services = services
        self.authorize = authorize
        self.operation = "native-unknown"
        self.grant: Grant | None = None
        """What the sender has shown; None where nothing is asked for."""
        self.pairs: Pairs = ()
        self.params: Mapping[str, str] = {}
        """The parameters of the query without those of a signature."""
        self.account = ""
        self.queue = ""
        self.item = ""
        """A message's id, a job's, a session's, the name of a stream or transaction, or a code."""
        self.number = ""
        """Of a claim, as it stands in the path."""

    @property
    def actor(self) -> str | None:
        """Who asks, for the event log."""
        return None if self.grant is None else self.grant.actor

    @property
    def console_actor(self) -> str | None:
        """Who asks in the console; None for programs, whose everyday work names nobody."""
        grant = self.grant
        if grant is None or grant.kind is not CredentialKind.CONSOLE_SESSION:
            return None
        return grant.actor

    def reply(self, content: object, status: int = 200, *extra: Header) -> Response:
        """Return an answer with a JSON body."""
        headers = [_JSON, (b"request-id", self.request_id), *extra]
        if self.request.method == "GET":
            headers.append(_NO_STORE)
        return Response(status, headers, _ENCODE(content))

    def reply_bytes(self, kind: bytes, content: bytes | memoryview, *extra: Header) -> Response:
        """Return an answer whose body is no JSON; *kind* is its content type."""
        headers = [(b"content-type", kind), (b"request-id", self.request_id), *extra]
        if self.request.method == "GET":
            headers.append(_NO_STORE)
        return Response(200, headers, content)

    def reply_nothing(self) -> Response:
        """Return an answer without a body."""
        return Response(204, [(b"request-id", self.request_id)])

    def reply_fault(self, fault: Refused) -> Response:
        """Return an error."""
        told = fault.problem
        headers = [_PROBLEM, (b"request-id", self.request_id), *fault.headers]
        if told.retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % told.retry_after_s))
        body = b"" if self.request.method == "HEAD" else _ENCODE(document(told))
        return Response(told.status, headers, body)


# --- operations --------------------------------------------------------------------------------


Handler: TypeAlias = Callable[[Call], Awaitable[Response]]

_MEMBERS: Final = {
    "account": "account",
    "queue": "queue",
    "id": "item",
    "job_id": "item",
    "code": "item",
    "session_id": "item",
    "stream": "item",
    "number": "number",
    "name": "item",
    "group": "item",
}
"""Where a call keeps what stands for a part of the path."""


class Route(NamedTuple):
    """One operation."""

    name: str
    """For the metrics and the document."""
    method: str
    path: str
    operations: tuple[Operation, ...]
    """All of them must be allowed; none is asked for if there is none."""
    handler: Handler
    params: frozenset[str] = frozenset()
    """Parameters of the query."""
    instead: Operation | None = None
    """Whoever is allowed this one may pass as well."""

    def members(self) -> tuple[str, ...]:
        """Return where a call keeps the variable parts of the path, in their order."""
        return tuple(_MEMBERS[part[1:-1]] for part in self.path.split("/") if part[:1] == "{")


# --- the address ---------------------------------------------------------------------------------


def percent_decode(text: str, what: str) -> str:
    """Decode ``%XX`` once.

    Raises:
        Refused: It is not well-formed, or not UTF-8.
    """
    if not text.isascii() or _BROKEN_ESCAPE.search(text):
        raise invalid(None, f"The percent-encoding of {what} is malformed.")
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise invalid(None, f"The percent-encoding of {what} is not UTF-8.") from None


def read_query(raw: str) -> Pairs:
    """Return names and values in the order sent, decoded once; ``+`` is a space.

    Raises:
        Refused: Its percent-encoding is broken.
    """
    if not raw:
        return ()
    if "%" not in raw and "+" not in raw and raw.isascii():
        parts = [part.partition("=") for part in raw.split("&") if part]
        return tuple([(name, value) for name, _, value in parts])
    pairs = []
    for part in raw.replace("+", " ").split("&"):
        if part:
            name, _, value = part.partition("=")
            pairs.append((percent_decode(name, "the query"), percent_decode(value, "the query")))
    return tuple(pairs)


def read_params(pairs: Pairs, allowed: frozenset[str]) -> Mapping[str, str]:
    """Return the parameters that are not those of a signature.

    Raises:
        Refused: One is repeated, or the call does not know it.
    """
    params: dict[str, str] = {}
    for name, value in pairs:
        if name in FIELD_NAMES:
            continue
        if name not in allowed:
            there = shown(name)
            raise invalid(
                there, f"This call has no query parameter `{there}`.{_near(name, allowed)}"
            )
        if name in params:
            raise invalid(name, f"The query parameter `{name}` is repeated.")
        params[name] = value
    return params


def _near(name: str, known: Iterable[str]) -> str:
    if len(name) > _LONGEST_NAME:
        return ""  # to compare a name of megabytes takes seconds, and much memory
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean `{near[0]}`?" if near else ""


def param_int(call: Call, name: str, bounds: tuple[int, int]) -> int | None:
    """Read a parameter that is a whole number; None if it is not there."""
    text = call.params.get(name)
    if not text:
        return None
    if _WHOLE.fullmatch(text) is None:
        raise invalid(name, f"`{name}` must be a whole number.", value=text)
    return within(name, int(text), bounds)


def param_number(call: Call, name: str, bounds: tuple[float, float]) -> float | None:
    """Read a parameter that is a number; None if it is not there."""
    text = call.params.get(name)
    if not text:
        return None
    if _DECIMAL.fullmatch(text) is None:
        raise invalid(name, f"`{name}` must be a number such as 30 or 0.5.", value=text)
    return within(name, float(text), bounds)


def param_switch(call: Call, name: str, *, default: bool) -> bool:
    """Read a parameter that is ``true`` or ``false``."""
    text = call.params.get(name)
    if not text:
        return default
    if text not in _SWITCHES:
        raise invalid(name, f"`{name}` must be true or false.", value=text)
    return _SWITCHES[text]


# --- JSON ----------------------------------------------------------------------------------------


def read_body(
    decoder: msgspec.json.Decoder[_T], call: Call, limit_bytes: int = MAX_SINGLE_BYTES
) -> _T:
    """Read the body of a request that is no batch; none at all counts as ``{}``.

    Raises:
        Refused: It is not JSON, not what the call takes, or larger than *limit_bytes*.
    """
    body = call.request.body
    if len(body) > limit_bytes:
        raise Refused(problem("request-too-large", limit=limit_bytes))
    return decode_body(decoder, body)


def decode_body(
    decoder: msgspec.json.Decoder[_T], body: bytes | msgspec.Raw, root: str = "$"
) -> _T:
    """Read a body of any size, or the part of one that is at *root*; none at all counts as ``{}``.

    Raises:
        Refused: It is not JSON, or not what the call takes.
    """
    try:
        return decoder.decode(body or b"{}")
    except msgspec.ValidationError as error:
        raise explain_invalid(error, known_members(decoder.type), root) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(root, f"The body cannot be read as JSON: {why_unreadable(error)}.") from None


def why_unreadable(error: Exception) -> str:
    """Return why JSON cannot be read."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return "a text is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)


def explain_invalid(
    error: msgspec.ValidationError, known: Iterable[str] = (), root: str = "$"
) -> Refused:
    """Return the refusal for what msgspec says, with *root* as the place of what it looked at."""
    text = str(error)
    place = _PLACE.search(text)
    path = root + (place["path"][1:] if place else "")
    text = _PLACE.sub("", text)
    unknown, missing = _UNKNOWN.fullmatch(text), _MISSING.fullmatch(text)
    if unknown is not None:
        name = shown(unknown["name"])
        detail = f"There is no member `{name}` in `{path}`.{_near(unknown['name'], known)}"
        return invalid(f"{path}.{name}", detail)
    if missing is not None:
        name = missing["name"]
        return invalid(f"{path}.{name}", f"The member `{name}` of `{path}` is missing.")
    return invalid(path, f"`{path}` {_why_wrong_type(path, text)}.")


def _why_wrong_type(path: str, text: str) -> str:
    """Return in words what msgspec says of a value's type."""
    kinds = _KINDS.fullmatch(text)
    if kinds is None:
        return f"is not of the right type: {shown(text[:1].lower() + text[1:])}"
    unit = next((unit for suffix, unit in _UNITS.items() if path.endswith(suffix)), "")
    expected = [
        _KIND_WORDS.get(kind, kind) + (unit if kind in {"int", "float"} else "")
        for kind in kinds["expected"].split(" | ")
    ]
    return f"takes {' or '.join(expected)}, not {_KIND_WORDS.get(kinds['got'], kinds['got'])}"


def known_members(kind: Any) -> set[str]:
    """Return the names of all members of a Struct and of those in it."""
    names: set[str] = set()
    waiting = [msgspec.inspect.type_info(kind)]
    while waiting:
        info: Any = waiting.pop()
        if isinstance(info, msgspec.inspect.StructType):
            for member in info.fields:
                names.add(member.encode_name)
                waiting.append(member.type)
        elif isinstance(info, msgspec.inspect.Metadata):
            waiting.append(info.type)
        elif isinstance(info, msgspec.inspect.UnionType):
            waiting.extend(info.types)
        elif isinstance(info, msgspec.inspect.ListType):
            waiting.append(info.item_type)
    return names


# --- values --------------------------------------------------------------------------------------

_N = TypeVar("_N", int, float)


def within(field: str, value: _N, bounds: tuple[float, float]) -> _N:
    """Return *value*.

    Raises:
        Refused: It is outside *bounds*.
    """
    # Written so that a value that is no number is outside as well.
    if bounds[0] <= value <= bounds[1]:
        return value
    raise out_of_range(field, value, bounds)


def short_text(field: str, text: str | None, limit: int = MAX_TEXT) -> str | None:
    """Return *text*.

    Raises:
        Refused: It has more characters than *limit*, or none.
    """
    if text is not None and not 1 <= len(text) <= limit:
        raise out_of_range(
            field, len(text), (1, limit), f"The limit is a number of characters: shorten `{field}`."
        )
    return text


def queue_name(field: str, name: str) -> str:
    """Return *name*.

    Raises:
        Refused: No queue can be called so.
    """
    try:
        check_queue_name(name)
    except InvalidQueueName as error:
        found = problem_of(error)
        found.field = field
        raise Refused(found) from None
    return name


# --- many items ---------------------------------------------------------------------------------


_MAX_PROPERTIES_JSON_BYTES: Final = 131_072
"""More than MAX_PROPERTIES_BYTES of names and values take, with each character escaped."""
_PROPERTIES: Final[msgspec.json.Decoder[dict[str, str] | None]] = msgspec.json.Decoder(
    dict[str, str] | None
)


class BatchReader(Generic[_T]):
    """Reads requests with many items, and stops when there are too many.

    Args:
        kind: Shape of the request.
        items: The shape of an item, by the name of the member that lists such items.
    """

    def __init__(self, kind: type[_T], **items: type[msgspec.Struct]) -> None:
        self._plain: msgspec.json.Decoder[_T] = msgspec.json.Decoder(kind)
        self._left = 0
        self._path = f"$.{next(iter(items))}" if len(items) == 1 else "$"
        self._counting = self._make_counting(kind, items)

    def read(self, call: Call) -> _T:
        """Read the body of a request.

        Raises:
            Refused: It is not JSON, not what the call takes, or has more than MAX_ITEMS items, in
                all its lists together.
        """
        body = call.request.body
        if len(body) <= MAX_SINGLE_BYTES:  # there is not much to be made of it
            return decode_body(self._plain, body)
        self._left = MAX_ITEMS
        return decode_body(self._counting, body)

    def _make_counting(
        self, kind: type[_T], items: Mapping[str, type[msgspec.Struct]]
    ) -> msgspec.json.Decoder[_T]:
        fields: list[str | tuple[str, Any] | tuple[str, Any, Any]] = []
        for member in msgspec.structs.fields(kind):  # type: ignore[arg-type]  # it is a Struct
            told: Any = member.type
            if member.name in items:
                told = list[self._counted(items[member.name])]  # type: ignore[misc]  # made here
                told = told if member.required else told | None
            known = (member.name, told)
            fields.append(known if member.required else (*known, member.default))
        request = msgspec.defstruct(kind.__name__, fields, forbid_unknown_fields=True, kw_only=True)
        # It has the members of *kind*, and readers look at nothing else.
        return cast("msgspec.json.Decoder[_T]", msgspec.json.Decoder(request))

    def _counted(self, item: type[msgspec.Struct]) -> type[msgspec.Struct]:
        """Return a kind of item that is counted as it is made."""
        fields: list[tuple[str, Any, Any]] = []
        if "properties" in item.__struct_fields__:
            fields.append(("properties", msgspec.Raw, msgspec.Raw()))
        return msgspec.defstruct(
            item.__name__,
            fields,
            bases=(item,),
            namespace={"__post_init__": self._count_with_properties if fields else self._count},
            forbid_unknown_fields=True,
            gc=False,
        )

    def _count_with_properties(self, item: Any) -> None:
        self._count(item)
        raw, place = item.properties, self._path
        if place != "$":
            place += f"[{MAX_ITEMS - self._left - 1}].properties"
        # To make a table of a million properties takes seconds, and to step over them next to none.
        if len(raw) > _MAX_PROPERTIES_JSON_BYTES:
            raise out_of_range(
                place,
                len(raw),
                (0, _MAX_PROPERTIES_JSON_BYTES),
                "The limit is a number of bytes of JSON in the `properties` of a message: send "
                "fewer.",
            )
        item.properties = decode_body(_PROPERTIES, raw, place) if raw else None

    def _count(self, _: object) -> None:
        self._left -= 1
        if self._left < 0:
            raise too_many(self._path, MAX_ITEMS + 1)


def too_many(path: str, number: int) -> Refused:
    """Return the refusal of a request with no items, or more than MAX_ITEMS."""
    return out_of_range(
        path,
        number,
        (1, MAX_ITEMS),
        f"The limit is a number of items: send 1 to {MAX_ITEMS:,} in a request.",
    )


# --- names -------------------------------------------------------------------------------------
#
# Names and numbers in paths, and lists of names: what they may be.


# Clients shorten paths that have a part of one or two dots, and would ask for something else.
_NAME: Final = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._:~-]{1,256}")
_WHOLE_NUMBER: Final = re.compile(r"[0-9]{1,19}")
_NAMES: Final = msgspec.json.Decoder(list[str] | None)


def checked_name(field: str, name: str) -> str:
    """Return the name of a stream or a transaction.

    Raises:
        Refused: Neither can be called so.
    """
    if _NAME.fullmatch(name) is None:
        raise invalid(
            field,
            f"`{field}` is 1 to {MAX_NAME} of A-Z, a-z, 0-9 and `. _ : ~ -`, and not `.` or `..`.",
            value=name,
        )
    return name


def number_of(call: Call) -> int:
    """Return the number of the claim in the path.

    Raises:
        Refused: It is no whole number, or outside NUMBERS.
    """
    text = call.number
    if _WHOLE_NUMBER.fullmatch(text) is None:
        raise invalid("number", "The number of a claim is a whole number.", value=text)
    return within("number", int(text), NUMBERS)


def published_names(raw: AnyJson) -> tuple[str, ...]:
    """Return the names of transactions in the member ``publish``.

    Raises:
        Refused: It is no list of names, or of too many.
    """
    if not raw:
        return ()
    content = bytes(raw)
    if len(content) > MAX_SINGLE_BYTES:
        raise _too_many(MAX_PUBLISHED + 1)
    try:
        names = _NAMES.decode(content) or []
    except msgspec.ValidationError as error:
        raise explain_invalid(error, root="$.publish") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise invalid("$.publish", "`publish` cannot be read as JSON.") from None
    if len(names) > MAX_PUBLISHED:
        raise _too_many(len(names))
    return tuple(checked_name(f"$.publish[{number}]", name) for number, name in enumerate(names))


def _too_many(number: int) -> Exception:
    return out_of_range(
        "$.publish",
        number,
        (0, MAX_PUBLISHED),
        "The limit is a number of names: publish fewer at once.",
    )


# --- apart -------------------------------------------------------------------------------------
#
# Large bodies are read on a thread, where they hold up no other requests.


_READING: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="bodies")


async def apart(
    size: int, read: Callable[..., _T], *of: Any, at_once_bytes: int = MAX_SINGLE_BYTES
) -> _T:
    """Return ``read(*of)``; of more than *at_once_bytes* on the thread.

    One request after the other: each thread that works takes its share from the event loop.

    Args:
        size: Bytes of the body.
        read: What reads it. It must leave alone what the event loop uses meanwhile.
        of: What it is given.
        at_once_bytes: What can be read in a few milliseconds.
    """
    if size <= at_once_bytes:
        return read(*of)
    return await asyncio.get_running_loop().run_in_executor(_READING, read, *of)


# --- portions ----------------------------------------------------------------------------------
#
# Work on many things, in portions between which others have a turn of the event loop.


AT_ONCE: Final = 100
"""Things worked on in one turn; to show a message takes some twenty microseconds."""

_R = TypeVar("_R")


async def in_portions(work: Callable[[_T], _R], things: Sequence[_T]) -> list[_R]:
    """Return what *work* makes of each thing, in their order."""
    if len(things) <= AT_ONCE:
        return [work(each) for each in things]
    made: list[_R] = []
    for start in range(0, len(things), AT_ONCE):
        if start:
            await asyncio.sleep(0)
        made += [work(each) for each in things[start : start + AT_ONCE]]
    return made


# --- arrow ----------------------------------------------------------------------------------------
#
# The library is loaded when it is first asked for, and need not be installed.


ARROW: Final = b"application/vnd.apache.arrow.stream"
"""Registered media type of the IPC streaming format."""

_ARROW_MODULE: Final = "leasehold.http.native.arrow"
_LOADED: Final[dict[str, ModuleType]] = {}


async def arrow_module(code: str) -> Any:
    """Return :mod:`leasehold.http.native.arrow`.

    Raises:
        Refused: The library is not installed; *code* says what that means.
    """
    module = _LOADED.get(_ARROW_MODULE)
    if module is None:
        try:
            # Loading takes some tenths of a second, in which others must not have to wait.
            module = await asyncio.to_thread(importlib.import_module, _ARROW_MODULE)
        except ImportError:
            raise Refused(problem(code)) from None
        _LOADED[_ARROW_MODULE] = module
    return module
