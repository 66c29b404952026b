"""The command line: ``leasehold``, one module per group of commands."""

from leasehold.cli.root import main

__all__ = ["main"]
