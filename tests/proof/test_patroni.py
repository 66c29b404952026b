"""Failovers that Patroni decides about, where it is installed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from proof.history import patroni
from proof.history.accumulate import NOTHING, counted
from proof.history.campaign import Campaign
from proof.history.leasehold import Leasehold
from proof.history.prove import prove
from proof.history.records import FaultRecord, History, Verb
from proof.report import Check, Order

from tests.proof.test_history_peers import call


def test_what_is_not_installed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is run then, and it is no failure; without an amount nothing is said."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(patroni, "_INSTALLED", tmp_path)
    order = Order(long=False, folder=tmp_path)
    (left_out,) = list(prove(order, replace(NOTHING, patroni=1)))[1:]
    assert left_out.passed
    assert left_out.said.startswith("left out, not installed: patroni, patronictl, etcd")
    assert len(list(prove(order, NOTHING))) == 1


def test_clients_that_were_killed_are_no_failovers() -> None:
    """A piece counts what was done to the cluster, of whatever kind."""
    done = {"leader killed": 2, "switchover": 1, "client killed": 5}
    check = Check(name="Patroni", passed=True, said="", figures={"done": done})
    assert counted("Patroni", check) == 3


def test_a_silence_is_the_longest_time_without_an_answer(tmp_path: Path) -> None:
    """It may begin when a fault has been going on for a while, and is over with the first one."""
    history = History(
        operations=[call("a", Verb.COUNT, at_s) for at_s in (0.0, 1.0, 2.0, 9.0, 9.5, 30.0)],
        faults=[FaultRecord(name="leader killed", begun_s=0.5, ended_s=8.0)],
    )
    system = Leasehold(tmp_path / "data")
    campaign = Campaign(
        system=system, faults_of=lambda _: [], folder=tmp_path, seed=1, history=history
    )
    system.stop()
    assert campaign.silences_s("leader killed") == [pytest.approx(7.0)]
    assert campaign.silences_s("switchover") == []


@pytest.mark.slow
@pytest.mark.skipif(bool(patroni.missing()), reason=f"not installed: {patroni.missing()}")
def test_nothing_is_found_after_a_leader_was_killed(tmp_path: Path) -> None:
    """The servers find the one that Patroni has chosen, and zero is in every column."""
    records = tmp_path / "records"
    records.mkdir()
    with patroni.patroni_databases(tmp_path / "data") as (system, cluster):
        old = cluster.leader()
        campaign = Campaign(
            system=system,
            faults_of=lambda _: [patroni.LeaderKilled(cluster)],
            folder=records,
            seed=20_261_126,
            clients=2,
            quiet_s=(5.0, 5.0),
        )
        verdict = campaign.run(faults=1)
        assert cluster.leader() is not old
    assert verdict.violations == []
    assert verdict.figures["completes"] > 0
    assert campaign.silences_s("leader killed")
