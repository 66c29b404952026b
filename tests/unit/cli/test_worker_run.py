"""``leasehold worker run``: what it says, what it does, how it ends."""

from __future__ import annotations

import base64
import json
import signal
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from opentelemetry import trace

from leasehold import spans
from leasehold.cli import main
from leasehold.testing.memory_queue import MEMORY, MemoryQueue
from leasehold.testing.server import InProcessServer
from leasehold.worker.adapters import Denied, QueueError, QueueMissing, Unauthenticated, Unreachable
from leasehold.worker.hooks import Hooks
from leasehold.worker.worker import Worker
from tests.traces import recorded
from tests.unit.cli.worker_support import Folder, clean_modules

PLAN = """\
Worker w6_jobs:handle
  queue     orders, leasehold at http://127.0.0.1:10001, 3 messages
  handlers  2 at once, in threads
  lease     20 s, renewed by a thread when 10 s are left, for 2 min at most
  buffer    at most 4, and no more than can begin within their lease
  failures  tried again after 1 s, 2 s; buried by failure 3, or unseen after 12 deliveries
  payload   json
  ends      when nothing is left, or at SIGTERM or Ctrl+C; handlers then have 5 s
"""
WHERE = "leasehold at http://127.0.0.1:10001"
TABLE = "QUEUE   DONE  FAILED  GIVEN BACK  BURIED  LOST"
JOBS = """
    from leasehold.worker.errors import GiveBack, Poison, Retry
    seen = []
    def handle(message):
        seen.append(message.payload)
        if message.payload == "poison":
            raise Poison("never")
        if message.payload == "retry":
            raise Retry(delay_s=60)
    async def ahandle(message):
        seen.append(message.text)
    each = {"orders": handle, "returns": ahandle}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    """A current directory with the module ``jobs``."""
    monkeypatch.chdir(tmp_path)
    with clean_modules():
        made = Folder(tmp_path)
        made.write("jobs", JOBS)
        yield made


def run(folder: Folder, *options: str, handler: str = "w6_jobs:handle") -> tuple[int, str, str]:
    """Run a worker; return the exit code and what it wrote to both outputs."""
    result = folder("run", handler, *options)
    return result.exit_code, result.stdout, result.stderr


# --- the whole of it -------------------------------------------------------------------------


def test_it_says_what_it_will_do_and_what_it_did(folder: Folder) -> None:
    """A line for each setting before, a table after; the log goes to standard error."""
    queue = folder.queue("orders", '"a"', '"poison"', '"retry"')
    options = ("--concurrency", "2", "--lease", "20s", "--message-timeout", "2m", "--prefetch", "4")
    more = ("--max-failures", "3", "--codec", "json", "--grace", "5", "--until-idle")
    code, out, err = run(folder, "--queue", "orders", *options, *more)
    assert code == 0, err
    assert err.startswith(PLAN)
    head, _, row = out.splitlines()
    assert head.startswith(TABLE)
    assert row.split()[:6] == ["orders", "1", "1", "0", "1", "0"]
    assert "was set aside: never" in err
    assert sorted(folder.module("jobs").seen) == ["a", "poison", "retry"]
    assert [fault.text for _, fault in queue.buried] == ["never"]


def test_the_summary_as_json(folder: Folder) -> None:
    """Scripts get one document on standard output, and no table or plan beside it."""
    folder.queue("orders", '"a"', '"poison"')
    folder.queue("returns", '"b"')
    code, out, err = run(
        folder,
        *("--queue", "orders", "--queue", "returns=3", "--codec", "json", "--until-idle", "--json"),
    )
    assert code == 0
    told = json.loads(out)
    assert (told["worker"], told["done"], told["buried"]) == ("w6_jobs:handle", 2, 1)
    assert [(each["queue"], each["done"], each["buried"]) for each in told["queues"]] == [
        ("orders", 1, 1),
        ("returns", 1, 0),
    ]
    assert "Worker w6_jobs" not in err


def test_several_queues_have_a_sum(folder: Folder) -> None:
    """Each has a row of its own, and its weight is said."""
    folder.queue("orders", '"a"')
    folder.queue("returns", '"b"', '"c"')
    queues = ("--queue", "orders", "--queue", "returns=2.5")
    _, out, err = run(folder, *queues, "--codec", "json", "--until-idle")
    rows = [line.split()[:2] for line in out.splitlines() if line[0].isalpha()]
    assert rows == [["QUEUE", "DONE"], ["orders", "1"], ["returns", "2"], ["all", "3"]]
    assert "returns, leasehold at http://127.0.0.1:10001, 2 messages, weight 2.5\n" in err


def test_an_async_handler_runs_in_a_loop(folder: Folder) -> None:
    """Unless told otherwise; and a mapping has a handler for each queue."""
    folder.queue("orders", "a")
    _, _, err = run(folder, "--queue", "orders", "--until-idle", handler="w6_jobs:ahandle")
    assert "handlers  8 at once, in one event loop\n" in err
    folder.queue("returns", "b")
    queues = ("--queue", "orders", "--queue", "returns")
    code, _, err = run(folder, *queues, "--until-idle", handler="w6_jobs:each")
    assert code == 0, err
    assert folder.module("jobs").seen == ["a", "b"]


def test_tracing_is_switched_on_before_the_worker_is_made(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --tracing handlers have spans, and without it none."""
    folder.queue("orders", "a")
    with recorded() as exporter, monkeypatch.context() as patch:
        provider = trace.get_tracer_provider()
        patch.setattr(trace, "_TRACER_PROVIDER", None)

        def start(service: str) -> None:
            assert service == "leasehold-worker"
            patch.setattr(trace, "_TRACER_PROVIDER", provider)

        patch.setattr(spans, "start", start)
        run(folder, "--queue", "orders", "--until-idle", handler="w6_jobs:ahandle")
        assert exporter.get_finished_spans() == ()
        folder.queue("orders", "b")
        code, _, err = run(
            folder, "--queue", "orders", "--until-idle", "--tracing", handler="w6_jobs:ahandle"
        )
        assert code == 0, err
        assert [each.name for each in exporter.get_finished_spans()] == ["process orders"]


def test_a_pipeline_is_a_handler(folder: Folder) -> None:
    """Ordinary stages run in threads, asynchronous ones in a loop; the plan names them."""
    folder.write(
        "film",
        """
        from leasehold.worker.stages import Stages
        plain, other = Stages(), Stages()
        done = []
        @plain.stage("scan")
        def scan(message, state):
            return 7
        @plain.stage("encode")
        def encode(message, state):
            done.append((message.stage, state))
        @other.stage("scan")
        async def ascan(message, state):
            done.append(message.stage)
        """,
    )
    folder.queue("orders", "a")
    _, _, err = run(folder, "--queue", "orders", "--until-idle", handler="w6_film:plain")
    assert "in threads\n  stages    scan, then encode\n" in err
    folder.queue("orders", "a")
    _, _, err = run(folder, "--queue", "orders", "--until-idle", handler="w6_film:other")
    assert "in one event loop\n  stages    scan\n" in err
    assert folder.module("film").done == [("encode", 7), "scan"]


def _serving() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if "serve_forever" in each.name]


def test_figures_are_served_while_it_works(folder: Folder) -> None:
    """At a free port if the port is 0; the plan says which, and afterwards it is closed."""
    folder.queue("orders", "a")
    told: list[str] = []
    of_others = set(_serving())

    class Look(Hooks):
        def before(self, message: object) -> None:
            with urllib.request.urlopen(url()) as answer:
                told.append(answer.read().decode())

    def url() -> str:
        (thread,) = set(_serving()) - of_others
        server = thread._target.__self__  # type: ignore[attr-defined]
        return f"http://127.0.0.1:{server.server_port}/metrics"

    folder.hooks = (Look(),)
    code, _, err = run(folder, "--queue", "orders", "--until-idle", "--metrics-port", "0")
    assert code == 0
    assert 'leasehold_worker_received_total{queue="orders",worker="w6_jobs:handle"} 1.0' in told[0]
    assert "  metrics   http://127.0.0.1:" in err
    assert set(_serving()) <= of_others


def test_no_progress_says_less(folder: Folder) -> None:
    """With progress there is a line in the log at the end at the latest."""
    folder.queue("orders", "a")
    assert "0 in work, 0 buffered" in run(folder, "--queue", "orders", "--until-idle")[2]
    folder.queue("orders", "a")
    quiet = run(folder, "--queue", "orders", "--until-idle", "--no-progress")[2]
    assert "in work" not in quiet


# --- signals ---------------------------------------------------------------------------------


class Signals(Hooks):
    """Sends signals while a handler is at work, each when the one before was heeded."""

    def __init__(self, *numbers: signal.Signals) -> None:
        self._numbers = list(numbers)

    def before(self, message: object) -> None:
        """Send the first."""
        self._send()

    def stopping(self, worker: Worker) -> None:
        """Send the next."""
        self._send()

    def _send(self) -> None:
        if self._numbers:
            main = threading.main_thread().ident
            assert main is not None
            signal.pthread_kill(main, self._numbers.pop(0))


@pytest.mark.parametrize("until_idle", [True, False])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_lets_handlers_finish(
    folder: Folder, number: signal.Signals, *, until_idle: bool
) -> None:
    """Exit code 0; what was begun is done, and nothing else is begun."""
    queue = folder.queue("orders", "a", "b", "c")
    folder.write(
        "slow",
        """
        import threading
        stopping = threading.Event()
        def handle(message):
            assert stopping.wait(30)
        """,
    )

    class LetGo(Hooks):
        def stopping(self, worker: Worker) -> None:
            folder.module("slow").stopping.set()

    folder.hooks = (Signals(number), LetGo())
    options = ["--concurrency", "1", "--prefetch", "0", *["--until-idle"] * until_idle]
    result = folder("run", "w6_slow:handle", "--queue", "orders", *options)
    assert result.exit_code == 0, result.stderr
    assert (
        "Stopping: no more messages are received. Messages in work: 1, which have 30 s."
        in result.stderr
    )
    assert result.stdout.splitlines()[-1].split()[:3] == ["orders", "1", "0"]
    assert queue.depth().visible == 2


@pytest.mark.parametrize(
    ("numbers", "code"),
    [((signal.SIGTERM, signal.SIGINT), 130), ((signal.SIGINT, signal.SIGTERM), 143)],
)
def test_the_second_signal_waits_for_nobody(
    folder: Folder, numbers: tuple[signal.Signals, signal.Signals], code: int
) -> None:
    """The handler is told to stop and its message is given back; the code names the signal."""
    queue = folder.queue("orders", "a")
    folder.hooks = (Signals(*numbers),)
    folder.write(
        "slow",
        """
        told = []
        def handle(message):
            told.append(message.cancel_token.wait(60))
            message.check()
        """,
    )
    result = folder("run", "w6_slow:handle", "--queue", "orders", "--grace", "10m")
    assert result.exit_code == code, result.stderr
    assert "Stopping: no more messages are received. Messages in work: 1, which have 10 min." in (
        result.stderr
    )
    assert "Stopping at once." in result.stderr
    assert folder.module("slow").told == [True]
    assert result.stdout.splitlines()[-1].split()[:4] == ["orders", "0", "0", "1"]
    assert queue.depth().visible == 1


def test_handlers_of_signals_come_back(folder: Folder) -> None:
    """Whoever runs the command in a process of its own finds it as it was."""
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    folder.queue("orders")
    run(folder, "--queue", "orders", "--until-idle")
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


# --- refusals --------------------------------------------------------------------------------


def test_all_that_is_unsafe_is_named(folder: Folder) -> None:
    """With the option, the bound and the reason; nothing is received, and the exit code is 2."""
    queue = folder.queue("orders", "a")
    settings = ("--concurrency", "0", "--prefetch", "-1", "--lease", "0")
    limits = ("--max-failures", "0", "--max-deliveries", "0")
    code, out, err = run(
        folder,
        *("--queue", "orders", "--queue", "azure:///orders", *settings, *limits),
        handler="w6_jobs:x",
    )
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        "Error: the worker did not start:",
        "- handler: module w6_jobs has no x; it has handle, ahandle",
        "- queue azure:///orders: azure:///<queue> needs AZURE_STORAGE_CONNECTION_STRING to be set",
        "- --concurrency is 0; with threads it must be 1 to 10,000",
        "- --prefetch is -1; it must be 0 or more, or None",
        "- --max-failures is 0; it must be 1 or more",
        "- --max-deliveries is 0; it must be 1 or more",
        "- --lease is 0; it must be a whole number from 1: services count leases in whole seconds",
    ]
    assert queue.calls["receive"] == 0


def test_one_problem_stands_alone(folder: Folder) -> None:
    """Also as JSON."""
    folder.queue("orders")
    options = ("--queue", "orders", "--lease", "10", "--message-timeout", "5")
    problem = (
        "--message-timeout is 5; it must be above visibility_timeout_s, 10: leases would never be "
        "renewed"
    )
    assert run(folder, *options) == (2, "", f"Error: {problem}\n")
    code, out, err = run(folder, *options, "--json")
    assert (code, out) == (2, "")
    assert json.loads(err) == {"error": {"code": "worker", "problems": [problem]}}


def test_a_pipeline_needs_a_queue_that_keeps_progress(folder: Folder) -> None:
    """What the pipeline says against a queue is a problem like the others."""
    folder.write(
        "film",
        """
        from leasehold.worker.stages import Stages
        stages = Stages()
        for name in ("scan", "encode"):
            stages.stage(name)(lambda message, state: None)
        """,
    )
    folder.queues["orders"] = MemoryQueue("orders", capabilities=replace(MEMORY, saves="no"))
    code, _, err = run(folder, "--queue", "orders", handler="w6_film:stages")
    assert code == 2
    assert "queue orders: memory does not store progress with its messages" in err


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (
            QueueMissing("gone"),
            1,
            f"There is no queue `orders` ({WHERE}). Create it: leasehold queue create orders",
        ),
        (
            Unreachable("refused"),
            3,
            f"no answer from the queue orders ({WHERE}): refused",
        ),
        (
            Unauthenticated("wrong key"),
            1,
            f"the credentials for the queue orders ({WHERE}) are not accepted: wrong key",
        ),
    ],
)
def test_a_queue_that_cannot_be_asked_ends_it(
    folder: Folder, error: QueueError, code: int, text: str
) -> None:
    """Before anything else is said or done."""
    queue = folder.queue("orders")

    queue.faults.fail(method="depth", error=error)
    assert run(folder, "--queue", "orders") == (code, "", f"Error: {text}\n")


def test_who_may_not_count_may_receive(folder: Folder) -> None:
    """A key for receiving only is good enough."""
    queue = folder.queue("orders", "a")

    queue.faults.fail(method="depth", error=Denied("403"))
    code, out, err = run(folder, "--queue", "orders", "--until-idle")
    assert "its messages cannot be counted: 403" in err
    assert (code, out.splitlines()[-1].split()[1]) == (0, "1")


@pytest.mark.usefixtures("folder")
def test_a_wrong_key_ends_it() -> None:
    """A server refuses the account's key: one line says so, and nothing is tried again."""
    with InProcessServer() as server:
        key = base64.b64encode(b"another key").decode()
        text = f"AccountName={server.account};AccountKey={key};QueueEndpoint={server.url}/"
        options = ("--queue", "orders", "--connection-string", text)
        result = CliRunner().invoke(main, ["worker", "run", "w6_jobs:handle", *options])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: the credentials for the queue orders (leasehold at ")
    assert result.stderr.endswith(") are not accepted: the key is not that of the account\n")
    assert key not in result.stderr


def test_a_queue_that_goes_away_ends_a_batch_job(folder: Folder) -> None:
    """The table is shown all the same."""
    queue = folder.queue("orders", "a")
    queue.faults.fail(100, method="receive", error=QueueMissing("it was deleted"))
    code, out, err = run(folder, "--queue", "orders", "--until-idle")
    assert code == 1
    assert err.endswith("Error: the worker failed: it was deleted\n")
    assert out.startswith("QUEUE")


def test_a_port_that_is_taken(folder: Folder) -> None:
    """Is named, and nothing is begun."""
    folder.queue("orders", "a")
    with InProcessServer() as server:
        port = server.url.rpartition(":")[2]
        code, _, err = run(folder, "--queue", "orders", "--metrics-port", port)
    assert code == 2
    assert (
        err == f"Error: metrics: 127.0.0.1:{port} cannot be listened on: Address already in use\n"
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--azure", "--mns", "x"), "--azure and --mns exclude each other."),
        (("--azure", "--send-key"), "--send-key does not go with --azure."),
        (("--mns", "x", "--url", "http://a"), "--url does not go with --mns."),
        (
            ("--url", "http://a", "--connection-string", "x=y"),
            "exclude each other. Type one of them.",
        ),
        (("--url", "http://a", "--account", "b"), "Account 'b' needs a key. Type: --key-file FILE"),
        (("--metrics-port", "no"), "'no' is no port, such as 9100 or 0.0.0.0:9100."),
        (("--lease", "1.5"), "'1.5' is not a whole number of seconds."),
    ],
)
def test_options_that_do_not_go_together(
    folder: Folder, options: tuple[str, ...], text: str
) -> None:
    """Are a mistake of usage."""
    folder.queue("orders")
    code, _, err = run(folder, "--queue", "orders", *options)
    assert (code, text in err) == (2, True), err


# --- against a real server -------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[InProcessServer]:
    """A server of its own."""
    with InProcessServer(clock="system") as made:
        yield made


@pytest.mark.parametrize("options", [(), ("--azure",)], ids=["native", "azure"])
def test_it_works_with_a_real_queue(
    folder: Folder, server: InProcessServer, options: tuple[str, ...]
) -> None:
    """Through the native API and through the official SDK, by the usual connection string."""
    with server.client() as client:
        queue = client.queue("real")
        queue.create()
        queue.put("a")
        folder.open = lambda spec: spec.open()  # type: ignore[method-assign]
        result = folder(
            *("run", "w6_jobs:ahandle", "--queue", "real", "--until-idle", *options),
            AZURE_STORAGE_CONNECTION_STRING=server.connection_string,
        )
        assert result.exit_code == 0, result.stderr
        assert f"real, {'azure' if options else 'leasehold'} at {server.url}, 1 message\n" in (
            result.stderr
        )
        assert queue.counts().total == 0
        queue.delete()
    assert folder.module("jobs").seen == ["a"]
