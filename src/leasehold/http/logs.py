"""The log: events with constant names and fields, on stderr, with nothing secret in them."""

from __future__ import annotations

import contextlib
import logging
import re
import sys
import traceback
from collections.abc import Mapping, MutableMapping
from datetime import UTC, datetime
from typing import Any, Final, TextIO

import structlog

from leasehold.clock import Clock

_log = structlog.get_logger("leasehold.http")
MASK: Final = "***"

# Parameters that hold a signature or a receipt, credentials in a header, keys in connection
# strings, tokens.
_PATTERNS: Final = (
    re.compile(r"(?i)((?:\b|%3f|%26)(?:sig|popreceipt)(?:=|%3d))[^&\s\"'<>;]+"),
    re.compile(r"(?i)(\b(?:sharedkey(?:lite)?|bearer|basic)\s+)[^\s\"']+"),
    re.compile(r"(?i)(\b(?:accountkey|sharedaccesssignature|password|secret)\s*[=:]\s*)[^;\s\"']+"),
    re.compile(r"(?i)([\"']?authorization[\"']?\s*[=:]\s*[\"']?)[^\"'\r\n]+"),
    # Base64 of 32 bytes (a signature) or more: it ends in padding, or is that of 64 bytes.
    re.compile(r"()(?<![A-Za-z0-9+/%])[A-Za-z0-9+/]{42,}={1,2}(?![A-Za-z0-9+/=])"),
    # JSON Web Tokens.
    re.compile(r"()\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*"),
)
_SECRET_FIELDS: Final = frozenset(
    {"authorization", "key", "key1", "key2", "account_key", "signature", "sig", "sas", "token"}
)
_LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def mask(text: str) -> str:
    """Return *text* without what looks like a key, a signature or a token.

    This is the last line of defence: no event should hold any of them to begin with.
    """
    for pattern in _PATTERNS:
        text = pattern.sub(rf"\g<1>{MASK}", text)
    return text


def mask_event(
    logger: object, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Mask all fields of an event; a processor for structlog."""
    del logger, method
    for name, value in event.items():
        event[name] = MASK if name.lower() in _SECRET_FIELDS else _mask_value(value)
    return event


def log_internal_error(error: Exception, *, action: str, operation: str, request_id: bytes) -> None:
    """Log what a client is only told to be an internal error.

    Args:
        error: What was raised.
        action: The field of that name: by it the event is found.
        operation: What was asked for, as the dialect calls it.
        request_id: By which the client was told.
    """
    # Neither its message nor the values around it, which may hold what a client sent.
    _log.error(
        "A request failed unexpectedly.",
        action=action,
        operation=operation,
        request_id=request_id.decode("ascii"),
        error=type(error).__qualname__,
        traceback="".join(traceback.format_tb(error.__traceback__)),
    )


def configure_logs(
    *, log_format: str, log_level: str, clock: Clock, stream: TextIO | None = None
) -> None:
    """Send all events, those of libraries among them, to one stream.

    Args:
        log_format: ``console`` for people, ``json`` for one object a line.
        log_level: ``debug``, ``info``, ``warning`` or ``error``.
        clock: What stamps the events.
        stream: Where to write; stderr if not given.
    """
    stream = stream or sys.stderr

    def stamp(
        logger: object, method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        del logger, method
        moment = datetime.fromtimestamp(clock.now_ms() / 1000, UTC)
        event["timestamp"] = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return event

    renderer: Any
    if log_format == "json":
        renderer = structlog.processors.JSONRenderer()
    else:
        # Tracebacks come as text, so that they are masked like everything else.
        renderer = structlog.dev.ConsoleRenderer(
            colors=stream.isatty(),
            pad_event_to=24,
            exception_formatter=structlog.dev.plain_traceback,
        )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            stamp,
            structlog.processors.format_exc_info,
            mask_event,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[log_level]),
        logger_factory=_Logger(stream),
        cache_logger_on_first_use=False,
    )
    _forward_standard_logging()


class _Logger:
    """Writes lines; a log that cannot be written must not stop the server from serving."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __call__(self, *_: object) -> _Logger:
        """Return the logger: there is one."""
        return self

    def msg(self, line: str) -> None:
        """Write one event."""
        with contextlib.suppress(OSError):
            self._stream.write(line + "\n")
            self._stream.flush()

    debug = info = warning = error = critical = exception = log = msg


class _Forwarder(logging.Handler):
    """Turns records of the standard library's logging into events."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log one record under the name of its logger."""
        log = structlog.get_logger()
        log.log(
            record.levelno,
            "log.forwarded",
            logger=record.name,
            message=record.getMessage(),
            exc_info=record.exc_info or None,
        )


def _forward_standard_logging() -> None:
    root = logging.getLogger()
    for handler in list(root.handlers):
        if isinstance(handler, _Forwarder):
            root.removeHandler(handler)
    root.addHandler(_Forwarder())
    root.setLevel(logging.WARNING)


def _mask_value(value: Any) -> Any:
    match value:
        case str():
            return mask(value)
        case bytes():
            return mask(value.decode("utf-8", "replace"))
        case Mapping():
            return {key: _mask_value(item) for key, item in value.items()}
        case list() | tuple():
            return [_mask_value(item) for item in value]
        case None | bool() | int() | float():
            return value
        case _:
            return mask(str(value))
