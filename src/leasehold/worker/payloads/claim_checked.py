"""A queue whose large bodies are kept elsewhere."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from leasehold.worker.payloads.claim_check import ClaimCheck
from leasehold.worker.payloads.reference import ClaimCheckProblem, looks_like_reference
from leasehold.worker.queues.around import Around
from leasehold.worker.queues.errors import BodyTooLarge, QueueError
from leasehold.worker.queues.protocol import (
    Capabilities,
    Delivery,
    Fault,
    Lease,
    Outgoing,
    QueueClient,
    WorkerSession,
)

_log: Final = logging.getLogger("leasehold.worker.payloads")
_REMEMBERED: Final = 10_000


class ClaimChecked(Around):
    """A queue client that puts large bodies elsewhere, and removes them after completion.

    What is received still has its reference as its body: :class:`ClaimCheckCodec` follows it when
    the handler asks for the payload. A message in the poison queue keeps its object.

    Args:
        client: The queue.
        check: Where bodies are kept.
        delete_after: Remove the object of a message once that is completed. Leave it out if the
            same reference may be in several messages.
    """

    def __init__(
        self, client: QueueClient, check: ClaimCheck, *, delete_after: bool = False
    ) -> None:
        super().__init__(client)
        self._check = check
        self._delete_after = delete_after
        self._lock = threading.Lock()
        self._held: OrderedDict[str, bytes] = OrderedDict()
        """References of messages that were received, by their ids."""

    @property
    def capabilities(self) -> Capabilities:
        """Those of the service, with the limit of what can be kept elsewhere."""
        return replace(self.client.capabilities, max_body_bytes=self._check.max_bytes)

    def put(self, messages: Sequence[Outgoing]) -> list[QueueError | None]:
        """Put messages; the objects of large ones are written first.

        Raises:
            QueueError: Nothing was put.
            OSError: An object could not be written; nothing was put.
        """
        outcomes: list[QueueError | None] = [None] * len(messages)
        sent: dict[int, Outgoing] = {}
        written: dict[int, bytes] = {}
        try:
            for place, each in enumerate(messages):
                body = each.body.encode() if isinstance(each.body, str) else each.body
                try:
                    kept = self._check.put(body)
                except ValueError as error:
                    outcomes[place] = BodyTooLarge(str(error))
                    continue
                if kept is not body:
                    written[place] = kept
                sent[place] = replace(each, body=kept) if place in written else each
            answers = super().put(list(sent.values())) if sent else []
        except BaseException as error:
            if not _may_have_arrived(error):
                self._delete_all(written.values())
            raise
        for place, answer in zip(sent, answers, strict=True):
            outcomes[place] = answer
            if answer is not None and place in written and not _may_have_arrived(answer):
                self._delete(written[place])
        return outcomes

    def receive(
        self,
        max_messages: int,
        *,
        visibility_timeout_s: int,
        wait_s: float = 0,
        holder: str | None = None,
        session: WorkerSession | None = None,
    ) -> list[Delivery]:
        """Lease messages; bodies that are kept elsewhere are not fetched."""
        received = super().receive(
            max_messages,
            visibility_timeout_s=visibility_timeout_s,
            wait_s=wait_s,
            holder=holder,
            session=session,
        )
        if self._delete_after:
            with self._lock:
                for each in received:
                    if looks_like_reference(each.body):
                        self._held[each.message_id] = each.body
                # A message that was lost is never completed here. What is forgotten is swept.
                while len(self._held) > _REMEMBERED:
                    self._held.popitem(last=False)
        return received

    def complete(
        self, leases: Sequence[Lease], *, timeout_s: float | None = None
    ) -> list[QueueError | None]:
        """Remove messages whose work is done, and then their objects."""
        results = super().complete(leases, timeout_s=timeout_s)
        if self._delete_after and self._held:
            for lease, result in zip(leases, results, strict=True):
                with self._lock:
                    body = self._held.pop(lease.message_id, None) if result is None else None
                if body is not None:
                    self._delete(body)
        return results

    def bury(
        self, delivery: Delivery, receipt: str, fault: Fault, *, timeout_s: float | None = None
    ) -> None:
        """Move a message to the poison queue; its object stays."""
        super().bury(delivery, receipt, fault, timeout_s=timeout_s)
        with self._lock:
            self._held.pop(delivery.message_id, None)

    def _delete_all(self, bodies: Iterable[bytes]) -> None:
        for each in bodies:
            self._delete(each)

    def _delete(self, body: bytes) -> None:
        try:
            self._check.delete(body)
        except ClaimCheckProblem:
            return  # a forged reference: it is nothing of ours
        except Exception:  # noqa: BLE001 - the message is settled; the object is swept some day
            _log.warning("object_not_removed", exc_info=True, extra={"queue": self.name})


def _may_have_arrived(error: BaseException) -> bool:
    """Return whether a message may have been put although there is an error."""
    if isinstance(error, QueueError):
        return error.outcome_unknown
    return not isinstance(error, OSError)
