"""The settings of the event log; see :mod:`leasehold.settings.fields`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from leasehold.settings.meta import Kind, about
from leasehold.settings.shared_store import SharedStoreSettings

_EVENTS: Final = "Event log"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLogSettings(SharedStoreSettings):
    """What becomes of the events that the store records."""

    events_folder: Path | None = field(
        default=None,
        metadata=about(
            Kind.PATH,
            _EVENTS,
            "Folder to export events to, as Parquet files; made if it is missing. Each server "
            "needs one of its own; with `store_url` all of them need the same one.",
            special="Without it nothing is exported. It needs the extra `arrow`.",
        ),
    )
    events_export_interval_s: float = field(
        default=60.0,
        metadata=about(
            Kind.NUMBER,
            _EVENTS,
            "How long after an event it is exported at the latest, and how often old events are "
            "looked for. A longer one makes fewer and larger files.",
            unit="seconds",
            bounds=(1, 86_400),
        ),
    )
    events_retention_s: int = field(
        default=259_200,
        metadata=about(
            Kind.INTEGER,
            _EVENTS,
            "How long the database keeps events, for traces of messages. With `events_folder`, "
            "events that could not be exported yet are kept longer.",
            unit="seconds",
            bounds=(60, 315_360_000),
        ),
    )
    events_max_bytes: int = field(
        default=1_073_741_824,
        metadata=about(
            Kind.INTEGER,
            _EVENTS,
            "Most room for events in the database. Of more, the oldest are forgotten, exported or "
            "not; the log says so if they were not.",
            unit="bytes",
            bounds=(1_048_576, 1_125_899_906_842_624),
        ),
    )
    events_parquet_retention_s: int = field(
        default=0,
        metadata=about(
            Kind.INTEGER,
            _EVENTS,
            "How long exported events are kept. They go by whole days, in UTC.",
            unit="seconds",
            bounds=(0, 3_153_600_000),
            special="0 keeps them for ever.",
        ),
    )
