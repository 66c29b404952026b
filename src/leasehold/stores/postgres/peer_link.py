"""The connection of a server to the other servers: who leads, who waits where, what time it is.

It is a connection of its own, with a thread that does nothing else, so that no batch holds it up.
All that it has in the database ends with it: the lock of whoever leads, and the lock by which the
others know that a server is alive.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from leasehold.stores.postgres.connection import Address, connect
from leasehold.stores.sql_files import load_queries

_SQL: Final = load_queries("leasehold.stores.postgres", "peers.sql")
_LEADER: Final = 0
"""The slot under which the lock of whoever leads is numbered."""
STOPPED_S: Final = 1
"""A server that does not take an answer for so long, while others wait for it, is stopped."""
_KEYS_OF_A_WORD: Final = 25
"""A payload may have 8,000 bytes; account and queue have less than 300 together, quotes and all."""

Key: TypeAlias = tuple[str, str]


class Word(NamedTuple):
    """What another server has said."""

    keys: tuple[Key, ...]
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

    def wait(self, keys: Collection[Key]) -> None:
        """Have others tell when there may be something in some queues, from now on.

        When this returns, all batches that do not know of it are durable, and can be read.
        """
        accounts, queues = map(list, zip(*sorted(keys), strict=True))
        with self._connection.transaction():
            self._run("alone")
            self._run("wait", accounts, queues, self._slot)
            self._run("raise_waits")

    def leave(self, keys: Collection[Key]) -> None:
        """Take that back."""
        accounts, queues = map(list, zip(*sorted(keys), strict=True))
        with self._connection.transaction():
            self._run("leave", accounts, queues, self._slot)
            self._run("raise_waits")

    def leave_all(self) -> None:
        """Take all of that back, at the end."""
        with self._connection.transaction():
            self._run("forget_server", self._slot)
            self._run("raise_waits")

    def forget_dead(self) -> None:
        """Forget servers that are no more, and take over what they have counted.

        Whoever leads does it.
        """
        for (slot,) in self._run("other_slots", self._slot):
            if not self._run("lock", self._number, slot)[0][0]:
                continue
            try:
                with self._connection.transaction():
                    self._run("inherit", slot, self._slot)
                    self._run("forget_server", slot)
                    self._run("raise_waits")
            finally:
                self._run("unlock", self._number, slot)

    def where_others_wait(self) -> tuple[int, dict[Key, frozenset[int]]]:
        """Return the slots of other servers by queue, and the number of the last change."""
        rows = self._run("where_others_wait", self._slot)
        found: dict[Key, frozenset[int]] = {}
        for _, account, queue, slot in rows:
            if account is not None:
                key = account, queue
                found[key] = found.get(key, frozenset()) | {slot}
        return rows[0][0], found

    # --- telling -----------------------------------------------------------------------------

    def tell(self, keys: Collection[Key], slots: Mapping[Key, frozenset[int]]) -> None:
        """Tell other servers that there may be something in some queues."""
        by_slot: dict[int, list[Key]] = {}
        for key in keys:
            for slot in slots.get(key, ()):
                by_slot.setdefault(slot, []).append(key)
        for slot, theirs in by_slot.items():
            for part in _parts(theirs):
                self._run("notify", self._channel(slot), json.dumps(part))

    def call_leader(self) -> None:
        """Tell whoever leads that there is work."""
        self._run("notify", self._channel(_LEADER), "[]")


def _parts(keys: list[Key]) -> Iterator[list[Key]]:
    for start in range(0, len(keys), _KEYS_OF_A_WORD):
        yield keys[start : start + _KEYS_OF_A_WORD]
