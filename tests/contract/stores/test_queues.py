"""Contract: queues and account documents."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold.domain import commands as c
from leasehold.domain.command import AnyCommand
from leasehold.domain.errors import QueueExists, QueueNotFound, SettingsDiffer
from leasehold.domain.model import AccessPolicy, Queue
from leasehold.domain.queue_settings import Adaptive, FailurePolicy, QueueSettings

from .conftest import ACCOUNT, QUEUE, Asker


def test_create_again_with_the_same_metadata_is_harmless(empty: Asker) -> None:
    """Names of metadata are compared without regard to case, values with."""
    assert empty.create(Owner="Me") == c.QueueCreated(created=True)
    assert empty.create(owner="Me") == c.QueueCreated(created=False)
    assert isinstance(empty.create(owner="me"), QueueExists)
    assert isinstance(empty.create(), QueueExists)


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        ({}, c.QueueCreated),
        ({"visibility_timeout_s": 60}, c.QueueCreated),
        ({"visibility_timeout_s": 60, "max_receives_per_s": None}, c.QueueCreated),
        ({"visibility_timeout_s": 30}, SettingsDiffer),
        ({"visibility_timeout_s": 60, "dedup_window_s": 0}, SettingsDiffer),
        ({"adaptive": None}, SettingsDiffer),
        ({"adaptive": Adaptive(floor_s=7, cap_s=9)}, c.QueueCreated),
        ({"adaptive": Adaptive(floor_s=7)}, SettingsDiffer),
    ],
)
def test_create_again_must_ask_for_the_settings_that_stand(
    asker: Asker, given: dict[str, Any], answer: type[object]
) -> None:
    """What is asked for must be as it stands; the rest may be anything, and nothing is changed."""
    standing = QueueSettings(visibility_timeout_s=60, adaptive=Adaptive(floor_s=7, cap_s=9))
    asker.ask(c.SetQueueSettings(ACCOUNT, QUEUE, standing))
    paths = tuple((name,) for name in given)
    again = c.CreateQueue(ACCOUNT, QUEUE, {}, QueueSettings(**given), paths)
    assert isinstance(asker.ask(again), answer)
    found = asker.store.find_queue(ACCOUNT, QUEUE)
    assert found is not None
    assert found.settings == standing


def test_a_part_of_the_settings_may_be_asked_for_in_part(asker: Asker) -> None:
    """Of a failure policy only what is named counts; of one that is not there, nothing is equal."""
    wanted = QueueSettings(failure_policy=FailurePolicy(max_failures=3))
    again = c.CreateQueue(ACCOUNT, QUEUE, {}, wanted, (("failure_policy", "max_failures"),))
    assert isinstance(asker.ask(again), SettingsDiffer)
    asker.limit_failures(max_failures=3, max_lapses=5)
    assert asker.ask(again) == c.QueueCreated(created=False)
    asker.limit_failures(max_failures=4)
    refused = asker.ask(again)
    assert isinstance(refused, SettingsDiffer)
    assert refused.differences == {"failure_policy.max_failures": (4, 3)}


def test_a_queue_is_known_by_account_and_name(asker: Asker) -> None:
    """The same name in another account is another queue."""
    assert asker.create(account="other") == c.QueueCreated(created=True)
    asker.put(account="other")
    assert asker.count() == 0


def test_created_queue_is_found(asker: Asker) -> None:
    """The store answers for a queue at once, with the time it was created."""
    assert asker.store.find_queue(ACCOUNT, QUEUE) == Queue(
        account=ACCOUNT, name=QUEUE, created_at_ms=asker.clock.now_ms()
    )
    assert asker.store.find_queue(ACCOUNT, "none") is None


@pytest.mark.parametrize(
    "command",
    [
        c.DeleteQueue(ACCOUNT, "none"),
        c.GetQueue(ACCOUNT, "none"),
        c.SetQueueMetadata(ACCOUNT, "none", {}),
        c.SetQueuePolicies(ACCOUNT, "none", ()),
        c.Put(ACCOUNT, "none", b"", 0, 60, b"0123456789"),
        c.Receive(ACCOUNT, "none", 1, 30),
        c.Peek(ACCOUNT, "none", 1),
        c.Renew(ACCOUNT, "none", "", "", 30),
        c.Complete(ACCOUNT, "none", "", ""),
        c.Clear(ACCOUNT, "none"),
    ],
    ids=lambda command: type(command).__name__,
)
def test_missing_queue_is_said_before_anything_else(asker: Asker, command: AnyCommand) -> None:
    """Every verb on a queue that is not there answers QueueNotFound."""
    assert isinstance(asker.ask(command), QueueNotFound)


def test_deleted_queue_is_gone_with_its_messages(asker: Asker) -> None:
    """A queue created again under the name is empty, and old receipts are worth nothing."""
    asker.put("old")
    lease = asker.receive_one()
    assert asker.ask(c.DeleteQueue(ACCOUNT, QUEUE)) == c.DONE
    assert isinstance(asker.complete(lease), QueueNotFound)
    asker.create()
    assert asker.count() == 0
    assert asker.peek() == ()
    assert asker.complete(lease) != c.DONE


def test_metadata_is_replaced_whole(asker: Asker) -> None:
    """Setting metadata leaves nothing of the old."""
    assert asker.ask(c.SetQueueMetadata(ACCOUNT, QUEUE, {"A": "1", "b": "2"})) == c.DONE
    assert asker.ask(c.SetQueueMetadata(ACCOUNT, QUEUE, {"C": "ü"})) == c.DONE
    assert asker.ask(c.GetQueue(ACCOUNT, QUEUE)).queue.metadata == {"C": "ü"}


def test_policies_are_replaced_whole_and_missing_fields_stay_missing(asker: Asker) -> None:
    """A stored access policy comes back exactly as it was set."""
    policies = (
        AccessPolicy(policy_id="a", start="2026-01-01", expiry=None, permission="rp"),
        AccessPolicy(policy_id="b", complete=False),
    )
    asker.ask(c.SetQueuePolicies(ACCOUNT, QUEUE, (AccessPolicy(policy_id="x"),)))
    assert asker.ask(c.SetQueuePolicies(ACCOUNT, QUEUE, policies)) == c.DONE
    assert asker.ask(c.GetQueue(ACCOUNT, QUEUE)).queue.policies == policies
    found = asker.store.find_queue(ACCOUNT, QUEUE)
    assert found is not None
    assert found.policies == policies


def test_list_is_by_name_in_pages_with_a_prefix(empty: Asker) -> None:
    """Pages follow each other without gap or overlap, in alphabetical order, per account."""
    for name in ("b-2", "a-1", "b-10", "b1", "c-1"):
        empty.create(name)
    empty.create("b-0", account="other")
    page = empty.ask(c.ListQueues(ACCOUNT, "b", "", 2))
    assert [queue.name for queue in page.queues] == ["b-10", "b-2"]
    assert page.next_start == "b1"
    page = empty.ask(c.ListQueues(ACCOUNT, "b", page.next_start, 2))
    assert [queue.name for queue in page.queues] == ["b1"]
    assert page.next_start is None
    everything = empty.ask(c.ListQueues(ACCOUNT, "", "", 5000))
    assert [queue.name for queue in everything.queues] == ["a-1", "b-10", "b-2", "b1", "c-1"]
    assert empty.ask(c.ListQueues(ACCOUNT, "zz", "", 10)) == c.QueuePage((), None)


def test_documents_are_kept_per_account_and_kind(empty: Asker) -> None:
    """A document replaces the one of its kind and no other."""
    assert empty.ask(c.GetAccountDocument(ACCOUNT, "cors")) == c.AccountDocument(None)
    empty.ask(c.SetAccountDocument(ACCOUNT, "cors", "one"))
    empty.ask(c.SetAccountDocument(ACCOUNT, "logs", "two"))
    empty.ask(c.SetAccountDocument(ACCOUNT, "cors", "three"))
    assert empty.ask(c.GetAccountDocument(ACCOUNT, "cors")) == c.AccountDocument("three")
    assert empty.ask(c.GetAccountDocument(ACCOUNT, "logs")) == c.AccountDocument("two")
    assert empty.ask(c.GetAccountDocument("other", "cors")) == c.AccountDocument(None)


def test_clear_takes_leased_and_delayed_messages_too(asker: Asker) -> None:
    """After a clear nothing is left, and receipts given out before do not act."""
    lease = asker.put("leased")
    leased = asker.receive_one()
    asker.put("delayed", delay_s=60)
    assert asker.ask(c.Clear(ACCOUNT, QUEUE)) == c.DONE
    assert asker.count() == 0
    assert asker.complete(lease) != c.DONE
    assert asker.complete(leased) != c.DONE
    asker.clock.advance(s=61)
    assert asker.receive() == ()
    asker.put("new")
    assert asker.bodies() == [b"new"]


def test_counts_of_all_queues_can_be_had_at_once(asker: Asker) -> None:
    """Every queue is in it, empty ones too, with the count that asking for it alone gives."""
    asker.create("empty")
    asker.create(account="other")
    for _ in range(3):
        asker.put()
    asker.complete(asker.receive_one())
    asker.put(account="other", delay_s=60)
    assert sorted(asker.store.message_counts()) == [
        (ACCOUNT, "empty", 0),
        (ACCOUNT, QUEUE, 2),
        ("other", QUEUE, 1),
    ]
