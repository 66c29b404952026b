"""The event log in memory: a list of what each batch changed."""

from __future__ import annotations

from typing import NamedTuple

from leasehold.domain import commands as c
from leasehold.domain import events as e
from leasehold.domain.event_log import Collected, Recorder

_BYTES_PER_EVENT = 100


class _Batch(NamedTuple):
    """The events of one batch."""

    seq: int
    at_ms: int
    collected: Collected


class EventVerbs:
    """Each method carries out one command."""

    def __init__(self, log: Recorder) -> None:
        self._log = log
        self._batches: list[_Batch] = []
        self._last_seq = 0
        self._notes: dict[str, str] = {}

    def write(self, now_ms: int) -> None:
        """Keep what was recorded of a batch."""
        collected = self._log.take()
        if collected.events:
            self._last_seq += 1
            self._batches.append(_Batch(self._last_seq, now_ms, collected))

    def read(self, command: e.ReadEvents) -> c.Result:
        """Read events in their order."""
        found: list[e.Event] = []
        reached = command.after_seq
        for batch in self._batches:
            if batch.seq <= command.after_seq:
                continue
            if len(found) >= command.limit:
                return e.EventPage(tuple(found), reached, finished=False)
            reached = batch.seq
            found += [
                event
                for event in _events_in(batch)
                if command.message_id in {None, event.message_id}
                and command.account in {None, event.account}
            ]
        return e.EventPage(tuple(found), reached, finished=True)

    def extent(self, _command: e.LogExtent) -> c.Result:
        """Say how much log there is."""
        if not self._batches:
            return e.Extent(0, 0, 0, None)
        first = self._batches[0]
        events = sum(len(batch.collected.events) for batch in self._batches)
        return e.Extent(first.seq, self._last_seq, events * _BYTES_PER_EVENT, first.at_ms)

    def trim(self, command: e.TrimEvents) -> c.Result:
        """Forget the oldest batches; the last one stays."""
        old = [batch for batch in self._batches[:-1] if batch.seq <= command.upto_seq]
        count = min(len(old), command.limit)
        del self._batches[:count]
        return c.Swept(count)

    def keep_note(self, command: e.KeepNote) -> c.Result:
        """Keep a text."""
        self._notes[command.name] = command.content
        return c.DONE

    def read_note(self, command: e.ReadNote) -> c.Result:
        """Read a text."""
        return e.Note(self._notes.get(command.name))


def _events_in(batch: _Batch) -> list[e.Event]:
    of, events = batch.collected
    return [
        e.event_of(batch.seq, place, batch.at_ms, of[recorded[1]], recorded)
        for place, recorded in enumerate(events)
    ]
