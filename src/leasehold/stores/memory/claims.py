"""Claims in memory: each is a set of row keys, and its members stay in the table of their queue."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeAlias

from leasehold.domain import claims as cl
from leasehold.domain import claims as rules
from leasehold.domain import commands as c
from leasehold.domain.errors import (
    ClaimNotFound,
    ClaimSettled,
    InvalidMarker,
    MemberNotFound,
    StreamNotFound,
)
from leasehold.domain.events import EventType
from leasehold.domain.groups import NOW, is_of_part
from leasehold.domain.limits import LOOK_BYTES
from leasehold.domain.model import Message, fitting, row_key_of, size_of
from leasehold.domain.visibility import release_refusal
from leasehold.stores.memory.messages import MessageHandlers
from leasehold.stores.memory.settle import Plan, Settling, in_order
from leasehold.stores.memory.tables import Holding, QueueTable, StreamTable, Tables, Taking
from leasehold.stores.memory.transactions import TransactionHandlers

_OfStream: TypeAlias = (
    cl.OpenClaim
    | cl.ReadClaim
    | cl.ExtendClaim
    | cl.ExemptMembers
    | cl.BindClaim
    | cl.SettleClaims
    | cl.GiveBackClaim
    | cl.GetStream
    | cl.DeleteStream
)


class ClaimHandlers:
    """Each method carries out one command; refusals are raised."""

    def __init__(
        self,
        tables: Tables,
        taking: Taking,
        messages: MessageHandlers,
        staging: TransactionHandlers,
        settling: Settling,
    ) -> None:
        self._tables = tables
        self._taking = taking
        self._messages = messages
        self._staging = staging
        self._settling = settling

    # --- streams -----------------------------------------------------------------------------

    def attach(self, command: cl.AttachStream) -> c.Result:
        """Take a stream over, and create it if need be."""
        table = self._tables.get(command.account, command.queue)
        stream = table.streams.setdefault(
            command.stream, StreamTable(command.account, command.queue, command.stream)
        )
        stream.token = self._tables.last_token = self._tables.last_token + 1
        stream.attached_at_ms = self._tables.now_ms
        return stream.as_stream()

    def get(self, command: cl.GetStream) -> c.Result:
        """Look at a stream."""
        _, stream = self._find(command)
        return stream.as_stream()

    def list(self, command: cl.ListStreams) -> c.Result:
        """List the streams of a queue by name."""
        table = self._tables.get(command.account, command.queue)
        return tuple(table.streams[name].as_stream() for name in sorted(table.streams))

    def delete(self, command: cl.DeleteStream) -> c.Result:
        """Forget a stream; its claims are given back."""
        table, stream = self._find(command)
        del table.streams[command.stream]
        if command.actor is not None:
            reason = f"stream {command.stream} deleted"
            self._tables.note(EventType.QUEUE_UPDATED, table, reason=reason)
        return self._give_back(table, [stream.claims[number] for number in sorted(stream.claims)])

    def _find(self, command: _OfStream) -> tuple[QueueTable, StreamTable]:
        table = self._tables.get(command.account, command.queue)
        stream = table.streams.get(command.stream)
        if stream is None:
            raise StreamNotFound
        return table, stream

    def _find_claim(
        self,
        command: cl.ReadClaim | cl.ExtendClaim | cl.GiveBackClaim | cl.ExemptMembers | cl.BindClaim,
    ) -> tuple[QueueTable, StreamTable, Holding]:
        table, stream = self._find(command)
        if not isinstance(command, cl.ReadClaim):
            rules.check_token(stream.token, command.token)
        holding = stream.claims.get(command.number)
        if holding is None:
            if command.number <= stream.last_settled:
                raise ClaimSettled(stream.last_settled, stream.settled_with)
            raise ClaimNotFound
        return table, stream, holding

    # --- opening -----------------------------------------------------------------------------

    def open(self, command: cl.OpenClaim) -> c.Result:
        """Lease messages as a claim, or find that claim again."""
        table, stream = self._find(command)
        rules.check_token(stream.token, command.token)
        settled = stream.last_settled, stream.settled_with
        rules.check_number(command.number, settled[0], stream.claims, settled[1])
        holding = stream.claims.get(command.number)
        if holding is None:
            return self._begin(table, stream, command)
        now_ms, lease_s = self._tables.now_ms, command.lease_s
        if holding.claim.state is cl.ClaimState.OPENING:
            self._step(table, holding, lease_s)
            return cl.Opened(holding.claim)
        after = rules.after_reopening(holding.claim, now_ms, lease_s, command.accept_loss)
        holding.accepted_loss = holding.accepted_loss or command.accept_loss
        self._extend(table, holding, after)
        return cl.Opened(after, replayed=True)

    def _begin(self, table: QueueTable, stream: StreamTable, command: cl.OpenClaim) -> c.Result:
        holding = Holding(rules.begin(command, self._tables.now_ms, table.queue.settings.groups))
        self._step(table, holding, command.lease_s)
        if not holding.members:
            return cl.Opened(None)
        stream.claims[command.number] = holding
        self._tables.holdings.append(holding)
        return cl.Opened(holding.claim)

    def _step(self, table: QueueTable, holding: Holding, lease_s: int) -> None:
        """Take the next messages into a claim that is OPENING."""
        tables, before = self._tables, holding.claim
        had_bytes = sum(size_of(table.rows[row_key]) for row_key in holding.members)
        step = rules.Step(before, had_bytes)
        found = list(self._taking.take(table, step.room, step))
        ends = step.is_full(len(found)), step.reaches_bytes
        after = rules.after_step(before, len(found), *ends, tables.now_ms, lease_s)
        if holding.members:
            self._extend(table, holding, after)
        holding.claim = after
        for row_key, message in found:
            member = rules.after_claim(message, after, tables.now_ms)
            tables.keep(table, row_key, member)
            table.held[row_key] = holding
            holding.members.add(row_key)
            tables.note(EventType.CLAIMED, table, member, target=rules.name_of(after))

    # --- reading -----------------------------------------------------------------------------

    def read(self, command: cl.ReadClaim) -> c.Result:
        """Read members in their order."""
        table, _, holding = self._find_claim(command)
        rules.check_readable(holding.claim, holding.accepted_loss)
        start, stop = rules.part_bounds(holding.claim.remaining, command)
        if command.after:
            if not command.after.isdecimal():
                raise InvalidMarker
            start = int(command.after)
        found = [
            (place, rules.as_read(table.rows[key]))
            for place, key in enumerate(in_order(table, holding)[:stop])
            if place >= start and (not command.whole_groups or _is_of(command, table.rows[key]))
        ]
        sizes = [len(message.body) for _, message in found[: command.limit]]
        count = fitting(sizes, LOOK_BYTES, at_least=True)
        messages = tuple(message for _, message in found[:count])
        return cl.MemberPage(messages, str(found[count][0]) if count < len(found) else None)

    # --- extending ---------------------------------------------------------------------------

    def extend(self, command: cl.ExtendClaim) -> c.Result:
        """Move the end of a claim's lease."""
        table, _, holding = self._find_claim(command)
        now_ms = self._tables.now_ms
        after = rules.after_extension(holding.claim, now_ms, command.lease_s, command.park)
        self._extend(table, holding, after)
        return after

    def _extend(self, table: QueueTable, holding: Holding, after: cl.Claim) -> None:
        kind = rules.extension_event(holding.claim)
        holding.claim, holding.hidden = after, True
        for row_key in holding.members:
            table.rows[row_key] = rules.as_member(table.rows[row_key], after)
        self._note(kind, table, after)

    def _note(self, kind: EventType, table: QueueTable, claim: cl.Claim) -> None:
        if table.queue.settings.event_log:
            self._tables.log.add_of_claim(kind, claim)

    # --- settling ----------------------------------------------------------------------------

    def exempt(self, command: cl.ExemptMembers) -> c.Result:
        """Note what becomes of members when their claim is settled."""
        table, _, holding = self._find_claim(command)
        rules.check_readable(holding.claim, holding.accepted_loss)
        last = {each.message_id: each for each in command.exemptions}
        noted: dict[int, cl.Exemption] = {}
        for exemption in last.values():
            if exemption.number != command.number:
                raise MemberNotFound(exemption.message_id)
            noted[self._member(table, holding, exemption)] = exemption
        before = {} if command.replace else holding.notes
        counted = replace(holding.claim, noted=len(before))
        rules.check_noted(counted, len(noted.keys() - before.keys()))
        holding.notes = before | noted
        holding.claim = replace(holding.claim, noted=len(holding.notes))
        return holding.claim

    def bind(self, command: cl.BindClaim) -> c.Result:
        """Have the publishing of a transaction settle the stream up to a claim."""
        _, stream, holding = self._find_claim(command)
        rules.check_readable(holding.claim, holding.accepted_loss)
        self._staging.begin_binding(command.account, command.transaction)
        self._settling.bind(stream, holding, command.transaction)
        return holding.claim

    def settle(self, command: cl.SettleClaims) -> c.Result:
        """Complete claims, but for the exemptions; everything is checked before it is done."""
        table, stream = self._find(command)
        rules.check_token(stream.token, command.token)
        if command.upto <= stream.last_settled:
            return cl.Settled(last_settled=stream.last_settled, already=True)
        own = Plan(table, stream, command.upto)
        plans = self._settling.plan(command.account, command.publish, own)
        exempt = self._exempt(own, command)
        for name in command.publish:
            self._staging.check_publish(command.account, name)
        for put in command.sends:
            self._messages.check(put)
        settled = self._settling.carry_out(own, exempt)
        beside = [self._settling.carry_out(plan) for plan in plans.values() if plan is not own]
        moved = self._staging.publish_all(command.account, command.publish)
        for put in command.sends:
            self._messages.put(put)
        return cl.Settled(
            last_settled=settled.last_settled,
            completed=settled.completed,
            exempted=settled.exempted,
            lost=settled.lost,
            published=moved.rows,
            published_by_queue=moved.by_queue,
            duplicates=moved.duplicates,
            beside=tuple(beside),
        )

    def _exempt(self, plan: Plan, command: cl.SettleClaims) -> dict[int, cl.Exemption]:
        """Return the exemptions by row key, or raise what is wrong with one."""
        exempt: dict[int, cl.Exemption] = {}
        for exemption in command.exemptions:
            holding = plan.stream.claims.get(exemption.number)
            if exemption.number > plan.upto or holding is None:
                raise MemberNotFound(exemption.message_id)
            if row_key_of(exemption.message_id) in exempt:
                raise MemberNotFound(exemption.message_id)
            exempt[self._member(plan.table, holding, exemption)] = exemption
        return exempt

    def _member(self, table: QueueTable, holding: Holding, exemption: cl.Exemption) -> int:
        """Return the row key of a member that can be exempted so, or raise why it cannot."""
        row_key = row_key_of(exemption.message_id)
        if (
            row_key is None
            or row_key not in holding.members
            or table.rows[row_key].message_id != exemption.message_id
        ):
            raise MemberNotFound(exemption.message_id)
        now_ms, delay_s = self._tables.now_ms, exemption.delay_s
        refusal = release_refusal(table.rows[row_key], now_ms, delay_s)
        if refusal:
            raise refusal
        return row_key

    # --- giving back, lapsing, dissolving ----------------------------------------------------

    def give_back(self, command: cl.GiveBackClaim) -> c.Result:
        """Dissolve a claim: its members are visible again."""
        table, stream, _ = self._find_claim(command)
        return self._give_back(table, [stream.claims.pop(command.number)])

    def _give_back(self, table: QueueTable, holdings: Iterable[Holding]) -> c.Result:
        """Begin to dissolve claims that their stream no longer knows."""
        room, left = cl.FOLD_STEP, 0
        for holding in holdings:
            holding.dissolving = True
            room -= self._dissolve(table, holding, room)
            left += len(holding.members)
        return cl.Dissolving(left) if left else c.DONE

    def _dissolve(self, table: QueueTable, holding: Holding, limit: int) -> int:
        """Have members leave a claim that was given back; return how many."""
        leaving = in_order(table, holding)[:limit]
        if holding.hidden:
            for row_key in leaving:
                message = rules.after_return(table.rows[row_key], self._tables.now_ms)
                table.rows[row_key] = message
        self._let_go(table, holding, leaving)
        if not holding.members:
            self._tables.holdings.remove(holding)
        return len(leaving)

    def _let_go(self, table: QueueTable, holding: Holding, row_keys: Iterable[int]) -> None:
        """Leave members in their queue as they are."""
        name = rules.name_of(holding.claim)
        for row_key in row_keys:
            self._tables.leave(table, row_key)
            message = table.rows[row_key]
            self._tables.stir(table, message, NOW)
            self._tables.note(EventType.UNCLAIMED, table, message, target=name)

    def lapse_due(self) -> None:
        """Let claims lapse whose time is over; called before the first command of a batch."""
        tables = self._tables
        due = [
            holding
            for holding in tables.holdings
            if holding.hidden and not holding.dissolving and holding.claim.until_ms <= tables.now_ms
        ]
        for holding in sorted(due, key=lambda each: each.claim.until_ms):
            holding.hidden = False
            holding.claim = rules.after_lapse(holding.claim)
            table = tables.get(holding.claim.account, holding.claim.queue)
            self._note(EventType.CLAIM_LAPSED, table, holding.claim)
            for row_key in in_order(table, holding):  # the claim may have been cut short
                tables.stir(table, table.rows[row_key], NOW)

    def lapse(self, command: cl.LapseClaims) -> c.Result:
        """Dissolve what was given back, and claims where too many have lapsed.

        Those that are due have lapsed by now.
        """
        left, tables = command.limit, self._tables
        for holding in [each for each in tables.holdings if each.dissolving]:
            table = tables.get(holding.claim.account, holding.claim.queue)
            left -= self._dissolve(table, holding, left)
        if command.fold:
            for key in sorted(tables.queues):
                left -= self._fold(tables.queues[key], left)
        return c.Swept(command.limit - left)

    def _fold(self, table: QueueTable, limit: int) -> int:
        """Dissolve what there is too much of in a queue; return how many members that was."""
        holdings = {
            rules.name_of(holding.claim): holding
            for stream in table.streams.values()
            for holding in stream.claims.values()
            if not holding.hidden
        }
        left = limit
        for claim in rules.to_dissolve(each.claim for each in holdings.values()):
            holding = holdings[rules.name_of(claim)]
            leaving = in_order(table, holding)[:left]
            self._let_go(table, holding, leaving)
            left -= len(leaving)
        return limit - left

    # --- the queue as a whole ----------------------------------------------------------------

    def lose_members(self, table: QueueTable) -> None:
        """Note that the members of all claims of a queue are gone."""
        for holding in self._of_queue(table):
            holding.members.clear()
            holding.notes.clear()
            holding.accepted_loss = holding.accepted_loss and not holding.claim.remaining
            holding.claim = rules.after_clear(holding.claim)
            if holding.dissolving:
                self._tables.holdings.remove(holding)
        table.held.clear()

    def forget_streams(self, table: QueueTable) -> None:
        """Forget the streams and claims of a queue that is deleted."""
        for holding in self._of_queue(table):
            self._tables.holdings.remove(holding)

    def _of_queue(self, table: QueueTable) -> tuple[Holding, ...]:
        """Return the claims of a queue that are not settled, those without members included."""
        of = table.queue.account, table.queue.name
        return tuple(
            holding
            for holding in self._tables.holdings
            if (holding.claim.account, holding.claim.queue) == of
        )


def _is_of(command: cl.ReadClaim, message: Message) -> bool:
    """Tell whether a member is of the part that is read, where groups are whole."""
    name = message.detail.group_id
    return is_of_part(name or message.message_id, command.part, command.parts)
