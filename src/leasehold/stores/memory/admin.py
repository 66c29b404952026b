"""Looking at messages in memory, and moving them without a receipt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from leasehold.domain import admin as o
from leasehold.domain import commands as c
from leasehold.domain.admin import (
    EXPIRED_CANARY,
    JOB_SCAN,
    after_canaries,
    after_step,
    begin,
    is_kept,
    is_over,
    most_to_move,
    stop,
)
from leasehold.domain.errors import (
    JobNotFound,
    MessageLeased,
    MessageNotFound,
    MessageNotLeased,
    VisibilityPastExpiry,
)
from leasehold.domain.event_recorder import PURGE
from leasehold.domain.events import OPERATOR, EventType
from leasehold.domain.failures import has_failed_in, newest_error
from leasehold.domain.filters import EVERYTHING, MessageFilter, matches
from leasehold.domain.groups import NOW, HaltGroup, ResumeGroup, rate_room, room_again_ms
from leasehold.domain.model import (
    GroupFigures,
    GroupHalt,
    Message,
    MessageState,
    Phase,
    Place,
    read_place,
    row_key_of,
)
from leasehold.domain.noisy_groups import GroupWork
from leasehold.domain.visibility import (
    after_amend,
    after_change,
    after_ended_lease,
    after_extension,
    after_redrive,
    next_token_ms,
    state_of,
)
from leasehold.stores.memory.tables import QueueTable, Tables, Taking, grouped
from leasehold.stores.memory.transactions import TransactionHandlers

_LISTED_STATES = (
    MessageState.VISIBLE,
    MessageState.LEASED,
    MessageState.DELAYED,
    MessageState.DEFERRED,
)

_FIGURES = {
    MessageState.VISIBLE: GroupFigures(waiting=1),
    MessageState.LEASED: GroupFigures(in_flight=1),
    MessageState.DELAYED: GroupFigures(delayed=1),
    MessageState.DEFERRED: GroupFigures(deferred=1),
}


class AdminHandlers:
    """Each method carries out one command; refusals are raised."""

    def __init__(self, tables: Tables, staging: TransactionHandlers, taking: Taking) -> None:
        self._tables = tables
        self._staging = staging
        self._taking = taking

    # --- looking -----------------------------------------------------------------------------

    def inspect(self, command: o.Inspect) -> c.Result:
        """List messages, oldest first."""
        table = self._tables.get(command.account, command.queue)
        found: list[o.Seen] = []
        last = ""
        for place, seen in self.walk(table, read_place(command.after), command.filter):
            if len(found) == command.limit:
                return o.MessagePage(tuple(found), last)
            if matches(seen.message, seen.state, command.filter, self._tables.now_ms):
                found.append(seen)
                last = str(place)
        return o.MessagePage(tuple(found), None)

    def walk(
        self, table: QueueTable, after: Place, wanted: MessageFilter, *, apart: bool = True
    ) -> Iterator[tuple[Place, o.Seen]]:
        """Go over a queue's messages and, if they are asked for, those in its poison queue.

        Args:
            table: The queue.
            after: Where to go on.
            wanted: Which messages; some that it does not mean come as well.
            apart: Whether to go over what is retired or staged as well.
        """
        now_ms = self._tables.now_ms
        if not after.poison:
            own = {row_key: table.seen(row_key, now_ms) for row_key in table.rows}
            if apart:
                own |= self._apart(table, wanted)
            for row_key, seen in sorted(own.items(), key=lambda each: each[0]):
                if row_key > after.row_key:
                    yield Place(poison=False, row_key=row_key), seen
            after = Place(poison=True, row_key=0)
        poison = self._tables.poison_of(table)
        if poison is None or not (wanted.states is None or MessageState.POISONED in wanted.states):
            return
        for row_key, message in sorted(poison.rows.items()):
            if row_key > after.row_key and has_failed_in(table.queue.name, message):
                seen = poison.seen(row_key, now_ms)
                if seen.state is not MessageState.EXPIRED:
                    seen = seen._replace(state=MessageState.POISONED)
                    yield Place(poison=True, row_key=row_key), seen

    def _apart(self, table: QueueTable, wanted: MessageFilter) -> dict[int, o.Seen]:
        """Return what is retired and, if it is asked for, what is staged."""
        found = {
            row_key: o.Seen(message, MessageState.EXPIRED, table.queue.name)
            for row_key, message in table.retired.items()
        }
        if wanted.states is None or MessageState.STAGED in wanted.states:
            found |= dict(self._staging.staged_for(table))
        return found

    def look_at_group(self, command: o.LookAtGroup) -> c.Result:
        """Look at what holds up a group."""
        table, now_ms = self._tables.get(command.account, command.queue), self._tables.now_ms
        states = {MessageState.LEASED, MessageState.DEFERRED}
        held = [
            (message.visible_at_ms, key)
            for key, message in table.rows.items()
            if message.detail.group_id == command.group_id
            and message.dequeue_count
            and table.state_of(key, now_ms) in states
        ]
        seen = [table.seen(key, now_ms) for _, key in sorted(held)]
        leased = sum(each.state is MessageState.LEASED for each in seen)
        bare = (_without_content(each) for each in seen)
        settings = table.queue.settings.groups
        rate = None if settings is None else settings.rate_of(command.group_id)
        again_ms = None
        if rate is not None:
            full_at_us = table.full_at_us.get(command.group_id, 0)
            if not rate_room(rate, full_at_us, now_ms):
                again_ms = room_again_ms(rate, full_at_us, now_ms)
        halt, hold = table.halts.get(command.group_id), table.holds.get(command.group_id)
        noisy_limit = None
        if table.turns is not None:
            noisy_limit = table.turns.work.limits.get(command.group_id)
        held_up = tuple(bare)[: command.limit]
        return o.GroupStanding(leased, held_up, again_ms, halt, hold, noisy_limit)

    def halt_group(self, command: HaltGroup) -> c.Result:
        """Have a group give nothing more."""
        table = grouped(self._tables, command)
        halt = table.halts.get(command.group_id)
        if halt is None:
            halt = GroupHalt(self._tables.now_ms, None, command.reason)
            table.halts[command.group_id] = halt
            self._tables.note_group(EventType.GROUP_HALTED, table, command.group_id, halt)
        return halt

    def resume_group(self, command: ResumeGroup) -> c.Result:
        """Have a group go on."""
        table = grouped(self._tables, command)
        stood = table.halts.pop(command.group_id, None) is not None
        if stood:
            self._tables.note_group(EventType.GROUP_RESUMED, table, command.group_id)
            if table.turns is not None:
                table.turns.call(command.group_id, NOW)
        return stood

    def count_groups(self, command: o.CountGroups) -> c.Result:
        """Count some messages of groups; a place here is a row key."""
        table, now_ms = self._tables.get(command.account, command.queue), self._tables.now_ms
        after = -1 if command.after is None else command.after.row_key
        found: dict[str, GroupFigures] = {}
        left = command.limit
        for row_key, message in sorted(table.rows.items()):
            group_id = message.detail.group_id
            if row_key <= after or group_id is None or command.group_id not in {None, group_id}:
                continue
            if not left:
                place = o.GroupPlace(0, "", 0, 0, after)
                return o.GroupPage(found, place, dict(table.halts))
            after, left = row_key, left - 1
            figures = _FIGURES.get(table.state_of(row_key, now_ms))
            if figures is not None:
                if figures.waiting:
                    figures = figures._replace(oldest_ms=message.visible_at_ms)
                found[group_id] = found.get(group_id, GroupFigures()).plus(figures)
        settings = table.queue.settings.groups
        weights = {} if settings is None else settings.weights
        shares = {} if table.turns is None else table.turns.work.shares()
        return o.GroupPage(found, None, dict(table.halts), GroupWork(shares, weights))

    def find(self, command: o.FindMessage) -> c.Result:
        """Look for one message by id."""
        table = self._tables.get(command.account, command.queue)
        row_key = row_key_of(command.message_id)
        if row_key is None:
            raise MessageNotFound
        now_ms = self._tables.now_ms
        own = self._apart(table, EVERYTHING)
        if row_key in table.rows:
            own[row_key] = table.seen(row_key, now_ms)
        if row_key in own and own[row_key].message.message_id == command.message_id:
            return own[row_key]
        poison = self._tables.poison_of(table)
        message = poison.rows.get(row_key) if poison else None
        if (
            poison is None
            or message is None
            or message.message_id != command.message_id
            or not has_failed_in(table.queue.name, message)
            or poison.state_of(row_key, now_ms) is MessageState.EXPIRED
        ):
            raise MessageNotFound
        return poison.seen(row_key, now_ms)._replace(state=MessageState.POISONED)

    def count(self, command: o.CountMessages) -> c.Result:
        """Count by state."""
        return self.counts_of(self._tables.get(command.account, command.queue))

    def counts_of(self, table: QueueTable) -> o.Counts:
        """Count the messages of a queue by state."""
        now_ms = self._tables.now_ms
        numbers = dict.fromkeys((*_LISTED_STATES, MessageState.EXPIRED), 0)
        since: dict[MessageState, int] = {}
        for row_key, message in table.rows.items():
            state = table.state_of(row_key, now_ms)
            numbers[state] += 1
            if state is MessageState.EXPIRED:
                continue
            if state is MessageState.DELAYED and message.phase is Phase.WAITING:
                continue  # put without a delay, and the clock was set back
            begun_ms = message.visible_at_ms if state is MessageState.VISIBLE else message.since_ms
            since[state] = min(since.get(state, begun_ms), begun_ms)
        poison = self._tables.poison_of(table)
        poisoned = [poison.state_of(key, now_ms) for key in poison.rows] if poison else []
        return o.Counts(
            visible=numbers[MessageState.VISIBLE],
            leased=numbers[MessageState.LEASED],
            delayed=numbers[MessageState.DELAYED],
            deferred=numbers[MessageState.DEFERRED],
            poisoned=len(poisoned) - poisoned.count(MessageState.EXPIRED),
            since=since,
            staged=len(list(self._staging.staged_for(table))),
            expired=numbers[MessageState.EXPIRED] + len(table.retired),
            claimed=sum(map(table.hides, table.held)),
            halted_groups=len(table.halts),
            held_groups=len(table.holds),
        )

    def next_due(self, command: o.NextDue) -> c.Result:
        """Say when a receive may next get something."""
        table = self._tables.get(command.account, command.queue)
        now_ms = self._tables.now_ms
        due = [
            max(message.visible_at_ms, now_ms)
            for row_key, message in table.rows.items()
            # A claim says when it lapses, and nothing of when its members expire.
            if max(message.visible_at_ms, now_ms) < message.expires_at_ms or row_key in table.held
        ]
        turns = self._tables.turns_of(table)
        if turns is not None:
            turn_ms = self._taking.next_turn_ms(table, turns)
            due = [] if turn_ms is None else [turn_ms]
        if not due:
            return o.Due(None)
        settings = table.queue.settings
        at_ms = min(due)
        if settings.max_receives_per_s is not None:
            at_ms = max(at_ms, next_token_ms(table.bucket, settings.max_receives_per_s, now_ms))
        if settings.paused_until_ms is not None:
            at_ms = max(at_ms, settings.paused_until_ms)
        return o.Due(at_ms)

    # --- moving ------------------------------------------------------------------------------

    def amend(self, command: o.Amend) -> c.Result:
        """Change a message."""
        table, row_key, message = self._waiting(command, force=command.force)
        now_ms = self._tables.now_ms
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
        self._tables.keep(table, row_key, amended)
        self._tables.note(EventType.AMENDED, table, amended)
        return o.Seen(amended, state_of(amended, now_ms), table.queue.name)

    def remove(self, command: o.Remove) -> c.Result:
        """Remove a message."""
        table, row_key, message = self._waiting(command, force=command.force)
        self._tables.take(table, row_key)
        self._tables.note(EventType.REMOVED, table, message, OPERATOR)
        return c.DONE

    def end_lease(self, command: o.EndLease) -> c.Result:
        """End a lease."""
        table, row_key, message = self._live(command)
        now_ms = self._tables.now_ms
        if table.state_of(row_key, now_ms) is not MessageState.LEASED:
            raise MessageNotLeased
        ended = after_ended_lease(message, now_ms, command.delay_s, command.reason)
        if ended.visible_at_ms >= ended.expires_at_ms:
            raise VisibilityPastExpiry("release", command.delay_s)
        self._tables.keep(table, row_key, ended)
        error = newest_error(ended)
        self._tables.note(EventType.LEASE_ENDED, table, ended, OPERATOR, error=error)
        return o.Seen(ended, state_of(ended, now_ms), table.queue.name)

    def extend_lease(self, command: o.ExtendLease) -> c.Result:
        """Move the end of a lease."""
        table, row_key, message = self._live(command)
        now_ms = self._tables.now_ms
        is_leased = table.state_of(row_key, now_ms) is MessageState.LEASED
        if not is_leased or row_key in table.held:
            raise MessageNotLeased
        extended = after_extension(message, now_ms, command.visibility_timeout_s)
        if extended.visible_at_ms >= extended.expires_at_ms:
            raise VisibilityPastExpiry("renew", command.visibility_timeout_s)
        self._tables.keep(table, row_key, extended)
        self._tables.note(EventType.RENEWED, table, extended, OPERATOR)
        return o.Seen(extended, state_of(extended, now_ms), table.queue.name)

    def _live(
        self, command: o.Amend | o.Remove | o.EndLease | o.ExtendLease
    ) -> tuple[QueueTable, int, Message]:
        table = self._tables.get(command.account, command.queue)
        row_key, message = self._tables.live(table, command.message_id)
        return table, row_key, message

    def _waiting(
        self, command: o.Amend | o.Remove, *, force: bool
    ) -> tuple[QueueTable, int, Message]:
        table, row_key, message = self._live(command)
        if not force and table.state_of(row_key, self._tables.now_ms) is MessageState.LEASED:
            raise MessageLeased(message.holder, message.visible_at_ms)
        return table, row_key, message


# --- jobs --------------------------------------------------------------------------------------
#
# Purges and redrives in memory.


class JobHandlers:
    """Each method carries out one command; refusals are raised."""

    def __init__(self, tables: Tables, admin: AdminHandlers) -> None:
        self._tables = tables
        self._admin = admin

    def start(self, command: o.StartJob) -> c.Result:
        """Begin a job, and forget those that were over long ago."""
        tables = self._tables
        table = tables.get(command.account, command.queue)
        redrive = command.plan.kind is o.JobKind.REDRIVE
        source = tables.poison_of(table) if redrive else table
        job = begin(
            command,
            expected=len(source.rows) if source else 0,
            end=tables.last_row_key,
            now_ms=tables.now_ms,
        )
        tables.jobs = {
            job_id: each for job_id, each in tables.jobs.items() if is_kept(each, tables.now_ms)
        }
        tables.jobs[job.job_id] = job
        return job

    def step(self, command: o.StepJob) -> c.Result:
        """Carry a job on."""
        tables = self._tables
        job = self._get(command.job_id)
        if is_over(job):
            return job
        table = tables.queues.get((job.account, job.queue))
        if table is None:
            job = stop(job, tables.now_ms, "The queue was deleted.")
        elif job.state is o.JobState.CANARY:
            job = after_canaries(job, self._canaries(job), tables.now_ms)
        else:
            since = tables.log.reached
            job = self._walk(table, job, command.limit)
            tables.log.sign(since, job.actor)
        tables.jobs[job.job_id] = job
        return job

    def _canaries(self, job: o.Job) -> dict[str, str | None]:
        """Return the canaries that are not done: why they are poison again, None if not."""
        states: dict[str, str | None] = {}
        for _, _, message in self._tables.everything():
            if message.message_id in job.canaries:
                poisoning = message.detail.poisoning
                states[message.message_id] = poisoning.reason if poisoning else None
        for table in self._tables.queues.values():
            for message in table.retired.values():
                if message.message_id in job.canaries:
                    states[message.message_id] = EXPIRED_CANARY
        return states

    def _walk(self, table: QueueTable, job: o.Job, limit: int) -> o.Job:
        plan = job.plan
        examined, matched = 0, 0
        moved: list[str] = []
        limit = most_to_move(job, limit)
        place = read_place(job.cursor)
        finished = True
        for at, seen in list(self._admin.walk(table, place, plan.filter, apart=False)):
            if at.row_key > job.end:
                continue
            if matched == limit or examined == JOB_SCAN:
                finished = False
                break
            place = at
            examined += 1
            if matches(seen.message, seen.state, plan.filter, self._tables.now_ms):
                matched += 1
                if not plan.dry_run and self._move(table, job, at, seen):
                    moved.append(seen.message.message_id)
        return after_step(
            job,
            cursor=str(place),
            examined=examined,
            matched=matched,
            moved=moved,
            finished=finished,
            now_ms=self._tables.now_ms,
        )

    def _move(self, table: QueueTable, job: o.Job, at: Place, seen: o.Seen) -> bool:
        """Do to one message what the job does; False if that cannot be done."""
        tables = self._tables
        source = tables.poison_of(table) if at.poison else table
        assert source is not None
        if job.plan.kind is o.JobKind.PURGE:
            tables.take(source, at.row_key)
            tables.note(EventType.REMOVED, source, seen.message, PURGE)
            return True
        if job.plan.kind is not o.JobKind.REDRIVE:
            return self._change(source, at.row_key, job.plan)
        poisoning = seen.message.detail.poisoning
        name = job.plan.target or (poisoning.queue if poisoning else job.queue)
        target = tables.queues.get((job.account, name))
        if target is None:
            return False
        tables.take(source, at.row_key)
        redriven = after_redrive(seen.message, tables.now_ms)
        target.rows[at.row_key] = redriven
        tables.stir(target, redriven)
        tables.note(EventType.REDRIVEN, source, redriven, target=target.queue.name)
        return True

    def _change(self, table: QueueTable, row_key: int, plan: o.JobPlan) -> bool:
        message, member = table.rows[row_key], row_key in table.held
        changed = after_change(message, plan, self._tables.now_ms, is_member=member)
        if changed is None:
            return False
        error = None
        if changed.event is EventType.LEASE_ENDED:
            error = newest_error(changed.message)
        self._tables.keep(table, row_key, changed.message)
        self._tables.note(changed.event, table, changed.message, changed.reason, error=error)
        return True

    def stop(self, command: o.StopJob) -> c.Result:
        """Stop a job where it is."""
        job = self._get(command.job_id, command.account)
        if not is_over(job):
            job = stop(job, self._tables.now_ms, "An operator stopped the job.")
            self._tables.jobs[job.job_id] = job
            table = self._tables.queues.get((job.account, job.queue))
            if command.actor is not None and table is not None and not job.plan.dry_run:
                reason = f"job {job.job_id} stopped"
                self._tables.note(EventType.QUEUE_UPDATED, table, reason=reason)
        return job

    def get(self, command: o.GetJob) -> c.Result:
        """Look at a job."""
        return self._get(command.job_id, command.account)

    def list(self, command: o.ListJobs) -> c.Result:
        """List jobs, the newest first."""
        found = [
            job
            for job in self._tables.jobs.values()
            if (job.account == command.account if command.account else not is_over(job))
            and command.queue in {None, job.queue}
        ]
        found.sort(key=lambda job: (-job.created_at_ms, job.job_id))
        return tuple(found[: command.limit])

    def _get(self, job_id: str, account: str | None = None) -> o.Job:
        job = self._tables.jobs.get(job_id)
        if job is None or account not in {None, job.account}:
            raise JobNotFound
        return job


def _without_content(seen: o.Seen) -> o.Seen:
    """Return a message without its body and what was saved with it."""
    message = seen.message
    detail = replace(message.detail, saved=None)
    return seen._replace(message=message._replace(body=b"", detail=detail))
