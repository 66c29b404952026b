"""For tests of programs that use a queue: a clock that they move, and a server that goes by it.

``ManualClock``, ``ManualTime`` and ``MemoryQueue`` need nothing but the standard library. The
servers need the extra ``server``, their ``client()`` the extra ``client``. They and the queue are
imported when they are first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from leasehold.testing.time import ManualClock, ManualTime

if TYPE_CHECKING:
    from leasehold.testing.memory_queue import MemoryQueue
    from leasehold.testing.server import AsyncInProcessServer, InProcessServer

__all__ = ["AsyncInProcessServer", "InProcessServer", "ManualClock", "ManualTime", "MemoryQueue"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "memory_queue" if name == "MemoryQueue" else "server"
    return getattr(import_module(f"{__name__}.{module}"), name)
