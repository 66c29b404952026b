"""What the verbs of a store share: cursor, statements, catalog, row keys."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple, cast

from leasehold.domain.errors import AccountMoved
from leasehold.domain.groups import Turns
from leasehold.domain.model import NEVER_MS
from leasehold.domain.transactions import Bound, TransactionState
from leasehold.domain.visibility import Bucket
from leasehold.stores.migrate.marks import refuse_marked, relocated_in
from leasehold.stores.sql import statements
from leasehold.stores.sql.catalog import (
    Catalog,
    Entry,
    Lane,
    OpenClaimState,
    QueueRow,
    Slot,
    StreamBox,
    Timeline,
    load_annexes,
)
from leasehold.stores.sql.plain_json import to_plain
from leasehold.stores.sql.recorder import Columns, Recorder
from leasehold.stores.sql.statements import Cursor

HOLD_MS: Final = 600_000
"""How long a backup keeps large bodies after it last said so, milliseconds."""
_CLOCK_STEP_MS: Final = 60_000
"""By so much the clock of a backup may be ahead of that of the server."""
BODY_MARK: Final = "body_mark"
"""Name in ``meta``: by what the place for large bodies is known."""


def is_held(end_ms: int, now_ms: int) -> bool:
    """Tell whether a backup keeps bodies; an end later than any backup sets is not believed."""
    return now_ms < end_ms <= now_ms + HOLD_MS + _CLOCK_STEP_MS


class State(ABC):
    """Shared state of one store; counts and row keys taken belong to the open batch."""

    removes_all_from: ClassVar[int] = statements.SET_WISE
    """From so many messages on, looking at all and then removing them is the faster way."""
    fronts: ClassVar[frozenset[str]] = frozenset()
    """Queries in whose place one statement can say all that matters of groups: where nobody else
    writes, what holds a group up needs no look of its own once the group is locked."""
    late_us: ClassVar[int] = 0
    """How far behind the time of another a batch may be although no clock was set back, in us."""

    def __init__(
        self,
        cursor: Cursor,
        queries: dict[str, str],
        catalog: Catalog,
    ) -> None:
        self.cursor = cursor
        self.sql = queries
        self.catalog = catalog
        self.receipt_key = b""
        self.touched: set[Entry] = set()
        self.touched_claims: set[OpenClaimState] = set()
        self.log = Recorder(cursor, queries)
        self.recorded: dict[OpenClaimState, list[Columns]] = {}
        """What the log says of all members of a claim, as they were claimed, if it is known."""
        self.is_full = False
        """Whether the disk is full: what can be had in small steps is."""
        self.next_lapse_ms = NEVER_MS
        """When the next claim lapses; the claims' verbs keep it right."""
        self._next_row_key = 0
        self._last_partition = 0
        self._last_token = 0
        self.retired_until_ms = 0
        self.last_seen_ms = 0
        self.epoch = 1
        self.buckets: dict[Entry, Bucket | None] = {}
        """What queues might give out before the open batch, of those that it has received from."""
        self.turns: set[Turns] = set()
        """Those of queues that the open batch has received from."""
        self.relocated_accounts: frozenset[str] = frozenset()
        """Accounts that have moved to another store."""

    @property
    def is_shared(self) -> bool:
        """Tell whether other servers write to the same database."""
        return self.catalog.servers > 1

    # --- what each database has in its own way ------------------------------------------------

    @abstractmethod
    def _read_meta(self) -> dict[str, Any]:
        """Return what is kept under names."""

    @abstractmethod
    def set_meta(self, name: str, value: int | str | bytes) -> None:
        """Keep a value under a name."""

    @abstractmethod
    def keys_of(self, row_keys: Iterable[int]) -> object:
        """Return numbers as one value that statements can look them up in."""

    @abstractmethod
    def names_of(self, names: Sequence[str]) -> object:
        """Return texts as one value that statements can look them up in."""

    def bodies_of(self, bodies: Sequence[bytes]) -> object:
        """Return bodies as one value that ``put_alike`` takes; only where there is that query."""
        return bodies

    @abstractmethod
    def note_log(self) -> None:
        """Write down how many bytes of events there are, for the next start."""

    @abstractmethod
    def renew_mark(self, new_mark: str) -> None:
        """Mark the database anew, so that every copy made until now is an old one."""

    def body_mark(self) -> str | None:
        """Return the mark of the place for large bodies; None if it was never marked."""
        mark = self._read_meta().get(BODY_MARK)
        return mark.decode() if isinstance(mark, bytes) else mark

    @abstractmethod
    def ends_of_holds(self) -> list[int]:
        """Return until when each backup that is under way keeps large bodies, Unix milliseconds."""

    @property
    @abstractmethod
    def last_row_key(self) -> int:
        """The highest row key handed out."""

    @abstractmethod
    def take_row_keys(self, count: int) -> int:
        """Return the first of *count* row keys that follow each other."""

    @abstractmethod
    def timeline(self, entry: Entry, now_ms: int) -> Timeline:
        """Return how many messages of a queue become visible when."""

    @abstractmethod
    def retired(self, entry: Entry) -> int:
        """Return how many expired messages of a queue are set aside and not removed yet."""

    @abstractmethod
    def write_down(self, now_ms: int) -> None:
        """Write the events of the batch, and the message counts that it has changed."""

    # --- reading ------------------------------------------------------------------------------

    def _load(self, meta: Mapping[str, Any]) -> None:
        """Read the catalog, and what *meta* says for every database."""
        refuse_marked(meta)
        self.relocated_accounts = relocated_in(meta)
        self.receipt_key = meta["receipt_key"]
        self._last_partition = meta["last_partition"]
        self.retired_until_ms = meta["retired_until_ms"]
        self.last_seen_ms = meta["last_seen_ms"]
        self.catalog.load(cast("list[QueueRow]", self.fetch("load_queues")))
        self.recorded.clear()
        load_annexes(self.catalog, self.fetch)
        self.find_next_lapse()

    def set_bucket(self, entry: Entry, bucket: Bucket) -> None:
        """Note what a queue may give out after what the open batch has received."""
        self.buckets.setdefault(entry, entry.bucket)
        entry.bucket = bucket

    def restore_buckets(self) -> None:
        """Let queues give out again what an undone batch has received."""
        for entry, bucket in self.buckets.items():
            entry.bucket = bucket
        self.buckets.clear()

    def keep_turns(self, *, done: bool) -> None:
        """Note whether what groups were given in the open batch is theirs for good."""
        for turns in self.turns:
            if done:
                turns.keep()
            else:
                turns.undo()
        self.turns.clear()

    def lock_groups(self, entry: Entry, groups: Sequence[str]) -> Sequence[str]:
        """Keep other servers from giving messages of groups until the batch is committed.

        Returns:
            Those of them that no other server gives messages of at this moment.
        """
        del entry
        return groups

    def refuse_moved(self, account: str) -> None:
        """Refuse to keep anything more for an account that has moved to another store.

        Raises:
            AccountMoved: It has.
        """
        if account in self.relocated_accounts:
            raise AccountMoved(account)

    def fetch(self, query: str, bounds: tuple[object, ...] = ()) -> list[Any]:
        """Run a query and return its rows."""
        return self.cursor.execute(self.sql[query], bounds).fetchall()

    def value(self, query: str, bounds: tuple[object, ...] = ()) -> Any:
        """Run a query for one value; return it, or None if there is no row."""
        for (found,) in self.fetch(query, bounds):
            return found
        return None

    def set_retired_until(self, moment_ms: int) -> None:
        """Note that everything that expired before *moment_ms* has been retired."""
        self.retired_until_ms = moment_ms
        self.set_meta("retired_until_ms", moment_ms)

    def new_partition(self, mark: int = 0) -> int:
        """Return the number of a partition that has never been used, with bits that mark it."""
        self._last_partition += 1
        self.set_meta("last_partition", self._last_partition)
        return self._last_partition | mark

    def next_token(self) -> int:
        """Return a token for a stream: higher than all before, also of streams that are gone."""
        self._last_token += 1
        self.set_meta("last_token", self._last_token)
        return self._last_token

    def drop_partition(self, entry: Entry) -> None:
        """Leave the messages of a queue to the reaper."""
        dropped = [(lane.partition,) for lane in entry.lanes]
        self.cursor.executemany(self.sql["drop_partition"], dropped)
        self.touched.discard(entry)

    def open_lane(self, entry: Entry, number: int) -> Lane:
        """Return the lane of this number, opened if this is its first message."""
        if not entry.lanes_used >> number & 1:
            lanes = entry.lanes_used | 1 << number
            bounds = (lanes, entry.queue.account, entry.queue.name)
            self.cursor.execute(self.sql["set_lanes"], bounds)
            opened = {lane.number: lane for lane in entry.lanes}
            entry.open_lanes(entry.partition, lanes)
            entry.lanes = [opened.get(lane.number, lane) for lane in entry.lanes]
        return entry.lane(number)

    def find_next_lapse(self) -> None:
        """Find when the next claim lapses."""
        moments = [
            held.claim.until_ms
            for held in self.catalog.claims.values()
            if not (held.lapsed or held.dissolving)
        ]
        self.next_lapse_ms = min(moments, default=NEVER_MS)

    def keep_stream(self, stream: StreamBox) -> None:
        """Write a stream as it is now."""
        figures = stream.token, stream.last_settled, stream.attached_at_ms, stream.settled_with
        self.cursor.execute(self.sql["set_stream"], (stream.stream_id, *figures))

    def keep_claim(self, held: OpenClaimState) -> None:
        """Write a claim as it is now."""
        content = {
            "claim": to_plain(held.claim),
            "lapsed": held.lapsed,
            "accepted": held.accepted,
            "dissolving": held.dissolving,
        }
        bounds = (held.partition, held.stream.stream_id, held.lanes_used, json.dumps(content))
        self.cursor.execute(self.sql["keep_claim"], bounds)
        self.touched_claims.discard(held)

    def forget_claim(self, held: OpenClaimState) -> None:
        """Take a claim without members out, with what is noted of them."""
        self.cursor.execute(self.sql["drop_claim"], (held.partition,))
        self.forget_notes(held)
        self.touched_claims.discard(held)
        self.recorded.pop(held, None)
        del self.catalog.claims[held.partition]
        if held.dissolving:
            self.catalog.dissolving.remove(held)
        else:
            del held.stream.claims[held.claim.number]
        held.entry.claims.remove(held)
        if held.lapsed:
            held.entry.lapsed.remove(held)

    def forget_notes(self, held: OpenClaimState) -> None:
        """Forget what is noted of the members of a claim."""
        if held.claim.noted:
            self.cursor.execute(self.sql["forget_exemptions"], (held.partition,))


# --- staged book -------------------------------------------------------------------------------
#
# Which transactions there are, and which slots are whose.


class TransactionRow(NamedTuple):
    """A row of ``staged_transaction``."""

    state: str
    created_at_ms: int
    until_ms: int
    rows: int
    """Published."""
    duplicates: int = 0
    """Dropped in place of being published."""

    @property
    def is_published(self) -> bool:
        """Tell whether the name is only remembered."""
        return self.state == TransactionState.PUBLISHED


class StagedBook:
    """Transactions and their parts, in the database, and the slots, in the catalog as well."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._by_name: dict[tuple[str, str], list[Slot]] = {}
        self._sorted: dict[int, Slot] | None = None
        """The slots that are sorted by name: not those of the catalog once it was loaded anew."""

    def find(self, account: str, name: str) -> TransactionRow | None:
        """Return a transaction, or None."""
        rows = self._state.fetch("get_transaction", (account, name))
        return TransactionRow(*rows[0]) if rows else None

    def keep(self, account: str, name: str, row: TransactionRow) -> None:
        """Write a transaction as it is now."""
        self._run("keep_transaction", account, name, *row)

    def forget(self, account: str, name: str) -> None:
        """Forget a transaction."""
        self._run("forget_transaction", account, name)

    def forget_if_empty(self, account: str, name: str) -> None:
        """Forget a transaction, not published, with nothing to publish and nothing to settle."""
        if not self.parts(account, name) and not self.bound(account, name):
            self.forget(account, name)

    def bound(self, account: str, name: str) -> list[Bound]:
        """Return the claims bound to a transaction by queue, stream and number."""
        found = self._state.catalog.bound.get((account, name))
        return sorted(found.values()) if found else []

    def bind(self, account: str, name: str, bound: Bound) -> None:
        """Write that a claim is bound to a transaction."""
        self._state.catalog.bound.setdefault((account, name), {})[bound[:3]] = bound
        self._run("keep_bound", account, name, *bound)

    def unbind(self, account: str, name: str, bound: Bound) -> None:
        """Write that a claim is bound to a transaction no longer."""
        left = self._state.catalog.bound[account, name]
        del left[bound[:3]]
        if not left:
            del self._state.catalog.bound[account, name]
        self._run("forget_bound", account, name, *bound[:3])

    def parts(self, account: str, name: str) -> list[tuple[str, int]]:
        """Return the parts of a transaction by name, and how many chunks each has."""
        return self._state.fetch("get_parts", (account, name))

    def chunks(self, account: str, name: str, part: str) -> int:
        """Return how many chunks a part has."""
        return self._state.value("get_chunks", (account, name, part)) or 0

    def keep_part(self, account: str, name: str, part: str, chunks: int) -> None:
        """Write how many chunks a part has."""
        self._run("keep_part", account, name, part, chunks)

    def forget_part(self, account: str, name: str, part: str) -> None:
        """Forget a part."""
        self._run("forget_part", account, name, part)

    def forget_parts(self, account: str, name: str) -> None:
        """Forget all parts of a transaction."""
        self._run("forget_parts", account, name)

    def slots(self, account: str, name: str) -> list[Slot]:
        """Return the slots of a transaction by part; the list is the caller's."""
        slots = self._state.catalog.slots
        if slots is not self._sorted:
            self._sorted, self._by_name = slots, {}
            for slot in slots.values():
                self._by_name.setdefault((slot.account, slot.name), []).append(slot)
        found = self._by_name.get((account, name), ())
        return sorted(found, key=lambda slot: (slot.part, slot.partition))

    def add(self, slot: Slot) -> None:
        """Add a slot to those of its transaction, which were asked for in this batch."""
        self._state.catalog.slots[slot.partition] = slot
        self._by_name.setdefault((slot.account, slot.name), []).append(slot)

    def keep_slot(self, slot: Slot) -> None:
        """Write a slot as it is now."""
        named = slot.account, slot.name, slot.part, slot.queue
        self._run("keep_slot", slot.partition, *named, slot.lanes_used, slot.rows, slot.keyed)

    def remove(self, slot: Slot) -> None:
        """Take a slot out; its rows are elsewhere."""
        key = slot.account, slot.name
        self._run("forget_slot", slot.partition)
        del self._state.catalog.slots[slot.partition]
        self._by_name[key].remove(slot)
        if not self._by_name[key]:
            del self._by_name[key]

    def _run(self, query: str, *bounds: object) -> None:
        self._state.cursor.execute(self._state.sql[query], bounds)


def rows_in(slots: Iterable[Slot]) -> int:
    """Return how many rows some slots have."""
    return sum(slot.rows for slot in slots)
