"""The timeline of the pipelines' page tells of messages what that of the demonstration tells."""

from __future__ import annotations

import random
from typing import Any, Final

import pytest
from examples.video_pipeline.timeline import spans

from leasehold.client.models import Event
from tests.console.harness import Visit

BEGAN_MS: Final = 1_764_000_000_000
SEEDS: Final = range(200)
_READ: Final = """async (stories) => {
  const { Lives } = await import("/console/static/lib/spans.js");
  return stories.map((pages) => {
    const lives = new Lives();
    for (const events of pages) lives.read(events);
    return lives.byId.get("m");
  });
}"""


def story(seed: int) -> tuple[list[dict[str, Any]], int]:
    """Return the events of a message as it may live, and the moment of the last one."""
    draw = random.Random(seed)
    at = BEGAN_MS
    told: list[dict[str, Any]] = []

    def tell(kind: str, visible_ms: int, **facts: Any) -> None:
        place = len(told)
        told.append(
            {"seq": 1, "place": place, "at_ms": at, "type": kind, "queue": "q", "message_id": "m"}
            | {"visible_at_ms": visible_ms}
            | facts
        )

    visible = at + draw.choice([0, 4_000])
    tell("put", visible)
    for delivery in range(1, draw.randint(1, 4) + 1):
        at = max(at, visible) + draw.choice([0, 1, 900])
        visible = at + 3_000
        lease = {"dequeue_count": delivery, "fence": delivery, "holder": f"w{delivery}"}
        tell("received", visible, **lease)
        for _ in range(draw.randint(0, 2)):
            at += 1_000
            visible = at + 3_000
            tell("renewed", visible, **lease)
        end = draw.choice(["completed", "poisoned", "released", "lapsed", "lease-ended", ""])
        at += draw.choice([0, 1, 500])
        if end == "released":
            visible = at + draw.choice([0, 2_000])
        elif end == "lapsed":
            at = visible + draw.choice([0, 5_000])
        elif end == "lease-ended":
            visible = at
        if end:
            tell(
                end,
                visible,
                dequeue_count=delivery,
                fence=delivery,
                reason=draw.choice([None, "x"]),
            )
        if end in {"completed", "poisoned", ""}:
            break
    return told, at


def parts_of(told: list[dict[str, Any]], pages: int) -> list[list[dict[str, Any]]]:
    """Return events in at most so many pages."""
    size = -(-len(told) // pages)
    return [told[start : start + size] for start in range(0, len(told), size)]


@pytest.mark.parametrize("pages", [1, 3])
def test_stretches_are_those_of_the_demonstration(operator: Visit, pages: int) -> None:
    """For 200 lives drawn at random, read at once or in pages, both say the same."""
    operator.open()
    stories = [story(seed) for seed in SEEDS]
    lives = operator.page.evaluate(_READ, [parts_of(told, pages) for told, _ in stories])
    for (told, last_ms), life in zip(stories, lives, strict=True):
        events = [Event(**each) for each in told]
        until_s = (last_ms + 10_000 - BEGAN_MS) / 1000
        expected = spans(events, began_ms=BEGAN_MS, until_s=until_s, holders={})["m"]

        def seconds(ms: int | None, open_s: float = until_s) -> float:
            return open_s if ms is None else (ms - BEGAN_MS) / 1000

        found = [
            (each["kind"], seconds(each["fromMs"]), seconds(each["toMs"])) for each in life["spans"]
        ]
        assert found == [(each.kind, each.begin_s, each.end_s) for each in expected], told
        leases = [each for each in life["spans"] if each["kind"] == "leased"]
        known = [each for each in expected if each.kind == "leased"]
        assert [each["holder"] for each in leases] == [each.holder for each in known]
        assert [each["how"] for each in leases] == [each.how for each in known]
        assert [[seconds(at) for at in each["renewals"]] for each in leases] == [
            list(each.renewals) for each in known
        ]
        is_over = told[-1]["type"] in {"completed", "poisoned"}
        assert (life["end"] is not None) == is_over
