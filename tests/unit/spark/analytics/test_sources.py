"""Where events come from: what is late, what is missing, and which log it is. Without Spark."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import MagicMock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leasehold.advisor.tables.incremental import OtherLog, State, update
from leasehold.advisor.tables.sources import SERVER, ExportedFiles, Gap, Known, ServerLog
from leasehold.client import Client
from leasehold.events.names import file_of, folder_of
from leasehold.testing import InProcessServer

_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def pieces(folder: Path, *ranges: tuple[int, int], upto_seq: int = 0) -> list[tuple[int, bool]]:
    """Return how many files each piece has, one or more, and whether it is late."""
    home = folder / folder_of(0)
    home.mkdir(parents=True, exist_ok=True)
    for first, last in ranges:
        pq.write_table(pa.table({"seq": [first]}), home / file_of(first, last))
    source = ExportedFiles(folder, files_per_run=1)
    found = source.pieces(MagicMock(), Known(upto_seq=upto_seq))
    return [(int(piece.names[0].split("-")[1]), piece.late) for piece in found]


def test_files_that_overlap_an_earlier_piece_are_late(tmp_path: Path) -> None:
    """A piece is judged by what is used before it, in this update as in those before."""
    assert pieces(tmp_path, (1, 5), (1, 8), (9, 9), (7, 12), (13, 14)) == [
        (1, False),
        (1, True),
        (7, True),
        (9, True),
        (13, False),
    ]


def test_files_behind_one_that_came_late_are_judged_by_it_too(tmp_path: Path) -> None:
    """Late files are used first, and may reach beyond what was used."""
    assert pieces(tmp_path, (3, 20), (12, 15), (21, 30), upto_seq=10) == [
        (3, True),
        (12, True),
        (21, False),
    ]


def test_a_server_is_known_by_its_address_and_account() -> None:
    """Without the key, however the address is given."""
    of = ServerLog({"endpoint": "http://127.0.0.1:10001/", "account": "acme", "credential": _KEY})
    assert of.name == "http://127.0.0.1:10001/acme"
    assert _KEY not in repr(of)
    text = f"QueueEndpoint=http://127.0.0.1:10001/acme;AccountName=acme;AccountKey={_KEY}"
    assert ServerLog({"connectionString": text}).name == of.name
    assert ServerLog({"connectionString": text, "queueName": "orders"}).name.endswith("/orders")


def test_tables_of_one_server_are_not_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only tables of before servers had names take the first one for theirs."""
    log = ServerLog({"endpoint": "http://127.0.0.1:10001", "account": "acme", "credential": _KEY})
    monkeypatch.setattr(ServerLog, "pieces", lambda *_: [])
    state = {"source": log.name}
    monkeypatch.setattr(
        "leasehold.advisor.tables.incremental.Folder.state",
        lambda _: State(run=1, runs=(1,), source=state["source"]),
    )
    for state["source"] in (log.name, SERVER, ""):
        assert update(MagicMock(), log, tmp_path).runs == 0
    for state["source"] in ("http://127.0.0.2:10001/acme", "/data/events"):
        with pytest.raises(OtherLog):
            update(MagicMock(), log, tmp_path)
    state["source"] = SERVER
    with pytest.raises(OtherLog):
        update(MagicMock(), ExportedFiles(tmp_path), tmp_path)


def test_what_a_server_keeps_no_more_is_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first event that is kept on nothing is missing."""
    with InProcessServer() as server:
        log = ServerLog({"connectionString": server.connection_string})
        assert log.gap(Known(upto_seq=5)) is None
        with Client.from_connection_string(server.connection_string) as client:
            queue = client.queue("orders")
            queue.create()
            for _ in range(9):
                queue.put("x")
        with Client.from_connection_string(server.connection_string) as client:
            [first, *_] = client.event_page().events
        assert log.gap(Known(upto_seq=1)) is None
        whole = Client.event_page

        def trimmed(self: Client, after: int = 0, *, limit: int = 1_000) -> object:
            return whole(self, max(after, first.seq + 5), limit=limit)

        monkeypatch.setattr(Client, "event_page", trimmed)
        kept = first.seq + 6
        assert log.gap(Known(upto_seq=first.seq + 2)) == Gap(first.seq + 3, kept - 1)
        assert log.gap(Known(upto_seq=kept - 1)) is None
        assert log.gap(Known(upto_seq=0)) is None
