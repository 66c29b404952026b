"""The console's addresses: its pages, its sessions, and what is live; and the files of the pages.

Browsers ask each time whether a file has changed, and are told in one small answer that it has
not: so a server that was updated never runs with the pages of the one before.

Sources: RFC 9110, sections 8.8.3 (ETag), 13.1.2 (If-None-Match), 12.5.3 (Accept-Encoding); W3C,
"Content Security Policy Level 3".
"""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final, NamedTuple, NoReturn

from leasehold.auth.types import AuthError, ForeignPage, Operation
from leasehold.clock import Clock
from leasehold.domain.errors import LeaseholdError
from leasehold.http.app import BaseDialect, is_foreign, observe_nothing
from leasehold.http.console.history import History
from leasehold.http.console.live import Live
from leasehold.http.console.oidc import OidcSignIn
from leasehold.http.console.sign_in import SignIn
from leasehold.http.console.workers import Workers
from leasehold.http.native.call import Call, Route, Services, read_params, read_query, request_ids
from leasehold.http.native.dialect import Router
from leasehold.http.native.errors import Refused, problem, problem_of
from leasehold.http.requests import Header, Response

PREFIX: Final = "/console"
_HOME: Final = PREFIX + "/"
_STATIC: Final = PREFIX + "/static/"
_API: Final = PREFIX + "/api/"
_QUEUE: Final = _API + "queues/{queue}/"
_CALLBACK: Final = "oidc-callback"
_MAX_BODY_BYTES: Final = 16_384
"""Of a sign-in. It is read from anybody."""
_READING: Final = frozenset({"GET", "HEAD"})
_MESSAGES: Final = "messages"


def is_of_console(method: str, path: str, query: bytes, headers: Mapping[str, str]) -> bool:
    """Tell whether a request is one of the console's.

    An account may be called ``console``, too, and so may a queue of an account that stands in the
    host: what Azure's protocol means by such an address stays its own. It says ``comp`` wherever
    it reads, or goes to ``messages``.
    """
    if path == "/":
        # A browser; clients of Azure ask for application/xml, or for nothing.
        return method in _READING and not query and "text/html" in headers.get("accept", "")
    if not path.startswith(PREFIX):
        return False
    if path in {PREFIX, _HOME}:
        return method in _READING and b"comp=" not in query
    if path.startswith(_STATIC):
        part = path[len(_STATIC) :]
    elif path.startswith(_API):
        part = path[len(_API) :]
    else:
        return False
    if part.split("/", 1)[0] == _MESSAGES:
        return False
    return method in _READING or path.startswith(_API)


class ConsoleDialect(BaseDialect[Call, Refused]):
    """Answers browsers. Errors have the form of the native API's.

    Args:
        services: What the operations of the native API lean on.
        clock: The system's: what sessions and cookies go by.
        files: The pages.
        sign_in: Begins and ends sessions.
        live: Tells what changes.
        history: Tells what has happened.
        workers: Tells who works.
        oidc: Signs in by an issuer; None if there is none.
        observe: Called once per request with ``console-`` and the name of the route, and the
            status.
    """

    def __init__(  # noqa: PLR0913 - keyword-only, and each is a collaborator of its own
        self,
        *,
        services: Services,
        clock: Clock,
        files: StaticFiles,
        sign_in: SignIn,
        live: Live,
        history: History,
        workers: Workers,
        oidc: OidcSignIn | None = None,
        observe: Callable[[str, int], None] = observe_nothing,
    ) -> None:
        super().__init__(
            action="console.internal_error",
            faults=Refused,
            new_call=partial(Call, services, _authorize_nothing),
            request_ids=request_ids(),
            clock=clock,
            accepts_late=False,
            observe=observe,
            add_headers=_add_security,
        )
        self._files = files
        self._live = live
        routes = [
            Route("session", "GET", _API + "session", (), sign_in.show),
            Route("sign-in", "POST", _API + "session", (), sign_in.begin),
            Route("sign-out", "DELETE", _API + "session", (), sign_in.end),
            Route("overview", "GET", _API + "overview", (), live.overview, live.PARAMS),
            Route("server", "GET", _API + "server", (), live.server),
            Route("live", "GET", _API + "live", (), live.stream, live.STREAM_PARAMS),
            Route("events", "GET", _API + "events", (), history.events, history.EVENTS),
            Route("workers", "GET", _API + "workers", (), workers.workers, workers.PARAMS),
            Route("pipelines", "GET", _API + "pipelines", (), workers.pipelines),
            Route("pipeline", "GET", _API + "pipelines/{name}", (), workers.pipeline),
            Route("advice", "GET", _QUEUE + "advice", (), history.advice),
            Route("figures", "GET", _QUEUE + "figures", (), history.figures, history.FIGURES),
        ]
        if oidc is not None:
            routes += [
                Route("oidc-start", "GET", _API + "oidc/start", (), oidc.start, oidc.START),
                Route(_CALLBACK, "GET", _API + "oidc/callback", (), oidc.callback, oidc.CALLBACK),
            ]
        self._router = Router(tuple(routes))

    def longest_body(self, call: Call) -> int:
        """See :class:`leasehold.http.app.BaseDialect`."""
        del call
        return _MAX_BODY_BYTES

    def drain(self) -> None:
        """See :class:`leasehold.http.app.BaseDialect`."""
        self._live.drain()

    async def _enter(self, call: Call) -> Response | None:
        request = call.request
        path = request.raw_path
        call.operation = "console-page"
        if path == _HOME:
            return self._page(call, INDEX)
        if path.startswith(_STATIC):
            return self._page(call, path[len(_STATIC) :])
        if not path.startswith(_API):
            return redirect(_HOME.encode("ascii"))
        route = call.route = self._router.find(call, path.split("/"))
        call.operation = "console-" + route.name
        # The issuer sends the browser back here; what it brings proves itself.
        if route.name != _CALLBACK and is_foreign(request.headers):
            raise ForeignPage
        call.pairs = read_query(request.raw_query)
        call.params = read_params(call.pairs, route.params)
        return None

    def _page(self, call: Call, name: str) -> Response:
        found = self._files.answer(name, call.request.headers)
        if found is None:
            raise Refused(problem("no-such-route", "The console has no such file."))
        return found

    def _answer(self, call: Call) -> Awaitable[Response]:
        if call.request.body_too_large:
            raise Refused(problem("request-too-large", limit=_MAX_BODY_BYTES))
        return call.route.handler(call)

    def _fault_of(self, call: Call, error: LeaseholdError | AuthError) -> Refused:
        del call
        return Refused(problem_of(error))

    def _internal_error(self) -> Refused:
        return Refused(problem("internal-error"))


async def _add_security(call: Call, response: Response) -> None:
    del call
    response.headers.extend(SECURITY)


async def _authorize_nothing(call: Call, operation: Operation, queue: str | None) -> NoReturn:
    del call, operation, queue
    raise AssertionError("no route of the console asks for more than its own check")


# --- files -------------------------------------------------------------------------------------


INDEX: Final = "index.html"
KINDS: Final[Mapping[str, bytes]] = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".mjs": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".svg": b"image/svg+xml",
    ".woff2": b"font/woff2",
    ".txt": b"text/plain; charset=utf-8",
}
"""Files with other endings are not served."""
POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    b"font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'self'; "
    b"frame-ancestors 'none'"
)
SECURITY: Final[tuple[Header, ...]] = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", POLICY),
)
"""Fields of everything under the console's addresses."""

_COMPRESSED: Final = frozenset({".woff2"})
"""Files that get no smaller."""
_FOLDERS: Final = 2
"""How deep files may lie: ``static`` itself, and folders such as ``static/vendor``."""
_NOT_MODIFIED: Final = 304


class _File(NamedTuple):
    kind: bytes
    content: bytes
    packed: bytes
    """The same, compressed; empty where that would be no smaller."""
    etag: bytes
    """Without quotes, of the content as it is."""


_OWN_LANGUAGES: Final = frozenset({".js", ".css"})
_VENDOR: Final = "vendor/"
"""What is below is sent as it came, with its licences."""
_INDENT: Final = re.compile(rb"^[ \t]+", re.MULTILINE)
_COMMENT: Final = re.compile(rb"^[ \t]*(?://[^\n]*|/\*(?:[^*]|\*(?!/))*\*/[ \t]*)\n", re.MULTILINE)


class StaticFiles:
    """Serves the files beside this module, each read when it is first asked for.

    Only what was found in the folder has a name here. So there is no path to walk along, and none
    to walk out by.

    Args:
        folder: Where they are; None for the package's own.
    """

    def __init__(self, folder: Traversable | None = None) -> None:
        place = folder or resources.files(__package__ or "").joinpath("static")
        self._places = dict(_found(place, "", _FOLDERS))
        self._files: dict[str, _File] = {}

    @property
    def names(self) -> frozenset[str]:
        """Names of all files, such as ``vendor/preact.mjs``."""
        return frozenset(self._places)

    def answer(self, name: str, headers: Mapping[str, str]) -> Response | None:
        """Return the answer to a GET of a file; None if there is none of this name.

        Args:
            name: Within the folder, with ``/`` between the parts, exactly as it is there.
            headers: Of the request, by names in lower case.
        """
        file = self._file(name)
        if file is None:
            return None
        packs = bool(file.packed) and takes_gzip(headers.get("accept-encoding", ""))
        etag = b'"%b-gz"' % file.etag if packs else b'"%b"' % file.etag
        fields: list[Header] = [
            (b"etag", etag),
            (b"cache-control", b"no-cache"),
            (b"vary", b"accept-encoding"),
        ]
        if _names(headers.get("if-none-match", ""), etag.decode("ascii")):
            return Response(_NOT_MODIFIED, fields)
        fields.append((b"content-type", file.kind))
        if packs:
            fields.append((b"content-encoding", b"gzip"))
        return Response(200, fields, file.packed if packs else file.content)

    def _file(self, name: str) -> _File | None:
        file = self._files.get(name)
        place = self._places.get(name)
        if file is None and place is not None:
            content = place.read_bytes()
            ending = _ending(name)
            if ending in _OWN_LANGUAGES and not name.startswith(_VENDOR):
                content = compact(content)
            packed = b"" if ending in _COMPRESSED else gzip.compress(content, mtime=0)
            file = self._files[name] = _File(
                KINDS[ending],
                content,
                packed if len(packed) < len(content) else b"",
                hashlib.sha256(content).hexdigest()[:32].encode("ascii"),
            )
        return file


def redirect(to: bytes) -> Response:
    """Return an answer that sends a browser elsewhere on this server."""
    return Response(302, [(b"location", to), (b"cache-control", b"no-store")])


def compact(source: bytes) -> bytes:
    """Leave out of a script or a style sheet what only its readers need: most comments, indents.

    Comments that have lines of their own are a tenth of all that a browser has to load. No line of
    a template may begin as a comment does, nor may its indent have a meaning.
    """
    return _INDENT.sub(b"", _COMMENT.sub(b"", source))


def takes_gzip(accepted: str) -> bool:
    """Tell whether an ``Accept-Encoding`` field lets an answer be compressed with gzip."""
    for part in accepted.lower().split(","):
        coding, _, weight = part.partition(";")
        if coding.strip() == "gzip":
            return weight.replace(" ", "") not in {"q=0", "q=0.0", "q=0.00", "q=0.000"}
    return False


def _found(folder: Traversable, before: str, depth: int) -> Iterator[tuple[str, Traversable]]:
    for each in folder.iterdir():
        if each.is_dir() and depth > 1:
            yield from _found(each, f"{before}{each.name}/", depth - 1)
        elif each.is_file() and _ending(each.name) in KINDS:
            yield before + each.name, each


def _ending(name: str) -> str:
    return "." + name.rpartition(".")[2]


def _names(condition: str, etag: str) -> bool:
    """Tell whether an ``If-None-Match`` field names a tag; a proxy may have made it weak."""
    tags = {part.strip().removeprefix("W/") for part in condition.split(",")}
    return etag in tags or "*" in tags
