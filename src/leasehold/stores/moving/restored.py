"""Telling a store that it was put back from a copy.

Such a store counts on from an earlier state: messages are leased again under numbers that were
given out since, and streams get tokens that somebody has. So it begins a new *epoch*: receipts are
sealed with another key from now on, which makes all earlier ones void, and tokens are higher than
any of before. A store in a folder mostly notices by itself. One in PostgreSQL has nothing beside it
that it could be compared with, so a person has to say it.
"""

from __future__ import annotations

import secrets
from typing import Final

from leasehold.domain.receipts import KEY_BYTES
from leasehold.stores.moving.ends import End, MoveRefused
from leasehold.stores.moving.marks import mark_in

EPOCH_BITS: Final = 32
"""Tokens are drawn from 2**32 of each epoch."""


def begin_epoch(store: End) -> int:
    """Begin a new epoch in a store; servers that run take it up with their next batch.

    Returns:
        Its number.

    Raises:
        MoveRefused: There is none, or it must not be served; nothing was changed.
    """
    if "receipt_key" not in store.meta():
        raise MoveRefused(f"{store.shown} has never been served")
    try:
        store.lock()
        meta = store.meta()
        mark = mark_in(meta)
        if mark is not None:
            raise MoveRefused(f"{store.shown} must not be served: {mark.reason()}")
        before = int(meta.get("epoch", 1))
        store.set_meta("epoch", before + 1)
        store.set_meta("receipt_key", secrets.token_bytes(KEY_BYTES))
        store.set_meta("last_token", max(int(meta.get("last_token", 0)), before << EPOCH_BITS))
        store.commit()
    finally:
        store.roll_back()
    return before + 1
