"""Summaries as JSON: saved, and read again without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from leasehold.analysis.summaries import LogSummary

FORMAT: Final = 1
"""Rises when older readers could misunderstand newer files."""


class _File(msgspec.Struct, kw_only=True):
    format: int
    summary: LogSummary


class UnreadableSummary(ValueError):
    """A file is no summary, or one of a newer version."""


def to_json(summary: LogSummary) -> bytes:
    """Return a summary as JSON, one line."""
    return msgspec.json.encode(_File(format=FORMAT, summary=summary))


def from_json(data: bytes) -> LogSummary:
    """Reverse :func:`to_json`.

    Raises:
        UnreadableSummary: It is none, or of a newer version.
    """
    try:
        file = msgspec.json.decode(data, type=_File)
    except msgspec.MsgspecError as error:
        raise UnreadableSummary(f"this is no summary of an event log: {error}") from None
    if file.format > FORMAT:
        raise UnreadableSummary(f"its format is {file.format}; this version reads up to {FORMAT}")
    return file.summary


def save(summary: LogSummary, path: Path) -> None:
    """Write a summary to a file."""
    path.write_bytes(to_json(summary))


def load(path: Path) -> LogSummary:
    """Read a summary from a file.

    Raises:
        UnreadableSummary: See :func:`from_json`.
        OSError: It cannot be read.
    """
    return from_json(path.read_bytes())
