"""The pages for those who change the code: each file is there, and requests pass the files told."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest
from azure.storage.queue import QueueClient

import leasehold
from leasehold.spark.connection import TaskIdentity
from leasehold.spark.source import LeaseholdDataSource
from leasehold.spark.stream.reader import ClaimReader, close_shared
from leasehold.testing import InProcessServer
from tests.docs.pages import DOCS, ROOT, code, page_id, section
from tests.patience import PATIENCE_S

PACKAGE: Final = Path(leasehold.__file__).parent
ARCHITECTURE: Final = DOCS / "explanation/architecture.md"
PAGES: Final = (ARCHITECTURE, DOCS / "explanation/change-it.md", ROOT / "CONTRIBUTING.md")
_FILE: Final = re.compile(r"[\w/.-]+\.(?:py|sql|toml|sh)")
_ROUND: Final = ("server/main.py", "testing/", "engine/faults.py", "http/test_mode.py")
"""What runs around every request: the loop of the server, and what the test stands on."""
needs_pure = pytest.mark.skipif(
    leasehold.form() == "compiled", reason="nobody sees compiled calls; CI runs it on pure Python"
)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_file_that_is_named_is_there(page: Path) -> None:
    """Below the package, or below the project where the path says so."""
    named = {name for name in code(page.read_text("utf-8")) if _FILE.fullmatch(name)}
    named = {name for name in named if "/" in name and "NNNN" not in name}
    assert named
    folders = (PACKAGE, PACKAGE.parent, ROOT)
    assert [n for n in sorted(named) if not any((each / n).exists() for each in folders)] == []


def told(heading: str) -> set[str]:
    """Return the files of the package that a section names."""
    names = code(section(ARCHITECTURE.read_text("utf-8"), heading))
    return {name for name in names if name.endswith(".py")}


@contextmanager
def traced() -> Iterator[Callable[[], list[str]]]:
    """Note in every thread begun meanwhile which files run; ``seen()`` returns and forgets them.

    They are in the order in which they were first run.
    """
    files: dict[str, None] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            files[frame.f_code.co_filename] = None

    def seen() -> list[str]:
        found = [Path(name) for name in files.copy()]
        files.clear()
        names = (p.relative_to(PACKAGE).as_posix() for p in found if p.is_relative_to(PACKAGE))
        return [name for name in names if not name.startswith(_ROUND)]

    before = sys.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield seen
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


@needs_pure
def test_a_put_passes_the_files_told_in_their_order_and_no_others() -> None:
    """On SQLite, through Azure's SDK, when the server has warmed up.

    It may do something by itself meanwhile, but not during each of several puts.
    """
    with (
        traced() as seen,
        InProcessServer(store="sqlite") as server,
        QueueClient.from_connection_string(server.connection_string, "orders") as queue,
    ):
        queue.create_queue()
        queue.send_message("the first one fills the caches")
        seen()
        passed: list[list[str]] = []
        for number in range(5):
            queue.send_message(f"pack order {number}")
            passed.append(seen())
    always = set.intersection(*map(set, passed))
    page = section(ARCHITECTURE.read_text("utf-8"), "## The path of a Put Message")
    in_order = re.findall(r"^\| \d+ \| `([^`]+)`", page, re.MULTILINE)
    assert in_order in [[name for name in each if name in always] for each in passed]
    assert len(in_order) <= 20


@needs_pure
def test_a_receive_that_waits_passes_the_files_told() -> None:
    """It waits until another client puts a message."""
    with traced() as seen, InProcessServer(store="sqlite") as server, server.client() as client:
        queue = client.queue("orders")
        queue.create()
        got: list[int] = []
        waiter = threading.Thread(target=lambda: got.append(len(queue.receive(1, wait_s=60))))
        seen()
        waiter.start()
        server.until_waiting()
        queue.put("pack order 7")
        waiter.join(timeout=PATIENCE_S)
        assert got == [1]
        missing = told("## The path of a receive that waits").difference(seen())
        # Another server has not to be told. When the next message is due is asked once nothing was
        # found, and the put may come before that.
        missing -= {"stores/sql/admin.py"}
        assert missing == {"engine/peers.py", "stores/postgres/peers.py"}


@contextmanager
def micro_batches(backlog: int = 0, **options: str) -> Iterator[Callable[[], list[str]]]:
    """Call for micro-batches of ten messages as Spark would; each is opened, read and settled.

    Yields what does one more, and returns the files that it passed. The server has warmed up, and
    has more messages than are taken: so many as *backlog* says.
    """
    with traced() as seen, InProcessServer(store="sqlite") as server, server.client() as client:
        queue = client.queue("orders")
        queue.create()
        queue.put_many(f"pack order {number}" for number in range(backlog))
        settings = {"queueName": "orders", "streamId": "totals", **options}
        source = LeaseholdDataSource({"connectionString": server.connection_string, **settings})
        driver, executor = (source.streamReader(source.schema()) for _ in range(2))
        assert isinstance(driver, ClaimReader)
        assert isinstance(executor, ClaimReader)
        task = TaskIdentity(query_id="q", batch_id=0, run_id="r", partition=0, attempt=0, task=0)
        executor.task = lambda: task
        limit, offset = driver.getDefaultReadLimit(), driver.initialOffset()

        def run() -> list[str]:
            nonlocal offset
            queue.put_many(f"pack order {number}" for number in range(10))
            seen()
            end = driver.latestOffset(offset, limit)
            parts = driver.partitions(offset, end)
            rows = sum(batch.num_rows for part in parts for batch in executor.read(part))
            driver.commit(end)
            offset = end
            assert rows == 10
            return seen()

        for _ in range(3):
            run()
        yield run
        driver.stop()
        close_shared()


def claim_files() -> list[str]:
    """Return the files of the package that a claim passes, in their order."""
    page = section(ARCHITECTURE.read_text("utf-8"), "## The path of a claim from Spark")
    return re.findall(r"^\| \d+ \| `([^`]+)`", page, re.MULTILINE)


@needs_pure
def test_a_claim_passes_the_files_told_in_their_order_and_no_others() -> None:
    """On SQLite, opened when Spark asks for it, when the server has warmed up."""
    with micro_batches(prefetchClaim="false") as run:
        passed = [run() for _ in range(8)]
    always, in_order = set.intersection(*map(set, passed)), claim_files()
    assert in_order in [[name for name in each if name in always] for each in passed]
    assert len(in_order) <= 41


@needs_pure
def test_a_claim_that_was_opened_ahead_passes_no_others() -> None:
    """It is opened beside the micro-batch before it, and waits for nothing."""
    with micro_batches(backlog=20, maxMessagesPerTrigger="10") as run:
        passed = [run() for _ in range(8)]
    assert set.intersection(*map(set, passed)) <= set(claim_files())
    left_out = set(claim_files()).difference(*passed)
    assert left_out == {"engine/long_poll.py", "engine/listeners.py"}
