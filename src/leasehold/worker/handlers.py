"""What a handler may be, and what it is called."""

from __future__ import annotations

import inspect
import logging
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NoReturn, TypeAlias

from leasehold.worker.adapters.protocol import NotSupported, QueueClient
from leasehold.worker.message import Message

_log: Final = logging.getLogger("leasehold.worker")
_FORKED: Final = 70
"""Exit code of a forked process that came back: EX_SOFTWARE of sysexits.h."""

Handler: TypeAlias = Callable[[Message], Any]
"""``def handle(message)`` or ``async def handle(message)``. What it returns is not looked at."""


class Handlers:
    """The handler of each queue.

    They are whoever's who gave them, and may be shared by several workers: a worker closes none. An
    object that has ``worker_ended()`` hears of its end.

    Args:
        handler: One for all queues, or one for each by the name of the queue. A pipeline with
            asynchronous stages is called by its ``acall``.
    """

    def __init__(self, handler: Handler | Mapping[str, Handler]) -> None:
        self._one = None if isinstance(handler, Mapping) else _as_called(handler)
        self._by_queue = (
            {queue: _as_called(each) for queue, each in handler.items()}
            if isinstance(handler, Mapping)
            else {}
        )

    def of(self, queue: str) -> Handler:
        """Return the handler of a queue.

        Raises:
            KeyError: There is none.
        """
        return self._by_queue[queue] if self._one is None else self._one

    def each(self) -> list[Handler]:
        """Return all of them."""
        return list(self._by_queue.values()) if self._one is None else [self._one]

    @property
    def any_async(self) -> bool:
        """Whether one of them is a coroutine function."""
        return any(is_async(each) for each in self.each())

    def queue_problems(self, clients: Sequence[QueueClient]) -> list[str]:
        """Return why handlers that ask more of a queue, such as pipelines, cannot work on one."""
        found = []
        for client in clients:
            handler = self._one or self._by_queue.get(client.name)
            ask = getattr(_owner(handler), "check_queue", None)
            try:
                if ask is not None:
                    ask(client)
            except (NotSupported, ValueError) as error:
                found.append(f"queues: {client.name}: {error}")
        return found

    def worker_ended(self) -> None:
        """Tell those who want to know, such as pipelines, that a worker calls them no more."""
        for owner in {id(owner): owner for owner in map(_owner, self.each())}.values():
            tell = getattr(owner, "worker_ended", None)
            if tell is not None:
                tell()

    def problems(self, queues: Sequence[str], *, in_processes: bool) -> list[str]:
        """Return what keeps them from being used.

        Args:
            queues: Names of the worker's queues.
            in_processes: Whether other processes must find them by their names.
        """
        found = [
            f"handler: queue {queue} has no handler"
            for queue in queues
            if self._one is None and queue not in self._by_queue
        ]
        found += [
            f"handler: {queue} has a handler but is not one of the queues"
            for queue in self._by_queue
            if queue not in queues
        ]
        for handler in self.each():
            if not callable(handler):
                found.append(f"handler: {handler!r} cannot be called")
            elif in_processes and (reason := not_portable(handler)) is not None:
                found.append(
                    f"handler: {name_of(handler)} cannot be found by its name in another process,"
                    f' which runner="processes" needs: {reason}'
                )
        return found


def _as_called(handler: Handler) -> Handler:
    acall = getattr(handler, "acall", None)
    if getattr(handler, "is_async", False) is True and inspect.iscoroutinefunction(acall):
        return acall
    return handler


def _owner(handler: Any) -> Any:
    """Return the object whose method a handler is, or the handler itself."""
    return getattr(handler, "__self__", handler)


def is_async(handler: Handler) -> bool:
    """Return whether a handler is a coroutine function, or an object that is called like one."""
    while isinstance(handler, partial):
        handler = handler.func
    if inspect.iscoroutinefunction(handler):
        return True
    return inspect.iscoroutinefunction(type(handler).__call__)


def call(handler: Handler, message: Message) -> None:
    """Call a handler that is no coroutine function.

    Raises:
        TypeError: It returned a coroutine: its work would never be done.
    """
    with _one_process(handler):
        returned = handler(message)
    if returned is not None and inspect.iscoroutine(returned):
        returned.close()
        raise TypeError(f"{name_of(handler)} returned a coroutine; make it async def")


async def call_async(handler: Handler, message: Message) -> None:
    """Call a handler that is a coroutine function."""
    with _one_process(handler):
        await handler(message)


@contextmanager
def _one_process(handler: Handler) -> Iterator[None]:
    """End a child that the handler has forked, and that comes back instead of exiting.

    It would settle the message and receive more: a second worker, with the connections of the
    first.
    """
    process = os.getpid()
    try:
        yield
    finally:
        if os.getpid() != process:
            _leave(handler, sys.exception())


def _leave(handler: Handler, error: BaseException | None) -> NoReturn:
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    else:
        code = _FORKED
        _log.error(
            "%s: a process that it forked has come back from the handler; it is ended",
            name_of(handler),
            exc_info=error,
        )
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def name_of(handler: Any) -> str:
    """Return what people call a handler: ``module:name``; a pipeline says so itself."""
    while isinstance(handler, partial):
        handler = handler.func
    own = getattr(_owner(handler), "handler_name", None)
    if isinstance(own, str):
        return own
    if not hasattr(handler, "__qualname__"):
        handler = type(handler)
    return f"{handler.__module__}:{handler.__qualname__}"


def not_portable(thing: object) -> str | None:
    """Return why something cannot be sent to another process; None if it can."""
    try:
        pickle.dumps(thing)
    except Exception as error:  # noqa: BLE001 - objects pickle themselves, and fail as they like
        return str(error)
    return None
