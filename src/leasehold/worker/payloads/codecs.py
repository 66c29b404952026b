"""What bodies mean: from values to bytes, and back.

A codec that cannot read a body says so with a ValueError; the message is then set aside with that
as the reason, since another try would find the same bytes.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

T = TypeVar("T")


class CodecProblem(ValueError):
    """A body is not what its codec reads."""


class Codec(Protocol):
    """Reads and writes bodies of one kind. May be used by several threads at once."""

    @property
    def content_type(self) -> str:
        """The media type of what it writes."""
        ...

    def encode(self, value: Any) -> bytes:
        """Return the body for a value.

        Raises:
            TypeError: It is not of the kind.
        """
        ...

    def decode(self, body: bytes) -> Any:
        """Return the value of a body.

        Raises:
            CodecProblem: It cannot be read.
        """
        ...


class BytesCodec:
    """The value is the body."""

    content_type: Final = "application/octet-stream"

    def encode(self, value: Any) -> bytes:
        """See :class:`Codec`."""
        if not isinstance(value, bytes | bytearray | memoryview):
            raise TypeError(f"bytes are needed, and this is {type(value).__name__}")
        return bytes(value)

    def decode(self, body: bytes) -> bytes:
        """See :class:`Codec`; all bodies can be read."""
        return body


class TextCodec:
    """The value is text; the body is UTF-8."""

    content_type: Final = "text/plain; charset=utf-8"

    def encode(self, value: Any) -> bytes:
        """See :class:`Codec`."""
        if not isinstance(value, str):
            raise TypeError(f"text is needed, and this is {type(value).__name__}")
        return value.encode()

    def decode(self, body: bytes) -> str:
        """See :class:`Codec`."""
        try:
            return body.decode()
        except UnicodeDecodeError as error:
            raise CodecProblem(f"the body is not UTF-8: {error}") from error


class JsonCodec:
    """The value is what JSON can say; NaN and infinity are not."""

    content_type: Final = "application/json"

    def encode(self, value: Any) -> bytes:
        """See :class:`Codec`."""
        try:
            text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
            return text.encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(f"not representable in JSON: {error}") from error

    def decode(self, body: bytes) -> Any:
        """See :class:`Codec`."""
        try:
            return json.loads(body, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise CodecProblem(f"the body is not JSON: {error}") from error


class TypedCodec(Generic[T]):
    """The value is of a type that is checked while the body is read; needs ``msgspec``.

    Args:
        of: What msgspec understands: a Struct, a dataclass, a TypedDict, ``list[int]``...
        form: How the body is written.
        strict: Refuse what would have to be converted, such as "7" where a number belongs.

    Raises:
        ImportError: msgspec is not installed.
    """

    def __init__(
        self, of: type[T], *, form: Literal["json", "msgpack"] = "json", strict: bool = True
    ) -> None:
        import msgspec  # noqa: PLC0415 - an extra

        module: Any = msgspec.json if form == "json" else msgspec.msgpack
        self._of = of
        self._write: Callable[[Any], bytes] = module.Encoder().encode
        self._read: Callable[[bytes], T] = module.Decoder(of, strict=strict).decode
        self._wrong: tuple[type[Exception], ...] = (
            msgspec.MsgspecError,
            ValueError,
            RecursionError,
        )
        self._form = form

    @property
    def content_type(self) -> str:
        """See :class:`Codec`."""
        return f"application/{self._form}"

    def encode(self, value: T) -> bytes:
        """See :class:`Codec`. Whether the value is of the type is seen when it is read."""
        try:
            return self._write(value)
        except self._wrong as error:
            raise TypeError(f"{self._form} cannot represent it: {error}") from error

    def decode(self, body: bytes) -> T:
        """See :class:`Codec`."""
        try:
            return self._read(body)
        except self._wrong as error:
            raise CodecProblem(
                f"the body is no {getattr(self._of, '__name__', self._of)}: {error}"
            ) from error


_NAMED: Final[dict[str, Callable[[], Codec]]] = {
    "bytes": BytesCodec,
    "json": JsonCodec,
    "text": TextCodec,
}


def codec_named(name: str) -> Codec:
    """Return the codec "bytes", "json" or "text".

    Raises:
        ValueError: There is none of that name.
    """
    try:
        return _NAMED[name]()
    except KeyError:
        raise ValueError(f"{name!r} is not a codec; the codecs are {', '.join(_NAMED)}") from None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


# --- compression -------------------------------------------------------------------------------


MARKER: Final = "leasehold.zlib"
"""Bodies made smaller with zlib, where the sender and all readers know of it.

A compressed body is JSON, so that it is text for any service and any SDK::

    {"leasehold.zlib": 1, "size": 123456, "data": "<base64 of the zlib stream>"}

``size`` is that of the body, in bytes. Base64 costs a third: text that zlib makes five times
smaller ends up about four times smaller.
"""
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
        raise CodecProblem(f"the compressed body declares {size} bytes; at most {most_bytes}")
    try:
        packed = base64.b64decode(found["data"], validate=True)
        unpacking = zlib.decompressobj()
        # One byte more than promised is enough to see that the promise is broken.
        unpacked = unpacking.decompress(packed, size + 1)
    except (ValueError, zlib.error) as error:
        raise CodecProblem(f"the compressed body is damaged: {error}") from error
    if len(unpacked) != size or not unpacking.eof or unpacking.unused_data:
        raise CodecProblem(f"the compressed body does not have the {size} bytes that it declares")
    return unpacked


def _looks_compressed(body: bytes) -> bool:
    try:
        return marked(body, MARKER, VERSION, _MEMBERS) is not None
    except ValueError:
        return True


# --- marked ------------------------------------------------------------------------------------
#
# JSON objects that stand in for a body, told from bodies by a marker with a version.


def marked(body: bytes, marker: str, version: int, members: Mapping[str, type]) -> Any:
    """Return the members of *body* if it is exactly such an object, otherwise None.

    Args:
        body: Any body.
        marker: The member that holds the version.
        version: The highest that can be read.
        members: The others, all of which must be there, with their types.

    Raises:
        ValueError: It is of a higher version.
    """
    # Nearly all bodies end here: a search costs less than to parse each as JSON.
    if marker.encode() not in body:
        return None
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or type(found.get(marker)) is not int or found[marker] < 1:
        return None
    if found[marker] > version:
        raise ValueError(
            f"the body is in version {found[marker]} of {marker!r}; this reads up to {version}"
        )
    if found.keys() != {marker, *members}:
        return None
    # bool is an int as well, and never what is meant.
    right = all(type(found[name]) is kind for name, kind in members.items())
    return found if right else None
