"""Completing messages in PostgreSQL: a run with one statement."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

from leasehold.domain.ids import id_to_blob
from leasehold.stores.postgres.cursor import array_of
from leasehold.stores.sql.completing import CompleteVerb, Completion, Removed, removed_of

_PACK: Final = Struct(">qq").pack


class SharedCompleteVerb(CompleteVerb):
    """Removes messages whose work is done."""

    def _remove_each(self, plans: Sequence[Completion], now_ms: int) -> dict[int, Removed]:
        """Remove messages; the statement that deletes also checks the receipts."""
        keys: list[int] = []
        wanted: list[bytes] = []
        strict: list[int] = []
        fences: dict[int, int] = {}
        for row_key, partition, fence, message_id, is_strict in plans:
            try:
                blob = id_to_blob(message_id)
            except ValueError:
                continue
            fences[row_key] = fence
            keys.append(row_key)
            wanted.append(blob + _PACK(fence, partition))
            if is_strict:
                strict.append(row_key)
        if not keys:
            return {}
        bounds = array_of(keys), array_of(wanted), now_ms, array_of(strict)
        rows = self._state.fetch("complete_run", bounds)
        return {row[0]: removed_of(row, fences[row[0]]) for row in rows}
