"""Keeps what a server logs out of the way of a test that has said nothing about logs."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

_lock = threading.Lock()
_users: list[object] = []


def _settings() -> tuple[object, ...]:
    found = structlog.get_config()
    return (found["logger_factory"], found["wrapper_class"], *found["processors"])


_first = None if structlog.is_configured() else _settings()
"""How structlog logs, to stdout, until it is told otherwise."""


def _is_as_it_came() -> bool:
    # Whoever has captured logs leaves structlog "configured", though with what it came with.
    return not structlog.is_configured() or _settings() == _first


@contextmanager
def quiet_logs() -> Iterator[None]:
    """Show warnings only, on stderr, unless the process has configured structlog itself."""
    me = object()
    with _lock:
        if _users or _is_as_it_came():
            if not _users:
                structlog.configure(
                    wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
                    logger_factory=_to_stderr,
                )
            _users.append(me)
    try:
        yield
    finally:
        with _lock:
            if me in _users:
                _users.remove(me)
                # Somebody may have configured it meanwhile, and means that.
                if not _users and structlog.get_config()["logger_factory"] is _to_stderr:
                    structlog.reset_defaults()


def _to_stderr(*_: object) -> structlog.PrintLogger:
    # Looked up anew each time: pytest puts another one in its place for each test.
    return structlog.PrintLogger(sys.stderr)
