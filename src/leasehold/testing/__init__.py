"""For tests of programs that use a queue: a clock that they move, and a server that goes by it.

``ManualClock`` and ``ManualTime`` need nothing but the standard library. The servers need the extra
``server``, their ``client()`` the extra ``client``; they are imported when they are first asked
for.
"""

from typing import TYPE_CHECKING, Any

from leasehold.testing.time import ManualClock, ManualTime

if TYPE_CHECKING:
    from leasehold.testing.server import AsyncInProcessServer, InProcessServer

__all__ = ["AsyncInProcessServer", "InProcessServer", "ManualClock", "ManualTime"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from leasehold.testing import server  # noqa: PLC0415 - see above

    return getattr(server, name)
