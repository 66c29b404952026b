"""How a command that speaks to a server ends."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class ExitCode(IntEnum):
    """Exit codes; those of ``leasehold serve`` are its own."""

    DONE = 0
    REFUSED = 1
    """The server refused it, or part of it; a job was stopped; or the caller said no."""
    USAGE = 2
    """The command line is wrong, or nobody could be asked to confirm."""
    NO_CONNECTION = 3
    """No Leasehold server answers at the address."""
    INTERRUPTED = 130
    """Ctrl+C, as shells count it."""


EPILOG: Final = """\b
Exit codes:
  0    done
  1    refused by the server, a job that was stopped, or you said no
  2    a mistake in the command line, or nobody to confirm and no --yes
  3    no Leasehold server answers at the address
  130  Ctrl+C
"""
