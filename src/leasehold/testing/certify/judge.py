"""What holds in every scenario, told from what was seen: pure functions, one for each rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from leasehold.client.models import Event
from leasehold.domain.wording import times_of
from leasehold.testing.certify.proxy import Exchange, Kind
from leasehold.testing.certify.trial import Work

RULES: Final[Mapping[str, str]] = {
    "lost": "A message was not processed, or not deleted after processing.",
    "crashed": "The worker ended by itself.",
    "acted-twice": "A message was processed again although nothing had gone wrong.",
    "deleted-early": "A message was deleted before its work was done: a crash loses it.",
    "deleted-late": "A message was deleted after its lease had ended, when another worker may "
    "have it.",
    "lease-lost": "A lease ended during processing although the worker could have renewed it.",
    "ignored-loss": "A failed renewal was ignored: the message was deleted all the same.",
    "poison-endless": "A message that always fails is retried without limit.",
    "poison-lost": "A message that always fails was thrown away at its first failure.",
    "progress-lost": "Steps that were saved were done again.",
    "impolite-stop": "The worker did not stop on SIGTERM, or not cleanly.",
    "left-leased": "The worker ended by SIGTERM, and its messages stay hidden until their leases"
    " end.",
    "took-more": "The worker received more messages after SIGTERM.",
    "busy-poll": "The worker polls an empty queue more than 20 times per second.",
    "gave-up": "The worker did not recover after an outage of the server.",
    "machine": "The machine was too slow to tell.",
}
"""What can be found, by name."""

MOST_POLLS_PER_S: Final = 20


class Finding(NamedTuple):
    """Something that the worker did wrong."""

    rule: str
    scenario: str
    told: str


class Seen(NamedTuple):
    """What was seen of the messages that the rules are about."""

    works: Sequence[Work]
    exchanges: Sequence[Exchange]
    """Those on the queue."""
    events: Sequence[Event]
    texts: Mapping[str, str]
    """By message id."""
    repeats: Mapping[str, int]
    """By text, how often the work may be begun again for a good reason; others: never."""
    loses_leases: bool
    """Whether the scenario ends leases, so that some requests must fail."""


def judge(seen: Seen) -> Iterator[tuple[str, str]]:
    """Yield rule and sentence of all that went against a rule."""
    yield from _acted_twice(seen)
    yield from _deleted_early(seen)
    yield from _ignored_loss(seen)
    if not seen.loses_leases:
        yield from _late(seen)


def _acted_twice(seen: Seen) -> Iterator[tuple[str, str]]:
    begun = Counter((work.text, work.step) for work in seen.works)
    for (text, step), count in begun.items():
        most = 1 + seen.repeats.get(text, 0)
        if count > most:
            rule = "progress-lost" if step else "acted-twice"
            what = f"step {step} of {text!r}" if step else f"the work of {text!r}"
            yield rule, f"{what} was begun {times_of(count)}, {most} would have done"


def _deleted_early(seen: Seen) -> Iterator[tuple[str, str]]:
    for exchange in seen.exchanges:
        if exchange.kind is not Kind.DELETE:
            continue
        for message_id in exchange.messages:
            text = seen.texts.get(message_id)
            works = [work for work in seen.works if work.text == text]
            if text is None or any(_ended_before(work, exchange.at_s) for work in works):
                continue
            yield "deleted-early", f"{text!r} was deleted when none of its work had ended"


def _ended_before(work: Work, at_s: float) -> bool:
    return work.ended_s is not None and work.ended_s <= at_s


def _ignored_loss(seen: Seen) -> Iterator[tuple[str, str]]:
    lost: set[str] = set()
    for exchange in seen.exchanges:
        if exchange.kind is Kind.RECEIVE:
            # Whatever it was given now is on a new lease.
            lost -= {each for each in lost if exchange.returned(each)}
        elif exchange.kind is Kind.UPDATE:
            lost.update(exchange.refused())
        elif exchange.kind is Kind.DELETE:
            for message_id in lost.intersection(exchange.messages):
                text = seen.texts.get(message_id, message_id)
                yield "ignored-loss", f"{text!r} was deleted after its renewal had been refused"
                lost.discard(message_id)


def _late(seen: Seen) -> Iterator[tuple[str, str]]:
    for event in seen.events:
        text = seen.texts.get(event.message_id or "")
        if text is None:
            continue
        if event.type == "refused":
            yield "deleted-late", f"{text!r} was deleted after its lease had ended"
        if event.type == "lapsed" and not seen.repeats.get(text):
            yield "lease-lost", f"the lease of {text!r} ended while the worker had it"
