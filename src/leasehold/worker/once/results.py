"""What came of a run, as it is kept."""

from __future__ import annotations

import json
from typing import Any, Final

from leasehold.worker.once.errors import UnstorableResult

MAX_RESULT_BYTES: Final = 65_536
"""A result is an answer to be given again, no place for data; those belong beside it."""


def encode_result(result: Any) -> str | None:
    """Return *result* as JSON; None if there is none.

    Raises:
        UnstorableResult: It is no JSON, or over :data:`MAX_RESULT_BYTES`.
    """
    if result is None:
        return None
    try:
        # ASCII only: PostgreSQL takes no NUL in a text, and no store takes half a surrogate pair.
        text = json.dumps(result, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise UnstorableResult(f"the result cannot be kept as JSON: {error}") from error
    if len(text) > MAX_RESULT_BYTES:
        raise UnstorableResult(
            f"the result has {len(text):,} bytes as JSON; at most {MAX_RESULT_BYTES:,} are kept"
        )
    return text


def decode_result(text: str | None) -> Any:
    """Return what :func:`encode_result` kept."""
    return None if text is None else json.loads(text)
