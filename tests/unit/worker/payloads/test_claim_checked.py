"""A queue whose large bodies are kept elsewhere."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from leasehold.testing.memory_queue import MEMORY, MemoryQueue
from leasehold.worker.adapters import (
    BodyTooLarge,
    Denied,
    Fault,
    Lease,
    LeaseGone,
    Outgoing,
    QueueError,
    Unreachable,
)
from leasehold.worker.payloads import ClaimCheck, ClaimChecked

LARGE = "x" * 1000


@pytest.fixture
def check(tmp_path: Path) -> ClaimCheck:
    return ClaimCheck(str(tmp_path / "bodies"), threshold_bytes=100, max_bytes=5000)


@pytest.fixture
def inner() -> MemoryQueue:
    return MemoryQueue("q", capabilities=replace(MEMORY, max_body_bytes=500))


def objects(check: ClaimCheck) -> int:
    return len(check._objects())


def test_large_bodies_fit_into_the_queue(check: ClaimCheck, inner: MemoryQueue) -> None:
    """A body over the limit of the service is put, received as a reference, and can be fetched."""
    queue = ClaimChecked(inner, check)
    messages = [Outgoing(body=LARGE, type="clip"), Outgoing(body="small")]
    assert inner.put(messages)[0] is not None
    assert queue.put(messages) == [None, None]
    assert queue.capabilities == replace(inner.capabilities, max_body_bytes=5000)
    received = inner.receive(10, visibility_timeout_s=30)
    bodies = [check.fetch(each.body) for each in received]
    assert bodies == [b"small", LARGE.encode(), b"small"]
    assert received[1].type == "clip"


def test_what_is_too_large_for_anything_is_refused(check: ClaimCheck, inner: MemoryQueue) -> None:
    """Each message has its own result, in their order."""
    queue = ClaimChecked(inner, check)
    huge = Outgoing(body=bytes(5001))
    one, two, three = queue.put([huge, Outgoing(body=LARGE), huge])
    assert isinstance(one, BodyTooLarge)
    assert two is None
    assert isinstance(three, BodyTooLarge)
    [only] = queue.put([huge])
    assert isinstance(only, BodyTooLarge)
    assert inner.depth().total == 1


def test_references_made_by_hand_are_sent_as_they_are(
    check: ClaimCheck, inner: MemoryQueue
) -> None:
    """A stream that was kept before is referred to, and not kept again."""
    queue = ClaimChecked(inner, check)
    sent = check.put_stream(io.BytesIO(LARGE.encode()))
    queue.put([Outgoing(body=sent)])
    [delivery] = queue.receive(1, visibility_timeout_s=30)
    assert delivery.body == sent
    assert objects(check) == 1


def test_objects_go_after_completion_if_asked(check: ClaimCheck, inner: MemoryQueue) -> None:
    """The object goes once the message is completed, and not if it is not."""
    queue = ClaimChecked(inner, check, delete_after=True)
    queue.put([Outgoing(body=LARGE), Outgoing(body=LARGE), Outgoing(body="small")])
    first, second, third = queue.receive(10, visibility_timeout_s=30)
    results = queue.complete([first.lease, Lease(second.message_id, "wrong"), third.lease])
    assert results[0] is None
    assert isinstance(results[1], LeaseGone)
    assert objects(check) == 1
    assert check.fetch(second.body) == LARGE.encode()
    assert queue.complete([second.lease]) == [None]
    assert objects(check) == 0


def test_objects_stay_otherwise(check: ClaimCheck, inner: MemoryQueue) -> None:
    """Unless that is asked for, completion removes no object."""
    queue = ClaimChecked(inner, check)
    queue.put([Outgoing(body=LARGE)])
    [delivery] = queue.receive(1, visibility_timeout_s=30)
    assert queue.complete([delivery.lease]) == [None]
    assert objects(check) == 1


def test_poison_keeps_its_body(check: ClaimCheck, inner: MemoryQueue) -> None:
    """A message in the poison queue can still be read and sent again."""
    queue = ClaimChecked(inner, check, delete_after=True)
    queue.put([Outgoing(body=LARGE)])
    [delivery] = queue.receive(1, visibility_timeout_s=30)
    queue.bury(delivery, delivery.receipt, Fault(text="broken"))
    [buried] = inner.poison.receive(1, visibility_timeout_s=30)
    assert check.fetch(buried.body) == LARGE.encode()


class Failing(MemoryQueue):
    """Refuses what is put, as a whole or each."""

    whole: QueueError | None = None
    each: QueueError | None = None

    def put(self, messages: Sequence[Outgoing]) -> list[QueueError | None]:
        if self.whole is not None:
            raise self.whole
        return [self.each for _ in messages]


def repeated_refusal() -> QueueError:
    """Return what a clear refusal is after an earlier try that had no answer."""
    error = Denied("no")
    error.outcome_unknown = True
    return error


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(
    ("error", "left"),
    [
        (Denied("no"), 0),
        (Unreachable("refused", outcome_unknown=False), 0),
        (Unreachable("no answer"), 1),
        (repeated_refusal(), 1),
    ],
)
def test_a_message_that_was_not_sent_leaves_no_object(
    check: ClaimCheck, whole: bool, error: QueueError, left: int
) -> None:
    """Only where the message may have arrived all the same does its object stay."""
    inner = Failing("q")
    setattr(inner, "whole" if whole else "each", error)
    queue = ClaimChecked(inner, check)
    mine = check.put(b"y" * 1000)
    messages = [Outgoing(body=LARGE), Outgoing(body=mine), Outgoing(body="small")]
    if whole:
        with pytest.raises(type(error)):
            queue.put(messages)
    else:
        assert queue.put(messages) == [error] * 3
    assert check.fetch(mine) == b"y" * 1000
    assert objects(check) == left + 1


def test_an_object_that_cannot_be_written_stops_the_put(
    check: ClaimCheck, inner: MemoryQueue
) -> None:
    """Nothing is put, and the objects of the messages before it go."""
    queue = ClaimChecked(inner, check)
    write = check._write
    written: list[str] = []

    def once(path: str, chunks: Iterator[bytes]) -> None:
        if written:
            raise OSError("disk full")
        written.append(path)
        write(path, chunks)

    with (
        mock.patch.object(check, "_write", once),
        pytest.raises(OSError, match="disk full"),
    ):
        queue.put([Outgoing(body=LARGE), Outgoing(body=LARGE)])
    assert objects(check) == 0
    assert inner.depth().total == 0


def test_trouble_with_an_object_does_not_undo_a_completion(
    check: ClaimCheck, inner: MemoryQueue
) -> None:
    """The message is completed; its object is an orphan until it is swept."""
    queue = ClaimChecked(inner, check, delete_after=True)
    queue.put([Outgoing(body=LARGE)])
    [delivery] = queue.receive(1, visibility_timeout_s=30)
    with mock.patch.object(check, "_remove", side_effect=OSError):
        assert queue.complete([delivery.lease]) == [None]
    assert objects(check) == 1


def test_a_forged_reference_removes_nothing(check: ClaimCheck, inner: MemoryQueue) -> None:
    """A message that leads elsewhere is completed, and what it leads to stays."""
    victim = check.root_url.removeprefix("file://") + "-victim"
    Path(victim).write_text("precious")
    body = (
        f'{{"leasehold.claim_check":1,"url":"file://{victim}","size":8,'
        f'"sha256":"{"0" * 64}","content_type":""}}'
    )
    inner.put([Outgoing(body=body)])
    queue = ClaimChecked(inner, check, delete_after=True)
    [delivery] = queue.receive(1, visibility_timeout_s=30)
    assert queue.complete([delivery.lease]) == [None]
    assert Path(victim).read_text() == "precious"


def test_lost_messages_do_not_pile_up(check: ClaimCheck, inner: MemoryQueue) -> None:
    """Of messages that are never completed here, only so many are remembered."""
    queue = ClaimChecked(inner, check, delete_after=True)
    queue.put([Outgoing(body=LARGE) for _ in range(5)])
    with mock.patch("leasehold.worker.payloads.claim_check._REMEMBERED", 3):
        received = queue.receive(5, visibility_timeout_s=30)
    assert queue.complete([each.lease for each in received]) == [None] * 5
    assert objects(check) == 2
