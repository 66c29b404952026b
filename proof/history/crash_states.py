"""Crash states of the SQLite store by the hundred thousand, on all cores.

The machinery is that of ``tests/reliability/powercut.py``: what reaches the disk is recorded, and
states are built from it as a power cut could leave them. Each must open, and hold exactly the
batches that were acknowledged, or those and the one under way.
"""

from __future__ import annotations

import multiprocessing
import os
import random
from collections.abc import Iterator
from typing import Final, NamedTuple

import pytest
from tests.reliability.powercut import Verdict, frequent_checkpoints, replay

_PER_WORKLOAD: Final = 150
_TOLD_AT_MOST: Final = 5
_CONTEXT: Final = multiprocessing.get_context("forkserver")


class _Share(NamedTuple):
    """One workload and the crash states of it."""

    seed: int
    strict: bool
    synchronous: int


class Found(NamedTuple):
    """What came of many crash states."""

    states: int
    violations: list[str]
    """The first of them."""
    bad: int
    """How many states were wrong."""


def _play(share: _Share) -> Verdict:
    with pytest.MonkeyPatch.context() as patch:
        frequent_checkpoints(patch, synchronous=share.synchronous)
        return replay(range(share.seed, share.seed + 1), _PER_WORKLOAD, strict=share.strict)


def _shares(seed: int, states: int, synchronous: int) -> Iterator[_Share]:
    """Yield workloads; every other one with names that are lost unless their folder is synced."""
    rng = random.Random(f"{seed}/crash states")
    for number in range(-(-states // _PER_WORKLOAD)):
        yield _Share(rng.randrange(2**31), bool(number % 2), synchronous)


def crash_states(seed: int, states: int, *, synchronous: int = 2) -> Found:
    """Check so many crash states, rounded up to whole workloads.

    Args:
        seed: Of the workloads.
        states: How many.
        synchronous: How often SQLite syncs: 2 as the server has it; with 1, for the control,
            acknowledged batches must be seen to be lost.
    """
    checked = bad = 0
    violations: list[str] = []
    with _CONTEXT.Pool(os.cpu_count()) as pool:
        shares = _shares(seed, states, synchronous)
        for verdict in pool.imap_unordered(_play, shares):
            checked += verdict.states
            bad += len(verdict.violations)
            violations += verdict.violations[: max(0, _TOLD_AT_MOST - len(violations))]
    return Found(checked, violations, bad)
