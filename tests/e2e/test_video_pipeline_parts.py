"""Parts of the video pipeline that need no run: scanner, timeline, the console's address."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, Final

import pytest
from examples.video_pipeline import signatures
from examples.video_pipeline.catalogue import Catalogue
from examples.video_pipeline.loop import LoopOutcome, outcome
from examples.video_pipeline.results import NO_STAGE, Results, section
from examples.video_pipeline.server import connection_string, console_page
from examples.video_pipeline.timeline import Span, spans

from leasehold.client.models import Event

BEGAN_MS: Final = 1_000_000
HELD: Final = {("m", 1): "executor-0", ("m", 2): "executor-1"}
VIDEO: Final = b"\x00\x00\x00\x20ftypisom" + bytes(100)
PROGRAM: Final = b"MZ" + bytes(58) + struct.pack("<I", 64) + b"PE\0\0" + bytes(50)


@pytest.mark.parametrize(
    ("content", "rules"),
    [
        (VIDEO, []),
        (b"a text that mentions EICAR-STANDARD-ANTIVIRUS only", []),
        (signatures.eicar(), ["eicar_test_file"]),
        (VIDEO + signatures.eicar(), ["eicar_test_file"]),
        (b"\x7fELF" + bytes(60), ["program_in_disguise"]),
        (PROGRAM, ["program_in_disguise"]),
        (b"MZ is how this text begins" + bytes(60), []),
        (b"#!/bin/sh\n", ["script_in_disguise"]),
        (VIDEO + b"<SCRIPT>", ["script_in_disguise"]),
        (VIDEO + b"PK\x05\x06" + bytes(18), ["archive_behind_a_video"]),
    ],
)
def test_scanner(tmp_path: Path, content: bytes, rules: list[str]) -> None:
    """Each rule finds what it describes, and leaves videos alone."""
    path = tmp_path / "upload.mp4"
    path.write_bytes(content)
    assert signatures.scan(path) == rules


def test_a_late_write_meets_what_a_later_delivery_has_published(tmp_path: Path) -> None:
    """Not what the late one has published itself in time, as it may on a slow machine."""
    (tmp_path / "outputs").mkdir()
    catalogue = Catalogue(tmp_path)
    scratch = tmp_path / "scratch"
    rows = [("walk.mp4", "executor-1", 1), ("talk.mp4", "executor-2", 9)]
    for row in [*rows, ("walk.small.mp4", "executor-2", 4)]:
        scratch.write_text("a whole video")
        assert catalogue.publish(scratch, *row)
    refusal = catalogue.write_late(scratch, "walk", "executor-1", 1)
    assert refusal == "fence 1 is too old, 4 was here"
    assert catalogue.write_late(scratch, "walk", "executor-2", 4) == ""


def test_the_address_of_a_page_of_the_console() -> None:
    """It is on the server of the connection string; other services have no console."""
    own = connection_string(4711)
    page = console_page(own, "pipelines", "a/b")
    assert page == "http://127.0.0.1:4711/console/#/pipelines/a%2Fb"
    azure = "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=a2V5;EndpointSuffix=e.net"
    assert console_page(azure, "queues", "videos") is None


def test_the_test_file_is_in_no_file_of_the_example() -> None:
    """Scanners find nothing in the checkout: the test file is put together when it is needed."""
    folder = Path(signatures.__file__).parent
    for path in folder.iterdir():
        if path.is_file():
            assert signatures.eicar() not in path.read_bytes(), path
            assert "eicar_test_file" not in signatures.scan(path), path


def event(at_s: float, kind: str, visible_s: float | None = None, **facts: Any) -> Event:
    """Return an event of the message ``m``; times are seconds since the story began."""
    return Event(
        seq=1,
        place=0,
        at_ms=BEGAN_MS + round(at_s * 1000),
        type=kind,
        message_id="m",
        visible_at_ms=None if visible_s is None else BEGAN_MS + round(visible_s * 1000),
        **facts,
    )


def lives(*events: Event, until_s: float = 20) -> list[Span]:
    """Return the stretches of the message."""
    return spans(events, began_ms=BEGAN_MS, until_s=until_s, holders=HELD).get("m", [])


def shape(found: list[Span]) -> list[tuple[str, float, float]]:
    """Return kind, beginning and end of each stretch."""
    return [(each.kind, each.begin_s, each.end_s) for each in found]


def test_a_life_without_trouble() -> None:
    """Delayed, visible, leased, gone; renewals are on the lease."""
    found = lives(
        event(0, "put", 4),
        event(5, "received", 8, dequeue_count=1, fence=1),
        event(6, "renewed", 9, dequeue_count=1),
        event(7, "completed", 9, dequeue_count=1),
    )
    assert shape(found) == [("delayed", 0, 4), ("visible", 4, 5), ("leased", 5, 7)]
    lease = found[-1]
    assert (lease.holder, lease.fence, lease.renewals) == ("executor-0", 1, (6.0,))
    assert lease.how == "completed"


def test_a_lease_that_ran_out() -> None:
    """The lease ends when it ran out, not when that was noticed; from then it was visible."""
    found = lives(
        event(0, "put", 0),
        event(1, "received", 4, dequeue_count=1, fence=1),
        event(9, "lapsed", 4, dequeue_count=1),
        event(9, "received", 12, dequeue_count=2, fence=3),
        event(10, "poisoned", 12, reason="buried"),
    )
    assert shape(found) == [
        *(("visible", 0, 1), ("leased", 1, 4)),
        *(("visible", 4, 9), ("leased", 9, 10)),
    ]
    assert [each.how for each in found if each.kind == "leased"] == [
        "the lease ran out",
        "moved to the poison queue: buried",
    ]
    assert [each.holder for each in found if each.kind == "leased"] == ["executor-0", "executor-1"]


def test_a_message_given_back() -> None:
    """Until it may be tried again it waits, then it is visible to the end."""
    found = lives(
        event(0, "put", 0),
        event(1, "received", 4, dequeue_count=1, fence=1),
        event(2, "released", 5, dequeue_count=1, reason="failed"),
    )
    assert shape(found)[2:] == [("waiting", 2, 5), ("visible", 5, 20)]
    assert found[1].how == "released: failed"


def test_a_lease_that_the_server_ended() -> None:
    """A lost session ends the lease at once."""
    found = lives(
        event(0, "put", 0),
        event(1, "received", 60, dequeue_count=1, fence=1),
        event(3, "lease-ended", 3, dequeue_count=1, reason="session lost"),
        until_s=6,
    )
    assert shape(found)[1:] == [("leased", 1, 3), ("visible", 3, 6)]


def test_a_lease_that_goes_on() -> None:
    """What has not ended is shown to the end of the story."""
    found = lives(event(0, "put", 0), event(1, "received", 4, dequeue_count=1, fence=1))
    assert shape(found)[1:] == [("leased", 1, 20)]
    assert found[-1].how == ""


def test_what_was_taken_back_was_hidden_until_then() -> None:
    """A message that its sender removes ends there, and is never visible."""
    put = Event(
        seq=1, place=0, at_ms=BEGAN_MS, type="put", message_id="m", visible_at_ms=BEGAN_MS + 8_000
    )
    removed = Event(seq=2, place=0, at_ms=BEGAN_MS + 2_000, type="removed", message_id="m")
    found = spans([put, removed], began_ms=BEGAN_MS, until_s=30.0, holders=HELD)
    assert found == {"m": [Span(kind="delayed", begin_s=0.0, end_s=2.0)]}


def test_the_results_on_the_page() -> None:
    """A row for each group, a bar for each window with its count, at its time."""
    window = {"stage": "scan", "outcome": "done", "messages": 3, "mean_s": 0.5}
    poisoned = {"stage": NO_STAGE, "outcome": "poisoned", "messages": 1, "mean_s": None}
    totals = {"longest_s": None, "most_deliveries": 2}
    results = Results(
        rows=(),
        windows=(window | {"begin_s": 1_005.0}, poisoned | {"begin_s": 1_015.0}),
        summary=(window | totals | {"longest_s": 0.75}, poisoned | totals),
    )
    shown = section(results, 1_000.0)
    assert "<title>scan: 3, 0.50 s on average</title>" in shown
    assert "<title>poisoned: 1</title>" in shown
    assert all(f">{second} s</text>" in shown for second in (5, 10, 15))
    assert "<td>0.75</td>" in shown
    assert section(None, 0.0) == ""


def of_loop(kind: str, at_ms: int, message: str | None = None, **more: Any) -> Event:
    """Return an event of the queue of the feedback loop."""
    facts: dict[str, Any] = {"seq": at_ms, "place": 0, "at_ms": at_ms, "queue": "posters"}
    return Event(**facts | {"type": kind, "message_id": message, "message_type": "poster"} | more)


def lease(message: str, since_ms: int, until_ms: int, *ends: tuple[str, int]) -> list[Event]:
    """Return the events of a lease: its begin, and what came of it."""
    times: dict[str, Any] = {"phase": "leased", "since_ms": since_ms, "visible_at_ms": until_ms}
    kinds = [("received", since_ms), *ends]
    return [of_loop(kind, at_ms, message, dequeue_count=1, **times) for kind, at_ms in kinds]


CHANGED: Final = of_loop("queue-updated", 5_000, reason="visibility_timeout_s: 1 -> 5; advised: a")


def told_of(*some: list[Event]) -> LoopOutcome:
    """Return what the log says, with a change of the timeout in it."""
    events = [CHANGED, *(event for each in some for event in each)]
    return outcome("posters", sorted(events, key=lambda each: each.at_ms), None)


def test_deletes_are_told_apart_by_the_timeout_of_their_lease() -> None:
    """Not by when they came; refused ones, and ones that counted although the lease was over."""
    told = told_of(
        lease("a", 1_000, 2_000, ("completed", 1_500)),
        lease("b", 1_000, 2_000, ("completed", 2_500)),
        lease("c", 4_000, 5_000, ("refused", 7_000)),
        lease("d", 6_000, 11_000, ("completed", 9_000)),
        lease("e", 6_000, 11_000, ("completed", 12_000)),
    )
    assert (told.old_s, told.new_s) == (1, 5)
    poster = next(each for each in told.deletes if each.kind == "poster")
    assert (poster.before, poster.late_before) == (3, 2)
    assert (poster.after, poster.late_after) == (2, 1)


@pytest.mark.parametrize(
    ("until_ms", "end", "broken"),
    [
        (5_500, "completed", []),
        (5_500, "lapsed", []),
        (9_000, "completed", ["m: completed"]),
        (5_500, "lease-ended", ["m: lease-ended"]),
    ],
)
def test_a_lease_that_is_cut_or_stretched_by_the_change_is_found(
    until_ms: int, end: str, broken: list[str]
) -> None:
    """One in force at the change must end as it was granted."""
    events = lease("m", 4_500, 5_500, (end, 6_000))
    events[1] = of_loop(end, 6_000, "m", dequeue_count=1, phase="leased", visible_at_ms=until_ms)
    told = told_of(events)
    assert told.leases_across == 1
    assert list(told.broken) == broken
