"""What bodies mean: from values to bytes, and back.

A codec that cannot read a body says so with a ValueError; the message is then set aside with that
as the reason, since another try would find the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
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
            raise TypeError(f"JSON cannot say it: {error}") from error

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
            raise TypeError(f"{self._form} cannot say it: {error}") from error

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
        raise ValueError(f"there is no codec {name!r}; there are {', '.join(_NAMED)}") from None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
