"""What the reading side of a connection is at."""

from __future__ import annotations

from enum import IntEnum


class Phase(IntEnum):
    """See the module."""

    IDLE = 0
    """Between requests."""
    HEAD = 1
    BODY = 2
    REFUSED = 3
    """What comes is thrown away; answers to earlier requests are still to be written."""
    LINGERING = 4
    """The last answer was written; what comes is thrown away."""
