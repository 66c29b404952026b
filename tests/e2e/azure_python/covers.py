"""Which test exercises which part of the SDK's public surface.

A test declares it with :func:`covers`. What it declares of the clients is checked after the test
against the calls it really made; that nothing is left out is checked by ``test_surface``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final, TypeVar

import pytest

_Test = TypeVar("_Test", bound=Callable[..., Any])

DECLARED: Final[dict[str, set[str]]] = defaultdict(set)
"""Member of the SDK -> names of the tests that exercise it."""


def covers(*members: str) -> Callable[[_Test], _Test]:
    """Say that a test exercises *members*.

    A member is ``Class.member``, ``Class.method:argument,argument``, or a function or class.
    """
    expanded = {one for member in members for one in _expand(member)}

    def decorate(test: _Test) -> _Test:
        for member in expanded:
            DECLARED[member].add(test.__name__)
        marked: _Test = pytest.mark.covers(frozenset(expanded))(test)
        return marked

    return decorate


def _expand(member: str) -> set[str]:
    name, _, arguments = member.partition(":")
    return {name} | {f"{name}:{argument}" for argument in arguments.split(",") if argument}
