"""Deduplication keys in a database."""

from __future__ import annotations

from collections.abc import Iterable

from leasehold.domain import commands as c
from leasehold.domain.ids import id_from_blob, id_to_blob, row_key_of
from leasehold.domain.receipts import issue_receipt
from leasehold.domain.types import Message
from leasehold.stores.sql.catalog import Entry
from leasehold.stores.sql.state import State


def first_with(state: State, entry: Entry, key: str, now_ms: int) -> c.Duplicate | None:
    """Return the message that has used a deduplication key, if its window is open."""
    rows = state.fetch("find_key", (entry.scope, key, now_ms))
    if not rows:
        return None
    blob, inserted_at_ms, expires_at_ms, visible_at_ms = rows[0]
    message_id = id_from_blob(blob)
    row_key = row_key_of(message_id)
    assert row_key is not None
    receipt = issue_receipt(state.receipt_key, row_key, 0)
    return c.Duplicate(message_id, receipt, inserted_at_ms, expires_at_ms, visible_at_ms)


def claim_keys(state: State, entry: Entry, lanes: Iterable[int], now_ms: int) -> list[int]:
    """Remember the keys of staged rows that are about to be published to a queue.

    Returns:
        Row keys of those that are not to be published, as a message has used their key before.
    """
    lanes = tuple(lanes)
    window_s = entry.queue.settings.dedup_window_s
    if window_s:
        until_ms = now_ms + window_s * 1000
        bounds = state.keys_of(lanes), now_ms, entry.scope, until_ms
        state.cursor.execute(state.sql["keep_staged_keys"], bounds)
    found = state.fetch("staged_duplicates", (state.keys_of(lanes), now_ms, entry.scope))
    return [row_key for (row_key,) in found]


def keep_key(state: State, entry: Entry, key: str, message: Message) -> None:
    """Remember the key of a message that was put, for as long as the queue's window."""
    window_s = entry.queue.settings.dedup_window_s
    if window_s:
        bounds = (
            entry.scope,
            key,
            id_to_blob(message.message_id),
            message.inserted_at_ms,
            message.expires_at_ms,
            message.visible_at_ms,
            message.inserted_at_ms + window_s * 1000,
        )
        state.cursor.execute(state.sql["keep_key"], bounds)
