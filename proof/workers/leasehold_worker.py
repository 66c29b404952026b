"""Leasehold's own worker; ``progress`` as an argument makes it save its steps, ``azure`` makes
it speak Azure's protocol.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from leasehold.worker import LeaseSettings, PoisonRule, RetryRule, Worker
from proof.workers.work import LEASE_S, MAX_ATTEMPTS, QUEUE, work

if TYPE_CHECKING:
    from leasehold.worker import Message


def handle(message: Message) -> None:
    """Do the work at once."""
    work(message.text)


def handle_in_steps(message: Message) -> None:
    """Do the work in steps, as many as the text says if it does, and save each."""
    kind, _, count = message.text.partition(":")
    if kind != "steps":
        work(message.text)
        return
    done = message.saved.state["done"] if message.saved else 0
    for step in range(done + 1, int(count) + 1):
        work(message.text, step)
        message.checkpoint({"done": step})


def main() -> None:
    """Work until told to stop."""
    scheme = "azure" if "azure" in sys.argv else "leasehold"
    Worker(
        handle_in_steps if "progress" in sys.argv else handle,
        f"{scheme}:///{QUEUE}",
        concurrency=4,
        lease=LeaseSettings.of(LEASE_S),
        poison=PoisonRule(max_failures=MAX_ATTEMPTS),
        retries=RetryRule(initial_s=0.2, cap_s=1),
    ).run()


if __name__ == "__main__":
    main()
