"""The way to Arrow, which is loaded when it is first asked for, and need not be installed."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Final, TypeAlias, cast

from leasehold.domain.claims import MemberColumns, MemberPage
from leasehold.domain.commands import Put
from leasehold.http.native.call import Call
from leasehold.http.native.errors import Refused, problem
from leasehold.http.native.items import PutReader
from leasehold.http.native.reading import apart

ARROW: Final = b"application/vnd.apache.arrow.stream"
"""Registered media type of the IPC streaming format."""

WriteMembers: TypeAlias = Callable[[Sequence[MemberPage | MemberColumns]], bytes]
ReadPuts: TypeAlias = Callable[[bytes, PutReader, str | None], tuple[Put, ...]]

_ARROW: Final = ARROW.decode("ascii")
_MODULE: Final = "leasehold.http.native.arrow"
_READ_AT_ONCE_BYTES: Final = 128 * 1024
"""A stream of so many bytes is read in a few milliseconds."""
_LOADED: Final[dict[str, ModuleType]] = {}


def wants_arrow(call: Call) -> bool:
    """Tell whether a request asks for an Arrow stream; anything else is answered with JSON."""
    return _ARROW in call.request.headers.get("accept", "").lower()


def brings_arrow(call: Call) -> bool:
    """Tell whether the body of a request is an Arrow stream; anything else is taken as JSON."""
    kind = call.request.headers.get("content-type", "").partition(";")[0]
    return kind.strip().lower() == _ARROW


async def writer() -> WriteMembers:
    """Return what writes messages.

    Raises:
        Refused: The library is not installed.
    """
    return cast("WriteMembers", await _find("write_members", "arrow-not-installed"))


async def reader() -> ReadPuts:
    """Return what reads messages to put.

    Raises:
        Refused: The library is not installed.
    """
    return cast("ReadPuts", await _find("read_puts", "arrow-not-taken"))


async def read_apart(
    read_puts: ReadPuts, content: bytes, reader: PutReader, queue: str | None
) -> tuple[Put, ...]:
    """Read messages to put; many of them on a thread.

    Raises:
        Refused: As *read_puts* says.
    """
    read = partial(read_puts, content, reader, queue)
    return await apart(len(content), read, at_once_bytes=_READ_AT_ONCE_BYTES)


async def _find(name: str, code: str) -> object:
    module = _LOADED.get(_MODULE)
    if module is None:
        try:
            # Loading takes some tenths of a second, in which others must not have to wait.
            module = await asyncio.to_thread(importlib.import_module, _MODULE)
        except ImportError:
            raise Refused(problem(code)) from None
        _LOADED[_MODULE] = module
    return getattr(module, name)
