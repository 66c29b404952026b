"""The memory store: the pure rules and a dictionary.

It is the oracle that the other stores are compared with, so it does everything in the plainest
way, and it is good enough for people's own tests. Nothing survives the process.
"""

from leasehold.stores.memory.store import MemoryStore

__all__ = ["MemoryStore"]
