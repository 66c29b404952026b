"""Bodies made smaller with zlib, where the sender and all readers know of it.

A compressed body is JSON, so that it is text for any service and any SDK::

    {"leasehold.zlib": 1, "size": 123456, "data": "<base64 of the zlib stream>"}

``size`` is that of the body, in bytes. Base64 costs a third: text that zlib makes five times
smaller ends up about four times smaller.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any, Final

from leasehold.worker.payloads.codecs import Codec, CodecProblem
from leasehold.worker.payloads.marked import marked

MARKER: Final = "leasehold.zlib"
VERSION: Final = 1
_MEMBERS: Final = {"size": int, "data": str}


class Compressed:
    """A codec around another one that compresses its larger bodies. It reads plain ones as well.

    Args:
        codec: Writes and reads the bodies.
        min_bytes: Smaller bodies are left alone, and so are those that would not get smaller.
        most_bytes: A body that would be larger than that is not unpacked: it has been made to fill
            the memory.
        level: Of zlib, 1 (fast) to 9 (small).
    """

    def __init__(
        self,
        codec: Codec,
        *,
        min_bytes: int = 1024,
        most_bytes: int = 64 * 1024 * 1024,
        level: int = 6,
    ) -> None:
        self._codec = codec
        self._min_bytes = min_bytes
        self._most_bytes = most_bytes
        self._level = level

    @property
    def content_type(self) -> str:
        """That of the bodies inside."""
        return self._codec.content_type

    def encode(self, value: Any) -> bytes:
        """Return the body for a value, compressed if that is worth it."""
        body = self._codec.encode(value)
        # A body that looks compressed would be unpacked by its reader: it has to be wrapped.
        must = _looks_compressed(body)
        if len(body) < self._min_bytes and not must:
            return body
        packed = compress(body, self._level)
        return packed if must or len(packed) < len(body) else body

    def decode(self, body: bytes) -> Any:
        """Return the value of a body, compressed or not.

        Raises:
            CodecProblem: It cannot be unpacked or read, or is over the limit.
        """
        return self._codec.decode(decompress(body, most_bytes=self._most_bytes))


def compress(body: bytes, level: int = 6) -> bytes:
    """Return *body* in the compressed form."""
    data = base64.b64encode(zlib.compress(body, level)).decode()
    form = {MARKER: VERSION, "size": len(body), "data": data}
    return json.dumps(form, separators=(",", ":")).encode()


def decompress(body: bytes, *, most_bytes: int) -> bytes:
    """Return what is in *body* if it is of the compressed form, otherwise *body*.

    Raises:
        CodecProblem: It is of that form, and damaged, of a later version or over *most_bytes*.
    """
    try:
        found = marked(body, MARKER, VERSION, _MEMBERS)
    except ValueError as error:
        raise CodecProblem(str(error)) from error
    if found is None:
        return body
    size = found["size"]
    if not 0 <= size <= most_bytes:
        raise CodecProblem(f"the compressed body says it has {size} bytes; at most {most_bytes}")
    try:
        packed = base64.b64decode(found["data"], validate=True)
        unpacking = zlib.decompressobj()
        # One byte more than promised is enough to see that the promise is broken.
        unpacked = unpacking.decompress(packed, size + 1)
    except (ValueError, zlib.error) as error:
        raise CodecProblem(f"the compressed body is damaged: {error}") from error
    if len(unpacked) != size or not unpacking.eof or unpacking.unused_data:
        raise CodecProblem(f"the compressed body does not have the {size} bytes that it says")
    return unpacked


def _looks_compressed(body: bytes) -> bool:
    try:
        return marked(body, MARKER, VERSION, _MEMBERS) is not None
    except ValueError:
        return True
