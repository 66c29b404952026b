"""Several servers on one PostgreSQL: a message is one server's at a time, whatever ends."""

from __future__ import annotations

import pytest

from leasehold.stores.postgres import state
from tests.postgres import empty, find_programs, shared_cluster
from tests.reliability.postgres_load import Load
from tests.unit.events.checked import checked, row_of_event

pytestmark = pytest.mark.skipif(find_programs() is None, reason="no PostgreSQL is installed")

_SCHEMA = "two"


def load(seed: int, wanted: int, size: int, kill_every_s: tuple[float, float]) -> Load:
    """Load three servers on an empty database."""
    empty(_SCHEMA)
    load = Load(f"{shared_cluster().url}&schema={_SCHEMA}", seed, wanted, size)
    load.play(kill_every_s)
    return load


def check(load: Load) -> None:
    """Check all that clients were told, and that everything planned has happened."""
    assert load.finish() == []
    replayed, live = load.replayed()
    assert replayed == live
    report = checked(map(row_of_event, load.asker.events(0, 10_000_000)))
    assert report.violations == []
    assert report.consumed == report.events
    counts = load.ledger.counts
    rare = {"backends ended", "claims settled", "committed together", "renewed", "released"}
    assert rare <= counts.keys()
    load.close()


def test_some_thousand_messages() -> None:
    """The quick part."""
    check(load(seed=1, wanted=6_000, size=20, kill_every_s=(0.02, 0.4)))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_million_messages() -> None:
    """In larger batches."""
    check(load(seed=2, wanted=1_000_000, size=100, kill_every_s=(0.02, 1.0)))


def test_the_checks_find_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that do not lock what they are about to take hand it out twice."""
    monkeypatch.setattr(state, "_TO_TAKE", {})
    found: list[str] = []
    for seed in range(10):
        wrong = load(seed, wanted=1_000, size=20, kill_every_s=(0.1, 0.4))
        found = [fault for fault in wrong.finish() if "handed out twice" in fault]
        wrong.close()
        if found:
            break
    assert found
