"""What the SDK raises when the server refuses, checked in one line."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from azure.core.exceptions import HttpResponseError

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Refusal:
    """An error that the server has answered with, filled in when the block has ended."""

    status: int = 0
    code: str | None = None
    details: dict[str, str] = field(default_factory=dict)
    """Further elements of the error document, by lower-case name."""


@contextlib.contextmanager
def refused(
    status: int | set[int],
    code: str | None = None,
    kind: type[HttpResponseError] = HttpResponseError,
) -> Iterator[Refusal]:
    """Expect the block to be refused with *status* and *code*, raised as *kind*.

    Args:
        status: Status of the answer, or those that are all right.
        code: Code of the protocol; None for any.
        kind: Class of the SDK's exception, which callers catch.
    """
    refusal = Refusal()
    with pytest.raises(kind) as caught:
        yield refusal
    error: Any = caught.value
    refusal.status = error.status_code
    refusal.code = code_of(error)
    refusal.details = error.additional_info
    if isinstance(status, set):
        assert refusal.status in status, (refusal.status, refusal.code)
        assert code is None or refusal.code == code
    else:
        assert (refusal.status, code or refusal.code) == (status, refusal.code)


def code_of(error: HttpResponseError) -> str | None:
    """Return the code of the protocol: the SDK has it as an enumeration where it knows it."""
    code: Any = getattr(error, "error_code", None)
    value: str | None = getattr(code, "value", code)
    return value
