"""What the feedback loop does with estimates: changes, guard rails, notices, replays."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, Row

from leasehold.advisor.apply import current_of, settings_of, undo_for
from leasehold.advisor.live_summary import Happened, LiveSummary
from leasehold.client import Client, QueueHandle
from leasehold.client.errors import LeaseholdClientError
from leasehold.client.models import Event
from leasehold.events.names import PHASE_NAMES, TYPE_NAMES
from leasehold.spark.feedback import ESTIMATES, NOTICES, TimeoutFeedback, estimate_rows
from leasehold.testing import InProcessServer

NAME = "films"
TYPES = {each: code for code, each in TYPE_NAMES.items()}
PHASES = {each: code for code, each in PHASE_NAMES.items()}


def happened(event: Event) -> Happened:
    """Return an event of the client as the summary takes it."""
    return Happened(
        event.seq,
        event.place,
        event.at_ms,
        int(TYPES[cast("Any", event.type)]),
        event.queue,
        event.message_id,
        event.expires_at_ms,
        event.visible_at_ms,
        event.dequeue_count,
        None if event.phase is None else int(PHASES[cast("Any", event.phase)]),
        event.since_ms,
        event.renewals,
        event.session,
        event.reason,
        event.target,
        event.message_type,
    )


class Estimates:
    """Stands for the DataFrame of a micro-batch."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = [*rows]

    def collect(self) -> list[Row]:
        return self._rows


class Shop:
    """A server, a queue whose work takes four seconds, and the loop."""

    def __init__(self, server: InProcessServer, client: Client, **guard_rails: Any) -> None:
        self.server, self.client = server, client
        self.queue: QueueHandle = client.queue(NAME)
        self.queue.create(settings={"visibility_timeout_s": 1})
        self.summary = LiveSummary()
        self.guard_rails = guard_rails
        self.loop = self.restarted()
        self._after = 0

    def restarted(self) -> TimeoutFeedback:
        """Return the loop as it is after a restart."""
        return TimeoutFeedback(
            {"connectionString": self.server.connection_string},
            clock=self.server.clock,
            **self.guard_rails,
        )

    def work(self, many: int, took_s: float = 4.0) -> None:
        """Do so many pieces of work, each by somebody who tells late, if it has to be."""
        for number in range(many):
            self.queue.put(b"1:scan", type=("film", "clip")[number // 2 % 2])
        while found := self.queue.receive(1):
            taken = found[0]
            self.server.advance(took_s + 0.01 * (self._after % 7))
            self._after += 1
            # Another one has it by then, if the lease is over.
            other = self.queue.receive(1, visibility_timeout_s=60)
            with suppress(LeaseholdClientError):
                self.queue.complete(taken)
            self.server.advance(took_s)
            for each in other:
                self.queue.complete(each)

    def batch(self) -> DataFrame:
        """Return the estimates of all that has happened."""
        events = self.client.events(after=self.summary.upto_seq)
        self.summary.feed(map(happened, events))
        rows = estimate_rows(self.client.account, NAME, self.summary)
        made = [Row(**dict(zip(ESTIMATES.names, row, strict=True))) for row in rows]
        return cast("DataFrame", Estimates(made))

    @property
    def timeout_s(self) -> int:
        return self.queue.info().settings.visibility_timeout_s

    def notices(self) -> list[dict[str, Any]]:
        """Return what was told, the oldest first."""
        return [json.loads(each.body) for each in self.client.queue(NAME + NOTICES).peek()]


def test_a_timeout_that_is_too_short_is_doubled_step_by_step(
    server: InProcessServer, client: Client
) -> None:
    """And each step has to be seen to work before the next one."""
    shop = Shop(server, client)
    shop.work(40)
    shop.loop(shop.batch(), 0)
    assert shop.timeout_s == 2
    assert shop.queue.info().settings.advised
    shop.work(10)
    shop.loop(shop.batch(), 1)
    assert shop.timeout_s == 2, "ten deletes tell too little"
    shop.work(40)
    shop.loop(shop.batch(), 2)
    assert shop.timeout_s == 4


def test_a_replay_changes_nothing(server: InProcessServer, client: Client) -> None:
    """Not within a run, and not after a restart between the change and Spark's commit."""
    shop = Shop(server, client)
    shop.work(40)
    batch = shop.batch()
    shop.loop(batch, 0)
    info = shop.queue.info()
    for loop in (shop.loop, shop.restarted()):
        server.advance(30)
        loop(batch, 0)
        assert shop.queue.info().settings == info.settings
    assert len(shop.notices()) == 1


def test_the_notice_that_a_crash_has_prevented_is_sent_once(
    server: InProcessServer, client: Client
) -> None:
    """The change was made, and then the driver died: its replay tells what was changed."""
    shop = Shop(server, client)
    shop.work(40)
    batch = shop.batch()
    shop.loop(batch, 0)
    (told,) = shop.notices()
    client.delete_queue(NAME + NOTICES)
    for _ in range(2):
        shop.restarted()(batch, 0)
        assert shop.notices() == [told]


def test_producers_are_told_by_type(server: InProcessServer, client: Client) -> None:
    """Old and new timeout, and how many of the deletes came late."""
    shop = Shop(server, client)
    shop.work(40)
    shop.loop(shop.batch(), 0)
    (told,) = shop.notices()
    assert (told["queue"], told["old_s"], told["new_s"]) == (NAME, 1, 2)
    assert {each["type"] for each in told["types"]} == {"film", "clip"}
    for each in told["types"]:
        assert 0 < each["late"] <= each["deletes"]
        assert each["late_share"] == round(each["late"] / each["deletes"], 4)
    assert told["undo"] == f"leasehold analyze --undo --queue {NAME}"


def test_an_undone_queue_is_left_alone_for_a_day(server: InProcessServer, client: Client) -> None:
    """What ``leasehold analyze --undo`` does holds, however much evidence there is."""
    shop = Shop(server, client)
    shop.work(40)
    shop.loop(shop.batch(), 0)
    server.advance(1)
    undone = undo_for(NAME, current_of(settings_of(shop.queue.info())))
    shop.queue.update(settings=undone.patch)
    assert shop.timeout_s == 1
    shop.work(40)
    shop.loop(shop.batch(), 1)
    assert shop.timeout_s == 1
    server.advance(86_400)
    shop.work(40)
    shop.loop(shop.batch(), 2)
    assert shop.timeout_s == 2


def test_the_undo_leads_to_what_a_person_had_set(server: InProcessServer, client: Client) -> None:
    """After two steps of the loop, back over both."""
    shop = Shop(server, client)
    for number in range(2):
        shop.work(40)
        shop.loop(shop.batch(), number)
    assert shop.timeout_s == 4
    undone = undo_for(NAME, current_of(settings_of(shop.queue.info())))
    shop.queue.update(settings=undone.patch)
    assert shop.timeout_s == 1


@pytest.mark.parametrize(
    ("guard_rails", "timeout_s"),
    [
        ({"at_once": True}, 5),
        ({"at_once": True, "cap_s": 3}, 3),
        ({"floor_s": 30}, 30),
        ({"queues": ["others"]}, 1),
    ],
)
def test_guard_rails(
    server: InProcessServer, client: Client, guard_rails: dict[str, Any], timeout_s: int
) -> None:
    """Bounds, steps and a choice of queues."""
    shop = Shop(server, client, **guard_rails)
    shop.work(40)
    shop.loop(shop.batch(), 0)
    assert shop.timeout_s == timeout_s


def test_few_data_change_nothing(server: InProcessServer, client: Client) -> None:
    """A start is not enough for a change, and a queue that is gone is passed over."""
    shop = Shop(server, client)
    shop.work(10)
    shop.loop(shop.batch(), 0)
    assert shop.timeout_s == 1
    shop.work(40)
    batch = shop.batch()
    client.delete_queue(NAME)
    shop.loop(batch, 1)


def test_late_deletes_end_with_the_change(server: InProcessServer, client: Client) -> None:
    """Of the leases that began after it none is over before its work."""
    shop = Shop(server, client, at_once=True)
    shop.work(40)
    shop.loop(shop.batch(), 0)
    before = shop.notices()[0]["types"]
    assert all(each["late_share"] > 0.4 for each in before)
    server.advance(1)
    shop.work(40)
    rows = shop.batch().collect()
    assert sum(row.done_since for row in rows) == 40
    assert sum(row.late_since for row in rows) == 0


def test_types_have_timeouts_of_their_own(server: InProcessServer, client: Client) -> None:
    """One change for all that need one, told by type, and taken back type by type."""
    shop = Shop(server, client, by_type=True, at_once=True)
    shop.work(80)
    batch = shop.batch()
    shop.loop(batch, 0)
    settings = shop.queue.info().settings
    assert settings.visibility_timeout_s == 1
    timeouts = {kind: each.visibility_timeout_s for kind, each in settings.timeouts_by_type.items()}
    assert timeouts.keys() == {"clip", "film"}
    (told,) = shop.notices()
    assert {each["type"]: each["new_s"] for each in told["types"]} == timeouts
    server.advance(30)
    shop.restarted()(batch, 0)
    assert shop.queue.info().settings == settings
    assert len(shop.notices()) == 1
    for kind in timeouts:
        undone = undo_for(NAME, current_of(settings_of(shop.queue.info()), kind))
        shop.queue.update(settings=undone.patch)
    assert not shop.queue.info().settings.timeouts_by_type
    shop.work(80)
    shop.loop(shop.batch(), 1)
    assert not shop.queue.info().settings.timeouts_by_type, "it is left alone for a day"
