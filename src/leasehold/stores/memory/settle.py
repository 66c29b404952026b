"""Settling claims in memory, by themselves or with a transaction that they are bound to."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from leasehold.domain import claims as rules
from leasehold.domain.claims import Exemption
from leasehold.domain.errors import StreamNotFound
from leasehold.domain.events import EventType
from leasehold.domain.groups import NOW
from leasehold.domain.transactions import Bound, StreamSettled
from leasehold.stores.memory.messages import MessageHandlers
from leasehold.stores.memory.tables import Boxes, Holding, QueueTable, StreamTable, Tables

Plans: TypeAlias = dict[tuple[str, str], "Plan"]
"""By queue and stream."""


@dataclass(slots=True)
class Plan:
    """A stream that is to be settled."""

    table: QueueTable
    stream: StreamTable
    upto: int
    name: str | None = None
    """Of the transaction whose publishing settles it so far."""
    published: Collection[str] = ()
    """All transactions that are published along with it."""


class Settling:
    """Settles streams, once it is clear that nothing is in the way."""

    def __init__(self, tables: Tables, messages: MessageHandlers, boxes: Boxes) -> None:
        self._tables = tables
        self._messages = messages
        self._boxes = boxes

    # --- binding -----------------------------------------------------------------------------

    def bind(self, stream: StreamTable, holding: Holding, name: str) -> None:
        """Bind a claim to a transaction that is there."""
        claim = holding.claim
        if claim.transaction != name:
            self.unbind(stream, holding)
            holding.claim = replace(claim, transaction=name)
        bound = Bound(claim.queue, claim.stream, claim.number, stream.token)
        self._boxes[claim.account, name].bound[bound[:3]] = bound

    def unbind(
        self, stream: StreamTable, holding: Holding, published: Collection[str] = ()
    ) -> None:
        """Undo the binding of a claim; one of an earlier token stays, and refuses to publish.

        A transaction that has nothing else is forgotten, but for those just being published.
        """
        claim = holding.claim
        if claim.transaction is None:
            return
        key, own = (claim.account, claim.transaction), (claim.queue, claim.stream, claim.number)
        box = self._boxes[key]
        if box.bound[own].token == stream.token:
            del box.bound[own]
            if box.is_empty and claim.transaction not in published:
                del self._boxes[key]

    def release(self, account: str, name: str) -> None:
        """Forget what a transaction that is given up has bound."""
        for queue, stream_name, number in self._boxes[account, name].bound:
            table = self._tables.queues.get((account, queue))
            stream = None if table is None else table.streams.get(stream_name)
            holding = None if stream is None else stream.claims.get(number)
            if holding is not None and holding.claim.transaction == name:
                holding.claim = replace(holding.claim, transaction=None)

    # --- planning ----------------------------------------------------------------------------

    def plan(self, account: str, names: Collection[str], own: Plan | None = None) -> Plans:
        """Return which streams are settled when these transactions are published.

        Args:
            account: Whose they are.
            names: Of the transactions, known or not.
            own: A stream that is settled in any case.

        Raises:
            LeaseholdError: One of them cannot be.
        """
        plans: Plans = {}
        if own is not None:
            rules.to_settle(own.upto, own.stream.last_settled, own.stream.as_stream().claims)
            plans[own.stream.queue, own.stream.name] = own
            own.published = names
        for name in names:
            box = self._boxes.get((account, name))
            for _, bound in sorted(box.bound.items()) if box is not None else ():
                plan = self._planned(account, name, bound, plans)
                plan.published = names
        return plans

    def _planned(self, account: str, name: str, bound: Bound, plans: Plans) -> Plan:
        table = self._tables.get(account, bound.queue)
        stream = table.streams.get(bound.stream)
        if stream is None:
            raise StreamNotFound
        rules.check_bound(name, bound, stream.as_stream())
        plan = plans.setdefault(bound[:2], Plan(table, stream, 0))
        if bound.number >= plan.upto:
            plan.upto, plan.name = bound.number, name
        return plan

    # --- carrying out ------------------------------------------------------------------------

    def carry_out(self, plan: Plan, given: Mapping[int, Exemption] | None = None) -> StreamSettled:
        """Complete the members of claims, but for the exemptions.

        Args:
            plan: Which claims.
            given: By row key: exemptions that count in place of those noted.
        """
        table, stream = plan.table, plan.stream
        holdings = [
            stream.claims[number] for number in sorted(stream.claims) if number <= plan.upto
        ]
        lost = sum(holding.claim.lost for holding in holdings)
        exempt = {**self._noted(table, holdings), **(given or {})}
        for row_key, exemption in exempt.items():
            self._messages.give_back(table, row_key, exemption)
        completed = 0
        for holding in holdings:
            completed += len(holding.members)
            self._complete(table, holding)
            self.unbind(stream, holding, plan.published)
            self._tables.holdings.remove(stream.claims.pop(holding.claim.number))
        stream.last_settled, stream.settled_with = plan.upto, plan.name
        return StreamSettled(stream.queue, stream.name, plan.upto, completed, len(exempt), lost)

    def _noted(self, table: QueueTable, holdings: Iterable[Holding]) -> dict[int, Exemption]:
        """Return what is noted of members that are still there, as it can be done now."""
        return {
            row_key: rules.as_applied(noted, table.rows[row_key], self._tables.now_ms)
            for holding in holdings
            for row_key, noted in holding.notes.items()
            if row_key in holding.members
        }

    def _complete(self, table: QueueTable, holding: Holding) -> None:
        name = rules.name_of(holding.claim)
        for row_key in in_order(table, holding):
            message = table.rows.pop(row_key)
            del table.held[row_key]
            self._tables.stir(table, message, NOW)
            self._tables.dropped.append(message)
            self._tables.note(EventType.SETTLED, table, message, target=name)


def in_order(table: QueueTable, holding: Holding) -> list[int]:
    """Return the row keys of a claim's members in their order."""

    def order(row_key: int) -> tuple[int, ...]:
        return rules.member_order(table.rows[row_key], row_key, holding.claim)

    return sorted(holding.members, key=order)
