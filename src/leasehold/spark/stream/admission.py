"""How much a micro-batch takes and when: decisions only, no requests and no waiting."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, ReadMaxRows

from leasehold.client.models import ClaimInfo, Counts
from leasehold.domain.limits import MAX_CLAIM
from leasehold.spark.options import ReadOptions

ROWS_PER_PART: Final = 5_000
"""A task costs some 20 ms before its first row: fewer rows than this are not worth one."""
DEFAULT_BYTES: Final = 256 << 20
"""Bytes of bodies that end a micro-batch where the options say nothing of bytes: 50,000 messages of
5 KiB, and few enough for a driver of 1 GiB that collects them."""
_LEAST_PARTS: Final = 2
_MOST_PARTS: Final = 16


def most_messages(limit: ReadLimit, options: ReadOptions) -> int:
    """Return how many messages a micro-batch may have, given the limit that Spark names."""
    if isinstance(limit, ReadMaxRows):
        return max(1, min(limit.max_rows, MAX_CLAIM))
    if isinstance(limit, ReadMaxBytes):
        return options.max_messages_per_trigger
    # All that there is, whatever the options say: Spark's contract for Trigger.Once.
    return MAX_CLAIM


def most_bytes(limit: ReadLimit, options: ReadOptions) -> int | None:
    """Return after how many bytes of bodies a micro-batch ends; None: never."""
    if isinstance(limit, ReadMaxBytes):
        return limit.max_bytes
    if options.max_bytes_per_trigger is None and isinstance(limit, ReadMaxRows):
        return DEFAULT_BYTES
    return options.max_bytes_per_trigger


def is_due(counts: Counts, least: int, delay_s: float) -> bool:
    """Tell whether to begin a micro-batch: there are enough messages, or one has waited enough.

    Args:
        counts: Of the queue, now.
        least: How many are enough.
        delay_s: Seconds that a message may be visible before it is taken even if they are fewer.
    """
    if counts.visible >= least:
        return True
    return counts.visible > 0 and counts.oldest_age_s.get("visible", 0.0) >= delay_s


def is_full(claim: ClaimInfo, options: ReadOptions) -> bool:
    """Tell whether a claim has as much as it may, so that there is probably more to be claimed.

    A claim does not say how many bytes it has. Only a limit that the user has set is taken for
    reached: opened ahead with the few messages that have come since, claims would get small.
    """
    return claim.size >= claim.limit or options.max_bytes_per_trigger is not None


def part_count(rows: int, given: int | None, processors: int) -> int:
    """Return in how many parts a micro-batch is read.

    Args:
        rows: Messages of the claim.
        given: What the options say; None: decide by rows and processors.
        processors: Of this machine.
    """
    if given is not None:
        return given
    most = min(max(processors, _LEAST_PARTS), _MOST_PARTS)
    return max(1, min(most, -(-rows // ROWS_PER_PART)))


class Scope:
    """What a query with Trigger.AvailableNow may still take, so that a busy queue ends too.

    Args:
        visible: Messages that could be claimed when the query began.
        held: Numbers of claims that had leased their members already: these are not among them.
    """

    def __init__(self, visible: int, held: Iterable[int]) -> None:
        self._left = visible
        self._held = frozenset(held)

    def most(self, number: int, most: int) -> int:
        """Return how many messages claim *number* may have, at most *most*; 0: none, the end."""
        return most if number in self._held else max(0, min(most, self._left))

    def take(self, number: int, size: int) -> None:
        """Note that claim *number* was opened with *size* messages."""
        if number not in self._held:
            self._left -= size
