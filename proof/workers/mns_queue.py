"""What a worker needs of a queue, over the SDK of MNS: the calls and errors of the native client.

So that a worker here can speak either. It makes documented calls of the SDK only. An account of the
SDK has one connection, which threads must not share, so each thread gets one of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from mns.account import Account
from mns.mns_exception import MNSExceptionBase
from mns.queue import Message

from leasehold.client.errors import LeaseholdClientError, MessageNotFound, Problem
from proof.workers.work import MNS_ENDPOINT, MNS_KEY_ID, MNS_SECRET

_AT_ONCE_S: Final = 1
"""The shortest lease there is: nothing can be given back sooner."""
_GONE: Final = "message-not-found"


@dataclass(frozen=True, slots=True)
class Received:
    """A message on a lease."""

    text: str
    handle: str
    dequeue_count: int
    saved: dict[str, Any] | None = None
    """Always None: the body of a message cannot be changed."""


class MnsQueue:
    """A queue of MNS; threads may share it.

    Args:
        name: Of the queue.
        encodes: Whether bodies are in Base64.
    """

    def __init__(self, name: str, *, encodes: bool) -> None:
        self._name = name
        self._encodes = encodes
        self._local = threading.local()

    def receive(self, count: int, *, visibility_timeout_s: int) -> list[Received]:
        """Return up to so many messages, none if there are none.

        Args:
            count: 1 to 16.
            visibility_timeout_s: That of the queue, which MNS goes by.
        """
        del visibility_timeout_s
        with self._asked() as queue:
            try:
                found = queue.batch_receive_message_with_str_body(count, 0)
            except MNSExceptionBase as error:
                if error.type == "MessageNotExist":
                    return []
                raise
        return [Received(m.message_body, m.receipt_handle, m.dequeue_count) for m in found]

    def renew(self, message: Received, visibility_timeout_s: int) -> Received:
        """Return the message on its new lease, whose handle is another."""
        with self._asked() as queue:
            changed = queue.change_message_visibility(message.handle, visibility_timeout_s)
        return replace(message, handle=changed.receipt_handle)

    def release(self, message: Received) -> None:
        """Give a message back: others can have it in a second."""
        self.renew(message, _AT_ONCE_S)

    def complete(self, message: Received) -> None:
        """Delete a message."""
        with self._asked() as queue:
            queue.delete_message(message.handle)

    def put(self, text: str) -> None:
        """Send a message."""
        with self._asked() as queue:
            queue.send_message(Message(text))

    @contextmanager
    def _asked(self) -> Iterator[Any]:
        """Lend the SDK's object of this thread.

        Raises:
            MessageNotFound: The lease is lost, or the message gone.
            LeaseholdClientError: Anything else went wrong.
        """
        if not hasattr(self._local, "queue"):
            self._local.queue = Account(MNS_ENDPOINT, MNS_KEY_ID, MNS_SECRET).get_queue(self._name)
            self._local.queue.set_encoding(self._encodes)
        try:
            yield self._local.queue
        except MNSExceptionBase as error:
            if error.type == "MessageNotExist":
                told = Problem(code=_GONE, status=404, detail=str(error))
                raise MessageNotFound(told) from None
            raise LeaseholdClientError(str(error)) from None
