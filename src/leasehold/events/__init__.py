"""The event log beyond the store: Parquet files, reading them, and the story of a message.

The layout is described in ``docs/reference/event-log.md``. Only :func:`read` and the modules that
it uses need pyarrow (the extra ``arrow``); :mod:`leasehold.events.trace` needs nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from leasehold.events.names import FormatTooNew

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FormatTooNew", "read"]


def read(  # noqa: PLR0913 - keyword-only, and each is a condition of its own
    folder: str | Path,
    *,
    message_id: str | None = None,
    account: str | None = None,
    queue: str | None = None,
    since_ms: int | None = None,
    until_ms: int | None = None,
) -> pa.Table:
    """Read exported events in their order.

    Only folders of the hours asked for are opened, and of a file only the row groups that can hold
    the message asked for.

    Args:
        folder: What the server's setting ``events_folder`` names.
        message_id: Only events of this message.
        account: Only events of this account.
        queue: Only events of queues of this name.
        since_ms: Only events of this moment and later, Unix milliseconds.
        until_ms: Only events before this moment, Unix milliseconds.

    Returns:
        A ``pyarrow.Table`` with the columns of ``docs/reference/event-log.md``, ordered by ``seq``
        and ``place``. Columns that an older file does not have are null for its events.

    Raises:
        ImportError: pyarrow is not installed.
        FileNotFoundError: There is no such folder.
        FormatTooNew: A file was written by a newer version in a way that this one could
            misunderstand.
    """
    # Late, because the library is large and most who import this package do not read files.
    from leasehold.events.parquet import read_table  # noqa: PLC0415

    return read_table(
        Path(folder),
        message_id=message_id,
        account=account,
        queue=queue,
        since_ms=since_ms,
        until_ms=until_ms,
    )
