"""What a server asks of the others, from its event loop; a thread of its own speaks to them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import select
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

import psycopg
import structlog
from psycopg.errors import LockNotAvailable

from leasehold.domain.errors import StoreFailed
from leasehold.domain.model import QueueKey
from leasehold.stores.postgres.connection import Address, connect
from leasehold.stores.postgres.shared_time import SharedTime
from leasehold.stores.postgres.store import PostgresStore
from leasehold.stores.sql.statements import load_queries

LEAD_S: Final = 5.0
"""Whoever leads has heard from the database within so many seconds. A machine that it does not hear
from any more it forgets after six: by then that server does not do any more what only the leader
may do."""
TICK_S: Final = 1.0
"""Between two looks at the database. Whoever leads next takes over after as long."""
_MEASURE_S: Final = 10.0
"""Between two looks at its clock, and at servers that may be gone."""
LINGER_S: Final = 60.0
"""For so long a server is told of a queue for which no consumer waits any more: most wait again."""
_GOODBYE_S: Final = 5.0

_log = structlog.get_logger(__name__)


class PostgresPeers:
    """See :class:`leasehold.engine.peers.Peers`.

    Args:
        address: Where the store is.
        store: The store of this server.
        time: Is kept to the time that all servers share.
        tick_s: See TICK_S.
    """

    def __init__(
        self, address: Address, store: PostgresStore, time: SharedTime, *, tick_s: float = TICK_S
    ) -> None:
        self._address = address
        self._store = store
        self._time = time
        self._clock = time.clock
        self._tick_s = tick_s
        self._slots: dict[QueueKey, frozenset[int]] = {}
        self._known = 0
        self._waits: dict[QueueKey, float] = {}
        """Queues that others are to tell of, and since when no consumer waits for them here."""
        self._lock = threading.Lock()
        self._to_tell: set[QueueKey] = set()
        self._to_wait: set[QueueKey] = set()
        self._looks = self._calls = False
        self._stopping = False
        self._is_away = False
        self._led_until_s = -math.inf
        self._next_stand_s = self._next_measure_s = -math.inf
        self._servers = 1
        self._bell, self._ringer = os.pipe()
        os.set_blocking(self._ringer, False)
        self._thread = threading.Thread(target=self._run, name="peers", daemon=True)
        self._loop: asyncio.AbstractEventLoop
        self._hear: Callable[[Collection[QueueKey]], None]
        self._renew: Callable[[], None]
        self._work: Callable[[], None]

    # --- for the loop ------------------------------------------------------------------------

    def start(
        self,
        *,
        hear: Callable[[Collection[QueueKey]], None],
        renew: Callable[[], None],
        work: Callable[[], None],
    ) -> None:
        """See ``Peers``."""
        self._loop = asyncio.get_running_loop()
        self._hear, self._renew, self._work = hear, renew, work
        self._thread.start()

    def stop(self) -> None:
        """See ``Peers``."""
        self._stopping = True
        if self._thread.is_alive():
            self._ring()
            self._thread.join(_GOODBYE_S)

    def leads(self) -> bool:
        """See ``Peers``."""
        return self._clock.monotonic_s() < self._led_until_s

    def begin_waiting(self, key: QueueKey) -> None:
        """See ``Peers``."""
        with self._lock:
            is_new = key not in self._waits
            self._waits[key] = math.inf
            if is_new:
                self._to_wait.add(key)
        if is_new:
            self._ring()

    def end_waiting(self, key: QueueKey) -> None:
        """See ``Peers``."""
        with self._lock:
            if key in self._waits:
                self._waits[key] = self._clock.monotonic_s()

    @property
    def waited_for(self) -> tuple[int, Collection[QueueKey]]:
        """See ``Peers``."""
        return self._known, self._slots

    @property
    def seen(self) -> int:
        """See ``Peers``."""
        return int(self._store.waits)

    def look(self) -> None:
        """See ``Peers``."""
        if not self._looks:
            self._looks = True
            self._ring()

    def tell(self, keys: Collection[QueueKey]) -> None:
        """See ``Peers``."""
        with self._lock:
            is_first = not self._to_tell
            self._to_tell.update(keys)
        if is_first:
            self._ring()

    def call_leader(self) -> None:
        """See ``Peers``."""
        self._calls = True
        self._ring()

    def about(self) -> dict[str, str | int]:
        """See ``Peers``."""
        return {
            "server": self._store.slot,
            "servers": self._servers,
            "leads": int(self.leads()),
            # Of the link's own connection: it tries again by itself, whether or not requests come.
            "connected": int(not self._is_away),
        }

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError):  # then it rings already
            os.write(self._ringer, b"!")

    # --- the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping:
            link = None
            try:
                link = Link(self._address, self._store.slot)
                self._enter(link)
                while not self._stopping:
                    self._serve(link)
                link.leave_all()
            except (psycopg.Error, StoreFailed) as error:
                self._lose(error)
            finally:
                self._led_until_s = -math.inf
                if link is not None:
                    link.close()

    def _lose(self, error: Exception) -> None:
        """Note that the connection is lost, and rest before the next one."""
        if not self._is_away and not self._stopping:
            self._is_away = True
            reason = str(error).strip() or type(error).__name__
            _log.warning("database.lost", reason=reason, meaning="requests get 503 until then")
        self._led_until_s = -math.inf
        select.select([], [], [], 0 if self._stopping else self._tick_s)

    def _enter(self, link: Link) -> None:
        """Take up a new connection."""
        if self._is_away:
            self._is_away = False
            _log.info("database.found")
        self._next_measure_s = -math.inf
        with self._lock:
            self._to_wait.update(self._waits)
        self._looks = True
        self._stand(link)
        self._do_what_is_asked(link)
        self._post(self._hear, ())  # words of the time without a connection are lost

    def _serve(self, link: Link) -> None:
        """Wait for something to do, and do it."""
        waited_for: list[Link | int] = [link, self._bell]
        ready, _, _ = select.select(waited_for, [], [], self._tick_s)
        if self._bell in ready:
            os.read(self._bell, 4096)
        words = link.words() if link in ready else link.heard()
        keys = {key for word in words for key in word.keys}
        if keys:
            self._post(self._hear, keys)
        if not all(word.keys for word in words) and link.leads:
            self._post(self._work)
        self._do_what_is_asked(link)
        if self._clock.monotonic_s() >= self._next_stand_s:
            self._stand(link)

    def _stand(self, link: Link) -> None:
        """Look whether the database is there, and be the leader if there is none."""
        asked_s = self._clock.monotonic_s()
        self._next_stand_s = asked_s + self._tick_s
        led = link.leads
        if link.stand():
            with self._lock:  # while this was not known to be alive, it may have been forgotten
                self._to_wait.update(self._waits)
            self._do_what_is_asked(link)
        self._look_at_time(link)
        if ended := link.end_stopped():
            _log.warning("database.ended_stopped", backends=ended)
        self._servers = link.servers()
        self._store.share_limits(self._servers)
        if link.leads:
            self._led_until_s = asked_s + LEAD_S
            if not led:
                _log.info("server.leads", server=self._store.slot)
                self._post(self._work)
        if asked_s >= self._next_measure_s:
            self._next_measure_s = asked_s + _MEASURE_S
            self._time.measure(link.run)
            with contextlib.suppress(LockNotAvailable):  # the next time will do
                if link.leads:
                    link.forget_dead()
                self._leave(link, asked_s)

    def _look_at_time(self, link: Link) -> None:
        """See that this server's time is the shared one, and say so to the others."""
        with contextlib.suppress(LockNotAvailable):  # the next time will do
            self._time.look(link.run)
            if link.leads:
                self._time.work_off(link.run, self._tick_s)

    def _do_what_is_asked(self, link: Link) -> None:
        with self._lock:
            to_wait, self._to_wait = self._to_wait, set()
        if to_wait:
            try:
                link.wait(to_wait)
            except LockNotAvailable:
                with self._lock:
                    self._to_wait |= to_wait
            else:
                self._post(self._hear, to_wait)
        if self._looks:
            self._looks = False
            self._known, self._slots = link.where_others_wait()
            self._post(self._renew)
        with self._lock:
            to_tell, self._to_tell = self._to_tell, set()
        if to_tell:
            link.tell(to_tell, self._slots)
        if self._calls:
            self._calls = False
            link.call_leader()

    def _leave(self, link: Link, now_s: float) -> None:
        """Take back what no consumer has waited for in a while."""
        with self._lock:
            old = [key for key, left_s in self._waits.items() if left_s + LINGER_S < now_s]
        if not old:
            return
        link.leave(old)
        with self._lock:
            for key in old:
                if math.isinf(self._waits[key]):  # a consumer waits again by now
                    self._to_wait.add(key)
                else:
                    del self._waits[key]

    def _post(self, call: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: there are no consumers
            self._loop.call_soon_threadsafe(call, *arguments)


# --- peer link ---------------------------------------------------------------------------------
#
# The connection of a server to the other servers: who leads, who waits where, what time it is.
#
# It is a connection of its own, with a thread that does nothing else, so that no batch holds it
# up. All that it has in the database ends with it: the lock of whoever leads, and the lock by
# which the others know that a server is alive.


_SQL: Final = load_queries("leasehold.stores.postgres", "peers.sql")
_LEADER: Final = 0
"""The slot under which the lock of whoever leads is numbered."""
STOPPED_S: Final = 1
"""A server that does not take an answer for so long, while others wait for it, is stopped."""
_KEYS_OF_A_WORD: Final = 25
"""A payload may have 8,000 bytes; account and queue have less than 300 together, quotes and all."""


class Word(NamedTuple):
    """What another server has said."""

    keys: tuple[QueueKey, ...]
    """Queues in which there may be something; none: there is work for whoever leads."""


class Link:
    """One connection, of the thread that made it.

    Methods raise ``psycopg.Error``. Those that change who waits where raise ``LockNotAvailable``
    when a batch takes long that has the store to itself; then they can be called again.

    Args:
        address: Where the store is.
        slot: Of this server; None for a link that only tells the time.
    """

    def __init__(self, address: Address, slot: int | None = None) -> None:
        self._connection = connect(address)
        self._slot = 0 if slot is None else slot
        self._heard: list[str] = []
        self.leads = False
        """Whether this is the connection of whoever leads."""
        self.is_known = False
        """Whether this connection holds the lock by which others know that the server is alive."""
        try:
            self._run("set_up")
            if slot is not None:
                self._number = int(self._run("number")[0][0])
                self._connection.add_notify_handler(lambda each: self._heard.append(each.payload))
                for each in (slot, _LEADER):
                    self._connection.execute(f'LISTEN "{self._channel(each)}"', prepare=False)
        except BaseException:
            self.close()
            raise

    def _run(self, name: str, *bounds: object) -> list[tuple[Any, ...]]:
        return self.run(_SQL[name], *bounds)

    def _channel(self, slot: int) -> str:
        return f"leasehold_{self._number}_{slot}"

    def fileno(self) -> int:
        """Return what to wait on for words of other servers."""
        return self._connection.fileno()

    def close(self) -> None:
        """Let go of everything."""
        self._connection.close()

    def run(self, statement: str, *bounds: object) -> list[tuple[Any, ...]]:
        """Run a statement that is a transaction of its own; return its rows."""
        cursor = self._connection.execute(statement, bounds)
        return cursor.fetchall() if cursor.description else []

    def servers(self) -> int:
        """Return how many servers there are, at least one."""
        return max(1, int(self._run("count_servers")[0][0]))

    def end_stopped(self) -> int:
        """End what keeps others waiting and does not take its own answers; return how many."""
        return len(self._run("end_stopped", STOPPED_S))

    def stand(self) -> bool:
        """Try to lead, and to be known to be alive; tell whether either is new."""
        before = self.leads, self.is_known
        if not self.leads:
            self.leads = bool(self._run("lock", self._number, _LEADER)[0][0])
        if not self.is_known:
            self.is_known = bool(self._run("lock", self._number, self._slot)[0][0])
        return (self.leads, self.is_known) != before

    def words(self) -> list[Word]:
        """Return what other servers have said meanwhile; call it when there is something to read.

        Raises:
            psycopg.OperationalError: The connection is lost.
        """
        pgconn = self._connection.pgconn
        pgconn.consume_input()
        while (notice := pgconn.notifies()) is not None:
            self._heard.append(notice.extra.decode())
        return self.heard()

    def heard(self) -> list[Word]:
        """Return what came beside the answers to questions."""
        heard, self._heard = self._heard, []
        return [Word(tuple((a, q) for a, q in json.loads(text))) for text in heard]

    # --- who waits where ---------------------------------------------------------------------

    def wait(self, keys: Collection[QueueKey]) -> None:
        """Have others tell when there may be something in some queues, from now on.

        When this returns, all batches that do not know of it are durable, and can be read.
        """
        accounts, queues = map(list, zip(*sorted(keys), strict=True))
        with self._connection.transaction():
            self._run("alone")
            self._run("raise_waits")
            self._run("wait", accounts, queues, self._slot)

    def leave(self, keys: Collection[QueueKey]) -> None:
        """Take that back."""
        accounts, queues = map(list, zip(*sorted(keys), strict=True))
        with self._connection.transaction():
            self._run("raise_waits")
            self._run("leave", accounts, queues, self._slot)

    def leave_all(self) -> None:
        """Take all of that back, at the end."""
        with self._connection.transaction():
            self._run("raise_waits")
            self._run("forget_server", self._slot)

    def forget_dead(self) -> None:
        """Forget servers that are no more, and take over what they have counted.

        Whoever leads does it.
        """
        for (slot,) in self._run("other_slots", self._slot):
            if not self._run("lock", self._number, slot)[0][0]:
                continue
            try:
                with self._connection.transaction():
                    self._run("raise_waits")
                    self._run("inherit", slot, self._slot)
                    self._run("forget_server", slot)
            finally:
                self._run("unlock", self._number, slot)

    def where_others_wait(self) -> tuple[int, dict[QueueKey, frozenset[int]]]:
        """Return the slots of other servers by queue, and the number of the last change."""
        rows = self._run("where_others_wait", self._slot)
        (changes, *_), *_ = rows
        found: dict[QueueKey, frozenset[int]] = {}
        for _, account, queue, slot in rows:
            if account is not None:
                key = account, queue
                found[key] = found.get(key, frozenset()) | {slot}
        return changes, found

    # --- telling -----------------------------------------------------------------------------

    def tell(self, keys: Collection[QueueKey], slots: Mapping[QueueKey, frozenset[int]]) -> None:
        """Tell other servers that there may be something in some queues."""
        by_slot: dict[int, list[QueueKey]] = {}
        for key in keys:
            for slot in slots.get(key, ()):
                by_slot.setdefault(slot, []).append(key)
        for slot, theirs in by_slot.items():
            for part in _parts(theirs):
                self._run("notify", self._channel(slot), json.dumps(part))

    def call_leader(self) -> None:
        """Tell whoever leads that there is work."""
        self._run("notify", self._channel(_LEADER), "[]")


def _parts(keys: list[QueueKey]) -> Iterator[list[QueueKey]]:
    for start in range(0, len(keys), _KEYS_OF_A_WORD):
        yield keys[start : start + _KEYS_OF_A_WORD]
