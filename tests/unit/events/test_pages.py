"""The pages on the event log name what is there, and what they show runs."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from leasehold import events as eventlog
from leasehold.domain.events import EVENT_FORMAT
from leasehold.events.names import FORMAT_KEY, TYPE_NAMES
from leasehold.events.parquet import MAX_ROWS, ROW_GROUP_ROWS, SCHEMA, FileBuilder
from tests.docs.pages import DOCS, ROOT, Block, blocks, code, read, rows, section
from tests.unit.events.make_sample import events

REFERENCE: Final = read("reference/event-log.md")
HOWTO: Final = DOCS / "howto" / "read-the-event-log.md"


def listed(heading: str) -> list[list[str]]:
    """Return the rows under a heading whose first cell is code."""
    return [row for row in rows(section(REFERENCE, heading)) if code(row[0])]


def test_columns_are_up_to_date() -> None:
    """The table here and the client's model are what the tool makes of the declaration."""
    done = subprocess.run(
        [sys.executable, "tools/make_events.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_columns() -> None:
    """Each column with its type, in the order of the files."""
    found = [(code(row[0])[0], row[1]) for row in listed("## Columns")]
    kinds = {"timestamp[ms, tz=UTC]": "timestamp"}
    assert found == [(each.name, kinds.get(str(each.type), str(each.type))) for each in SCHEMA]


def test_types() -> None:
    """Each type of event once, in the order of their numbers."""
    assert [code(row[0])[0] for row in listed("## Types")] == list(TYPE_NAMES.values())


def test_numbers() -> None:
    """Sizes and the format are those of the code."""
    assert f"{MAX_ROWS:,} events" in REFERENCE
    assert f"{ROW_GROUP_ROWS:,} rows" in REFERENCE
    assert f"`{FORMAT_KEY.decode()}`, which is {EVENT_FORMAT} today" in REFERENCE


def test_functions() -> None:
    """What can be imported is described."""
    names = {code(row[0])[0].split("(")[0] for row in listed("## Read from Python")}
    assert set(eventlog.__all__) <= names


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Block]:
    """The blocks of the how-to guide, in a folder with some events."""
    builder = FileBuilder()
    builder.add(events())
    (tmp_path / "events").mkdir()
    builder.write(tmp_path / "events")
    monkeypatch.chdir(tmp_path)
    return blocks(HOWTO)


def test_python_examples(examples: list[Block]) -> None:
    """They run one after the other; the message's life is whole."""
    namespace: dict[str, Any] = {}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for block in examples:
            if block.language == "py" and "spark" not in block.text:
                exec(block.text, namespace)
    lines = printed.getvalue().splitlines()
    assert lines[0] == "6"
    assert lines[1:5] == ["completed 1", "lease-ended 1", "put 2", "received 2"]
    assert [line.split()[2] for line in lines[5:]] == ["put", "received", "completed"]


def test_sql_examples(examples: list[Block]) -> None:
    """They run, and find what is there."""
    duckdb: Any = pytest.importorskip("duckdb")
    connection = duckdb.connect()
    found = [
        connection.execute(block.text).fetchall() for block in examples if block.language == "sql"
    ]
    assert len(found) == 4
    assert found[1] == [("orders", 2, [100.0, 100.0])]
    assert found[2] == [("w1", 1, 800.0)]
    assert found[3] == []
