"""SIGKILL under load leaves claims, staged sends, commits, large bodies and the log whole."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import apsw
import pytest

from leasehold.events.parquet import FileBuilder
from tests.reliability.claim_audit import Auditor
from tests.reliability.claim_campaign import ClaimCampaign
from tests.reliability.claim_history import LONG_S, Deed, Found, Judge
from tests.reliability.killing import FILES, record_folder
from tests.reliability.spilling import QUEUE as SPILL
from tests.reliability.spilling import SpillJudge
from tests.unit.events.make_sample import events as sample


def run_campaign(campaign: ClaimCampaign, rounds: int, *, to_the_end: bool = True) -> None:
    """Play a campaign and print what came of it."""
    try:
        with record_folder() as records:
            campaign.play(rounds, records)
        if to_the_end and not campaign.broken:
            campaign.finish()
    finally:
        print(campaign.summary())  # noqa: T201 - figures for a person who runs it with -s
        campaign.server.stop()


def acknowledged(campaign: ClaimCampaign, act: str) -> int:
    """Return how many acts of a kind were done."""
    return sum(deed.act == act and deed.done for deed in campaign.deeds)


@pytest.mark.long
def test_kills_leave_everything_whole(tmp_path: Path) -> None:
    """The quick part: three kills under load, then everything is accounted for."""
    campaign = ClaimCampaign(tmp_path, seed=20_261_121, answers=(40, 300))
    run_campaign(campaign, 3)
    assert campaign.broken == []
    assert campaign.violations == []
    for act in ("settle", "publish", "commit", "read"):
        assert acknowledged(campaign, act) > 0, act
    assert campaign.auditor.bodies_read > 0
    assert campaign.auditor.compared > 100
    assert len(campaign.auditor.log.events) > 500


@pytest.mark.slow
def test_many_kills_leave_everything_whole(tmp_path: Path) -> None:
    """The slow part: fifty kills under load."""
    campaign = ClaimCampaign(tmp_path, seed=8, answers=(40, 1_500))
    run_campaign(campaign, 50)
    assert campaign.broken == []
    assert campaign.violations == []
    assert campaign.kills == 50
    assert campaign.kills_while_starting > 0
    assert {name.rpartition(" ")[2] for name in campaign.sprung} == {"sent", "answered"}
    refusals = {deed.problem for deed in campaign.deeds}
    assert {"claim-lapsed", "claim-broken", "stale-token", "session-over"} <= refusals
    assert any(deed.repeats and deed.told.get("already") for deed in campaign.deeds)


_OUT: Final = "partition = (SELECT partition FROM queue WHERE name = 'claims-out')"
_FREE: Final = """partition IN
    (SELECT partition FROM queue WHERE name IN ('claims-a', 'claims-b'))"""
_MEMBERS: Final = "partition IN (SELECT partition FROM claim)"
NEEDED: Final = {
    _MEMBERS: 1,
    _FREE: 10,
    f"{_OUT} AND row_key % 3 = 0": 10,
    f"{_OUT} AND row_key % 3 <> 0 AND place < 2": 1,
    f"{_OUT} AND row_key % 3 <> 0 AND place = 2": 1,
}
"""How many messages of each kind there must be, so that each injury meets some."""
INJURIES: Final = (
    # A member of a claim is back in its queue.
    f"""UPDATE message SET partition = (SELECT partition FROM queue WHERE name = 'claims-a')
       WHERE row_key IN (SELECT row_key FROM message WHERE {_MEMBERS} LIMIT 1)""",
    # Some of what was sent along is gone, and one of it is there twice.
    f"DELETE FROM message WHERE row_key % 3 = 0 AND {_OUT}",
    f"CREATE TEMP TABLE again AS SELECT * FROM message WHERE place < 2 AND {_OUT} LIMIT 1",
    """INSERT INTO message_body SELECT row_key + (1 << 32), content FROM message_body
       WHERE row_key IN (SELECT row_key FROM again)""",
    """UPDATE again SET row_key = row_key + (1 << 32),
                        message_id = unhex('0001' || substr(hex(message_id), 5))""",
    "INSERT INTO message SELECT * FROM again",
    # Messages that are in no claim are gone; the oldest, because their puts were answered.
    f"""DELETE FROM message WHERE row_key IN
           (SELECT row_key FROM message WHERE {_FREE} ORDER BY row_key LIMIT 5)""",
)


@pytest.mark.long
def test_a_store_that_was_injured_is_found_out(tmp_path: Path) -> None:
    """Positive control: each injury done to the data after a kill is seen."""
    campaign = ClaimCampaign(tmp_path, seed=3, answers=(400, 500))
    injured: list[int] = []

    def injure(kill: int) -> None:
        connection = apsw.Connection(str(campaign.data / FILES[0]))
        if all(_count(connection, which) >= least for which, least in NEEDED.items()):
            injured.append(kill)
            for statement in INJURIES:
                connection.execute(statement)
            query = f"SELECT CAST(body AS TEXT) FROM message WHERE place = 2 AND {_OUT}"
            # All, as the kill may have left one of a call without an answer, which nobody reads.
            for (key,) in {*connection.execute(query)}:
                (campaign.data / "bodies" / key[0] / key[:2] / key).unlink()
        connection.close()

    campaign.after_kill = injure
    campaign.enough = lambda: bool(injured)
    run_campaign(campaign, 60, to_the_end=False)
    assert injured == [campaign.kills]
    kinds = {found.kind for found in campaign.violations}
    assert {"log", "half done", "doubled", "lost", "body", "count"} <= kinds


def _count(connection: apsw.Connection, which: str) -> int:
    ((number,),) = connection.execute(f"SELECT count(*) FROM message WHERE {which}")
    return int(number)


def test_a_wrong_export_is_found_out(tmp_path: Path) -> None:
    """Positive control: an exported file that is there twice, or not at all, is seen."""
    events = sample()
    paths = []
    for seqs in ({1, 2}, {3, 4}):
        builder = FileBuilder()
        builder.add([event for event in events if event.seq in seqs])
        builder.write(tmp_path)
        paths.append(tmp_path / builder.path)
    auditor = Auditor((), (), tmp_path, tmp_path)
    auditor.log.events = {(event.seq, event.place): event for event in events}
    auditor.log.last_seq = events[-1].seq

    def kinds() -> list[str]:
        auditor.violations.clear()
        auditor.check_export()
        return [found.kind for found in auditor.violations]

    assert kinds() == []
    twin = paths[0].with_name(paths[0].name.replace("events-00", "events-90"))
    shutil.copy(paths[0], twin)
    assert kinds() == ["export"]
    twin.unlink()
    paths[0].unlink()
    assert kinds() == ["export"]


# The checks themselves, on a record made by hand.

A, OUT = "claims-a", "claims-out"
MARK: Final = "exempt s.1"
Record: TypeAlias = tuple[Deed, ...]


def deed(act: str, what: str, begun: int, told: dict[str, Any] | None = None, **asked: Any) -> Deed:
    """Return something that was done; begun at an even number, answered at the next."""
    return Deed(act=act, what=what, begun=begun, ended=begun + 1, told=told or {}, asked=asked)


def row(number: int, fence: int = 1) -> list[Any]:
    return [f"id{number}", f"m{number}", 1, 9, 1, fence, fence, 8]


def claim(**more: Any) -> dict[str, Any]:
    return {"claim": {"size": 3, "lost": 0} | more, "replayed": False}


ROWS: Final = [row(1), row(2), row(3)]
PUTS: Final = tuple(deed("put", f"m{n}", 2 * n, {"id": f"id{n}"}) for n in range(1, 5))
ATTACH: Final = deed("attach", "s", 10, {"token": 1, "last_settled": 0})
OPEN: Final = deed("open", "s/1#0", 12, claim(), lease_s=LONG_S, new=True)
READ: Final = deed("read", "s/1#0", 14, {"rows": ROWS}, part=0, parts=1, loss=False)
AGAIN: Final = deed("read", "s/1#0", 18, {"rows": [row(2), row(3)]}, part=1, parts=2, loss=False)
STAGE: Final = tuple(
    deed(
        "stage",
        tx,
        20 + 2 * number,
        {"rows": len(names), "chunks": 1, "duplicate": False},
        part="p",
        chunk=0,
        names=names,
    )
    for number, (tx, names) in enumerate({"t1": ["r1"], "t2": ["r2", "r3"], "t3": ["r4"]}.items())
)
SETTLED: Final = {
    "completed": 2,
    "exempted": 1,
    "published": 1,
    "lost": 0,
    "already": False,
    "last_settled": 1,
}
SETTLE: Final = deed(
    "settle",
    "s/1",
    40,
    SETTLED,
    claims={"s/1#0": ["id1", "id2", "id3"]},
    exempt={"id3": "failed"},
    outputs=["o1", "o2", "r1"],
    rows=1,
    mark=MARK,
)
PUBLISH: Final = deed("publish", "t2", 42, {"rows": 2, "already": False}, outputs=["r2", "r3"])
TAKE: Final = deed("receive", A, 44, {"rows": [["id4", "m4", 1]]})
COMMIT: Final = deed(
    "commit", "c1", 46, {"already": False, "failed": 0}, ids=["id4"], outputs=["o3"]
)
LATER: Final = deed("receive", A, 48, {"rows": [["id3", "m3", 2]]})
CUT: Final = Deed(
    act="commit", what="c2", begun=50, asked={"ids": ["id3"], "outputs": ["o4", "o5"]}
)
STREAM: Final = (ATTACH, OPEN, READ, AGAIN, *STAGE, SETTLE, PUBLISH)
DEEDS: Final = (*PUTS, *STREAM, TAKE, COMMIT, LATER, CUT)


def found(name: str, message_id: str = "", queue: str = OUT, **more: Any) -> Found:
    return Found(queue=queue, message_id=message_id or f"id-{name}", name=name, **more)


LEFT: Final = found("m3", "id3", A, dequeue_count=2, marks=(MARK,))
SENT: Final = tuple(found(name) for name in ("o1", "o2", "r1", "r2", "r3", "o3"))
FOUND: Final = (LEFT, *SENT, found("r4", staged=True))


def kinds_of(deeds: Sequence[Deed], listed: Sequence[Found]) -> set[str]:
    return {violation.kind for violation in Judge(deeds, listed).judged()}


def told(which: Deed, **members: Any) -> Record:
    """Return the record with another answer."""
    return instead(which, replace(which, told={**which.told, **members}))


def instead(which: Deed, other: Deed) -> Record:
    """Return the record with another deed in the place of one."""
    return tuple(other if each is which else each for each in DEEDS)


def then(*more: Deed) -> Record:
    """Return the record with more deeds."""
    return (*DEEDS, *more)


def without(name: str) -> tuple[Found, ...]:
    return tuple(each for each in FOUND if each.name != name)


def other(which: str, **more: Any) -> tuple[Found, ...]:
    """Find a message in another way."""
    return tuple(replace(each, **more) if each.name == which else each for each in FOUND)


def test_an_honest_record_passes() -> None:
    """What got no answer may be done or not, if it is so as a whole."""
    assert kinds_of(DEEDS, FOUND) == set()
    assert kinds_of(DEEDS, (*FOUND[1:], found("o4"), found("o5"))) == set()
    repeated = replace(SETTLE, repeats=1, told={**SETTLED, "already": True, "completed": 0})
    assert kinds_of(instead(SETTLE, repeated), FOUND) == set()
    again = replace(SETTLE, begun=60, ended=61, told={**SETTLED, "already": True})
    attached = deed("attach", "s", 64, {"token": 2, "last_settled": 1})
    assert kinds_of(then(again, attached), FOUND) == set()
    given_back = deed("give-back", "s/1#0", 38)
    assert kinds_of((*DEEDS[:8], given_back, *DEEDS[8:]), FOUND) == set()


SWAPPED = replace(AGAIN, told={"rows": [row(3), row(2)]})
UNDONE = replace(SETTLE, problem="stale-token", told={})
TAKEN = deed("receive", A, 16, {"rows": [["id2", "m2", 2]]})
STALE = deed("refused", "s/1#0", 70, problems=["stale-token"])
LOST_OUT = replace(OPEN, begun=16, asked={"lease_s": LONG_S, "new": False}, told={"claim": None})
DOCTORED: dict[str, tuple[str, Callable[[], tuple[Sequence[Deed], Sequence[Found]]]]] = {
    "settled, and there": ("resurrected", lambda: (DEEDS, (*FOUND, found("m1", "id1", A)))),
    "settled, and received later": (
        "resurrected",
        lambda: (then(deed("receive", A, 60, {"rows": [["id1", "m1", 2]]})), FOUND),
    ),
    "completed, and there": ("resurrected", lambda: (DEEDS, (*FOUND, found("m4", "id4", A)))),
    "done without an answer, and there": (
        "resurrected",
        lambda: (DEEDS, (*FOUND, found("o4"), found("o5"))),
    ),
    "exempted, and gone": ("lost", lambda: (DEEDS, without("m3"))),
    "of a claim that is not settled, and gone": (
        "lost",
        lambda: (instead(SETTLE, UNDONE), without("o1")),
    ),
    "settled without all that was sent": ("half done", lambda: (DEEDS, without("o1"))),
    "settled without what was to be published": ("half done", lambda: (DEEDS, without("r1"))),
    "sent, and not settled": ("half done", lambda: (instead(SETTLE, UNDONE), FOUND)),
    "refused, and sent": ("half done", lambda: (told(COMMIT, failed=1), FOUND)),
    "half of what got no answer": ("half done", lambda: (DEEDS, (*FOUND, found("o4")))),
    "sent twice": ("doubled", lambda: (DEEDS, (*FOUND, found("o1", "id-x")))),
    "staged, and visible": ("doubled", lambda: (DEEDS, (*FOUND, found("r2", staged=True)))),
    "one key, two ids": (
        "doubled",
        lambda: (then(deed("put", "m3", 60, {"id": "id-x"})), FOUND),
    ),
    "visible, and not published": ("not published", lambda: (DEEDS, other("r4", staged=False))),
    "message nobody sent": ("unexpected", lambda: (DEEDS, (*FOUND, found("m9")))),
    "published in part": ("published in part", lambda: (told(PUBLISH, rows=1), FOUND)),
    "published before it was asked": (
        "published by nobody",
        lambda: (told(PUBLISH, already=True), FOUND),
    ),
    "published again": (
        "published again",
        lambda: (then(replace(PUBLISH, begun=60, ended=61)), FOUND),
    ),
    "settled before it was asked": (
        "settled by nobody",
        lambda: (told(SETTLE, already=True), FOUND),
    ),
    "settled again": ("settled again", lambda: (then(replace(SETTLE, begun=60, ended=61)), FOUND)),
    "settled in part": ("settled in part", lambda: (told(SETTLE, completed=1), FOUND)),
    "committed before it was asked": (
        "committed by nobody",
        lambda: (told(COMMIT, already=True), FOUND),
    ),
    "done by two": ("done twice", lambda: (then(replace(COMMIT, what="c3", begun=60)), FOUND)),
    "another order": ("claim changed", lambda: (instead(AGAIN, SWAPPED), FOUND)),
    "another part": (
        "claim changed",
        lambda: (told(AGAIN, rows=[row(3)]), FOUND),
    ),
    "fewer than its size": ("claim changed", lambda: (told(READ, rows=ROWS[:2]), FOUND)),
    "another size": (
        "claim changed",
        lambda: (then(replace(OPEN, begun=60, told=claim(size=4))), FOUND),
    ),
    "opened anew": (
        "claim changed",
        lambda: (then(replace(OPEN, begun=60, asked={"lease_s": 9, "new": False})), FOUND),
    ),
    "there is no claim any more": ("claim lost", lambda: (then(LOST_OUT), FOUND)),
    "received from a claim": ("taken from a claim", lambda: (then(TAKEN), FOUND)),
    "lost by a claim": ("taken from a claim", lambda: (told(OPEN, **claim(lost=1)), FOUND)),
    "one fence for two": (
        "one lease, two holders",
        lambda: (told(LATER, rows=[["id3", "m3", 1]]), FOUND),
    ),
    "a fence that falls": ("fence", lambda: (told(LATER, rows=[["id3", "m3", 0]]), FOUND)),
    "another body": ("body", lambda: (told(LATER, rows=[["id3", "", 2]]), FOUND)),
    "another body in the end": ("body", lambda: (DEEDS, other("m3", name=""))),
    "exempted, and not settled": ("exempted", lambda: (instead(SETTLE, UNDONE), FOUND)),
    "settled, and not exempted": ("not exempted", lambda: (DEEDS, other("m3", marks=()))),
    "buried, and still in its queue": (
        "not in the poison queue",
        lambda: (
            instead(SETTLE, replace(SETTLE, asked={**SETTLE.asked, "exempt": {"id3": "buried"}})),
            FOUND,
        ),
    ),
    "staged twice": ("staged twice", lambda: (told(STAGE[1], rows=4), FOUND)),
    "a repeated chunk that counts": (
        "staged twice",
        lambda: (then(replace(STAGE[0], begun=60, ended=61)), FOUND),
    ),
    "not settled any more": (
        "stream",
        lambda: (then(deed("attach", "s", 60, {"token": 2, "last_settled": 0})), FOUND),
    ),
    "a token again": (
        "stream",
        lambda: (then(deed("attach", "s", 60, {"token": 1, "last_settled": 1})), FOUND),
    ),
    "an old token that works": ("not refused", lambda: (then(STALE), FOUND)),
}


@pytest.mark.parametrize("doctored", DOCTORED)
def test_every_doctored_record_is_found(doctored: str) -> None:
    """Positive control: each kind of violation is found when it is planted."""
    kind, story = DOCTORED[doctored]
    assert kind in kinds_of(*story())


# Large bodies.

SPILLED: Final = (
    deed("spill", "k", 2, kind="keep", version="k.v1"),
    deed("respill", "k", 4, version="k.v2"),
    Deed(act="respill", what="k", begun=6, asked={"version": "k.v3"}),
    replace(deed("respill", "k", 8, {"problem": "lease-lost"}, version="k.v4")),
    deed("spill", "d", 10, kind="keep", version="d.v1"),
    deed("drop", "d", 12),
    deed("spill", "b", 14, kind="brief", version="b.v1"),
)


@pytest.mark.parametrize(
    ("names", "kinds"),
    [
        (["k.v2"], set()),
        (["k.v3", "b.v1"], set()),
        (["k.v1"], {"body"}),
        (["k.v4"], {"body"}),
        ([], {"lost"}),
        (["k.v2", "k.v3"], {"doubled"}),
        (["k.v2", "d.v1"], {"resurrected"}),
    ],
)
def test_a_wrong_large_body_is_found(names: list[str], kinds: set[str]) -> None:
    """A body is the last one that was acknowledged, or one that got no answer after it."""
    listed = [found(name, queue=SPILL) for name in names]
    assert {violation.kind for violation in SpillJudge(SPILLED, listed).judged()} == kinds
