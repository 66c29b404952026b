"""The PostgreSQL store: any number of servers on one database.

Each transaction takes its locks in this order, so that no two wait for each other:

1. the table ``change``: a batch that shares the store in ROW SHARE mode, one that has it to itself
   in EXCLUSIVE mode, a migration in ACCESS EXCLUSIVE mode;
2. the row of ``change``, by whoever counts it up;
3. deduplication keys (advisory), in the order of their hashes;
4. the messages that commands name, in the order of their row keys;
5. what a receive takes: groups (advisory) and messages that are visible; it passes over what is
   locked, but waits for the first messages of a group;
6. ``session_heard``, ``session_sign``, and last ``counted`` and ``agreed``, in the order of keys.
"""

from leasehold.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
