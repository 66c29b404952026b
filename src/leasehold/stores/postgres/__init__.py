"""The PostgreSQL store: any number of servers on one database."""

from leasehold.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
