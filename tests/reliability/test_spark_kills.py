"""Kill Spark's driver, its executors and the server at the worst moments; count what came out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from leasehold.spark.cluster import running_cluster
from tests.reliability.running import KillableServer
from tests.reliability.spark_campaign import (
    Campaign,
    Outcome,
    Point,
    ResultsCampaign,
    Victim,
)

ROUNDS = 30
"""Of each point, in the slow part."""
PIPELINE_POINTS = (Point.CLAIMED, Point.READING, Point.NOTED, Point.WRITTEN)
POINTS = (Point.CLAIMED, Point.READING, Point.WRITTEN, Point.SETTLING)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[KillableServer]:
    """Return a server that is not started yet; it is stopped in the end."""
    made = KillableServer(tmp_path / "data", options={"--disk-reserve-mib": "4"})
    yield made
    made.stop()


def _report(outcome: Outcome) -> None:
    told = f"{outcome.put} messages, {outcome.runs} runs, kills: {dict(outcome.kills)}"
    print(told)  # noqa: T201 - figures for a person who runs it with -s


def _check(outcome: Outcome, kills: int) -> None:
    _report(outcome)
    assert not outcome.violations
    assert outcome.kills.total() == kills


@pytest.mark.long
def test_each_message_is_in_the_table_once_however_the_driver_dies(
    server: KillableServer, tmp_path: Path
) -> None:
    """Two deaths of the driver in a row before the query may end; at the other points, when slow.

    Each death costs the start of another Java.
    """
    kills = [(Victim.DRIVER, Point.WRITTEN), (Victim.MACHINE, Point.SETTLING)]
    campaign = Campaign(server, tmp_path / "query", "table")
    _check(campaign.play(kills, messages=300, limit=50), len(kills))


@pytest.mark.long
def test_each_message_is_sent_on_once_however_the_server_dies(
    server: KillableServer, tmp_path: Path
) -> None:
    """The server is killed at each point; the query goes on without having been started again."""
    kills = [(Victim.SERVER, point) for point in POINTS]
    campaign = Campaign(server, tmp_path / "query", "queue")
    _check(campaign.play(kills, messages=200, limit=50), len(kills))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_each_message_of_a_pipeline_has_one_outcome_however_the_server_dies(
    server: KillableServer, tmp_path: Path
) -> None:
    """Each is sent on, tried again until it is, or set aside, in the query's second run as well.

    Whether one fails is random, so each run of a micro-batch comes to other exemptions.
    """
    kills = [(Victim.SERVER, point) for point in PIPELINE_POINTS]
    campaign = Campaign(server, tmp_path / "query", "pipeline")
    _check(campaign.play(kills, messages=200, limit=30), len(kills))


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("victim", [Victim.DRIVER, Victim.MACHINE, Victim.PYTHON])
@pytest.mark.parametrize("point", PIPELINE_POINTS)
def test_each_message_of_a_pipeline_has_one_outcome_however_the_driver_dies(
    server: KillableServer, tmp_path: Path, victim: Victim, point: Point
) -> None:
    """Right before the publishing, too, when exemptions of that run are noted already."""
    kills = [(victim, point)] * 3
    campaign = Campaign(server, tmp_path / "query", "pipeline")
    _check(campaign.play(kills, messages=200, limit=30), len(kills))


@pytest.mark.long
def test_groups_are_whole_in_order_and_once_whoever_dies(
    server: KillableServer, tmp_path: Path
) -> None:
    """Each group is folded, in its order, into a state that every message has changed once.

    The messages of a group have all priorities, and several micro-batches have some of each.
    """
    kills = [
        (Victim.PYTHON, Point.READING),
        (Victim.DRIVER, Point.WRITTEN),
        (Victim.MACHINE, Point.SETTLING),
    ]
    campaign = Campaign(server, tmp_path / "query", "groups")
    outcome = campaign.play(kills, messages=300, limit=40)
    _check(outcome, len(kills))
    assert outcome.batches > len(kills)
    assert outcome.tasks > outcome.batches


@pytest.mark.slow
def test_each_message_is_sent_on_once_when_an_executor_dies(
    server: KillableServer, tmp_path: Path
) -> None:
    """An executor of a real cluster is killed while it reads."""
    with running_cluster(workers=2) as cluster:
        campaign = Campaign(server, tmp_path / "query", "queue", cluster=cluster)
        _check(campaign.play([(Victim.EXECUTOR, Point.READING)], messages=200, limit=50), 1)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_each_outcome_is_in_the_table_once_whoever_dies(
    server: KillableServer, tmp_path: Path
) -> None:
    """A stream of results through deaths of driver, machine, Python and server at each point.

    Its short sibling, with a reader that is killed, is in ``tests/spark/stream/test_events.py``.
    """
    kills = [(victim, point) for victim in (Victim.SERVER, Victim.DRIVER) for point in Point]
    kills += [(Victim.MACHINE, Point.READING), (Victim.PYTHON, Point.READING)]
    campaign = ResultsCampaign(server, tmp_path / "query")
    _check(campaign.play(kills, messages=40, limit=10), len(kills))


@pytest.mark.slow
def test_each_outcome_is_in_the_table_once_when_an_executor_dies(
    server: KillableServer, tmp_path: Path
) -> None:
    """An executor of a real cluster is killed while it reads events."""
    with running_cluster(workers=2) as cluster:
        campaign = ResultsCampaign(server, tmp_path / "query", cluster=cluster)
        _check(campaign.play([(Victim.EXECUTOR, Point.READING)], messages=200, limit=50), 1)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("sink", ["table", "queue"])
def test_drivers_are_killed_again_and_again(
    server: KillableServer, tmp_path: Path, sink: str, point: Point
) -> None:
    """Half of the rounds of one point for each sink, every second time with the whole machine."""
    kills = [(victim, point) for victim in (Victim.DRIVER, Victim.MACHINE)] * (ROUNDS // 4 + 1)
    campaign = Campaign(server, tmp_path / "query", sink)
    _check(campaign.play(kills, messages=1_000, limit=50), len(kills))


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("sink", ["table", "queue"])
def test_the_server_is_killed_again_and_again(
    server: KillableServer, tmp_path: Path, sink: str, point: Point
) -> None:
    """Half of the rounds of one point for each sink, in few runs of the query."""
    kills = [(Victim.SERVER, point)] * (ROUNDS // 2)
    campaign = Campaign(server, tmp_path / "query", sink)
    _check(campaign.play(kills, messages=2_000, limit=50), len(kills))


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_executors_are_killed_again_and_again(server: KillableServer, tmp_path: Path) -> None:
    """Executors of a real cluster are killed while they read."""
    with running_cluster(workers=2) as cluster:
        campaign = Campaign(server, tmp_path / "query", "queue", cluster=cluster)
        kills = [(Victim.EXECUTOR, Point.READING)] * ROUNDS
        _check(campaign.play(kills, messages=3_000, limit=50), ROUNDS)
