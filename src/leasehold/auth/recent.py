"""A small bounded memory of what was verified lately."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Keeps at least the *capacity* entries used last, and at most twice as many.

    Two generations of a dictionary: when the young one is full it becomes the old one, and what
    stood in the old one unused is forgotten. A hit costs one look-up, not a list operation.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        """Return what was kept under *key*, or None."""
        value = self._young.get(key)
        if value is None and self._old:
            value = self._old.get(key)
            if value is not None:
                self.keep(key, value)
        return value

    def keep(self, key: K, value: V) -> None:
        """Keep *value* under *key*."""
        if len(self._young) >= self._capacity:
            self._old, self._young = self._young, {}
        self._young[key] = value

    def __len__(self) -> int:
        return len(self._young.keys() | self._old.keys())
