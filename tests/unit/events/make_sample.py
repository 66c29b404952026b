"""Makes the files in ``samples``, which later versions must go on reading.

One is written for each version of the columns, and never again:
``python -m tests.unit.events.make_sample samples/NAME.parquet`` from the root of the project.
``format1.parquet`` is of before there were types and errors, and has :func:`events`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from leasehold.domain.events import Event, EventType
from leasehold.domain.model import Phase
from leasehold.events.parquet import FileBuilder
from tests.unit.events.support import TEN_MS, id_of, put

SAMPLES: Final = Path(__file__).parent / "samples"
_LEASE_MS: Final = 30_000


def events() -> list[Event]:
    """Return what is in the sample: a message that is completed, one that lapses, a session."""
    first, second = put(1), put(2, expires_at_ms=TEN_MS + 604_800_000, priority=4)
    leased: dict[str, Any] = {
        "type": EventType.RECEIVED,
        "at_ms": TEN_MS + 100,
        "visible_at_ms": TEN_MS + 100 + _LEASE_MS,
        "dequeue_count": 1,
        "fence": 1,
        "phase": int(Phase.LEASED),
        "since_ms": TEN_MS + 100,
        "visible_since_ms": TEN_MS,
        "holder": "w1",
        "session": "s1",
    }
    batches = (
        (first, second),
        (first._replace(**leased), second._replace(**leased)),
        (first._replace(**{**leased, "type": EventType.COMPLETED, "at_ms": TEN_MS + 900}),),
        (
            second._replace(
                **{**leased, "type": EventType.LEASE_ENDED, "at_ms": TEN_MS + 9_000},
                reason="session lost",
            ),
            Event(
                4,
                0,
                TEN_MS + 9_000,
                EventType.SESSION_LOST,
                "shop",
                holder="w1",
                session="s1",
                reason="no heartbeat for 8 s",
            ),
        ),
    )
    assert first.message_id == id_of(1)
    return [
        event._replace(seq=seq, place=place)
        for seq, batch in enumerate(batches, 1)
        for place, event in enumerate(batch)
    ]


def events_with_errors() -> list[Event]:
    """Return what is in ``format1_errors.parquet``: the same, with types and errors."""
    first, second = id_of(1), id_of(2)
    return [
        event._replace(
            message_type={first: "clip", second: None}.get(event.message_id or ""),
            **(_ERROR if event.type is EventType.LEASE_ENDED else {}),
        )
        for event in events()
    ]


def events_with_traces() -> list[Event]:
    """Return what is in ``format1_traces.parquet``: the same, with traces."""
    first = id_of(1)
    return [
        event._replace(trace_id="4bf92f3577b34da6a3ce929d0e0e4736")
        if event.message_id == first
        else event
        for event in events_with_errors()
    ]


_ERROR: Final[dict[str, Any]] = {
    "error_type": "KeyError",
    "error_fingerprint": "f00d",
    "error": "no such c\u00f6dec",
}


def main() -> None:
    """Write the sample that the command line names; it must not exist."""
    target = SAMPLES.parent / sys.argv[1]
    assert not target.exists(), f"{target} is kept as it is"
    with tempfile.TemporaryDirectory() as folder:
        builder = FileBuilder()
        builder.add(events_with_traces())
        builder.write(Path(folder))
        target.write_bytes((Path(folder) / builder.path).read_bytes())


if __name__ == "__main__":
    main()
