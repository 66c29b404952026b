"""Contract: what a receive that names no timeout takes: that of the message, type or queue."""

from __future__ import annotations

import pytest

from leasehold.domain import commands as c
from leasehold.domain import transactions as sg
from leasehold.domain.errors import OutOfRange
from leasehold.domain.model import Detail
from leasehold.domain.queue_settings import (
    Adapted,
    Adaptive,
    Advised,
    GroupSettings,
    QueueSettings,
    TypeTimeout,
)

from .conftest import ACCOUNT, QUEUE, Asker

RULES = {
    "encode": TypeTimeout(visibility_timeout_s=600),
    "encode.*": TypeTimeout(visibility_timeout_s=60),
    "encode.audio.*": TypeTimeout(visibility_timeout_s=90),
    "encode.audio.raw": TypeTimeout(),
}


def put(asker: Asker, kind: str | None = None, own_s: int | None = None) -> object:
    """Put a message of a type, with a timeout of its own."""
    return asker.put(detail=Detail(message_type=kind, visibility_timeout_s=own_s))


def lengths(asker: Asker, count: int = 100, lease_s: int | None = None) -> list[int]:
    """Receive, and return how long the leases are in seconds, by time of put."""
    leases = asker.ask(c.Receive(ACCOUNT, QUEUE, count, lease_s))
    now_ms = asker.clock.now_ms()
    return [(lease.message.visible_at_ms - now_ms) // 1000 for lease in leases]


@pytest.mark.parametrize("at_once", [True, False])
def test_each_message_gets_its_own_length(asker: Asker, *, at_once: bool) -> None:
    """The exact type comes before a prefix, the longer prefix before the shorter, then the queue.

    So it is whether one receive takes all of them or one after the other does.
    """
    asker.govern(visibility_timeout_s=7, timeouts_by_type=RULES)
    kinds = ["encode", "encode.video", "encode.audio.mp3", "encode.audio.raw", "encoder", None]
    for kind in kinds:
        put(asker, kind)
    put(asker, "encode", 5)
    put(asker, None, 11)
    expected = [600, 60, 90, 7, 7, 7, 5, 11]
    if at_once:
        assert lengths(asker) == expected
    else:
        assert [lengths(asker, 1)[0] for _ in expected] == expected


def test_a_message_is_back_when_its_own_lease_ends(asker: Asker) -> None:
    """Leases of one receive end each at its time, and the next delivery has the same length."""
    asker.govern(visibility_timeout_s=10, timeouts_by_type=RULES)
    for kind in (None, "encode.x", "encode"):
        for _ in range(20):  # enough for a store to write them at once
            put(asker, kind)
    assert sorted(lengths(asker)) == [10] * 20 + [60] * 20 + [600] * 20
    asker.clock.advance(s=10)
    assert lengths(asker) == [10] * 20
    asker.clock.advance(s=50)
    assert sorted(lengths(asker)) == [10] * 20 + [60] * 20
    asker.clock.advance(s=540)
    assert sorted(lengths(asker)) == [10] * 20 + [60] * 20 + [600] * 20


def test_a_receive_that_names_a_timeout_has_the_last_word(asker: Asker) -> None:
    """Neither the rule of a type nor the message's own timeout changes what a receive asks for."""
    asker.govern(timeouts_by_type=RULES)
    put(asker, "encode")
    put(asker, "encode", 50)
    assert lengths(asker, lease_s=3) == [3, 3]


def test_leases_of_groups_have_their_own_length_too(asker: Asker) -> None:
    """Also where messages of a group are handed out in turn."""
    asker.govern(timeouts_by_type=RULES, groups=GroupSettings(fair=True))
    for kind, own_s in (("encode", None), ("encode.x", None), (None, 9), (None, None)):
        sent = Detail(message_type=kind, visibility_timeout_s=own_s, group_id="a")
        asker.put(detail=sent)
    assert lengths(asker) == [600, 60, 9, 30]


def test_a_prefix_of_nothing_is_for_all_types(asker: Asker) -> None:
    """But not for messages that have no type."""
    asker.govern(timeouts_by_type={"*": TypeTimeout(visibility_timeout_s=3)})
    put(asker, "any")
    put(asker)
    assert lengths(asker) == [3, 30]


# --- what a producer may name -------------------------------------------------------------------


def test_a_longer_timeout_than_allowed_is_refused(asker: Asker) -> None:
    """With the bound, and alone: nothing is put; by itself, in a batch, and where it is staged."""
    asker.govern(max_message_timeout_s=60)
    refusal = put(asker, None, 61)
    assert isinstance(refusal, OutOfRange)
    assert (refusal.field, refusal.value, refusal.maximum) == ("visibility_timeout_s", 61, 60)
    long = asker.put_command(detail=Detail(visibility_timeout_s=61))
    fits = asker.put_command(detail=Detail(visibility_timeout_s=60))
    results = asker.ask(c.Batch((long, fits), atomic=True))
    assert isinstance(results[0], OutOfRange)
    results = asker.ask(c.Batch((long, fits), atomic=False))
    assert isinstance(results[0], OutOfRange)
    assert isinstance(asker.ask(sg.Stage(ACCOUNT, "job", "0", 0, (fits, long), 60)), OutOfRange)
    assert lengths(asker) == [60]


def test_a_lower_limit_counts_for_messages_that_are_there(asker: Asker) -> None:
    """They are cut to it at the next receive; with a limit of nothing they have none of their own.

    Only the receive is left to hold them to it.
    """
    put(asker, "encode", 600)
    asker.govern(max_message_timeout_s=60, timeouts_by_type={})
    assert lengths(asker) == [60]
    asker.clock.advance(s=60)
    asker.govern(max_message_timeout_s=0, timeouts_by_type=RULES, visibility_timeout_s=8)
    assert lengths(asker) == [600]
    refusal = put(asker, None, 1)
    assert isinstance(refusal, OutOfRange)
    assert refusal.maximum == 0


def test_its_own_timeout_goes_through_a_transaction(asker: Asker) -> None:
    """A staged message has it when it is published."""
    sent = asker.put_command(detail=Detail(message_type="a", visibility_timeout_s=77))
    asker.ask(sg.Stage(ACCOUNT, "job", "0", 0, (sent,), 60))
    asker.ask(sg.Publish(ACCOUNT, "job"))
    assert lengths(asker) == [77]


# --- settings -----------------------------------------------------------------------------------


def test_rules_come_back_as_they_were_set(asker: Asker) -> None:
    """With what was advised for them; a database is read again by whoever opens it next."""
    advised = {"encode": Advised(visibility_timeout_s=600, because="a", at_ms=1, before_s=30)}
    asker.govern(timeouts_by_type=RULES, advised_by_type=advised, max_message_timeout_s=9)
    settings = asker.ask(c.GetQueue(ACCOUNT, QUEUE)).queue.settings
    expected = QueueSettings(
        timeouts_by_type=RULES, advised_by_type=advised, max_message_timeout_s=9
    )
    assert settings == expected


def test_what_the_server_adapts_is_kept_by_rule(asker: Asker) -> None:
    """Beside the queue's, as long as the rule adapts, whatever else is set meanwhile."""
    adapts = TypeTimeout(visibility_timeout_s=600, adaptive=Adaptive())
    rules = {"a*": adapts, "b": TypeTimeout(adaptive=Adaptive())}
    asker.govern(timeouts_by_type=rules, visibility_timeout_s=7)
    for kind in ("abc", "b"):
        put(asker, kind)
    assert lengths(asker) == [600, 7]
    asker.clock.advance(s=600)
    chosen = Adapted(visibility_timeout_s=44, because="the work", at_ms=1)
    asker.ask(c.SetAdapted(ACCOUNT, QUEUE, chosen, "a*"))
    asker.ask(c.SetAdapted(ACCOUNT, QUEUE, chosen, "gone"))
    settings = asker.ask(c.GetQueue(ACCOUNT, QUEUE)).queue.settings
    assert settings.adapted_by_type == {"a*": chosen}
    assert settings.adapted is None
    assert sorted(lengths(asker)) == [7, 44]
    asker.clock.advance(s=600)
    asker.govern(timeouts_by_type=rules, visibility_timeout_s=8)
    assert sorted(lengths(asker)) == [8, 44]
    asker.clock.advance(s=600)
    asker.govern(timeouts_by_type={"a*": TypeTimeout(visibility_timeout_s=600)})
    settings = asker.ask(c.GetQueue(ACCOUNT, QUEUE)).queue.settings
    assert settings.adapted_by_type == {}
    assert sorted(lengths(asker)) == [30, 600]
