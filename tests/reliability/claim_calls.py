"""Calls of clients that ask again until there is an answer, and a trap that kills at a chosen one.

As in :mod:`tests.reliability.killing`, the server is a process of its own, and the clients and
their records live here.
"""

from __future__ import annotations

import base64
import hashlib
import json
import random
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa

from tests.e2e.server import DEV_ACCOUNT, DEV_KEY
from tests.reliability.claim_history import Deeds
from tests.reliability.killing import Target
from tests.reliability.running import Answer, Connection, KillableServer, serialize

ARROW: Final = "application/vnd.apache.arrow.stream"
OUT: Final = "claims-out"
"""The queue that everything goes to which is sent along with something."""
INLINE_BYTES: Final = 16_384
SIZES: Final = {0: 60, 20_000: 12, 60_000: 4, 200_000: 3, 1_000_000: 1}
"""Of the filling of bodies, and how often each comes; those above INLINE_BYTES are spilled."""
_US_PER_MS: Final = 1000


# --- bodies ------------------------------------------------------------------------------------


def body_of(name: str) -> bytes:
    """Return the body that a message of this name has, ``anything-size``."""
    size = int(name.rpartition("-")[2])
    filling = hashlib.sha512(name.encode()).digest() if size else b""
    return (name.encode() + b"\n" + filling * (size // 64 + 1))[: size + len(name) + 1]


def name_in(body: bytes) -> str:
    """Return the name of the message that has this body; empty if it is nobody's."""
    name = body.partition(b"\n")[0].decode("latin-1")
    try:
        return name if body_of(name) == body else ""
    except ValueError:
        return ""


def put_item(name: str, **more: Any) -> dict[str, Any]:
    """Return a message to put."""
    body = body_of(name)
    if body.isascii():
        return {"body": body.decode(), **more}
    return {"body_base64": base64.b64encode(body).decode(), **more}


def name_of(view: Mapping[str, Any]) -> str:
    """Return the name of a message as an answer shows it."""
    text, coded = view.get("body"), view.get("body_base64")
    return name_in(base64.b64decode(coded or "") if text is None else text.encode())


# --- calls -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Request:
    """One request to the native API; the path is that within the account."""

    method: str
    path: str
    body: Any = None
    """Bytes as they are, anything else as JSON."""
    accept: str = "application/json"

    def raw(self) -> bytes:
        """Return it as it goes over the wire."""
        content = self.body if isinstance(self.body, bytes) else b""
        if self.body is not None and not isinstance(self.body, bytes):
            content = json.dumps(self.body).encode()
        headers = {
            "host": "127.0.0.1",
            "authorization": f"Bearer {DEV_KEY}",
            "accept": self.accept,
            "content-length": str(len(content)),
        }
        return serialize(self.method, f"/v1/accounts/{DEV_ACCOUNT}{self.path}", headers, content)


class Line:
    """One connection, opened when it is needed."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._connection: Connection | None = None

    def send(self, request: Request, sent: Callable[[], None] = lambda: None) -> Answer:
        """Return the answer; raise OSError when there is none. *sent* is called in between."""
        if self._connection is None:
            self._connection = Connection(self.port)
        try:
            self._connection.send(request.raw())
            sent()
            return self._connection.read_answer()
        except OSError:
            self.close()
            raise

    def json(self, method: str, path: str, body: Any = None) -> Any:
        """Return the answer's JSON; fail if it is no 2xx."""
        answer = self.send(Request(method, path, body))
        assert answer.status < 300, f"{method} {path}: {answer}"
        return json.loads(answer.body) if answer.body else {}

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class PatientTarget(Target):
    """Sends clients also at the end to a server that is up, so that they can finish."""

    def __init__(self) -> None:
        super().__init__()
        self.ready_s = 0.0

    def ready(self) -> None:
        """Take note that the server has just come up."""
        self.ready_s = time.monotonic()

    def wait(self) -> int | None:
        """See Target."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._port is not None)
            return self._port


class Trap:
    """Kills the server when some client comes to a chosen moment.

    Args:
        server: The process.
        target: Is told before.
    """

    def __init__(self, server: KillableServer, target: Target) -> None:
        self.sprung = threading.Event()
        self._server = server
        self._target = target
        self._lock = threading.Lock()
        self._wanted: tuple[str, str] | None = None
        self._left = 0
        self._delay_s = 0.0

    def set(self, act: str, moment: str, number: int, delay_s: float) -> None:
        """Kill at the *number*-th time from now that an *act* is ``sent``, or ``answered``."""
        with self._lock:
            self.sprung.clear()
            self._wanted, self._left, self._delay_s = (act, moment), number, delay_s

    def disarm(self) -> bool:
        """Kill no more; return whether it has killed."""
        with self._lock:
            self._wanted = None
            return self.sprung.is_set()

    def reached(self, act: str, moment: str) -> None:
        """Say that a client has come to a moment."""
        if self._wanted != (act, moment):
            return
        with self._lock:
            self._left -= 1
            if self._wanted != (act, moment) or self._left:
                return
            self._wanted = None
            time.sleep(self._delay_s)  # a part of a commit long, to die within it
            self._target.down()
            self._server.strike()
            self.sprung.set()


class EndedError(Exception):
    """There is no server any more, and there will be none."""


class Told(NamedTuple):
    """What came of a call."""

    problem: str
    """Code of a refusal; ``unanswered`` if nothing is known."""
    json: Any
    answer: Answer | None

    @property
    def done(self) -> bool:
        """Whether it was done."""
        return not self.problem


UNANSWERED: Final = "unanswered"


class Rig(NamedTuple):
    """What every client has."""

    name: str
    seed: int
    target: PatientTarget
    trap: Trap
    deeds: Deeds


class Client:
    """One thread that does as :meth:`step` says until told to end; each call is on record."""

    def __init__(self, rig: Rig) -> None:
        self.name, seed, self.target, self.trap, self.deeds = rig
        self.rng = random.Random(f"{seed}/{self.name}")
        self.thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self.answered = 0
        self.broken: list[str] = []
        """What must not have come while the server was meant to be up."""
        self._line: Line | None = None
        self._numbers = 0

    def _run(self) -> None:
        try:
            while not self.target.closed:
                self.step()
            self.finish()
        except EndedError:
            pass
        except Exception as error:  # noqa: BLE001 - the campaign tells, and ends
            self.broken.append(f"{self.name}: {type(error).__name__}: {error}")
        finally:
            self.hang_up()

    def step(self) -> None:
        """Do a bit of work."""
        raise NotImplementedError

    def finish(self) -> None:
        """Come to an end."""

    def hang_up(self) -> None:
        """Close the connection."""
        if self._line is not None:
            self._line.close()
            self._line = None

    def new_name(self, *, small: bool = False) -> str:
        """Return a name for a message that no other has."""
        self._numbers += 1
        size = 0 if small else self.rng.choices(list(SIZES), list(SIZES.values()))[0]
        return f"{self.name}-{self._numbers}-{size}"

    def chance(self, share: float) -> bool:
        """Draw."""
        return self.rng.random() < share

    def ask(
        self,
        act: str,
        what: str,
        request: Request,
        *,
        asked: Mapping[str, Any] | None = None,
        tell: Callable[[Any, Answer], Mapping[str, Any]] = lambda _, __: {},
        fine: Collection[str] = (),
        again: bool = True,
    ) -> Told:
        """Make a call, and make it again until it is answered.

        Args:
            act: See Deed, as for the next two.
            what: See there.
            request: The call.
            asked: See Deed.
            tell: Takes from an answer what is to be written down.
            fine: Codes of problems that may come.
            again: Whether to ask again; if not, ``unanswered`` is a problem that may come.

        Raises:
            EndedError: There is no server any more.
            AssertionError: It was refused for another reason.
        """
        place = self.deeds.intend(act, what, asked or {})
        repeats = 0
        while True:
            answer = self._try(act, request)
            if answer is not None:
                break
            if not again:
                return Told(UNANSWERED, None, None)
            repeats += 1
        is_json = "json" in answer.headers.get("content-type", "")
        content = json.loads(answer.body) if answer.body and is_json else None
        self.answered += 1
        if answer.status >= 300:
            code = content["code"] if content else str(answer.status)
            assert code in fine, f"{request.method} {request.path}: {answer.body[:2_000]!r}"
            self.deeds.answer(place, repeats, code, {})
            self.trap.reached(act, "answered")
            return Told(code, content, answer)
        self.deeds.answer(place, repeats, "", tell(content, answer))
        self.trap.reached(act, "answered")
        return Told("", content, answer)

    def _try(self, act: str, request: Request) -> Answer | None:
        port = self.target.wait()
        if port is None:
            raise EndedError
        if self._line is None or self._line.port != port:
            self.hang_up()
            self._line = Line(port)
        try:
            return self._line.send(request, lambda: self.trap.reached(act, "sent"))
        except OSError:
            if self.target.is_up(port):
                raise
            return None

    def must_refuse(self, what: str, request: Request, *problems: str) -> None:
        """Ask for something that is to be refused with one of these problems."""
        self.ask("refused", what, request, asked={"problems": problems}, fine=problems)


# --- answers -----------------------------------------------------------------------------------


def rows_in_json(content: Any) -> list[list[Any]]:
    """Return members of a claim as both forms of an answer tell them, without what changes."""
    return [
        [
            view["id"],
            name_of(view),
            view["inserted_at_ms"],
            view["expires_at_ms"],
            view["last_visible_at_ms"],
            view["dequeue_count"],
            view["fence"],
            view["priority"],
        ]
        for view in content["messages"]
    ]


def rows_in_arrow(content: bytes) -> list[list[Any]]:
    """Return the same from Arrow."""
    with pa.ipc.open_stream(content) as stream:
        table = stream.read_all()
    return [list(row) for row in _rows(table)]


def _rows(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    def moments(name: str) -> list[int | None]:
        values = table.column(name).cast(pa.int64()).to_pylist()
        return [None if value is None else value // _US_PER_MS for value in values]

    yield from zip(
        table.column("message_id").to_pylist(),
        map(name_in, table.column("body").to_pylist()),
        moments("inserted_at"),
        moments("expires_at"),
        moments("visible_since"),
        table.column("dequeue_count").to_pylist(),
        table.column("fence").to_pylist(),
        table.column("priority").to_pylist(),
        strict=True,
    )
