"""Leasehold's own worker; ``progress`` as an argument makes it save its steps, ``azure`` makes
it speak Azure's protocol, ``mns`` that of MNS. With ``base64`` bodies are in Base64 there.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from leasehold.worker import LeaseSettings, PoisonRule, RetryRule, Worker
from proof.workers.work import LEASE_S, MAX_ATTEMPTS, MNS_ENDPOINT, QUEUE, work

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
    encoding = "base64" if "base64" in sys.argv else "none"
    address = f"leasehold:///{QUEUE}"
    if "azure" in sys.argv:
        address = f"azure:///{QUEUE}?encoding={encoding}"
    elif "mns" in sys.argv:
        address = f"mns+{MNS_ENDPOINT}/{QUEUE}?encoding={encoding}"
    Worker(
        handle_in_steps if "progress" in sys.argv else handle,
        address,
        concurrency=4,
        lease=LeaseSettings.of(LEASE_S),
        poison=PoisonRule(max_failures=MAX_ATTEMPTS),
        retries=RetryRule(initial_s=0.2, cap_s=1),
    ).run()


if __name__ == "__main__":
    main()
