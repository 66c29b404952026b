"""A power cut at any moment loses no acknowledged batch and leaves none half done."""

from __future__ import annotations

import pytest

from leasehold import disk
from leasehold.stores.sqlite import connection, store
from leasehold.stores.sqlite import connection as epoch

from .powercut import frequent_checkpoints, replay, replay_births


@pytest.mark.long
def test_every_crash_state_comes_up_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The quick part: 1,500 crash states of 10 workloads."""
    frequent_checkpoints(monkeypatch)
    outcome = replay(range(10), 150)
    assert outcome.violations == []
    assert outcome.states == 1500
    assert outcome.after_acknowledged > 300
    assert outcome.after_next > 30


@pytest.mark.slow
def test_many_crash_states_come_up_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow part: 15,000 crash states of 100 workloads."""
    frequent_checkpoints(monkeypatch)
    outcome = replay(range(1000, 1100), 150)
    print(f"crash states {outcome.states}, violations {len(outcome.violations)}")  # noqa: T201
    assert outcome.violations == []
    assert outcome.states == 15_000


def test_the_harness_finds_a_store_that_does_not_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positive control: with synchronous=NORMAL acknowledged batches must be seen to be lost."""
    frequent_checkpoints(monkeypatch, synchronous=1)
    assert replay(range(3), 60, until_found=True).violations != []


def test_names_that_were_not_synced_are_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a name is durable only with its folder, nothing acknowledged is lost either."""
    frequent_checkpoints(monkeypatch)
    outcome = replay(range(5), 100, strict=True)
    assert outcome.violations == []
    assert outcome.states == 500
    assert outcome.after_acknowledged > 100


@pytest.mark.slow
def test_names_in_many_crash_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow part: 15,000 crash states of 100 workloads."""
    frequent_checkpoints(monkeypatch)
    outcome = replay(range(2000, 2100), 150, strict=True)
    assert outcome.violations == []
    assert outcome.states == 15_000


def test_a_first_start_that_is_killed_anywhere_can_be_repeated() -> None:
    """Before every call that writes, names or syncs: the next start finds what was acknowledged."""
    outcome = replay_births(strict=False)
    assert outcome.violations == []
    assert outcome.states > 100


@pytest.mark.long
def test_a_power_cut_in_the_first_moments_can_be_survived() -> None:
    """At every call, where names are strict: what was acknowledged is there."""
    outcome = replay_births(strict=True, tries=4)
    assert outcome.violations == []
    assert outcome.states > 400


@pytest.mark.parametrize("forgotten", ["parents", "folder"])
def test_the_harness_finds_names_that_are_not_synced(
    monkeypatch: pytest.MonkeyPatch, forgotten: str
) -> None:
    """Positive control: without syncing the folders something acknowledged is seen to be lost."""
    if forgotten == "parents":
        monkeypatch.setattr(disk, "sync", lambda _: None)
    else:
        for module in (connection, epoch):
            monkeypatch.setattr(module, "sync", lambda _: None)
        monkeypatch.setattr(store, "make_folder", lambda folder: folder.mkdir(parents=True))
    assert replay_births(strict=True, tries=4, until_found=True).violations != []
