"""The loop that the manual of MNS shows for its SDK for Python: receive, work, delete.

Errors of the service are printed, and the loop goes on. The manual's program ends when the queue
is empty or is not there; so does this one with ``ends`` as an argument. ``batch`` makes it receive
and delete up to 16 messages at once, ``base64`` leaves the SDK's coding of bodies on, as it is
unless it is turned off.
"""

from __future__ import annotations

import sys
import time
from typing import Any, Final

from mns.account import Account
from mns.mns_exception import MNSExceptionBase

from proof.workers.work import MNS_ENDPOINT, MNS_KEY_ID, MNS_SECRET, QUEUE, work

WAIT_S: Final = 3
_BATCH: Final = 16


def receive(queue: Any) -> list[Any]:
    """Return what there is, after at most WAIT_S seconds; nothing after an error."""
    try:
        if "batch" in sys.argv:
            return list(queue.batch_receive_message_with_str_body(_BATCH, WAIT_S))
        return [queue.receive_message_with_str_body(WAIT_S)]
    except MNSExceptionBase as error:
        if error.type in {"MessageNotExist", "QueueNotExist"} and "ends" in sys.argv:
            print(f"nothing to do: {error.type}")
            sys.exit(0)
        if error.type != "MessageNotExist":
            print(f"not received: {error.type}")
            time.sleep(0.5)
        return []


def main() -> None:
    """Work until killed, or with ``ends`` until nothing is left."""
    queue = Account(MNS_ENDPOINT, MNS_KEY_ID, MNS_SECRET).get_queue(QUEUE)
    queue.set_encoding("base64" in sys.argv)
    while True:
        messages = receive(queue)
        for message in messages:
            work(message.message_body)
        try:
            if "batch" in sys.argv and messages:
                queue.batch_delete_message([each.receipt_handle for each in messages])
            for message in messages if "batch" not in sys.argv else ():
                queue.delete_message(message.receipt_handle)
        except MNSExceptionBase as error:
            print(f"not deleted: {error.type}")


if __name__ == "__main__":
    main()
