"""Digests of rows that do not depend on their order, and can be computed by every store.

Of each row the first seven bytes of a SHA-256 are taken as a number; the numbers are added up. The
row is written as its columns that are not bytes, in the form in which PostgreSQL keeps texts, with
a bar between them, and then those that are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any, Final, TypeAlias

from leasehold.stores.moving.tables import Kind, Table

try:
    from leasehold.stores.postgres.texts import to_kept
except ModuleNotFoundError:  # no library for PostgreSQL, so neither end is one

    def to_kept(text: str) -> str:
        """Return a text as it is kept."""
        return text


Digests: TypeAlias = dict[int, tuple[int, int]]
"""By group: how many rows, and the sum over them."""

BYTES_TAKEN: Final = 7


class Digester:
    """Adds up the rows of one table as they pass."""

    def __init__(self, table: Table) -> None:
        self._texts = [at for at, kind in enumerate(table.kinds) if kind is not Kind.BYTES]
        self._bytes = [at for at, kind in enumerate(table.kinds) if kind is Kind.BYTES]
        self._group = None if table.group is None else table.columns.index(table.group)
        self._counts: dict[int, int] = {}
        self._sums: dict[int, int] = {}

    def add(self, rows: Iterable[Sequence[Any]]) -> None:
        """Add rows up."""
        texts, blobs, at = self._texts, self._bytes, self._group
        counts, sums = self._counts, self._sums
        for row in rows:
            text = "|".join([str(row[place]) for place in texts])
            digest = sha256(to_kept(text).encode())
            for place in blobs:
                digest.update(b"|")
                digest.update(row[place])
            group = 0 if at is None else row[at]
            counts[group] = counts.get(group, 0) + 1
            number = int.from_bytes(digest.digest()[:BYTES_TAKEN])
            sums[group] = sums.get(group, 0) + number

    def result(self) -> Digests:
        """Return what came together."""
        return {group: (count, self._sums[group]) for group, count in self._counts.items()}


def in_postgres(table: Table, expressions: Sequence[str]) -> str:
    """Return the expression that computes the number of a row in PostgreSQL.

    Args:
        table: Of the row.
        expressions: What reads each of its columns.
    """
    pairs = list(zip(table.kinds, expressions, strict=True))
    texts = [f"coalesce(({each})::text, 'None')" for kind, each in pairs if kind is not Kind.BYTES]
    whole = f"convert_to(concat_ws('|', {', '.join(texts)}), 'UTF8')"
    for kind, each in pairs:
        if kind is Kind.BYTES:
            whole += f" || '|'::bytea || {each}"
    return f"('x' || encode(substr(sha256({whole}), 1, {BYTES_TAKEN}), 'hex'))::bit(56)::bigint"
