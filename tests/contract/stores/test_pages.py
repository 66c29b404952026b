"""Looks and pages end where the bodies in them come to too many bytes."""

from __future__ import annotations

import pytest

from leasehold.domain import admin as o
from leasehold.domain import claims as cl
from leasehold.domain import commands as c
from leasehold.domain.filters import MessageFilter
from leasehold.domain.limits import LOOK_BYTES
from tests.contract.stores.conftest import ACCOUNT, QUEUE, STEPS, STREAM, Asker

LARGE = b"x" * 65_536
FIT = LOOK_BYTES // len(LARGE)
ALL = MessageFilter()


@pytest.fixture
def full(asker: Asker) -> Asker:
    """A store with twice as many large messages as one answer may have."""
    asker.batch(*[asker.put_command(LARGE) for _ in range(2 * FIT)])
    return asker


def test_peek_ends_before_its_bodies_are_too_many_bytes(full: Asker) -> None:
    """However many messages are asked for, those shown have no more than LOOK_BYTES."""
    assert len(full.ask(c.Peek(ACCOUNT, QUEUE, 1_000))) == FIT
    assert len(full.ask(c.Peek(ACCOUNT, QUEUE, 32))) == 32


def test_peek_shows_the_first_message_whatever_its_size(asker: Asker) -> None:
    """A message that is larger than that is shown alone."""
    asker.put(b"x" * (LOOK_BYTES + 1))
    asker.put(b"small")
    assert [len(m.body) for m in asker.ask(c.Peek(ACCOUNT, QUEUE, 100))] == [LOOK_BYTES + 1]


def test_peek_does_not_count_what_is_due_for_poison(asker: Asker) -> None:
    """Messages that will never be received take no room from those that will."""
    asker.limit_failures(max_deliveries=1)
    asker.batch(*[asker.put_command(LARGE) for _ in range(FIT)])
    asker.ask(c.Receive(ACCOUNT, QUEUE, FIT, 1))
    asker.clock.advance(s=2)
    asker.put(b"well")
    assert [m.body for m in asker.ask(c.Peek(ACCOUNT, QUEUE, 100))] == [b"well"]


def test_pages_of_a_claim_end_by_bytes_and_go_on(full: Asker) -> None:
    """Page after page, each member comes once, in order, in pages of LOOK_BYTES at most."""
    token = full.ask(cl.AttachStream(ACCOUNT, QUEUE, STREAM)).token
    opened = full.ask(cl.OpenClaim(ACCOUNT, QUEUE, STREAM, token, 1, 2 * FIT, 60, None))
    assert opened.claim.size == 2 * FIT
    whole = [m.message_id for m in full.ask(c.Peek(ACCOUNT, QUEUE, 1))]
    assert whole == []
    after, seen = "", []
    for _ in range(STEPS):
        page = full.ask(cl.ReadClaim(ACCOUNT, QUEUE, STREAM, 1, 0, 1, after, 10_000))
        assert 0 < sum(len(m.body) for m in page.messages) <= LOOK_BYTES
        seen += [m.message_id for m in page.messages]
        if page.next_after is None:
            break
        after = page.next_after
    assert len(seen) == len(set(seen)) == 2 * FIT
    assert seen == sorted(seen)


def test_page_of_a_claim_has_one_member_at_least(asker: Asker) -> None:
    """A member larger than LOOK_BYTES comes alone, and those around it in pages of their own."""
    sizes = [10, LOOK_BYTES + 1, 20]
    asker.batch(*[asker.put_command(b"x" * size) for size in sizes])
    token = asker.ask(cl.AttachStream(ACCOUNT, QUEUE, STREAM)).token
    asker.ask(cl.OpenClaim(ACCOUNT, QUEUE, STREAM, token, 1, 3, 60, None))
    after, pages = "", []
    for _ in range(STEPS):
        page = asker.ask(cl.ReadClaim(ACCOUNT, QUEUE, STREAM, 1, 0, 1, after, 100))
        pages.append([len(m.body) for m in page.messages])
        if page.next_after is None:
            break
        after = page.next_after
    assert pages == [[10], [LOOK_BYTES + 1], [20]]


def test_list_of_messages_goes_on_where_a_page_was_cut(full: Asker) -> None:
    """A page that is cut short names where the next one begins, and none is left out."""
    after, seen = "", []
    for _ in range(STEPS):
        page = full.ask(o.Inspect(ACCOUNT, QUEUE, ALL, after, 1_000))
        seen += [each.message.message_id for each in page.messages]
        if page.next_after is None:
            break
        after = page.next_after
    assert len(seen) == len(set(seen)) == 2 * FIT
