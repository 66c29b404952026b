"""Messages of a queue that are kept apart from the others: in claims, or staged.

Each claim, and what a part of a transaction has staged for one queue, is a partition of its own.
So a claim is opened by moving rows that hold no bodies, and settled by dropping a partition.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from leasehold.domain.claims import Bound, Claim, ClaimState, Stream
from leasehold.stores.sql.plain_json import from_plain

if TYPE_CHECKING:
    from leasehold.stores.sql.catalog import Catalog, Entry
    from leasehold.stores.sql.recorder import Columns


BoundTo: TypeAlias = tuple[str, str, int]
"""Queue, stream and number of a claim."""


class StreamBox:
    """A stream, beside its row."""

    __slots__ = (
        "attached_at_ms",
        "claims",
        "entry",
        "last_settled",
        "name",
        "settled_with",
        "stream_id",
        "token",
    )

    def __init__(self, entry: Entry, stream_id: int, name: str) -> None:
        self.entry = entry
        self.stream_id = stream_id
        self.name = name
        self.token = 0
        self.last_settled = 0
        self.attached_at_ms = 0
        self.settled_with: str | None = None
        self.claims: dict[int, OpenClaimState] = {}

    def as_stream(self) -> Stream:
        """Return the stream as others see it."""
        queue = self.entry.queue
        return Stream(
            account=queue.account,
            queue=queue.name,
            stream=self.name,
            token=self.token,
            last_settled=self.last_settled,
            attached_at_ms=self.attached_at_ms,
            settled_with=self.settled_with,
            claims=tuple(self.claims[number].claim for number in sorted(self.claims)),
        )


class OpenClaimState:
    """A claim that is not settled, and the partition with its members."""

    __slots__ = (
        "accepted",
        "bytes_taken",
        "claim",
        "dissolving",
        "lanes_used",
        "lapsed",
        "partition",
        "recorded",
        "stream",
    )

    def __init__(self, stream: StreamBox, partition: int, claim: Claim) -> None:
        self.stream = stream
        self.partition = partition
        self.claim = claim
        self.lanes_used = 0
        """Bit p is set once there was a member of priority p."""
        self.lapsed = False
        """Whether others can receive the members."""
        self.accepted = False
        """Whether the consumer has said that it goes on without the members lost."""
        self.dissolving = False
        """Whether it was given back: its stream knows it no more, its members leave it in steps."""
        self.bytes_taken: int | None = None
        """Bytes of bodies, while it is opening and has a limit; None if they are not known."""
        self.recorded: list[Columns] | None = None
        """What the log says of all members, as they were claimed; None if it is not known."""

    @property
    def entry(self) -> Entry:
        """Return the queue that the members are of."""
        return self.stream.entry

    @property
    def is_opening(self) -> bool:
        """Tell whether it takes members still."""
        return self.claim.state is ClaimState.OPENING

    def under(self) -> str:
        """Return the claim's name among all claims of its queue."""
        return f"{self.stream.name}/{self.claim.number}"


class Slot:
    """What one part of a transaction has staged for one queue."""

    __slots__ = ("account", "keyed", "lanes_used", "name", "part", "partition", "queue", "rows")

    def __init__(self, partition: int, account: str, name: str, part: str, queue: str) -> None:
        self.partition = partition
        self.account = account
        self.name = name
        self.part = part
        self.queue = queue
        self.lanes_used = 0
        self.rows = 0
        self.keyed = 0
        """How many of the rows have a deduplication key."""


def load_annexes(catalog: Catalog, fetch: Callable[[str], list[Any]]) -> None:
    """Read streams, claims and what is staged from the database.

    Args:
        catalog: With the queues in it.
        fetch: Runs a query by name and returns its rows.
    """
    streams: dict[int, StreamBox] = {}
    for stream_id, account, queue, name, *figures in fetch("load_streams"):
        entry = catalog.get(account, queue)
        stream = StreamBox(entry, stream_id, name)
        stream.token, stream.last_settled, stream.attached_at_ms, stream.settled_with = figures
        streams[stream_id] = entry.streams[name] = stream
    claims: dict[int, OpenClaimState] = {}
    for partition, stream_id, lanes, content in fetch("load_claims"):
        plain = json.loads(content)
        claim = from_plain(Claim, plain["claim"])
        dissolving = plain.get("dissolving", False)
        if dissolving:  # its stream, if there is one still, may have another of this number
            entry = catalog.get(claim.account, claim.queue)
            held = OpenClaimState(StreamBox(entry, stream_id, claim.stream), partition, claim)
        else:
            held = OpenClaimState(streams[stream_id], partition, claim)
            held.stream.claims[claim.number] = held
        held.lanes_used, held.lapsed = lanes, plain["lapsed"]
        held.accepted, held.dissolving = plain["accepted"], dissolving
        claims[partition] = held
        held.entry.claims.append(held)
        if held.lapsed:
            held.entry.lapsed.append(held)
    slots: dict[int, Slot] = {}
    for partition, account, name, part, queue, *figures in fetch("load_slots"):
        slot = slots[partition] = Slot(partition, account, name, part, queue)
        slot.lanes_used, slot.rows, slot.keyed = figures
        found = catalog.find(account, queue)
        if found is not None:
            found.staged += slot.rows
    catalog.claims, catalog.slots = claims, slots
    catalog.bound = {}
    for account, name, *row in fetch("load_bound"):
        bound = Bound(*row)
        catalog.bound.setdefault((account, name), {})[bound[:3]] = bound
    catalog.dissolving = [held for held in claims.values() if held.dissolving]
