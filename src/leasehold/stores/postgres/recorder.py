"""The events of a batch, numbered by the database."""

from __future__ import annotations

from typing import cast

from leasehold.stores.sql.recorder import ENCODE, Recorder


class SharedRecorder(Recorder):
    """Collects the events of the open batch.

    A batch takes its number last, when it has locked all that it changes. So of two batches that
    changed the same message the later one has the higher number. Whoever reads the log has the
    store to himself: no lower number can appear behind his back.
    """

    def load(self) -> None:
        """Begin anew."""
        self.clear()
        rows = self._cursor.execute(self._sql["last_event_batch"]).fetchall()
        self.last_seq = cast("int", rows[0][0]) if rows else 0
        ((size,),) = self._cursor.execute(self._sql["log_size"]).fetchall()
        self.bytes_kept = cast("int", size)

    def clear(self) -> None:
        """Forget what was collected."""
        super().clear()
        self.grown = 0
        self.written: tuple[int, bytes] | None = None
        """Number and content of the last row that the open batch has written."""

    def committed(self) -> None:
        """Note that what was written stays."""
        self.grown = 0
        self.written = None

    def trimmed(self, size: int) -> None:
        """Note that so many bytes are forgotten with the open batch."""
        self.grown -= size

    def take(self) -> list[tuple[int, bytes]]:
        """Return what was collected as one row, or several if it is very much.

        Returns:
            Of each row how many events it is of, and its content.
        """
        if not self._events:
            return []
        queues = list(self._queues)
        rows = [(count, ENCODE([queues, events])) for count, events in self._rows()]
        super().clear()
        self.grown += sum(len(content) for _, content in rows)
        return rows

    def wrote(self, seq: int, content: bytes) -> None:
        """Note what number a row was given."""
        self.last_seq = seq
        self.written = seq, content
