"""The embedded store: one SQLite file in WAL mode, synchronous=FULL."""

from leasehold.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
