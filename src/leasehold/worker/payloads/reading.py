"""A reader that checks what it reads against what was promised."""

from __future__ import annotations

import hashlib
import io
from typing import IO, Any, Self

from leasehold.worker.payloads.reference import ClaimCheckProblem


class CheckedReader(io.RawIOBase):
    """Reads a file of a known size and digest, once and in order.

    What was read is right only once all of it was: the last read raises if it is not.

    Args:
        file: Is closed with this.
        size: Bytes that there must be.
        sha256: Digest that they must have, hexadecimal.
    """

    def __init__(self, file: IO[bytes], *, size: int, sha256: str) -> None:
        super().__init__()
        self._file = file
        self._size = size
        self._sha256 = sha256
        self._digest = hashlib.sha256()
        self._seen = 0

    @classmethod
    def of_bytes(cls, body: bytes) -> Self:
        """Return a reader of what is in memory already."""
        return cls(io.BytesIO(body), size=len(body), sha256=hashlib.sha256(body).hexdigest())

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read some of it into *buffer*.

        Raises:
            ClaimCheckProblem: It is not what was promised.
            OSError: It could not be read now.
        """
        with memoryview(buffer).cast("B") as room:
            if not len(room):
                return 0
            chunk = self._file.read(min(len(room), self._size - self._seen + 1))
            self._take(chunk)
            room[: len(chunk)] = chunk
        return len(chunk)

    def readall(self) -> bytes:
        """Read all that is left; see :meth:`readinto`."""
        chunks = []
        # One byte more than promised is enough to see that the promise is broken.
        while chunk := self._file.read(self._size - self._seen + 1):
            self._take(chunk)
            chunks.append(chunk)
        self._take(b"")
        return b"".join(chunks)

    def close(self) -> None:
        """Close the file."""
        if not self.closed:
            self._file.close()
        super().close()

    def _take(self, chunk: bytes) -> None:
        self._seen += len(chunk)
        self._digest.update(chunk)
        if chunk and self._seen < self._size:
            return
        # Who knows the size may never ask for what follows the last byte.
        if self._seen != self._size or (chunk and self._file.read(1)):
            raise ClaimCheckProblem(
                f"the object does not have the {self._size} bytes that its reference says"
            )
        if self._digest.hexdigest() != self._sha256:
            raise ClaimCheckProblem(
                "the object is not the one that was written: its digest differs"
            )
