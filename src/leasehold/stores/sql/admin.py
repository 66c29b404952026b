"""Looking at messages in a database, moving them without a receipt, and the queues themselves."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Final, NamedTuple

from leasehold.domain import admin as o
from leasehold.domain import commands as c
from leasehold.domain.admin import (
    EXPIRED_CANARY,
    JOB_SCAN,
    KEPT_MS,
    after_canaries,
    after_step,
    begin,
    is_over,
    most_to_move,
    stop,
)
from leasehold.domain.errors import (
    JobNotFound,
    MessageLeased,
    MessageNotFound,
    MessageNotLeased,
    QueueExists,
    SettingsDiffer,
    VisibilityPastExpiry,
)
from leasehold.domain.event_recorder import SERVER, changes_between
from leasehold.domain.events import EventType
from leasehold.domain.failures import has_failed_in, newest_error
from leasehold.domain.filters import matches
from leasehold.domain.groups import NOW, HaltGroup, ResumeGroup
from leasehold.domain.model import (
    NEVER_MS,
    GroupHalt,
    Message,
    MessageState,
    Phase,
    Queue,
    differences_where_given,
    read_place,
    row_key_of,
    same_metadata,
    with_adapted,
    with_settings,
)
from leasehold.domain.visibility import (
    after_amend,
    after_change,
    after_ended_lease,
    after_extension,
    after_redrive,
    next_token_ms,
    state_of,
)
from leasehold.stores.sql.catalog import (
    DEFAULT_LANES,
    PARTITION_MASK,
    Entry,
    Lane,
    OpenClaimState,
    lanes_of,
    metadata_to_json,
    policies_to_json,
)
from leasehold.stores.sql.claims import ClaimHandlers
from leasehold.stores.sql.failures import add_queue, keep_halt
from leasehold.stores.sql.groups import GroupSearch
from leasehold.stores.sql.plain_json import from_plain, settings_to_json, to_plain
from leasehold.stores.sql.rows import Cell, Kept, free_group, kept_in, message_of, rewrite, uncount
from leasehold.stores.sql.scanning import GroupScanner, Scanner, Step, seen_of
from leasehold.stores.sql.state import State

NOT_YET_RETIRED: Final = 20_000
"""Expired messages that a count may look at, some ten milliseconds' worth."""
_OLDEST_ROWS: Final = 100
BY_OPERATOR: Final = "operator"
_OLDEST_CHUNKS: Final = 20

_OF_GROUPS: Final = ("forget_rates", "forget_halts", "forget_holds")
"""What is kept of the groups of a queue beside its messages."""


class _Gone(NamedTuple):
    """What of a queue has expired and still counts as there."""

    number: int
    ahead: list[int]
    """Of those, how many were invisible, by phase."""
    claimed_ahead: int
    """And how many in claims that lapsed later than it is now: the clock was set back."""
    all_seen: bool


class AdminHandlers:
    """Each method carries out one command; refusals are raised."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.scanner = Scanner(state)
        self._groups = GroupSearch(state)
        self._group_scanner = GroupScanner(state)

    # --- looking -----------------------------------------------------------------------------

    def inspect(self, command: o.Inspect, now_ms: int) -> c.Result:
        """List messages, oldest first."""
        entry = self._state.catalog.get(command.account, command.queue)
        found: list[o.Seen] = []
        reached = command.after
        after = read_place(command.after)
        for step in self.scanner.walk(entry, after, command.filter, now_ms, staged=True):
            if step is None:
                return o.MessagePage(tuple(found), reached)
            seen = step.seen
            if seen is not None and matches(seen.message, seen.state, command.filter, now_ms):
                if len(found) == command.limit:
                    return o.MessagePage(tuple(found), reached)
                found.append(seen)
            reached = str(step.place)
        return o.MessagePage(tuple(found), None)

    def find(self, command: o.FindMessage, now_ms: int) -> c.Result:
        """Look for one message by id."""
        catalog = self._state.catalog
        entry = catalog.get(command.account, command.queue)
        found, retired = self._find_in(entry, command.message_id)
        if found is not None:
            seen = seen_of(found, now_ms)
            return seen._replace(state=MessageState.EXPIRED) if retired else seen
        staged = self._staged(entry, command.message_id)
        if staged is not None:
            return staged
        poison = catalog.poison_of(entry)
        found, retired = self._find_in(poison, command.message_id) if poison else (None, False)
        if found is None or retired or not has_failed_in(entry.queue.name, found.message):
            raise MessageNotFound
        seen = seen_of(found, now_ms)
        if seen.state is MessageState.EXPIRED:
            raise MessageNotFound
        return seen._replace(state=MessageState.POISONED)

    def _staged(self, entry: Entry, message_id: str) -> o.Seen | None:
        row_key = row_key_of(message_id)
        rows = self._state.fetch("find_message", (row_key,))
        if not rows:
            return None
        slot = self._state.catalog.slots.get(Cell.lane(rows[0]) & PARTITION_MASK)
        if slot is None or (slot.account, slot.queue) != (entry.queue.account, entry.queue.name):
            return None
        message = message_of(rows[0])
        if message.message_id != message_id:
            return None
        return o.Seen(message, MessageState.STAGED, slot.queue, slot.name)

    def _find_in(self, entry: Entry, message_id: str) -> tuple[Kept | None, bool]:
        """Return a message of a queue, if it is there, and whether it is retired."""
        row_key = row_key_of(message_id)
        rows = self._state.fetch("find_message", (row_key,)) if row_key is not None else []
        kept = kept_in(self._state, entry, rows[0]) if rows else None
        if kept is None or kept.message.message_id != message_id:
            return None, False
        return kept, bool(Cell.retired(rows[0]))

    # --- counting ----------------------------------------------------------------------------

    def look_at_group(self, command: o.LookAtGroup, now_ms: int) -> c.Result:
        """Look at what holds up a group."""
        entry = self._state.catalog.get(command.account, command.queue)
        in_flight, rows = self._groups.held(entry, command.group_id, now_ms, command.limit)
        held = [kept for row in rows if (kept := kept_in(self._state, entry, row)) is not None]
        held.sort(key=lambda kept: (kept.message.visible_at_ms, kept.row_key))
        seen = tuple(seen_of(kept, now_ms) for kept in held[: command.limit])
        again_ms = self._groups.again_ms(entry, command.group_id, now_ms)
        halt, hold = entry.halts.get(command.group_id), entry.holds.get(command.group_id)
        turns = entry.turns
        noisy_limit = None if turns is None else turns.work.limits.get(command.group_id)
        return o.GroupStanding(in_flight, seen, again_ms, halt, hold, noisy_limit)

    def halt_group(self, command: HaltGroup, now_ms: int) -> c.Result:
        """Have a group give nothing more."""
        entry = self._state.catalog.grouped(command.account, command.queue)
        halt = GroupHalt(now_ms, None, command.reason)
        keep_halt(self._state, entry, command.group_id, halt)
        return entry.halts[command.group_id]

    def resume_group(self, command: ResumeGroup, _now_ms: int) -> c.Result:
        """Have a group go on."""
        entry = self._state.catalog.grouped(command.account, command.queue)
        group = command.group_id
        stood = group in entry.halts
        if stood:
            state = self._state
            state.cursor.execute(state.sql["drop_halt"], (entry.scope, group))
            del entry.halts[group]
            state.log.add_group(EventType.GROUP_RESUMED, entry, group)
            if entry.turns is not None:
                entry.turns.call(group, NOW)
        return stood

    def count_groups(self, command: o.CountGroups, now_ms: int) -> c.Result:
        """Count some messages of groups."""
        entry = self._state.catalog.get(command.account, command.queue)
        return self._group_scanner.page(entry, command, now_ms)

    def count(self, command: o.CountMessages, now_ms: int) -> c.Result:
        """Count by state; it takes as long with ten million messages as with one."""
        return self.counts_of(self._state.catalog.get(command.account, command.queue), now_ms)

    def counts_of(self, entry: Entry, now_ms: int) -> o.Counts:
        """Count the messages of a queue by state."""
        numbers = self._by_phase(entry, now_ms)
        ahead = sum(numbers)
        gone = self._not_yet_retired(entry, now_ms)
        for phase in Phase:
            numbers[phase] -= gone.ahead[phase]
        claimed = sum(held.claim.remaining for held in entry.claims if not held.lapsed)
        # With the clock set back, what has lapsed cannot be received yet either.
        claimed_ahead = -gone.claimed_ahead + sum(
            held.claim.remaining for held in entry.lapsed if held.claim.until_ms > now_ms
        )
        gone_visible = gone.number - sum(gone.ahead)
        visible = entry.message_count - ahead - gone_visible - claimed - claimed_ahead
        by_state = {
            MessageState.VISIBLE: visible,
            MessageState.LEASED: numbers[Phase.LEASED] + claimed + claimed_ahead,
            MessageState.DELAYED: numbers[Phase.DELAYED] + numbers[Phase.WAITING],
            MessageState.DEFERRED: numbers[Phase.DEFERRED],
        }
        poisoned, poison_seen = 0, True
        poison = self._state.catalog.poison_of(entry)
        if poison is not None:
            gone_there = self._not_yet_retired(poison, now_ms)
            poisoned, poison_seen = poison.message_count - gone_there.number, gone_there.all_seen
        return o.Counts(
            visible=by_state[MessageState.VISIBLE],
            leased=by_state[MessageState.LEASED],
            delayed=by_state[MessageState.DELAYED],
            deferred=by_state[MessageState.DEFERRED],
            poisoned=poisoned,
            since=self._since(entry, by_state, now_ms),
            exact=gone.all_seen and poison_seen,
            staged=entry.staged,
            claimed=claimed,
            expired=gone.number + self._state.retired(entry),
            halted_groups=len(entry.halts),
            held_groups=len(entry.holds),
        )

    def _by_phase(self, entry: Entry, now_ms: int) -> list[int]:
        """Return how many become visible later than now, by phase, expired ones included."""
        timeline = self._state.timeline(entry, now_ms)
        numbers = list(timeline.ahead)
        soon = timeline.in_this_second()
        if any(soon):
            end_ms = (now_ms // 1000 + 1) * 1000
            for phase in Phase:
                numbers[phase] -= soon[phase]
            for lane in entry.lanes:
                bounds = (lane.partition, now_ms, end_ms)
                for phase, number in self._state.fetch("this_second", bounds):
                    numbers[phase] += number
        return numbers

    def _not_yet_retired(self, entry: Entry, now_ms: int) -> _Gone:
        """Count what has expired and still counts as there."""
        state = self._state
        reached_ms = min(state.retired_until_ms, now_ms)
        # What a lapsed claim had is visible as of its end.
        visible_ms = {held.partition: held.claim.until_ms for held in entry.lapsed}
        rows = state.fetch("not_yet_retired", (reached_ms, now_ms, NOT_YET_RETIRED))
        ahead, number, claimed_ahead = [0] * len(Phase), 0, 0
        for visible_at_ms, phase, partition in rows:
            if partition == entry.partition:
                number += 1
                if visible_at_ms > now_ms:
                    ahead[phase] += 1
            elif partition in visible_ms:
                number += 1
                claimed_ahead += visible_ms[partition] > now_ms
        return _Gone(number, ahead, claimed_ahead, all_seen=len(rows) < NOT_YET_RETIRED)

    def _since(
        self, entry: Entry, numbers: dict[MessageState, int], now_ms: int
    ) -> dict[MessageState, int]:
        """Return when the message longest in each state entered it."""
        since: dict[MessageState, int] = {}
        for state, number in numbers.items():
            if number <= 0:
                continue
            moments = [
                moment
                for lane in entry.lanes
                if (moment := self._oldest(lane, state, now_ms)) is not None
            ]
            moments += self._of_claims(entry, state, now_ms)
            if moments:
                since[state] = min(moments)
        return since

    def _of_claims(self, entry: Entry, state: MessageState, now_ms: int) -> list[int]:
        """Return since when members of claims are in a state."""
        with_members = [held for held in entry.claims if held.claim.remaining]
        if state is MessageState.LEASED:
            return [
                held.claim.opened_at_ms
                for held in with_members
                if not held.lapsed
                or (held.claim.until_ms > now_ms and self._has_live(held, now_ms))
            ]
        if state is MessageState.VISIBLE:
            return [
                held.claim.until_ms
                for held in with_members
                if held.lapsed and held.claim.until_ms <= now_ms and self._has_live(held, now_ms)
            ]
        return []

    def _has_live(self, held: OpenClaimState, now_ms: int) -> bool:
        """Tell whether a claim has a member that has not expired."""
        return any(
            self._state.fetch("next_visible_without_bodies", (lane, now_ms, 1, 0, NEVER_MS))
            for lane in lanes_of(held.partition, held.lanes_used)
        )

    def _oldest(self, lane: Lane, state: MessageState, now_ms: int) -> int | None:
        if now_ms < lane.scanned_at_ms:
            lane.forget_scan()
        lane.scanned_at_ms = now_ms
        if state is MessageState.VISIBLE:
            from_ms = lane.live_from_ms if lane.is_sure else 0
            bounds = (lane.partition, now_ms, 1, from_ms, now_ms)
            rows = self._state.fetch("next_visible", bounds)
            first_ms: int | None = Cell.visible_at_ms(rows[0]) if rows else None
            lane.scanned(now_ms, first_ms, found_all=not rows)
            return first_ms
        phase = _PHASE_OF[state]
        from_ms = lane.oldest_from_ms[phase]
        for chunk in range(_OLDEST_CHUNKS):
            skipped = chunk * _OLDEST_ROWS
            rows = self._state.fetch(
                "oldest_in_phase", (lane.partition, phase, from_ms, _OLDEST_ROWS, skipped)
            )
            for since_ms, visible_at_ms, expires_at_ms in rows:
                if visible_at_ms > now_ms and expires_at_ms > now_ms:
                    lane.oldest_from_ms[phase] = since_ms
                    return int(since_ms)
            if len(rows) < _OLDEST_ROWS:
                lane.oldest_from_ms[phase] = now_ms
                return None
        # Very many leases have lapsed and wait to be taken again. The next count goes on here.
        lane.oldest_from_ms[phase] = since_ms
        return int(since_ms)

    def next_due(self, command: o.NextDue, now_ms: int) -> c.Result:
        """Say when a receive may next get something."""
        entry = self._state.catalog.get(command.account, command.queue)
        settings = entry.queue.settings
        moments = []
        if settings.groups is not None:
            turn_ms = self._groups.next_due_ms(entry, now_ms)
            moments = [] if turn_ms is None else [turn_ms]
        for lane in entry.lanes if settings.groups is None else ():
            if self._oldest(lane, MessageState.VISIBLE, now_ms) is not None:
                moments = [now_ms]
                break
            rows = self._state.fetch("next_invisible", (lane.partition, now_ms))
            moments += [visible_at_ms for (visible_at_ms,) in rows]
        moments += [
            max(held.claim.until_ms, now_ms) for held in entry.claims if held.claim.remaining
        ]
        if not moments:
            return o.Due(None)
        at_ms = min(moments)
        rate_per_s = self._state.catalog.rate_of(entry)
        if rate_per_s is not None:
            at_ms = max(at_ms, next_token_ms(entry.bucket, rate_per_s, now_ms))
        if settings.paused_until_ms is not None:
            at_ms = max(at_ms, settings.paused_until_ms)
        return o.Due(at_ms)

    # --- moving ------------------------------------------------------------------------------

    def amend(self, command: o.Amend, now_ms: int) -> c.Result:
        """Change a message."""
        kept = self._waiting(command, now_ms, force=command.force)
        entry, _, message, _ = kept
        amended = after_amend(
            message,
            now_ms,
            delay_s=command.delay_s,
            time_to_live_s=command.time_to_live_s,
            body=command.body,
            priority=command.priority,
            properties=command.properties,
        )
        if max(amended.visible_at_ms, now_ms) >= amended.expires_at_ms:
            raise VisibilityPastExpiry("put", command.delay_s or 0)
        rewrite(self._state, kept, amended)
        self._state.log.add(EventType.AMENDED, entry, amended)
        return o.Seen(amended, state_of(amended, now_ms), entry.queue.name)

    def remove(self, command: o.Remove, now_ms: int) -> c.Result:
        """Remove a message."""
        entry, row_key, message, held = self._waiting(command, now_ms, force=command.force)
        self._state.cursor.execute(self._state.sql["remove"], (row_key,))
        uncount(self._state, entry, message.visible_at_ms, message.phase, held)
        free_group(entry, message)
        self._state.log.add(EventType.REMOVED, entry, message, BY_OPERATOR)
        return c.DONE

    def end_lease(self, command: o.EndLease, now_ms: int) -> c.Result:
        """End a lease."""
        kept = self._live(command, now_ms)
        entry, _, message, _ = kept
        if seen_of(kept, now_ms).state is not MessageState.LEASED:
            raise MessageNotLeased
        ended = after_ended_lease(message, now_ms, command.delay_s, command.reason)
        if ended.visible_at_ms >= ended.expires_at_ms:
            raise VisibilityPastExpiry("release", command.delay_s)
        rewrite(self._state, kept, ended)
        error = newest_error(ended)
        self._state.log.add(EventType.LEASE_ENDED, entry, ended, BY_OPERATOR, None, error)
        return o.Seen(ended, state_of(ended, now_ms), entry.queue.name)

    def extend_lease(self, command: o.ExtendLease, now_ms: int) -> c.Result:
        """Move the end of a lease."""
        kept = self._live(command, now_ms)
        entry, _, message, held = kept
        if held is not None or seen_of(kept, now_ms).state is not MessageState.LEASED:
            raise MessageNotLeased
        extended = after_extension(message, now_ms, command.visibility_timeout_s)
        if extended.visible_at_ms >= extended.expires_at_ms:
            raise VisibilityPastExpiry("renew", command.visibility_timeout_s)
        rewrite(self._state, kept, extended)
        self._state.log.add(EventType.RENEWED, entry, extended, BY_OPERATOR)
        return o.Seen(extended, state_of(extended, now_ms), entry.queue.name)

    def _live(self, command: o.Amend | o.Remove | o.EndLease | o.ExtendLease, now_ms: int) -> Kept:
        entry = self._state.catalog.get(command.account, command.queue)
        row_key = row_key_of(command.message_id)
        rows = self._state.fetch("get_message", (row_key,))
        kept = kept_in(self._state, entry, rows[0]) if rows else None
        if kept is None or kept.message.message_id != command.message_id:
            raise MessageNotFound
        if seen_of(kept, now_ms).state is MessageState.EXPIRED:
            raise MessageNotFound
        return kept

    def _waiting(self, command: o.Amend | o.Remove, now_ms: int, *, force: bool) -> Kept:
        kept = self._live(command, now_ms)
        message = kept.message
        if not force and seen_of(kept, now_ms).state is MessageState.LEASED:
            raise MessageLeased(message.holder, message.visible_at_ms)
        return kept


_PHASE_OF: Final = {
    MessageState.LEASED: Phase.LEASED,
    MessageState.DELAYED: Phase.DELAYED,
    MessageState.DEFERRED: Phase.DEFERRED,
}


# --- jobs --------------------------------------------------------------------------------------
#
# Purges and redrives in a database: each step, and what it moved, is part of one transaction.


BY_PURGE: Final = "purge"


class JobHandlers:
    """Each method carries out one command; refusals are raised."""

    def __init__(self, state: State, admin: AdminHandlers) -> None:
        self._state = state
        self._scanner = admin.scanner

    def start(self, command: o.StartJob, now_ms: int) -> c.Result:
        """Begin a job, and forget those that were over long ago."""
        state = self._state
        entry = state.catalog.get(command.account, command.queue)
        redrive = command.plan.kind is o.JobKind.REDRIVE
        source = state.catalog.poison_of(entry) if redrive else entry
        job = begin(
            command,
            expected=source.message_count if source else 0,
            end=state.last_row_key,
            now_ms=now_ms,
        )
        state.cursor.execute(state.sql["forget_jobs"], (now_ms - KEPT_MS,))
        return self._keep(job)

    def step(self, command: o.StepJob, now_ms: int) -> c.Result:
        """Carry a job on."""
        job = self._get(command.job_id)
        if is_over(job):
            return job
        entry = self._state.catalog.find(job.account, job.queue)
        if entry is None:
            return self._keep(stop(job, now_ms, "The queue was deleted."))
        if job.state is o.JobState.CANARY:
            return self._keep(after_canaries(job, self._canaries(job), now_ms))
        since = self._state.log.reached
        walked = self._walk(entry, job, command.limit, now_ms)
        self._state.log.sign(since, job.actor)
        return self._keep(walked)

    def _canaries(self, job: o.Job) -> dict[str, str | None]:
        """Return the canaries that are not done: why they are poison again, None if not."""
        keys = [row_key_of(message_id) for message_id in job.canaries]
        found: dict[str, str | None] = {}
        for row in self._state.fetch("rows_of_keys", (json.dumps(keys),)):
            if self._state.catalog.of_partition(Cell.lane(row)) is None:
                continue  # of a queue that was cleared
            message = message_of(row)
            poisoning = message.detail.poisoning
            reason = poisoning.reason if poisoning else None
            found[message.message_id] = EXPIRED_CANARY if Cell.retired(row) else reason
        return {message_id: found[message_id] for message_id in job.canaries if message_id in found}

    def _walk(self, entry: Entry, job: o.Job, limit: int, now_ms: int) -> o.Job:
        plan = job.plan
        examined, matched = 0, 0
        moved: list[str] = []
        limit = most_to_move(job, limit)
        reached = job.cursor
        finished = True
        place = read_place(job.cursor)
        for step in self._scanner.walk(entry, place, plan.filter, now_ms, job.end):
            if step is None:
                finished = False
                break
            if step.seen is not None and not step.retired:
                if matched == limit or examined == JOB_SCAN:
                    finished = False
                    break
                examined += 1
                if matches(step.seen.message, step.seen.state, plan.filter, now_ms):
                    matched += 1
                    if not plan.dry_run and self._move(entry, job, step, now_ms):
                        moved.append(step.seen.message.message_id)
            reached = str(step.place)
        return after_step(
            job,
            cursor=reached,
            examined=examined,
            matched=matched,
            moved=moved,
            finished=finished,
            now_ms=now_ms,
        )

    def _move(self, entry: Entry, job: o.Job, step: Step, now_ms: int) -> bool:
        """Do to one message what the job does; False if that cannot be done."""
        state = self._state
        seen = step.seen
        assert seen is not None
        message: Message = seen.message
        source = state.catalog.poison_of(entry) if step.place.poison else entry
        assert source is not None
        if job.plan.kind is o.JobKind.PURGE:
            state.cursor.execute(state.sql["remove"], (step.place.row_key,))
            uncount(state, source, message.visible_at_ms, message.phase, step.held)
            free_group(source, message)
            state.log.add(EventType.REMOVED, source, message, BY_PURGE)
            return True
        kept = Kept(source, step.place.row_key, message, step.held)
        if job.plan.kind is not o.JobKind.REDRIVE:
            return self._change(kept, job.plan, now_ms)
        poisoning = message.detail.poisoning
        name = job.plan.target or (poisoning.queue if poisoning else job.queue)
        target = state.catalog.find(job.account, name)
        if target is None:
            return False
        redriven = after_redrive(message, now_ms)
        rewrite(state, kept, redriven, target)
        state.log.add(EventType.REDRIVEN, source, redriven, None, target.queue.name)
        return True

    def _change(self, kept: Kept, plan: o.JobPlan, now_ms: int) -> bool:
        member = kept.held is not None
        changed = after_change(kept.message, plan, now_ms, is_member=member)
        if changed is None:
            return False
        rewrite(self._state, kept, changed.message)
        error = None
        if changed.event is EventType.LEASE_ENDED:
            error = newest_error(changed.message)
        log = self._state.log
        log.add(changed.event, kept.entry, changed.message, changed.reason, None, error)
        return True

    def stop(self, command: o.StopJob, now_ms: int) -> c.Result:
        """Stop a job where it is."""
        job = self._get(command.job_id, command.account)
        if is_over(job):
            return job
        entry = self._state.catalog.find(job.account, job.queue)
        if command.actor is not None and entry is not None and not job.plan.dry_run:
            self._state.log.add_queue(EventType.QUEUE_UPDATED, entry, f"job {job.job_id} stopped")
        return self._keep(stop(job, now_ms, "An operator stopped the job."))

    def get(self, command: o.GetJob, _now_ms: int) -> c.Result:
        """Look at a job."""
        return self._get(command.job_id, command.account)

    def list(self, command: o.ListJobs, _now_ms: int) -> c.Result:
        """List jobs, the newest first."""
        bounds = (command.account, command.queue, command.limit)
        rows = self._state.fetch("list_jobs", bounds)
        return tuple(from_plain(o.Job, json.loads(content)) for (content,) in rows)

    def _get(self, job_id: str, account: str | None = None) -> o.Job:
        content = self._state.value("get_job", (job_id,))
        if content is None:
            raise JobNotFound
        job = from_plain(o.Job, json.loads(content))
        if account not in {None, job.account}:
            raise JobNotFound
        return job

    def _keep(self, job: o.Job) -> o.Job:
        bounds = (
            job.job_id,
            job.account,
            job.queue,
            is_over(job),
            job.created_at_ms,
            job.updated_at_ms,
            json.dumps(to_plain(job)),
        )
        self._state.cursor.execute(self._state.sql["keep_job"], bounds)
        return job


# --- queues ------------------------------------------------------------------------------------
#
# Queues and account documents in a database.


class QueueHandlers:
    """Each method carries out one command; refusals are raised."""

    def __init__(self, state: State, admin: AdminHandlers, claims: ClaimHandlers) -> None:
        self._state = state
        self._admin = admin
        self._claims = claims

    def create(self, command: c.CreateQueue, now_ms: int) -> c.Result:
        """Create a queue."""
        state = self._state
        entry = state.catalog.find(command.account, command.queue)
        if entry is not None:
            differences = differences_where_given(
                entry.queue.settings, command.settings, command.given
            )
            if differences:
                raise SettingsDiffer(differences)
            if same_metadata(entry.queue.metadata, command.metadata):
                return c.QueueCreated(created=False)
            raise QueueExists
        state.refuse_moved(command.account)
        queue = Queue(
            account=command.account,
            name=command.queue,
            metadata=dict(command.metadata),
            settings=command.settings,
            created_at_ms=now_ms,
        )
        add_queue(state, queue)
        return c.QueueCreated(created=True)

    def delete(self, command: c.DeleteQueue, _now_ms: int) -> c.Result:
        """Delete a queue; its messages are out of reach at once."""
        state = self._state
        entry = state.catalog.get(command.account, command.queue)
        self._claims.forget_streams(entry)
        state.drop_partition(entry)
        state.log.add_queue(EventType.QUEUE_DELETED, entry)
        for query in _OF_GROUPS:
            state.cursor.execute(state.sql[query], (entry.scope,))
        state.cursor.execute(state.sql["delete_queue"], (command.account, command.queue))
        state.catalog.remove(entry)
        return c.DONE

    def clear(self, command: c.Clear, _now_ms: int) -> c.Result:
        """Empty a queue by giving it a new partition."""
        state = self._state
        entry = state.catalog.get(command.account, command.queue)
        self._claims.lose_members(entry)
        if entry.halts:
            state.cursor.execute(state.sql["forget_halts"], (entry.scope,))
            entry.halts.clear()
        state.drop_partition(entry)
        state.log.add_queue(EventType.QUEUE_CLEARED, entry)
        partition = state.new_partition()
        bounds = (partition, DEFAULT_LANES, command.account, command.queue)
        state.cursor.execute(state.sql["move_queue"], bounds)
        state.catalog.move(entry, partition)
        return c.DONE

    def get(self, command: c.GetQueue, now_ms: int) -> c.Result:
        """Return a queue and its count, which the open batch has kept up to date."""
        entry = self._state.catalog.get(command.account, command.queue)
        counts = self._admin.counts_of(entry, now_ms) if command.with_counts else None
        return c.QueueInfo(queue=entry.queue, message_count=entry.message_count, counts=counts)

    def set_metadata(self, command: c.SetQueueMetadata, _now_ms: int) -> c.Result:
        """Replace the metadata."""
        state = self._state
        entry = state.catalog.get(command.account, command.queue)
        state.cursor.execute(
            state.sql["set_metadata"],
            (metadata_to_json(command.metadata), command.account, command.queue),
        )
        self._take(entry, replace(entry.queue, metadata=dict(command.metadata)))
        return c.DONE

    def set_settings(self, command: c.SetQueueSettings, _now_ms: int) -> c.Result:
        """Replace the settings."""
        entry = self._state.catalog.get(command.account, command.queue)
        self._keep_settings(entry, with_settings(entry.queue, command.settings))
        return c.DONE

    def set_adapted(self, command: c.SetAdapted, _now_ms: int) -> c.Result:
        """Set the visibility timeout that the server has chosen."""
        entry = self._state.catalog.get(command.account, command.queue)
        since = self._state.log.reached
        self._keep_settings(entry, with_adapted(entry.queue, command.adapted, command.rule))
        self._state.log.sign(since, SERVER)
        return c.DONE

    def _keep_settings(self, entry: Entry, queue: Queue) -> None:
        state = self._state
        bounds = (settings_to_json(queue.settings), queue.account, queue.name)
        state.cursor.execute(state.sql["set_settings"], bounds)
        self._take(entry, queue)

    def _take(self, entry: Entry, queue: Queue) -> None:
        """Have a queue be as *queue* says, and record what is different."""
        found = changes_between(entry.queue, queue)
        was_logged = entry.logged  # that the log is turned off is the last thing in it
        if not was_logged:
            entry.take(queue)
        for kind, reason, until_ms in found:
            self._state.log.add_queue(kind, entry, reason, until_ms)
        if was_logged:
            entry.take(queue)

    def set_policies(self, command: c.SetQueuePolicies, _now_ms: int) -> c.Result:
        """Replace the stored access policies."""
        state = self._state
        entry = state.catalog.get(command.account, command.queue)
        state.cursor.execute(
            state.sql["set_policies"],
            (policies_to_json(command.policies), command.account, command.queue),
        )
        self._take(entry, replace(entry.queue, policies=command.policies))
        return c.DONE

    def list(self, command: c.ListQueues, _now_ms: int) -> c.Result:
        """List queues by name."""
        state = self._state
        names = [
            name
            for (name,) in state.cursor.execute(
                state.sql["list_queues"],
                (command.account, command.prefix, command.start, command.limit + 1),
            )
        ]
        queues = tuple(
            state.catalog.get(command.account, name).queue for name in names[: command.limit]
        )
        return c.QueuePage(
            queues=queues,
            next_start=names[command.limit] if len(names) > command.limit else None,
        )

    def get_document(self, command: c.GetAccountDocument, _now_ms: int) -> c.Result:
        """Read a document."""
        content = self._state.value("get_document", (command.account, command.kind))
        return c.AccountDocument(content)

    def set_document(self, command: c.SetAccountDocument, _now_ms: int) -> c.Result:
        """Write a document."""
        self._state.refuse_moved(command.account)
        self._state.cursor.execute(
            self._state.sql["set_document"], (command.account, command.kind, command.content)
        )
        return c.DONE
