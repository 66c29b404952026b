"""What a handler has in hand."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from leasehold.testing import ManualTime
from leasehold.testing.memory_queue import MemorySession
from leasehold.worker.adapters import Delivery, Saved
from leasehold.worker.errors import Cancelled, LeaseLost, Poison
from leasehold.worker.message import CancelToken, Message
from tests.patience import PATIENCE_S


class Holding:
    def __init__(self) -> None:
        self.deadline_s = 1030.0
        self.loss: LeaseLost | None = None
        self.saves: list[Saved] = []
        self.extended: list[int] = []

    def check(self) -> None:
        if self.loss is not None:
            raise self.loss

    def extend(self, visibility_timeout_s: int) -> None:
        self.extended.append(visibility_timeout_s)

    def save(self, saved: Saved) -> None:
        self.saves.append(saved)


def message_of(body: bytes = b"one", **options: Any) -> tuple[Message, Holding]:
    saved = options.pop("saved", None)
    delivery = Delivery(queue="orders", message_id="m-1", receipt="r", body=body, saved=saved)
    holding = Holding()
    return Message(delivery, holding, ManualTime(), **options), holding


def test_body_that_is_no_text_is_poison() -> None:
    """Text that cannot be read sets the message aside, with that as the reason."""
    message, _ = message_of(b"\xff")
    with pytest.raises(Poison, match="encoding: the body is not UTF-8"):
        _ = message.text


def test_body_that_is_no_json_is_poison() -> None:
    """JSON that cannot be read sets the message aside, with that as the reason."""
    message, _ = message_of(b"{")
    with pytest.raises(Poison, match="encoding: the body is not JSON"):
        message.json()


def test_payload_is_read_once() -> None:
    """The codec is called when the payload is asked for, and only the first time."""
    calls: list[bytes] = []

    def decode(body: bytes) -> int:
        calls.append(body)
        return int(body)

    message, _ = message_of(b"7", decode=decode)
    assert calls == []
    assert message.payload == message.payload == 7
    assert calls == [b"7"]


def test_payload_without_codec_is_the_body() -> None:
    """Without a codec the payload is the body."""
    message, _ = message_of(b"7")
    assert message.payload == b"7"


def test_payload_that_cannot_be_read_is_poison() -> None:
    """A ValueError of the codec sets the message aside."""
    message, _ = message_of(b"seven", decode=int)
    with pytest.raises(Poison, match="encoding: invalid literal"):
        _ = message.payload


def test_checkpoint_keeps_what_it_is_not_told() -> None:
    """A checkpoint of the fraction leaves stage and state as they were saved."""
    message, holding = message_of(saved=Saved(stage="cut", state={"at": 3}, fraction=0.1))
    message.checkpoint(fraction=0.5)
    message.checkpoint(None)
    assert holding.saves == [
        Saved(stage="cut", state={"at": 3}, fraction=0.5),
        Saved(stage="cut", state=None, fraction=0.5),
    ]
    assert message.saved == holding.saves[-1]


def test_checkpoint_tells_the_session() -> None:
    """Progress is a sign of life for the watchdog of the server."""
    session = MemorySession("s")
    message, _ = message_of(session=session)
    message.checkpoint({"at": 1})
    assert session.progress == ["m-1"]


def test_lost_lease_is_told_by_each_method() -> None:
    """What the lease raises reaches the handler, and nothing is saved."""
    message, holding = message_of()
    holding.loss = LeaseLost("somebody else has it")
    with pytest.raises(LeaseLost, match="somebody else has it"):
        message.check()
    with pytest.raises(LeaseLost, match="somebody else has it"):
        message.checkpoint(1)
    assert holding.saves == []


def test_cancelled_message_saves_and_then_stops() -> None:
    """A checkpoint of a cancelled message is kept, and ends the handler."""
    message, holding = message_of()
    message.cancel_token.set("the shop is closed")
    with pytest.raises(Cancelled, match="the shop is closed"):
        message.checkpoint({"at": 1})
    assert holding.saves == [Saved(state={"at": 1})]
    assert message.cancelled
    assert message.cancel_reason == "the shop is closed"


def test_seconds_left_go_by_the_lease() -> None:
    """The time that is left is that of the lease in hand."""
    message, holding = message_of()
    assert message.seconds_left == 30
    holding.deadline_s += 5
    assert message.seconds_left == 35


def test_extend_goes_to_the_lease() -> None:
    """A longer lease is asked of whoever keeps it."""
    message, holding = message_of()
    message.extend(120)
    assert holding.extended == [120]


def test_token_keeps_the_first_reason() -> None:
    """A second reason to stop changes nothing."""
    token = CancelToken()
    token.set("first")
    token.set("second")
    assert token.reason == "first"
    assert token.wait()


def test_token_wakes_all_who_wait() -> None:
    """Threads that wait for the token go on when it is set."""
    token, woken = CancelToken(), []
    threads = [threading.Thread(target=lambda: woken.append(token.wait(PATIENCE_S))) for _ in "123"]
    for thread in threads:
        thread.start()
    assert not token.wait(0)
    token.set("now")
    for thread in threads:
        thread.join()
    assert woken == [True, True, True]
