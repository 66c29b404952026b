"""What a query tells of itself and of its queue, in ``progress.sources[i].latestOffset``."""

from __future__ import annotations

from typing import Any

from leasehold.client import Client
from leasehold.client.models import Counts, Settled
from leasehold.spark.options import ReadOptions


class Totals:
    """What the settling of claims has done since this process began."""

    def __init__(self) -> None:
        self.completed = 0
        self.exempted = 0
        self.lost = 0

    def add(self, done: Settled) -> None:
        """Count what one call has done."""
        self.completed += done.completed
        self.exempted += done.exempted
        self.lost += done.lost

    def as_numbers(self) -> dict[str, int]:
        """Return all three by name."""
        return {"completed": self.completed, "exempted": self.exempted, "lost": self.lost}


def backlog(counts: Counts) -> dict[str, int]:
    """Return how many messages are in which state, and how long the oldest one waits, whole s."""
    return {
        "visible": counts.visible,
        "leased": counts.leased,
        "delayed": counts.delayed,
        "deferred": counts.deferred,
        "poisoned": counts.poisoned,
        "expired": counts.expired,
        "oldest_age_s": int(counts.oldest_age_s.get("visible", 0)),
    }


def stream_address(client: Client, options: ReadOptions) -> str:
    """Return what names a stream among all there are. It shows no secret."""
    return f"{client.url}/{client.account}/{options.queue}/{options.stream_id}"


def claim_in(offset: Any) -> int:
    """Return the number of the claim at which an offset ends.

    Raises:
        ValueError: It is not an offset of this source.
    """
    number = offset.get("claim") if isinstance(offset, dict) else None
    if not isinstance(number, int):
        raise ValueError(  # noqa: TRY004 - it is what a checkpoint says, not what a caller passes
            f"the checkpoint's offset {offset!r} is none of this source: it is of another one"
        )
    return number


def offset_of(number: int) -> dict[str, int]:
    """Return the offset at the end of a claim."""
    return {"claim": number}
