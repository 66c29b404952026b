"""The queues of a store in a database, held in memory beside their rows.

There are few queues and every command names one, so looking them up must cost a dictionary access.
The rows are the truth: after an undone batch the catalog is read from them again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final, TypeAlias

from leasehold.domain.claims import Claim, ClaimState, Stream
from leasehold.domain.errors import NoGroups, QueueNotFound
from leasehold.domain.groups import Turns
from leasehold.domain.model import (
    DEFAULT_PRIORITY,
    AccessPolicy,
    GroupHalt,
    GroupHold,
    Message,
    Phase,
    Queue,
)
from leasehold.domain.queue_settings import LapsedReceipts, poison_queue_of
from leasehold.domain.transactions import Bound
from leasehold.domain.visibility import Bucket
from leasehold.stores.sql.plain_json import from_plain, settings_from_json

QueueRow: TypeAlias = tuple[str, str, int, str, str, str, int, int, int, int]
"""Account, name, partition, metadata, policies, settings, created, message count, lanes, scope."""
BoundTo: TypeAlias = tuple[str, str, int]
"""Queue, stream and number of a claim."""

LANE_BITS: Final = 40
PARTITION_MASK: Final = (1 << LANE_BITS) - 1
OF_CLAIM: Final = 1 << LANE_BITS - 1
"""In the numbers of partitions of claims: the index by phase leaves their rows out."""
DEFAULT_LANES: Final = 1 << DEFAULT_PRIORITY
_LEASED: Final = int(Phase.LEASED)
_GROUPED: Final = 16
"""Messages of groups have lanes of their own, whose numbers follow those of the 16 priorities."""


class Lane:
    """The messages of one priority of a queue, of groups or of none, and what receives have found
    out about them.
    """

    __slots__ = (
        "is_grouped",
        "live_from_ms",
        "number",
        "oldest_from_ms",
        "partition",
        "priority",
        "scanned_at_ms",
    )

    is_sure = True
    """Whether nothing visible before ``live_from_ms`` can be alive, whatever happens."""

    def __init__(self, partition: int, number: int) -> None:
        self.partition = lane_of(partition, number)
        self.number = number
        self.priority = priority_of(self.partition)
        self.is_grouped = is_grouped(self.partition)
        self.forget_scan()

    def forget_scan(self) -> None:
        """Take it that any message may be alive."""
        # No message visible before this moment is alive, so receives need not look at them ...
        self.live_from_ms = 0
        # ... as was found then; with the clock set back it need not be so.
        self.scanned_at_ms = 0
        # By phase: no message that entered it before this moment is still invisible.
        self.oldest_from_ms = [0] * len(Phase)

    def scanned(self, now_ms: int, first_visible_ms: int | None, *, found_all: bool) -> None:
        """Note what a search for visible messages has found.

        Args:
            now_ms: The time.
            first_visible_ms: When the first of them became visible, None for nothing.
            found_all: Whether there were no more of them.
        """
        del found_all
        self.live_from_ms = now_ms if first_visible_ms is None else first_visible_ms
        self.scanned_at_ms = now_ms

    def leased_since(self, now_ms: int) -> None:
        """Note that messages of this lane may have been leased now."""
        oldest = self.oldest_from_ms
        oldest[_LEASED] = min(oldest[_LEASED], now_ms)

    def written(self, message: Message) -> None:
        """Note that a message was put, or given back, as it is now."""
        self.live_from_ms = min(self.live_from_ms, message.visible_at_ms)
        oldest = self.oldest_from_ms
        oldest[message.phase] = min(oldest[message.phase], message.since_ms)


class Entry:
    """A queue, the partition its messages are in, and how many there are."""

    lane_type = Lane

    __slots__ = (
        "bucket",
        "claims",
        "halts",
        "holds",
        "lanes",
        "lanes_used",
        "lapsed",
        "logged",
        "message_count",
        "partition",
        "plain",
        "queue",
        "retired",
        "scope",
        "staged",
        "streams",
        "strict",
        "timeline",
        "turns",
    )

    def __init__(
        self,
        queue: Queue,
        partition: int,
        message_count: int,
        *,
        lanes: int = DEFAULT_LANES,
        scope: int,
    ) -> None:
        self.message_count = message_count
        self.scope = scope
        self.bucket: Bucket | None = None
        self.timeline: Timeline | None = None
        """None until they are counted."""
        self.retired: int | None = None
        """Expired messages that are set aside and not removed yet; None until they are counted."""
        self.streams: dict[str, StreamBox] = {}
        self.claims: list[OpenClaimState] = []
        """Those not settled."""
        self.lapsed: list[OpenClaimState] = []
        """Those of them whose members can be received, the first to lapse first."""
        self.staged = 0
        """Messages staged for it."""
        self.halts: dict[str, GroupHalt] = {}
        """By group: those that stand still."""
        self.holds: dict[str, GroupHold] = {}
        """By group: those that sessions hold; without what was saved for them."""
        self.turns: Turns | None = None
        """Of its groups; None where there are no settings for groups, or until it is looked at."""
        self.take(queue)
        self.open_lanes(partition, lanes)

    def take(self, queue: Queue) -> None:
        """Take a queue as it is now."""
        self.queue = queue
        settings = queue.settings
        self.logged = settings.event_log
        self.strict = settings.lapsed_receipts is not LapsedReceipts.UNTIL_RETAKEN
        # Whether a receive need not ask for anything but what is visible.
        self.plain = (
            settings.failure_policy is None
            and settings.paused_until_ms is None
            and settings.max_receives_per_s is None
            and settings.groups is None
        )

    def open_lanes(self, partition: int, lanes: int) -> None:
        """Begin with the lanes of a partition, the most urgent first."""
        self.partition = partition
        self.lanes_used = lanes
        self.lanes = [self.lane_type(partition, number) for number in _numbers_in(lanes)]

    def lane(self, number: int) -> Lane:
        """Return a lane by its number; it must be open."""
        for lane in self.lanes:
            if lane.number == number:
                return lane
        raise KeyError(number)

    def written(self, message: Message) -> None:
        """Note that a message was put, or given back, as it is now."""
        self.lane(lane_number(message.priority, message.detail.group_id)).written(message)


def lane_number(priority: int, group_id: str | None) -> int:
    """Return the number of the lane for such messages, 1 to 32."""
    return priority if group_id is None else priority + _GROUPED


def lane_of(partition: int, number: int) -> int:
    """Return under what the messages of a lane are kept."""
    return partition if number == DEFAULT_PRIORITY else number << LANE_BITS | partition


def number_of(lane: int) -> int:
    """Reverse :func:`lane_of`."""
    return lane >> LANE_BITS or DEFAULT_PRIORITY


def lanes_of(partition: int, lanes_used: int) -> list[int]:
    """Return the lanes of a partition that have been used, the most urgent first."""
    return [lane_of(partition, number) for number in _numbers_in(lanes_used)]


def is_grouped(lane: int) -> bool:
    """Tell whether the messages of a lane are of groups."""
    return number_of(lane) > _GROUPED


def _numbers_in(lanes_used: int) -> list[int]:
    """Return the lanes that have been used; of a priority that of groups comes last."""
    both = ((priority, priority + _GROUPED) for priority in range(1, _GROUPED + 1))
    return [number for pair in both for number in pair if lanes_used >> number & 1]


def priority_of(lane: int) -> int:
    """Return the priority of the messages of a lane."""
    return (number_of(lane) - 1) % _GROUPED + 1


class Catalog:
    """Queues by (account, name)."""

    entry_type = Entry

    def __init__(self) -> None:
        self.by_name: dict[tuple[str, str], Entry] = {}
        """Replaced as a whole when they are read anew."""
        self._by_partition: dict[int, Entry] = {}
        self.claims: dict[int, OpenClaimState] = {}
        """Claims that are not settled, by partition."""
        self.dissolving: list[OpenClaimState] = []
        """Those of them that were given back, the oldest first."""
        self.slots: dict[int, Slot] = {}
        """What is staged, by partition."""
        self.bound: dict[tuple[str, str], dict[BoundTo, Bound]] = {}
        """Claims that are settled with a transaction, by its account and name."""
        self.servers = 1
        """Servers that give out messages of these queues; each keeps to its share of a rate."""

    def load(self, rows: list[QueueRow]) -> None:
        """Take the rows of the ``load_queues`` statement for the whole truth."""
        entries: dict[tuple[str, str], Entry] = {}
        for row in rows:
            account, name, partition, metadata, policies, settings = row[:6]
            created_at_ms, count, lanes, scope = row[6:]
            queue = Queue(
                account=account,
                name=name,
                metadata=json.loads(metadata),
                policies=policies_from_json(policies),
                settings=settings_from_json(settings),
                created_at_ms=created_at_ms,
            )
            entry = self.entry_type(queue, partition, count, lanes=lanes, scope=scope)
            before = self.by_name.get((account, name))
            if before is not None:
                entry.bucket = before.bucket
                if before.partition == partition:
                    entry.turns = before.turns
            entries[account, name] = entry
        # Each at once, because another thread may be looking something up.
        self.by_name = entries
        self._by_partition = {entry.partition: entry for entry in entries.values()}

    def rate_of(self, entry: Entry) -> float | None:
        """Return how many messages of a queue this server may give out a second; None: any."""
        rate_per_s = entry.queue.settings.max_receives_per_s
        return None if rate_per_s is None else rate_per_s / self.servers

    def add(self, entry: Entry) -> None:
        """Add a queue."""
        self.by_name[entry.queue.account, entry.queue.name] = entry
        self._by_partition[entry.partition] = entry

    def remove(self, entry: Entry) -> None:
        """Take a queue out."""
        del self.by_name[entry.queue.account, entry.queue.name]
        del self._by_partition[entry.partition]

    def move(self, entry: Entry, partition: int) -> None:
        """Give a queue a new, empty partition."""
        del self._by_partition[entry.partition]
        entry.open_lanes(partition, DEFAULT_LANES)
        entry.message_count = 0
        entry.timeline = entry.turns = None
        entry.retired = 0
        self._by_partition[partition] = entry

    def find(self, account: str, name: str) -> Entry | None:
        """Return the queue, or None."""
        return self.by_name.get((account, name))

    def grouped(self, account: str, name: str) -> Entry:
        """Return a queue whose settings speak of groups.

        Raises:
            QueueNotFound: There is none of this name.
            NoGroups: Its settings do not.
        """
        entry = self.get(account, name)
        if entry.queue.settings.groups is None:
            raise NoGroups
        return entry

    def get(self, account: str, name: str) -> Entry:
        """Return the queue.

        Raises:
            QueueNotFound: There is none of this name.
        """
        try:
            return self.by_name[account, name]
        except KeyError:
            raise QueueNotFound from None

    def message_counts(self) -> list[tuple[str, str, int]]:
        """Return account, name and message count of every queue."""
        return [(*key, entry.message_count) for key, entry in list(self.by_name.items())]

    def of_partition(self, partition: int) -> Entry | None:
        """Return the queue whose messages are in a lane, or in that of a claim of it; None when it
        was dropped, or the messages are staged.
        """
        partition &= PARTITION_MASK
        entry = self._by_partition.get(partition)
        if entry is None and partition in self.claims:
            return self.claims[partition].entry
        return entry

    def entries(self) -> list[Entry]:
        """Return all queues."""
        return list(self.by_name.values())

    def poison_of(self, entry: Entry) -> Entry | None:
        """Return the poison queue of a queue, if there is one."""
        name = poison_queue_of(entry.queue.name, entry.queue.settings)
        return self.by_name.get((entry.queue.account, name))


def metadata_to_json(metadata: Mapping[str, str]) -> str:
    """Return metadata as stored."""
    return json.dumps(dict(metadata), ensure_ascii=False)


def policies_to_json(policies: tuple[AccessPolicy, ...]) -> str:
    """Return stored access policies as stored."""
    return json.dumps([asdict(policy) for policy in policies], ensure_ascii=False)


def policies_from_json(text: str) -> tuple[AccessPolicy, ...]:
    """Reverse :func:`policies_to_json`."""
    return tuple(AccessPolicy(**fields) for fields in json.loads(text))


# --- apart -------------------------------------------------------------------------------------
#
# Messages of a queue that are kept apart from the others: in claims, or staged.
#
# Each claim, and what a part of a transaction has staged for one queue, is a partition of its own.
# So a claim is opened by moving rows that hold no bodies, and settled by dropping a partition.


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
    by_scope = {entry.scope: entry for entry in catalog.entries()}
    for scope, group, *halt in fetch("load_halts"):
        by_scope[scope].halts[group] = GroupHalt(*halt)
    for scope, *hold in fetch("load_holds"):
        by_scope[scope].holds[hold[0]] = GroupHold(*hold)
    catalog.dissolving = [held for held in claims.values() if held.dissolving]


# --- timeline ----------------------------------------------------------------------------------
#
# How many messages of a queue are invisible, and until when: what makes counts exact and cheap.
#
# A message becomes visible because time passes, without anybody writing a row. So a store keeps,
# in memory, how many messages become visible in which second, by phase; everything else in the
# queue is visible. Within the running second the store looks at the few rows of that second.
#
# It takes some hundred bytes for each second in which something becomes visible.


_PHASES: Final = len(Phase)
_MS: Final = 1000


class Timeline:
    """Numbers of messages by (second in which they become visible, phase).

    Args:
        now_ms: The time; what becomes visible in this second or later is kept.
        rows: Second, phase and number of what is invisible now.
    """

    __slots__ = ("_numbers", "_reached", "ahead")

    def __init__(self, now_ms: int, rows: Iterable[tuple[int, int, int]]) -> None:
        self.ahead = [0] * _PHASES
        """By phase: how many become visible in this second or later."""
        self._reached = now_ms // _MS
        self._numbers: dict[int, int] = {}
        for second, phase, number in rows:
            key = second * _PHASES + phase
            self._numbers[key] = self._numbers.get(key, 0) + number
            self.ahead[phase] += number

    def add(self, visible_at_ms: int, phase: int, number: int) -> None:
        """Count *number* messages more, or fewer, that become visible at that time."""
        second = visible_at_ms // _MS
        if second < self._reached:
            return  # visible by now, whatever they were before
        key = second * _PHASES + phase
        left = self._numbers.get(key, 0) + number
        if left:
            self._numbers[key] = left
        else:
            del self._numbers[key]
        self.ahead[phase] += number

    def advance(self, now_ms: int) -> bool:
        """Let time pass; False if it went back, and the timeline is of no more use."""
        second = now_ms // _MS
        if second <= self._reached:
            return second == self._reached
        numbers = self._numbers
        passed: Iterable[int] = range(self._reached * _PHASES, second * _PHASES)
        if len(numbers) < (second - self._reached) * _PHASES:
            passed = [key for key in numbers if key < second * _PHASES]
        for key in passed:
            number = numbers.pop(key, 0)
            if number:
                self.ahead[key % _PHASES] -= number
        self._reached = second
        return True

    def in_this_second(self) -> list[int]:
        """Return, by phase, how many become visible in the second reached."""
        first = self._reached * _PHASES
        return [self._numbers.get(first + phase, 0) for phase in range(_PHASES)]
