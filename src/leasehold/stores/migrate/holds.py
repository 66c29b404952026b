"""Marks in a store that keep its large bodies while a backup is under way.

A backup copies the database first and then the bodies that it names. Meanwhile messages are
completed, and the server would remove their bodies. A mark says until when it must not. It is
renewed as long as the backup runs, and ends by itself if the backup is killed.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from leasehold.disk import sync, write_file
from leasehold.stores.sql.state import HOLD_MS, is_held
from leasehold.stores.sqlite.connection import HOLD_SUFFIX, hold_ends

RENEW_S: Final = 60.0
"""Seconds between two renewals."""


class HoldFailed(Exception):
    """The mark cannot be written: the store is read-only, or belongs to another user."""


class Hold(Protocol):
    """A mark in one store."""

    def extend(self) -> None:
        """Have bodies kept for HOLD_MS from now on.

        Raises:
            HoldFailed: The mark cannot be written.
        """
        ...

    def end(self) -> None:
        """Let bodies be removed again."""
        ...


class FileHold:
    """A mark in the folder of a SQLite store, where the server alone writes to the database.

    Args:
        folder: Of the store.
        now_ms: Tells the time, Unix milliseconds.
    """

    def __init__(self, folder: Path, now_ms: Callable[[], int]) -> None:
        self._path = folder / f"backup-{secrets.token_hex(8)}{HOLD_SUFFIX}"
        self._next = self._path.with_suffix(".new")
        self._now_ms = now_ms
        for path, end_ms in hold_ends(folder):
            if not is_held(end_ms, now_ms()):  # of a backup that was killed
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)

    def extend(self) -> None:
        """See :meth:`Hold.extend`."""
        try:
            write_file(self._next, str(self._now_ms() + HOLD_MS).encode("ascii"))
            self._next.rename(self._path)
            sync(self._path.parent)
        except OSError as error:
            with contextlib.suppress(OSError):
                self._next.unlink(missing_ok=True)
            raise HoldFailed(str(error)) from error

    def end(self) -> None:
        """See :meth:`Hold.end`."""
        for path in (self._path, self._next):
            with contextlib.suppress(OSError):  # then it ends by itself
                path.unlink(missing_ok=True)


@contextmanager
def keep_bodies(hold: Hold, renew_s: float = RENEW_S) -> Iterator[None]:
    """Keep the bodies of a store; a thread renews the mark until this ends.

    Args:
        hold: Of the store.
        renew_s: Seconds between two renewals.

    Raises:
        HoldFailed: The mark cannot be written.
    """
    is_over = threading.Event()
    hold.extend()

    def renew() -> None:
        while not is_over.wait(renew_s):
            with contextlib.suppress(HoldFailed):  # the next one may go better, HOLD_MS are long
                hold.extend()

    thread = threading.Thread(target=renew, name="hold", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        hold.end()
