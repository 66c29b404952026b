"""Keys of large bodies in memory: which of them no message refers to any more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from leasehold.domain import bodies as b
from leasehold.domain import commands as c
from leasehold.domain.types import Message
from leasehold.stores.memory.shelves import Shelves
from leasehold.stores.memory.staging import StagingVerbs


class BodyVerbs:
    """Each method carries out one command."""

    def __init__(self, shelves: Shelves, staging: StagingVerbs) -> None:
        self._shelves = shelves
        self._staging = staging

    def garbage(self, command: b.ReadBodyGarbage) -> c.Result:
        """List keys of bodies whose messages are gone."""
        unused = self._shelves.body_keys - _keys_of(self._messages())
        return b.BodyKeys(tuple(sorted(unused)[: command.limit]))

    def forget(self, command: b.ForgetBodyGarbage) -> c.Result:
        """Forget keys whose bodies have been removed."""
        self._shelves.body_keys -= set(command.keys) - _keys_of(self._messages())
        return c.DONE

    def known(self, command: b.KnownBodies) -> c.Result:
        """Tell which of some keys a message refers to."""
        used = _keys_of(self._messages())
        return b.BodyKeys(tuple(key for key in command.keys if key in used))

    def _messages(self) -> Iterator[Message]:
        for shelf in self._shelves.queues.values():
            yield from shelf.rows.values()
            yield from shelf.retired.values()
        yield from self._shelves.dropped
        yield from self._staging.messages()


def _keys_of(messages: Iterable[Message]) -> set[str]:
    refs = (message.detail.body_ref for message in messages)
    return {ref.key for ref in refs if ref is not None}
