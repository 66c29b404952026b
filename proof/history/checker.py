"""From a history to a verdict: what was seen from outside that must not be.

:func:`check` is a pure function. A call has its effect at one moment between its invocation and
its completion; one of unknown outcome at some moment after its invocation, or never. The checker
reports only what is wrong for every choice of these moments, so what it reports is wrong. It
assumes nothing of how long anything takes.

Each rule has a name, which stands with what it has found. ``README.md`` lists them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import inf
from typing import Final

from proof.history.adapters import Promise
from proof.history.records import Delivery, FaultRecord, History, Operation, Verb, message_of

COLUMNS: Final = (
    "lost",
    "back",
    "doubled",
    "early",
    "late",
    "stale",
    "refused",
    "order",
    "counts",
    "foreign",
)
"""What is looked for, in the order in which it is shown."""
_TOLD_AT_MOST: Final = 5
_REASONS: Final = ("lost", "gone", "busy")
"""For what a call may be refused that nothing is wrong with."""


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that must not be."""

    column: str
    rule: str
    text: str
    evidence: tuple[Operation, ...]

    def __str__(self) -> str:
        lines = [f"{self.column} ({self.rule}): {self.text}", *map(str, self.evidence)]
        return "\n    ".join(lines)


@dataclass(slots=True, kw_only=True)
class Verdict:
    """What came of the check of one history."""

    found: dict[str, list[Violation]]
    """By column, those alone that the system promises."""
    figures: dict[str, int] = field(default_factory=dict)
    """How much there was to check."""

    @property
    def violations(self) -> list[Violation]:
        """All of them."""
        return [each for column in self.found.values() for each in column]

    def row(self) -> dict[str, int | None]:
        """Return how many there are in each column; None where nothing is promised."""
        return {name: len(self.found[name]) if name in self.found else None for name in COLUMNS}

    def told(self) -> str:
        """Return the columns, and the first violations of each, as text."""
        row = "  ".join(f"{name} {'-' if n is None else n}" for name, n in self.row().items())
        first = [str(each) for column in self.found.values() for each in column[:_TOLD_AT_MOST]]
        return "\n".join([row, *first])


@dataclass(slots=True, eq=False)
class _Receipt:
    """A token, and what gave it."""

    token: str
    birth: Operation
    attempt: int | None


@dataclass(slots=True, eq=False)
class _Life:
    """All that was seen of one message."""

    name: str
    put: Operation
    handed: list[tuple[Operation, Delivery]] = field(default_factory=list)
    """Receives, in the order of their invocations."""
    peeked: list[tuple[Operation, Delivery]] = field(default_factory=list)
    acts: list[Operation] = field(default_factory=list)
    """Renewals, releases and completions."""
    receipts: dict[str, _Receipt] = field(default_factory=dict)

    def of(self, verb: Verb) -> Iterator[Operation]:
        """Yield the acts of one kind that have or may have taken effect."""
        return (act for act in self.acts if act.verb is verb and act.may_have_acted)

    def removed_s(self) -> float:
        """Return from when on it may have been completed; infinite if it never was."""
        return min((act.invoked_s for act in self.of(Verb.COMPLETE)), default=inf)

    def completed(self) -> Operation | None:
        """Return the first completion that was acknowledged."""
        done = (act for act in self.of(Verb.COMPLETE) if act.is_ok)
        return min(done, key=lambda act: act.completed_s, default=None)


def check(history: History, promise: Promise) -> Verdict:
    """Return all that is wrong with a history, by what the system promises."""
    return _Check(history, promise).run()


class _Check:
    """The work of :func:`check`."""

    def __init__(self, history: History, promise: Promise) -> None:
        self._history = history
        self._promise = promise
        self._found: dict[str, list[Violation]] = {
            name: [] for name in COLUMNS if self._is_promised(name)
        }
        self._lives: dict[str, _Life] = {}
        # Of one kind, and so one after the other: in order of their beginnings and their ends.
        steps = sorted((each for each in history.faults if each.step_s), key=_ENDED)
        self._steps_back = [each for each in steps if each.step_s < 0]
        self._steps_forward = [each for each in steps if each.step_s > 0]
        drifts = [each.drift_s for each in history.drifts]
        self._margin_s = promise.margin_s + (max(drifts) - min(drifts) if drifts else 0.0)

    def _is_promised(self, column: str) -> bool:
        promise = self._promise
        return {
            "early": promise.delays,
            "late": promise.leases and promise.prompt,
            "doubled": True,
            "stale": promise.fenced,
            "order": promise.ordered,
            "counts": promise.counts,
        }.get(column, True)

    def run(self) -> Verdict:
        """Go through all rules."""
        self._collect()
        for life in self._lives.values():
            self._check_existence(life)
            self._check_holders(life)
            self._check_delays(life)
            self._check_saved(life)
            self._check_receipts(life)
        self._check_reasons()
        self._check_promptness()
        self._check_order()
        self._check_counts()
        return Verdict(found=self._found, figures=self._figures())

    def _report(self, column: str, rule: str, text: str, *evidence: Operation) -> None:
        if column in self._found:
            self._found[column].append(Violation(column, rule, text, evidence))

    def _figures(self) -> dict[str, int]:
        operations = self._history.operations
        done = [each for each in operations if each.is_ok]
        return {
            "calls": len(operations),
            "unknown": sum(each.may_have_acted and not each.is_ok for each in operations),
            **{f"{verb}s": sum(each.verb is verb for each in done) for verb in Verb},
            "deliveries": sum(len(life.handed) for life in self._lives.values()),
            "faults": len(self._history.faults),
        }

    # Collecting

    def _collect(self) -> None:
        operations = self._history.operations
        for each in operations:
            if each.verb is Verb.PUT:
                self._lives[each.message] = _Life(each.message, each)
        for each in operations:
            if each.verb in {Verb.RECEIVE, Verb.PEEK}:
                for delivery in each.delivered:
                    self._collect_delivery(each, delivery)
            elif each.message and each.verb is not Verb.PUT:
                life = self._lives[each.message]
                life.acts.append(each)
                if each.is_ok and each.new_token and each.new_token not in life.receipts:
                    before = life.receipts.get(each.token)
                    attempt = before.attempt if before else None
                    receipt = _Receipt(each.new_token, each, attempt)
                    life.receipts[each.new_token] = receipt

    def _collect_delivery(self, operation: Operation, delivery: Delivery) -> None:
        life = self._lives.get(message_of(delivery.body))
        if life is None or life.put.queue != operation.queue:
            text = f"nobody has put {delivery.body[:60]!r} there"
            self._report("foreign", "F1", text, operation)
            return
        if operation.completed_s < life.put.invoked_s:
            self._report("foreign", "F2", "it came before it was put", operation, life.put)
        if not life.put.may_have_acted:
            self._report("foreign", "F3", "its put was refused", operation, life.put)
        if operation.verb is Verb.PEEK:
            life.peeked.append((operation, delivery))
            return
        for other, earlier in life.handed:
            if delivery.token and earlier.token == delivery.token:
                self._report("doubled", "D3", "one receipt was given twice", other, operation)
        life.handed.append((operation, delivery))
        life.receipts[delivery.token] = _Receipt(delivery.token, operation, delivery.attempt)

    # Moments

    def _gone_s(self, operation: Operation) -> float:
        """Return until when a call may take effect."""
        if operation.is_ok:
            return operation.completed_s
        if not operation.may_have_acted:
            return -inf
        barriers = self._history.barriers
        at = bisect_left(barriers, operation.completed_s)
        return barriers[at] if at < len(barriers) else inf

    def _stepped_s(self, begun_s: float, ended_s: float, steps: Sequence[FaultRecord]) -> float:
        """Return how far the system's time may have been moved by steps of one way in between."""
        stepped_s = 0.0
        for each in steps[bisect_left(steps, begun_s, key=_ENDED) :]:
            if each.begun_s > ended_s:
                break
            stepped_s += each.step_s
        return stepped_s

    def _over_s(self, operation: Operation) -> float:
        """Return before when what a call has hidden cannot be visible again."""
        until_s = operation.invoked_s + operation.hidden_s
        stepped_s = self._stepped_s(operation.invoked_s, until_s, self._steps_forward)
        return until_s - stepped_s - self._margin_s

    def _visible_s(self, operation: Operation) -> float:
        """Return from when on what a call has hidden must be visible, if nothing else hides it."""
        until_s = self._gone_s(operation) + operation.hidden_s + self._margin_s
        for back in self._steps_back[
            bisect_left(self._steps_back, operation.invoked_s, key=_ENDED) :
        ]:
            # Also what was visible already is hidden once more in the time that comes twice.
            if until_s - back.step_s < back.begun_s:
                break
            until_s -= back.step_s
        return until_s

    def _held_until_s(self, life: _Life, grant: Operation) -> float:
        """Return until when nothing can have ended what *grant* has hidden."""
        end_s = self._over_s(grant)
        for act in life.acts:
            if act is not grant and self._gone_s(act) > grant.invoked_s:
                end_s = min(end_s, act.invoked_s)
        return end_s

    # Rules for one message

    def _check_existence(self, life: _Life) -> None:
        removed_s = life.removed_s()
        if self._history.drained_s is not None and removed_s == inf:
            if life.put.is_ok:
                text = f"{life.name} was put and neither completed nor received in the end"
                self._report("lost", "L1", text, life.put, *_last_of(life))
            elif life.handed or life.peeked:
                text = f"{life.name} was there and neither completed nor received in the end"
                self._report("lost", "L2", text, life.put, *_last_of(life))
        done = life.completed()
        if done is not None:
            for seen, _ in (*life.handed, *life.peeked):
                if seen.invoked_s > done.completed_s:
                    text = f"{life.name} was completed and came again"
                    self._report("back", "B1", text, done, seen)
        ids = {each.message_id for _, each in (*life.handed, *life.peeked) if each.message_id}
        if len(ids) > 1:
            text = f"{life.name} was put once and is there as {sorted(ids)}"
            self._report("doubled", "D2", text, life.put, *(seen for seen, _ in life.handed[:2]))

    def _check_holders(self, life: _Life) -> None:
        for (first, one), (second, two) in combinations(life.handed, 2):
            if one.attempt is not None and one.attempt == two.attempt:
                text = f"{life.name} was handed out twice as number {one.attempt}"
                self._report("doubled", "D4", text, first, second)
        if not self._promise.leases:
            return
        until_s = {id(each): self._held_until_s(life, each) for each, _ in life.handed}
        for (first, one), (second, two) in combinations(life.handed, 2):
            if not (
                self._may_follow(first, one, second, two, until_s[id(first)])
                or self._may_follow(second, two, first, one, until_s[id(second)])
            ):
                text = f"{life.name} was handed to two at once"
                self._report("doubled", "D1", text, first, second)
        for renewal in life.of(Verb.RENEW):
            if renewal.is_ok:
                held_s = self._held_until_s(life, renewal)
                for seen, _ in life.handed:
                    if seen.invoked_s >= renewal.completed_s and seen.completed_s <= held_s:
                        text = f"{life.name} was handed out while a renewed lease ran"
                        self._report("doubled", "D5", text, renewal, seen)

    @staticmethod
    def _may_follow(
        first: Operation, one: Delivery, second: Operation, two: Delivery, held_until_s: float
    ) -> bool:
        """Tell whether the second can have come after the first, and after its lease."""
        if second.completed_s < first.invoked_s:
            return False
        if one.attempt is not None and two.attempt is not None and one.attempt > two.attempt:
            return False
        return second.completed_s > held_until_s

    def _check_delays(self, life: _Life) -> None:
        seen = [each for each, _ in (*life.handed, *life.peeked)]
        if life.put.hidden_s:
            until_s = self._over_s(life.put)
            for each in seen:
                if each.completed_s < until_s:
                    text = f"{life.name} came before its delay was over"
                    self._report("early", "E1", text, life.put, each)
        for release in life.of(Verb.RELEASE):
            if release.is_ok and release.hidden_s:
                until_s = self._held_until_s(life, release)
                for each in seen:
                    if each.invoked_s >= release.completed_s and each.completed_s < until_s:
                        text = f"{life.name} came before the delay of its release was over"
                        self._report("early", "E2", text, release, each)

    def _check_saved(self, life: _Life) -> None:
        if not self._promise.saves:
            return
        writes = [act for act in life.of(Verb.RENEW) if act.saved]
        for seen, delivery in life.handed:
            possible = {
                write.saved
                for write in writes
                if write.invoked_s < seen.completed_s and not self._is_replaced(write, writes, seen)
            }
            if not any(each.is_ok and each.completed_s < seen.invoked_s for each in writes):
                possible.add("")
            if delivery.saved not in possible:
                text = f"{life.name} came with {delivery.saved!r}, and not with {possible}"
                self._report("lost", "L3", text, *writes, seen)

    def _is_replaced(self, write: Operation, writes: Sequence[Operation], seen: Operation) -> bool:
        """Tell whether another text was certainly saved later than *write*, and before *seen*."""
        return any(
            other.is_ok
            and other.invoked_s > self._gone_s(write)
            and other.completed_s < seen.invoked_s
            for other in writes
        )

    def _check_receipts(self, life: _Life) -> None:
        for act in life.acts:
            receipt = life.receipts.get(act.token)
            if receipt is None:
                continue
            if act.is_ok:
                for rule, text, other in self._stale_reasons(life, act, receipt):
                    self._report("stale", rule, f"{life.name}: {text}", receipt.birth, other, act)
            elif act.reason.startswith(("lost", "gone")) and not act.may_have_acted:
                self._check_refusal(life, act, receipt)

    def _stale_reasons(
        self, life: _Life, act: Operation, receipt: _Receipt
    ) -> Iterator[tuple[str, str, Operation]]:
        """Yield why a receipt that was accepted cannot have been good any more."""
        for seen, delivery in life.handed:
            if seen is receipt.birth or seen.completed_s >= act.invoked_s:
                continue
            if receipt.attempt is not None and delivery.attempt is not None:
                is_newer = delivery.attempt > receipt.attempt
            else:
                is_newer = seen.invoked_s > receipt.birth.completed_s
            if is_newer:
                yield "S1", "its receipt acted although another one had it", seen
        for other in life.acts:
            if other is not act and other.is_ok and other.completed_s < act.invoked_s:
                rule = self._stale_after(other, act, receipt)
                if rule:
                    yield rule, f"its receipt acted after a {other.verb}", other

    def _stale_after(self, other: Operation, act: Operation, receipt: _Receipt) -> str:
        """Return the rule by which a receipt was dead after *other*; empty if there is none."""
        promise = self._promise
        if other.verb is Verb.COMPLETE:
            repeats = act.verb is Verb.COMPLETE and promise.completes_again
            return "" if repeats else "S4"
        if other.verb is Verb.RELEASE:
            return "S3" if other.invoked_s > receipt.birth.completed_s else ""
        is_replaced = other.token == act.token and other.new_token not in {"", act.token}
        repeats = act.verb is Verb.RENEW and promise.renews_again
        return "S2" if is_replaced and not repeats else ""

    def _check_refusal(self, life: _Life, act: Operation, receipt: _Receipt) -> None:
        """Look whether a holder was refused although its lease ran."""
        if not self._promise.leases:
            return
        birth = receipt.birth
        others: list[Operation] = [seen for seen, _ in life.handed if seen is not birth]
        others += [other for other in life.acts if other is not act and other is not birth]
        disturbed = any(
            self._gone_s(each) > birth.invoked_s and each.invoked_s < act.completed_s
            for each in others
        )
        if not disturbed and act.completed_s < self._over_s(birth):
            text = f"{life.name}: the holder was refused although the lease ran"
            self._report("refused", "R1", text, birth, act)

    # Rules for a queue

    def _check_reasons(self) -> None:
        for each in self._history.operations:
            if not each.may_have_acted and not each.reason.startswith(_REASONS):
                self._report("refused", "R2", "nothing was wrong with this call", each)

    def _check_promptness(self) -> None:
        if "late" not in self._found:
            return
        short: dict[str, list[Operation]] = defaultdict(list)
        hidden: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for each in self._history.operations:
            if each.verb is Verb.RECEIVE:
                least = each.limit if self._promise.fills else 1
                if each.is_ok and len(each.delivered) < least:
                    short[each.queue].append(each)
                elif each.may_have_acted and not each.is_ok:
                    # It may have taken any message, which nobody got.
                    hidden[each.queue].append((each.invoked_s, self._visible_s(each)))
        merged = {queue: _merged(spans) for queue, spans in hidden.items()}
        for life in self._lives.values():
            if life.put.is_ok and not (life.put.group and self._promise.ordered):
                queue = life.put.queue
                self._check_prompt(life, short[queue], merged.get(queue, []))

    def _check_prompt(
        self, life: _Life, short: Sequence[Operation], hidden: Sequence[tuple[float, float]]
    ) -> None:
        spans = [(-inf, self._visible_s(life.put))]
        spans += [(each.invoked_s, self._visible_s(each)) for each, _ in life.handed]
        for act in life.acts:
            if act.may_have_acted:
                end_s = inf if act.verb is Verb.COMPLETE else self._visible_s(act)
                spans.append((act.invoked_s, end_s))
        mine = _merged(spans)
        for since_s, until_s in _gaps(mine):
            for begin_s, end_s in _cut(since_s, until_s, hidden):
                for at in range(_first_after(short, begin_s), len(short)):
                    receive = short[at]
                    if receive.invoked_s > end_s:
                        break
                    if receive.completed_s < end_s:
                        text = f"{life.name} was visible from {begin_s:.6f} on and not received"
                        self._report("late", "T1", text, *_before(life, begin_s), receive)
                        return

    def _check_order(self) -> None:
        if "order" not in self._found:
            return
        groups: dict[tuple[str, str], list[_Life]] = defaultdict(list)
        for life in self._lives.values():
            if life.put.group:
                groups[life.put.queue, life.put.group].append(life)
        for lives in groups.values():
            known = [life for life in lives if life.put.is_ok]
            known.sort(key=lambda life: life.put.completed_s)
            put_s = [life.put.completed_s for life in known]
            last_s = _running_max([life.removed_s() for life in known])
            for life in lives:
                before = bisect_left(put_s, life.put.invoked_s)
                for seen, _ in life.handed:
                    if before and last_s[before - 1] >= seen.completed_s:
                        self._check_turn(life, seen, known[:before])

    def _check_turn(self, life: _Life, seen: Operation, earlier: Sequence[_Life]) -> None:
        """Report a message that was handed out past an earlier one which was still there."""
        names = [message_of(each.body) for each in seen.delivered]
        ahead = set(names[: names.index(life.name)])
        for each in earlier:
            # Their order is that of the system's time when they were put.
            is_set_back = self._stepped_s(
                each.put.invoked_s, life.put.completed_s, self._steps_back
            )
            is_there = each.removed_s() >= seen.completed_s and each.name not in ahead
            if is_there and not is_set_back:
                text = f"{life.name} was handed out past {each.name}"
                self._report("order", "O1", text, each.put, life.put, seen)
                return

    def _check_counts(self) -> None:
        if "counts" not in self._found:
            return
        asked = [each for each in self._history.operations if each.verb is Verb.COUNT]
        for queue in {each.queue for each in asked}:
            lives = [life for life in self._lives.values() if life.put.queue == queue]
            puts = sorted(life.put.completed_s for life in lives if life.put.is_ok)
            tried = sorted(life.put.invoked_s for life in lives if life.put.may_have_acted)
            removing = sorted(life.removed_s() for life in lives)
            done = (life.completed() for life in lives)
            removed = sorted(each.completed_s for each in done if each is not None)
            for each in asked:
                if each.queue == queue and each.is_ok and each.count is not None:
                    # Of the puts that are counted for certain, some may be gone, and so on.
                    least = bisect_left(puts, each.invoked_s)
                    least -= bisect_right(removing, each.completed_s)
                    most = bisect_right(tried, each.completed_s)
                    most -= bisect_left(removed, each.invoked_s)
                    if not least <= each.count <= most:
                        text = f"{each.count} counted, {least} to {most} possible"
                        self._report("counts", "C1", text, each)


# Spans of time


def _merged(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the same time as spans that do not touch, in order."""
    result: list[tuple[float, float]] = []
    for begin_s, end_s in sorted(spans):
        if result and begin_s <= result[-1][1]:
            result[-1] = result[-1][0], max(end_s, result[-1][1])
        else:
            result.append((begin_s, end_s))
    return result


def _gaps(spans: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Yield the time between spans that are merged, and after them."""
    for at, (_, end_s) in enumerate(spans):
        if end_s < inf:
            yield end_s, spans[at + 1][0] if at + 1 < len(spans) else inf


def _cut(
    begin_s: float, end_s: float, spans: Sequence[tuple[float, float]]
) -> Iterator[tuple[float, float]]:
    """Yield what is left of a stretch of time without the spans, which are merged."""
    first = bisect_right(spans, begin_s, key=lambda span: span[1])
    for at in range(first, len(spans)):
        since_s, until_s = spans[at]
        if since_s >= end_s:
            break
        if since_s > begin_s:
            yield begin_s, since_s
        begin_s = max(begin_s, until_s)
    if begin_s < end_s:
        yield begin_s, end_s


def _first_after(operations: Sequence[Operation], at_s: float) -> int:
    """Return the place of the first that was invoked after a moment."""
    return bisect_right(operations, at_s, key=_INVOKED)


_ENDED: Final[Callable[[FaultRecord], float]] = lambda each: each.ended_s  # noqa: E731 - a key
_INVOKED: Final[Callable[[Operation], float]] = lambda each: each.invoked_s  # noqa: E731 - a key


def _running_max(values: Sequence[float]) -> list[float]:
    result: list[float] = []
    for value in values:
        result.append(max(value, result[-1]) if result else value)
    return result


def _last_of(life: _Life) -> tuple[Operation, ...]:
    """Return what was last heard of a message."""
    heard = [each for each, _ in (*life.handed, *life.peeked)] + life.acts
    return tuple(sorted(heard, key=_INVOKED)[-3:])


def _before(life: _Life, at_s: float) -> tuple[Operation, ...]:
    """Return the last that had happened to a message by then."""
    heard = [life.put, *(each for each, _ in life.handed), *life.acts]
    return tuple([each for each in sorted(heard, key=_INVOKED) if each.invoked_s < at_s][-2:])
