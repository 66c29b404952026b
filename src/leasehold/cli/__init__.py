"""The command line: ``leasehold``, one module per group of commands.

:mod:`leasehold.command` is where the program begins. Nothing is imported here, so that it can say
which library is missing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leasehold.cli.root import main

__all__ = ["main"]


def __getattr__(name: str) -> Any:
    """Import the commands when they are first asked for."""
    if name != "main":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from leasehold.cli.root import main  # noqa: PLC0415 - see above

    return main
