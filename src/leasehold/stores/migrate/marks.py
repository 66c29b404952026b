"""Marks that keep a store from being served while, or after, its messages have gone elsewhere.

Two copies of the same messages must never be served. So the store that messages left is marked
before the store that they went to can be used, each in the transaction that makes it true.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from leasehold.domain.errors import StoreFailed, Unavailable
from leasehold.domain.model import KEY_BYTES
from leasehold.stores.migrate.ends import End, MoveRefused

MARK: Final = "move"
"""Name under which a store keeps its mark."""
ARRIVED: Final = "arrived:"
"""Before the id of a move that has come to its end here."""
AWAY: Final = "away:"
"""Before the name of an account that has left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Why a store must not be served.

    Attributes:
        role: ``moved``: the messages are elsewhere; ``arriving``: they are not here yet.
        move_id: Of the move.
        other: The other store, for people; without a password.
        account: The account that moves; None for all that is in the store.
        at_ms: When the mark was made, Unix ms.
    """

    role: Literal["moved", "arriving"]
    move_id: str
    other: str
    account: str | None
    at_ms: int

    def text(self) -> str:
        """Return it as it is kept."""
        return json.dumps(asdict(self))

    def reason(self) -> str:
        """Say it to people, with what to do."""
        what = "what was in this store" if self.account is None else f"account {self.account}"
        if self.role == "arriving":
            return (
                f"a move of {what} from {self.other} to this store was not finished, and "
                f"{self.other} is complete: run the same move again, or cancel it with leasehold "
                "store undo"
            )
        if self.account is None:
            return (
                f"its messages were moved to {self.other}: serve that store. If the move was not "
                "finished, run it again; to return to this store, see leasehold store undo"
            )
        return (
            f"account {self.account} is being moved to {self.other}: run the same leasehold store "
            "move-account again to finish the move, or cancel it with leasehold store undo"
        )


class StoreMoved(StoreFailed):
    """The store is marked, and must not be served."""

    def __init__(self, mark: Mark) -> None:
        super().__init__()
        self.args = (mark.reason(),)
        self.mark = mark


class AccountMoving(Unavailable):
    """An account is about to leave the store; until then no client is served from it."""

    def __init__(self, mark: Mark) -> None:
        super().__init__()
        self.args = (mark.reason(),)
        self.mark = mark


def mark_in(meta: Mapping[str, Any]) -> Mark | None:
    """Return the mark among the values that a store keeps of itself, if there is one."""
    kept = meta.get(MARK)
    if kept is None:
        return None
    return Mark(**json.loads(kept))


def refuse_marked(meta: Mapping[str, Any]) -> None:
    """Refuse to go on with a store that is marked.

    Raises:
        StoreMoved: It is.
        AccountMoving: It is for a moment only.
    """
    mark = mark_in(meta)
    if mark is None:
        return
    if mark.role == "moved" and mark.account is not None:
        raise AccountMoving(mark)
    raise StoreMoved(mark)


def relocated_in(meta: Mapping[str, Any]) -> frozenset[str]:
    """Return the accounts that have left the store."""
    return frozenset(name.removeprefix(AWAY) for name in meta if name.startswith(AWAY))


# --- restored ----------------------------------------------------------------------------------
#
# Telling a store that it was restored from a backup.
#
# Such a store counts on from an earlier state: messages are leased again under numbers that were
# given out since, and streams get tokens that consumers have. So it begins a new *epoch*: receipts
# are sealed with another key from now on, which makes all earlier ones void, and tokens are higher
# than any of before. A store in a folder mostly notices by itself. One in PostgreSQL has nothing
# beside it that it could be compared with, so a person has to say it.


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
