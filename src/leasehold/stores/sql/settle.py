"""Settling claims in a database, by themselves or with a transaction that they are bound to.

And the members of claims in their order, which are read until then.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, NamedTuple

from leasehold.domain import claims as rules
from leasehold.domain.claims import Exemption
from leasehold.domain.errors import MemberNotFound, StreamNotFound
from leasehold.domain.events import EventType
from leasehold.domain.model import (
    ErrorReport,
    Outcome,
    id_from_blob,
    id_to_blob,
    row_key_of,
)
from leasehold.domain.transactions import Bound, StreamSettled, TransactionState
from leasehold.stores.sql.catalog import (
    OpenClaimState,
    Slot,
    StreamBox,
    lanes_of,
)
from leasehold.stores.sql.failures import FailureHandlers
from leasehold.stores.sql.groups import call_lanes
from leasehold.stores.sql.plain_json import from_plain, to_plain
from leasehold.stores.sql.rows import Cell, Kept, Row, kept_in
from leasehold.stores.sql.state import State

_RECORDED_AT_ONCE: Final = 5_000
_ROWS_AT_ONCE: Final = 2_000
"""Members exempted whose rows are in memory at once."""


class Exempted(NamedTuple):
    """A member that is not completed, and what becomes of it."""

    kept: Kept
    exemption: Exemption


@dataclass(slots=True)
class Plan:
    """A stream that is to be settled."""

    stream: StreamBox
    upto: int
    name: str | None = None
    """Of the transaction whose publishing settles it so far."""
    published: Collection[str] = ()
    """All transactions that are published along with it."""

    @property
    def chosen(self) -> list[OpenClaimState]:
        """The claims that are settled, by number."""
        claims = self.stream.claims
        return [claims[number] for number in sorted(claims) if number <= self.upto]


class Settling:
    """Settles streams, once it is clear that nothing is in the way."""

    def __init__(self, state: State, failures: FailureHandlers, book: StagedBook) -> None:
        self._state = state
        self._failures = failures
        self._book = book

    # --- binding -----------------------------------------------------------------------------

    def bind(self, held: OpenClaimState, name: str) -> None:
        """Bind a claim to a transaction that is there; what is so already is not written again."""
        claim = held.claim
        bound = Bound(claim.queue, claim.stream, claim.number, held.stream.token)
        if claim.transaction != name:
            self._unbind(held)
            held.claim = replace(claim, transaction=name)
            self._state.keep_claim(held)
        if bound not in self._book.bound(claim.account, name):
            self._book.bind(claim.account, name, bound)

    def _unbind(self, held: OpenClaimState, published: Collection[str] = ()) -> None:
        """Undo the binding of a claim; one of an earlier token stays, and refuses to publish.

        A transaction that has nothing else is forgotten, but for those just being published.
        """
        claim, book = held.claim, self._book
        if claim.transaction is None:
            return
        account, name = claim.account, claim.transaction
        bound = Bound(claim.queue, claim.stream, claim.number, held.stream.token)
        if bound in book.bound(account, name):
            book.unbind(account, name, bound)
            if name not in published:
                book.forget_if_empty(account, name)

    def release(self, account: str, name: str) -> None:
        """Forget what a transaction that is given up has bound."""
        for bound in self._book.bound(account, name):
            entry = self._state.catalog.find(account, bound.queue)
            stream = None if entry is None else entry.streams.get(bound.stream)
            held = None if stream is None else stream.claims.get(bound.number)
            if held is not None and held.claim.transaction == name:
                held.claim = replace(held.claim, transaction=None)
                self._state.keep_claim(held)
            self._book.unbind(account, name, bound)

    # --- exempting ---------------------------------------------------------------------------

    def note(
        self, held: OpenClaimState, exemptions: Sequence[Exemption], now_ms: int, *, anew: bool
    ) -> None:
        """Note what becomes of members of a claim.

        Args:
            held: The claim.
            exemptions: What becomes of which member.
            now_ms: The time.
            anew: Whether what was noted before is forgotten.

        Raises:
            LeaseholdError: As for :meth:`exempted`, or OutOfRange; nothing is changed then.
        """
        state = self._state
        last = {each.message_id: each for each in exemptions}
        self.exempted([held], last.values(), now_ms)
        noted = {row_key_of(message_id): each for message_id, each in last.items()}
        if anew and held.claim.noted:
            rules.check_noted(replace(held.claim, noted=0), len(noted))
            state.cursor.execute(state.sql["forget_exemptions"], (held.partition,))
            held.claim = replace(held.claim, noted=0)
            state.keep_claim(held)
        if not noted:
            return
        keys = [key for key in noted if key is not None]
        known = state.fetch("known_exemptions", (held.partition, state.keys_of(keys)))
        more = len(noted) - len(known)
        rules.check_noted(held.claim, more)
        rows = [(held.partition, key, _to_json(each)) for key, each in noted.items()]
        state.cursor.executemany(state.sql["keep_exemption"], rows)
        if more:
            held.claim = replace(held.claim, noted=held.claim.noted + more)
            state.keep_claim(held)

    def exempted(
        self, chosen: Sequence[OpenClaimState], exemptions: Iterable[Exemption], now_ms: int
    ) -> list[Exempted]:
        """Return the members that are exempted.

        Raises:
            MemberNotFound: One of them is none, or is named twice.
            VisibilityPastExpiry: It cannot be put off for so long.
        """
        exemptions = tuple(exemptions)
        by_number = {held.claim.number: held for held in chosen}
        wanted = [row_key_of(each.message_id) for each in exemptions]
        rows = self._rows([key for key in wanted if key is not None])
        found: list[Exempted] = []
        for row_key, exemption in zip(wanted, exemptions, strict=True):
            held = by_number.get(exemption.number)
            row = None if row_key is None else rows.pop(row_key, None)  # whoever is named again
            kept = None if held is None or row is None else kept_in(self._state, held.entry, row)
            if (
                kept is None
                or kept.held is not held
                or kept.message.message_id != exemption.message_id
            ):
                raise MemberNotFound(exemption.message_id)
            self._failures.check_give_back(kept, exemption, now_ms)
            found.append(Exempted(kept, exemption))
        return found

    def _rows(self, keys: Sequence[int]) -> dict[int, Row]:
        if not keys:
            return {}
        there = self._state.fetch("rows_without_bodies", (self._state.keys_of(keys),))
        return dict(zip(map(Cell.row_key, there), there, strict=True))

    # --- planning ----------------------------------------------------------------------------

    def plan(self, account: str, names: Collection[str], own: Plan | None = None) -> list[Plan]:
        """Return which streams are settled when these transactions are published.

        Args:
            account: Whose they are.
            names: Of the transactions, known or not.
            own: A stream that is settled in any case; it comes first.

        Raises:
            LeaseholdError: One of them cannot be.
        """
        plans: dict[StreamBox, Plan] = {}
        if own is not None:
            stream = own.stream
            rules.to_settle(own.upto, stream.last_settled, stream.as_stream().claims)
            plans[stream] = own
            own.published = names
        for name in names:
            for bound in self._book.bound(account, name):
                stream = self._stream(account, bound)
                rules.check_bound(name, bound, stream.as_stream())
                plan = plans.setdefault(stream, Plan(stream, 0, published=names))
                if bound.number >= plan.upto:
                    plan.upto, plan.name = bound.number, name
        return list(plans.values())

    def _stream(self, account: str, bound: Bound) -> StreamBox:
        stream = self._state.catalog.get(account, bound.queue).streams.get(bound.stream)
        if stream is None:
            raise StreamNotFound
        return stream

    # --- carrying out ------------------------------------------------------------------------

    def carry_out(self, plan: Plan, given: Sequence[Exempted], now_ms: int) -> StreamSettled:
        """Complete the members of claims, but for the exemptions.

        Args:
            plan: Which claims.
            given: Exemptions that count in place of those noted.
            now_ms: The time.
        """
        chosen, stream = plan.chosen, plan.stream
        lost = sum(held.claim.lost for held in chosen)
        exempted = 0
        for held in chosen:
            own = [each for each in given if each.kept.held is held]
            exempted += self._exempt(held, own, now_ms)
        completed = sum(held.claim.remaining for held in chosen)
        for held in chosen:
            self._unbind(held, plan.published)
            self._complete(held)
        stream.last_settled, stream.settled_with = plan.upto, plan.name
        self._state.keep_stream(stream)
        self._state.find_next_lapse()
        queue = stream.entry.queue.name
        return StreamSettled(queue, stream.name, plan.upto, completed, exempted, lost)

    def _exempt(self, held: OpenClaimState, given: Sequence[Exempted], now_ms: int) -> int:
        """Give back the members of a claim that are exempted; return how many."""
        gone = [each.kept for each in given]
        recorded = self._state.recorded.get(held)
        for kept, exemption in given:
            self._failures.give_back(kept, exemption, now_ms)
        if held.claim.noted:
            gone += self._exempt_noted(held, {kept.row_key for kept in gone}, now_ms)
        if gone and recorded is not None:  # those that are left are as they were
            blobs = {id_to_blob(kept.message.message_id) for kept in gone}
            left = [each.without(blobs) for each in recorded]
            self._state.recorded[held] = [columns for columns in left if columns]
        return len(gone)

    def _exempt_noted(
        self, held: OpenClaimState, given: Collection[int], now_ms: int
    ) -> list[Kept]:
        """Give back the members that notes are on, but for those *given*; return them."""
        state = self._state
        gone = []
        notes = iter(state.fetch("get_exemptions", (held.partition,)))
        while slice_ := dict(islice(notes, _ROWS_AT_ONCE)):
            rows = self._rows([key for key in slice_ if key not in given])
            for row_key, row in rows.items():
                kept = kept_in(state, held.entry, row)
                if kept is None or kept.held is not held:
                    continue  # it was lost
                noted = _from_json(slice_[row_key], held.claim.number, row)
                exemption = rules.as_applied(noted, kept.message, now_ms)
                self._failures.give_back(kept, exemption, now_ms)
                gone.append(kept)
        return gone

    def _complete(self, held: OpenClaimState) -> None:
        """Complete what is left of a claim."""
        state = self._state
        entry = held.entry
        if entry.logged and held.claim.remaining:
            self._record(EventType.SETTLED, held)
        entry.message_count -= held.claim.remaining
        state.touched.add(entry)
        lanes = lanes_of(held.partition, held.lanes_used)
        if entry.turns is not None:
            call_lanes(state, entry.turns, lanes)
        dropped = [(lane,) for lane in lanes]
        state.cursor.executemany(state.sql["drop_partition"], dropped)
        state.forget_claim(held)

    def _record(self, kind: EventType, held: OpenClaimState) -> None:
        """Record what happens to all members, in slices so that no event row is very long."""
        state, claim = self._state, held.claim
        log = state.log
        recorded = state.recorded.get(held)
        if recorded is not None:
            for columns in recorded:
                core = (*columns.core[:2], claim.until_ms, *columns.core[3:])
                settled = columns._replace(core=core)
                log.add_columns(kind, held.entry, settled, held.under(), claim.holder)
            return
        for lane in lanes_of(held.partition, held.lanes_used):
            rows = state.cursor.execute(state.sql["member_cores"], (lane, claim.until_ms))
            while slice_ := list(islice(rows, _RECORDED_AT_ONCE)):
                log.add_many(kind, held.entry, slice_, held.under(), claim.holder)


def _to_json(exemption: Exemption) -> str:
    """Return what is kept of an exemption; whose it is says the row."""
    plain = {
        "outcome": exemption.outcome,
        "delay_s": exemption.delay_s,
        "error": None if exemption.error is None else to_plain(exemption.error),
        "dice": exemption.jitter,  # the name that databases have it under
    }
    return json.dumps({name: value for name, value in plain.items() if value is not None})


def _from_json(text: str, number: int, row: Row) -> Exemption:
    """Reverse :func:`_to_json`."""
    plain = json.loads(text)
    error = plain.get("error")
    return Exemption(
        number,
        id_from_blob(Cell.message_id(row)),
        Outcome(plain["outcome"]),
        plain.get("delay_s"),
        None if error is None else from_plain(ErrorReport, error),
        plain["dice"],
    )


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
