"""The server that our users test with: the real one, in a thread, on a clock they move."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import structlog
from azure.core.exceptions import AzureError, ServiceResponseError
from azure.storage.queue import QueueClient

from leasehold import testing
from leasehold.client import ConnectionFailed, RetryPolicy, Unavailable
from leasehold.engine.faults import Faults
from leasehold.server.settings import SettingsError
from leasehold.server.startup import StartFailed
from leasehold.testing import AsyncInProcessServer, InProcessServer
from leasehold.testing import server as testing_server
from leasehold.testing.server import ServerClock
from leasehold.testing.time import START_MS
from tests.patience import PATIENCE_S

pytest_plugins = "pytester"

MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC)
ONCE = RetryPolicy(attempts=1)


def official(server: InProcessServer, name: str = "orders") -> QueueClient:
    """Return a client of the official SDK that does not retry by itself."""
    return QueueClient.from_connection_string(server.connection_string, name, retry_total=0)


@pytest.fixture(params=["memory", "sqlite"])
def server(request: pytest.FixtureRequest) -> Iterator[InProcessServer]:
    """Give a server with either store."""
    with InProcessServer(store=request.param) as started:
        yield started


# --- time ------------------------------------------------------------------------------------


def test_an_official_client_sees_the_virtual_time(server: InProcessServer) -> None:
    """Its requests are signed by the real clock, and its messages live by the virtual one."""
    queue = official(server)
    queue.create_queue()
    queue.send_message("later", visibility_timeout=3600)
    assert queue.receive_message() is None
    server.advance(3600)
    message = queue.receive_message(visibility_timeout=30)
    assert message is not None
    assert message.inserted_on == MIDNIGHT
    assert message.expires_on == MIDNIGHT + timedelta(days=7)
    assert message.next_visible_on == MIDNIGHT + timedelta(hours=1, seconds=30)
    assert queue.receive_message() is None
    server.advance(30)
    again = queue.receive_message()
    assert again is not None
    assert again.dequeue_count == 2


def test_the_clock_stands_still_until_it_is_moved(server: InProcessServer) -> None:
    """By exactly as much as it is told, in whole milliseconds."""
    assert (server.now_ms(), server.now()) == (START_MS, MIDNIGHT)
    assert server.advance(0.0015) == START_MS + 2
    assert server.advance(0) == START_MS + 2
    assert server.now_ms() == START_MS + 2


def test_a_wait_ends_by_the_virtual_clock(server: InProcessServer) -> None:
    """A receive that waits over HTTP is answered when its time is up, or a message is due."""
    with server.client() as client, ThreadPoolExecutor() as pool:
        queue = client.queue("orders")
        queue.create()
        for delay_s, bodies in ((None, []), (10, [b"due"])):
            if delay_s is not None:
                queue.put("due", delay_s=delay_s)
            waiting = pool.submit(queue.receive, wait_s=20)
            server.until_waiting()
            server.advance(9.999)
            assert not waiting.done()
            server.advance(10.001)
            assert [message.body for message in waiting.result(PATIENCE_S)] == bodies


def test_time_does_not_go_back_or_too_far(server: InProcessServer) -> None:
    """Neither would leave a store that anybody could make sense of."""
    for seconds in (-1, 60 * 60 * 24 * 366 * 1000):
        with pytest.raises(ValueError, match="year 3000"):
            server.advance(seconds)
    assert server.now_ms() == START_MS


def test_a_server_may_go_by_the_clock_of_the_system() -> None:
    """Then it can be made to fail, but its clock cannot be moved."""
    with InProcessServer(clock="system") as server:
        assert abs(server.now() - datetime.now(UTC)) < timedelta(minutes=10)  # noqa: TID251 - this is the system's
        with pytest.raises(ValueError, match="not virtual"):
            server.advance(1)
        queue = official(server)
        queue.create_queue()
        server.faults.fail_commits()
        with pytest.raises(AzureError):
            queue.send_message("x")


def test_its_clock_can_be_handed_on(server: InProcessServer) -> None:
    """What takes a clock of ours takes this one."""
    clock = server.clock
    before_s = clock.monotonic_s()
    clock.advance(1, s=2, ms=500)
    assert clock.monotonic_s() - before_s == 3.5
    assert (clock.now_ms(), clock.now()) == (server.now_ms(), server.now())
    assert clock.wall_drift_s() == 0


# --- failures --------------------------------------------------------------------------------


def test_failed_commits_do_nothing(server: InProcessServer) -> None:
    """As many as were asked for, each told in the words of the dialect."""
    with server.client(retries=ONCE) as client:
        queue = client.queue("orders")
        queue.create()
        server.faults.fail_commits(2)
        with pytest.raises(Unavailable) as native:
            queue.put("1")
        assert native.value.code == "store-unavailable"
        with pytest.raises(AzureError, match="ServerBusy"):
            official(server).send_message("2")
        assert server.faults.left() == Faults()
        queue.put("3")
        assert [message.body for message in queue.receive(8)] == [b"3"]


def test_a_dropped_answer_leaves_the_work_done(server: InProcessServer) -> None:
    """The connection is cut after the commit; what only looks is answered as ever."""
    queue = official(server)
    queue.create_queue()
    server.faults.drop_answers(2)
    assert queue.peek_messages() == []
    assert queue.receive_message() is None, "it had nothing to lose"
    with pytest.raises(ServiceResponseError):
        queue.send_message("sent")
    with pytest.raises(ServiceResponseError):
        queue.receive_message(visibility_timeout=10)
    assert server.faults.left().drop_answers == 0
    assert queue.receive_message() is None
    server.advance(10)
    message = queue.receive_message()
    assert message is not None
    assert (message.content, message.dequeue_count) == ("sent", 2)


def test_the_answer_to_a_wait_can_be_dropped(server: InProcessServer) -> None:
    """A message leased to a receive that waited is lost on the wire like any other."""
    with server.client(retries=ONCE) as client, ThreadPoolExecutor() as pool:
        queue = client.queue("orders")
        queue.create()
        waiting = pool.submit(queue.receive, wait_s=20, visibility_timeout_s=5)
        server.until_waiting()
        queue.put("x", delay_s=1)
        server.faults.drop_answers()
        server.advance(1)
        assert isinstance(waiting.exception(30), ConnectionFailed)
        assert queue.receive() == []
        server.advance(5)
        assert queue.receive()[0].dequeue_count == 2


def test_answers_can_be_kept_back(server: InProcessServer) -> None:
    """Until the client has no more patience; the work is done all the same."""
    hasty = server.client(retries=ONCE, timeout_s=0.05)
    with server.client() as client, hasty:
        queue = client.queue("orders")
        queue.create()
        server.faults.delay_answers(60)
        with pytest.raises(ConnectionFailed):
            hasty.queue("orders").put("x")
        server.faults.clear()
        assert [message.body for message in queue.receive()] == [b"x"]


@pytest.mark.parametrize("name", ["fail_commits", "drop_answers", "delay_answers"])
def test_faults_are_not_negative(leasehold_server: InProcessServer, name: str) -> None:
    """Nothing changes where somebody has miscounted."""
    with pytest.raises(ValueError, match="least"):
        getattr(leasehold_server.faults, name)(-1)
    assert leasehold_server.faults.left() == Faults()


# --- life ------------------------------------------------------------------------------------


def test_a_folder_is_kept(tmp_path: Path) -> None:
    """The next server finds the messages, and goes on from the same time."""
    for store in (tmp_path, str(tmp_path)):
        server = InProcessServer(store=store)
        with server:
            before_ms = server.now_ms()
            with server.client() as client:
                client.queue("orders").create()
                client.queue("orders").put("x", delay_s=5_000)
            server.advance(3600)
        with server, server.client() as client:
            assert server.now_ms() == before_ms + 3_600_000
            assert client.queue("orders").receive() == []
            server.advance(3600)
            client.queue("orders").complete(client.queue("orders").receive()[0])


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_nothing_is_left_behind(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither where the test runs nor where temporary files go, large bodies included."""
    temporary, here = tmp_path / "tmp", tmp_path / "here"
    temporary.mkdir()
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    with InProcessServer(store=store) as server, server.client() as client:
        queue = client.queue("orders")
        queue.create(settings={"max_body_bytes": 1_000_000})
        queue.put(b"x" * 500_000)
        assert bool(list(temporary.iterdir())) == (store == "sqlite")
        assert len(queue.receive()[0].body) == 500_000
    assert list(temporary.iterdir()) == list(here.iterdir()) == []


def test_a_folder_is_used_by_one_server_at_a_time(tmp_path: Path) -> None:
    """The second one is told so, as ``leasehold serve`` is."""
    other = InProcessServer(store=tmp_path)
    with (
        InProcessServer(store=tmp_path),
        pytest.raises(StartFailed, match="in use by another server"),
    ):
        other.start()


def test_servers_do_not_share_anything() -> None:
    """Two at a time have their own messages, clocks and failures."""
    with InProcessServer() as one, InProcessServer() as other:
        official(one).create_queue()
        one.advance(5)
        one.faults.fail_commits(3)
        assert other.now_ms() == START_MS
        assert other.faults.left() == Faults()
        with pytest.raises(AzureError, match="QueueNotFound"):
            official(other).send_message("x")


def test_a_server_can_be_stopped_twice_and_started_again() -> None:
    """With a store in memory it begins anew."""
    server = InProcessServer()
    server.stop()
    server.start()
    with pytest.raises(RuntimeError, match="runs already"):
        server.start()
    official(server).create_queue()
    server.stop()
    server.stop()
    with server, server.client() as client:
        assert list(client.list_queues()) == []


def test_leaving_ends_what_waits() -> None:
    """Receives that wait are answered, and slow answers are not waited for."""
    with ThreadPoolExecutor() as pool:
        with InProcessServer() as server:
            client = server.client(retries=ONCE)
            client.queue("orders").create()
            waiting = pool.submit(client.queue("orders").receive, wait_s=60)
            server.until_waiting()
        assert waiting.result(PATIENCE_S) == []
        with InProcessServer() as server:
            server.faults.delay_answers(60)
            slow = pool.submit(server.client(retries=ONCE).queue("orders").create)
            _until_a_request_is_there(server)
        assert isinstance(slow.exception(30), ConnectionFailed)


def _until_a_request_is_there(server: InProcessServer) -> None:
    async def look() -> None:
        while not server._running.server.state.tasks:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)

    server._await(look()).result(PATIENCE_S)


def test_settings_are_those_of_the_server() -> None:
    """They are checked before anything is started."""
    with pytest.raises(SettingsError, match="max_connections"):
        InProcessServer(max_connections=0)
    with pytest.raises(SettingsError, match="test_mode"):
        InProcessServer(host="0.0.0.0", dev_account="off")
    with InProcessServer(max_pending_requests=1) as server:
        assert server.url.startswith("http://127.0.0.1:")


def test_a_server_that_cannot_start_says_why() -> None:
    """To whoever wanted to start it; nothing of it is left."""
    with InProcessServer() as server:
        other = InProcessServer(port=int(server.url.rsplit(":", 1)[1]))
        with pytest.raises(StartFailed, match="cannot listen"):
            other.start()
        other.stop()


# --- coroutines ------------------------------------------------------------------------------


def test_the_asynchronous_form() -> None:
    """The same server, for tests that are coroutines."""

    async def scenario() -> None:
        async with AsyncInProcessServer() as server, server.client() as client:
            queue = client.queue("orders")
            await queue.create()
            await queue.put("x", delay_s=59)
            waiting = asyncio.create_task(queue.receive(wait_s=60))
            await server.until_waiting()
            assert await server.advance(60) == START_MS + 60_000
            assert [message.body for message in await waiting] == [b"x"]
            assert server.now() == MIDNIGHT + timedelta(minutes=1)
            assert server.now_ms() == START_MS + 60_000
            assert server.url in server.connection_string
            server.faults.fail_commits(1)
            assert server.faults.left().fail_commits == 1

    asyncio.run(scenario())


# --- fixtures --------------------------------------------------------------------------------


def test_fixtures_of_a_test(
    leasehold_server: InProcessServer, leasehold_clock: ServerClock
) -> None:
    """A server that is empty, and its clock."""
    leasehold_clock.advance(7)
    assert leasehold_server.now_ms() == START_MS + 7_000
    with leasehold_server.client() as client:
        assert list(client.list_queues()) == []


PAGE = """
import pytest

@pytest.mark.leasehold(store="sqlite", start_ms=1_000)
def test_marked(leasehold_server, leasehold_clock):
    assert leasehold_server.now_ms() == leasehold_clock.now_ms() == 1_000

def test_plain(leasehold_server):
    assert leasehold_server.now().year == 2026
"""


def test_the_plugin(pytester: pytest.Pytester) -> None:
    """What our users get by installing the package."""
    pytester.makeconftest('pytest_plugins = ["leasehold.testing.pytest_plugin"]')
    pytester.makepyfile(PAGE)
    result = pytester.runpytest_inprocess("--strict-markers", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=2)


def test_what_the_package_exports() -> None:
    """Three names, all there, and no others."""
    assert sorted(testing.__all__) == testing.__all__
    assert all(getattr(testing, name).__name__ == name for name in testing.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        testing.Nothing  # noqa: B018


# --- logs ------------------------------------------------------------------------------------


@pytest.fixture
def _logs_as_they_come(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have a test begin as a process does that has said nothing about logs."""
    before = structlog.get_config() if structlog.is_configured() else None
    structlog.reset_defaults()
    # Tests configure logs before the module is loaded.
    monkeypatch.setattr(testing_server, "_first", testing_server._settings())
    yield
    structlog.reset_defaults()
    if before is not None:
        structlog.configure(**before)


@pytest.mark.usefixtures("_logs_as_they_come")
def test_servers_are_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    """A test that has said nothing about logs sees warnings only, and keeps its own settings."""
    assert not structlog.is_configured()
    with InProcessServer() as one, InProcessServer():
        with one.client() as client:
            client.queue("orders").create()
            client.queue("orders").purge(wait_s=10)
        one.stop()
        assert structlog.is_configured()
        structlog.get_logger().warning("seen")
    assert not structlog.is_configured()
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "seen" in printed.err


@pytest.mark.usefixtures("_logs_as_they_come")
def test_servers_are_quiet_after_logs_were_captured(capsys: pytest.CaptureFixture[str]) -> None:
    """To capture logs configures structlog, with nothing that was not so before."""
    with structlog.testing.capture_logs():
        pass
    assert structlog.is_configured()
    with InProcessServer() as server, server.client() as client:
        client.queue("orders").create()
        client.queue("orders").purge(wait_s=10)
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("_logs_as_they_come")
def test_logs_that_were_configured_are_left_alone() -> None:
    """Whoever looks at the log of a server gets all of it."""
    structlog.configure(processors=[structlog.processors.KeyValueRenderer()])
    with (
        structlog.testing.capture_logs() as logs,
        InProcessServer() as server,
        server.client() as client,
    ):
        client.queue("orders").create()
        client.queue("orders").purge(wait_s=10)
        server.advance(0)
    assert [each["event"] for each in logs] == ["job.over"]
    assert structlog.is_configured()
