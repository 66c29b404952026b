"""What the clients of several servers on one database were told, and what must follow from it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

from leasehold.domain.model import Lease, Message


class Grant(NamedTuple):
    """Somebody was told that a message is his, or that it is not any more."""

    fence: int
    at_ms: int
    """When."""
    until_ms: int
    """Until when it is his."""
    renewed: bool
    """Whether it was his before."""


class Ledger:
    """The record of all clients; a call without an answer may have taken effect or not.

    Messages are known by their bodies, which are never written twice.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        """How often what has happened."""
        self.violations: list[str] = []
        self._grants: dict[bytes, list[Grant]] = {}
        self._put: set[bytes] = set()
        self._maybe_put: set[bytes] = set()
        self._done: set[bytes] = set()
        self._maybe_done: set[bytes] = set()

    def put(self, bodies: Iterable[bytes], *, known: bool = True) -> None:
        """Note that messages were put, or may have been."""
        with self._lock:
            before = len(self._put)
            (self._put if known else self._maybe_put).update(bodies)
            self.counts["put"] += len(self._put) - before

    def granted(self, message: Message, at_ms: int, *, renewed: bool = False) -> None:
        """Note that a message was handed out, or its lease renewed."""
        grant = Grant(message.fence, at_ms, message.visible_at_ms, renewed)
        with self._lock:
            self.counts["renewed" if renewed else "granted"] += 1
            self._grants.setdefault(message.body, []).append(grant)

    def leased(self, leases: Iterable[Lease], at_ms: int) -> None:
        """Note what a receive has handed out."""
        for lease in leases:
            self.granted(lease.message, at_ms)

    def released(self, body: bytes, fence: int, at_ms: int) -> None:
        """Note that a lease of that fence was given back, so the message is free from then on."""
        with self._lock:
            self.counts["released"] += 1
            self._grants.setdefault(body, []).append(Grant(fence + 1, at_ms, at_ms, renewed=True))

    def done(self, bodies: Iterable[bytes], *, known: bool = True) -> None:
        """Note that messages were completed, or may have been."""
        with self._lock:
            for body in bodies:
                if not known:
                    self._maybe_done.add(body)
                elif body in self._done:
                    self.violations.append(f"completed twice: {body!r}")
                else:
                    self._done.add(body)
                    self.counts["done"] += 1

    def note(self, what: str) -> None:
        """Count something."""
        with self._lock:
            self.counts[what] += 1

    def check(self, left: Mapping[bytes, int]) -> list[str]:
        """Return what must not be, given how often each body is left in the store."""
        found = list(self.violations)
        found += [f"there {times} times: {body!r}" for body, times in left.items() if times > 1]
        there = left.keys()
        lost = self._put - self._done - self._maybe_done - there
        found += [f"lost: {body!r}" for body in lost]
        found += [f"back again: {body!r}" for body in self._done & there]
        found += [f"never put: {body!r}" for body in there - self._put - self._maybe_put]
        for body, grants in self._grants.items():
            found += [f"{fault}: {body!r}" for fault in _faults(sorted(grants))]
        return found


def _faults(grants: list[Grant]) -> Iterable[str]:
    """Yield what is wrong with how one message was handed out."""
    for before, after in pairwise(grants):
        if before.fence == after.fence:
            yield f"handed out twice with fence {after.fence}"
        # With a fence between the two there was an answer that nobody got.
        follows = after.fence == before.fence + 1
        if follows and not after.renewed and after.at_ms < before.until_ms:
            yield f"handed out at {after.at_ms}, leased until {before.until_ms}"
