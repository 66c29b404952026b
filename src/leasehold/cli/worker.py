"""``leasehold worker``: run handlers, and find out about them."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any, Final

import click
from rich.text import Text

from leasehold import spans
from leasehold.cli.output import Screen, clean_lines, facts, length
from leasehold.cli.remote import CONNECTION, OUTPUT, ExitCode, LocalCommand, RemoteCommand, refuse
from leasehold.cli.root import OrderedGroup
from leasehold.cli.values import Length, Pair
from leasehold.cli.worker_setup import (
    NotFound,
    Preparation,
    Refused,
    RunOptions,
    WorkerSurroundings,
    find_function,
    find_stages,
    find_target,
    summary_members,
    summary_table,
    told,
)
from leasehold.testing import fencing_proof
from leasehold.worker.adapters import QueueError
from leasehold.worker.errors import WorkerError
from leasehold.worker.hooks import Hooks
from leasehold.worker.payloads import codec_named
from leasehold.worker.timing import SystemTime
from leasehold.worker.worker import Worker

_HANDLER: Final = click.argument("handler", metavar="MODULE:HANDLER")
_CODEC: Final = click.option(
    "--codec",
    type=click.Choice(["json", "text", "bytes"]),
    help="Type of message.payload. Default: bytes.",
)
TRACING: Final = click.option(
    "--tracing",
    is_flag=True,
    help="Send OpenTelemetry spans by OTLP to OTEL_EXPORTER_OTLP_ENDPOINT. Needs the extra otel.",
)
MERMAID: Final = click.option("--mermaid", is_flag=True, help="Write a Mermaid flowchart.")
_SECONDS: Final = Length()
_RUN_EPILOG: Final = """\b
Exit codes:
  0    SIGTERM or Ctrl+C stopped the worker; with --until-idle: the queues are empty
  1    the queue does not exist, the credentials are refused, or the worker failed
  2    a mistake on the command line, or unsafe settings
  3    no Leasehold server, or no other service, answers at the address
  130  a second Ctrl+C; 143: a second SIGTERM
"""
_PROOF_EPILOG: Final = """\b
Exit codes:
  0    proven: no late worker did harm
  1    a late worker did harm, or the proof failed
  2    a mistake on the command line, or this handler cannot be proven
"""


class RunCommand(RemoteCommand):
    """A command with the options that all have, which opens its queues itself."""

    def invoke(self, ctx: click.Context) -> Any:
        """Hand the shared options over as *given*."""
        ctx.params["given"] = {
            str(each.name): ctx.params.pop(str(each.name)) for each in (*CONNECTION, *OUTPUT)
        }
        try:
            return click.Command.invoke(self, ctx)
        except KeyboardInterrupt:
            raise click.exceptions.Exit(ExitCode.INTERRUPTED) from None


class Address(click.ParamType[tuple[str, int]]):
    """A port, perhaps with a host before it."""

    name = "[host:]port"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        """See :class:`click.ParamType`."""
        host, _, port = str(value).rpartition(":")
        if not (port.isascii() and port.isdigit() and int(port) < 65_536):  # noqa: PLR2004 - 16 bits
            self.fail(f"{value!r} is no port, such as 9100 or 0.0.0.0:9100.", param, ctx)
        return host.strip("[]") or "127.0.0.1", int(port)


@click.group("worker", cls=OrderedGroup)
def worker() -> None:
    """Run handlers, test them with late workers, and describe their stages."""


@worker.command("run", cls=RunCommand, epilog=_RUN_EPILOG)
@_HANDLER
@click.option(
    "--queue",
    "queues",
    multiple=True,
    required=True,
    metavar="QUEUE[=WEIGHT]",
    help="Name of a queue, or an address such as azure:///orders. Can be repeated: queues share "
    "the worker by their weights. Default weight: 1.",
)
@click.option(
    "--azure",
    is_flag=True,
    help="Use queues of Azure Queue Storage, through the official SDK.",
)
@click.option(
    "--mns",
    metavar="ENDPOINT",
    help="Use queues of Alibaba MNS at this endpoint, with the keys in "
    "ALIBABA_CLOUD_ACCESS_KEY_ID and ALIBABA_CLOUD_ACCESS_KEY_SECRET.",
)
@click.option(
    "--concurrency",
    type=int,
    default=8,
    show_default=True,
    metavar="N",
    help="Number of messages worked on at once.",
)
@click.option(
    "--runner",
    type=click.Choice(["threads", "asyncio", "processes"]),
    help="Where handlers run. Default: asyncio for async def, otherwise threads.",
)
@click.option(
    "--lease",
    "lease_s",
    type=_SECONDS,
    default="30s",
    show_default=True,
    help="Length of each lease. It is renewed while the handler works. After a crash the message "
    "stays hidden for at most this time.",
)
@click.option(
    "--lease-as-set",
    is_flag=True,
    help="Use the lease that the server has set for the message, its type or its queue.",
)
@click.option(
    "--message-timeout",
    "message_timeout_s",
    type=_SECONDS,
    help="Stop renewing a lease after this time, as the handler is stuck. Default: an hour, or "
    "ten leases.",
)
@click.option(
    "--prefetch",
    type=int,
    metavar="N",
    help="Maximum number of messages received ahead. Default: enough to bridge the round trips.",
)
@click.option(
    "--ordered",
    is_flag=True,
    help="Work on the messages of a group in order, one at a time.",
)
@click.option(
    "--concurrency-per-group",
    type=int,
    metavar="N",
    help="Maximum number of messages of a group worked on at once. Default: no limit.",
)
@click.option(
    "--max-failures",
    type=int,
    default=5,
    show_default=True,
    metavar="N",
    help="Bury a message at this number of failures.",
)
@click.option(
    "--max-deliveries",
    type=int,
    metavar="N",
    help="Bury a message that is delivered more often than this. Default: four times "
    "--max-failures.",
)
@_CODEC
@click.option("--until-idle", is_flag=True, help="Exit when there is nothing to receive.")
@click.option(
    "--metrics-port",
    "metrics",
    type=Address(),
    help="Serve Prometheus metrics at /metrics on this port. Default host: 127.0.0.1.",
)
@click.option(
    "--progress/--no-progress",
    default=True,
    help="Show progress: a bar on a terminal, otherwise a line every ten seconds. Default: on.",
)
@click.option(
    "--grace",
    "grace_s",
    type=_SECONDS,
    default="30s",
    show_default=True,
    help="Time for running handlers after the first signal.",
)
@click.option(
    "--renewer",
    type=click.Choice(["thread", "process"]),
    default="thread",
    show_default=True,
    help="What renews leases. A separate process is not delayed by handlers that compute for "
    "long in Python.",
)
@TRACING
def run_worker(given: dict[str, Any], **options: Any) -> None:
    """Receive messages, renew their leases, call a handler for each, and settle them.

    The handler is a function of a message, async or not, or a pipeline of stages. Its module is
    searched in the current directory first. The default queues are those of the development account
    on this machine.

    The first SIGTERM or Ctrl+C lets handlers finish, the second does not wait for them.

    Example: leasehold worker run jobs:handle --queue orders

    Example: leasehold worker run jobs:handle --queue urgent=3 --queue orders --concurrency 32

    Example: leasehold worker run video:pipeline --azure --queue videos --lease 2m --prefetch 0
    """
    screen = Screen(as_json=given["as_json"], no_color=given["no_color"])
    found = click.get_current_context().find_object(WorkerSurroundings)
    sys.exit(run(screen, RunOptions(**options), given, found or WorkerSurroundings()))


@worker.command("prove-fencing", cls=LocalCommand, epilog=_PROOF_EPILOG)
@_HANDLER
@click.option(
    "--probe",
    required=True,
    metavar="MODULE:FUNCTION",
    help="Function that returns the effects of the handler, such as the rows of a table, without "
    "times and random ids.",
)
@click.option(
    "--reset",
    metavar="MODULE:FUNCTION",
    help="Function that removes the effects. Without it two kinds of harm cannot be detected.",
)
@click.option(
    "--later",
    metavar="MODULE:FUNCTION",
    help="Function for what happens in the same rows afterwards, such as a second message.",
)
@click.option("--body", metavar="TEXT", default="", help="Body of the message.")
@click.option(
    "--body-file",
    type=click.File("rb"),
    metavar="FILE",
    help="File with the body of the message. - means standard input.",
)
@click.option(
    "--queue",
    default="rehearsal",
    show_default=True,
    metavar="NAME",
    help="Name of the queue in the message. No queue is used.",
)
@click.option("--type", "message_type", metavar="TEXT", help="Type of the message.")
@click.option(
    "--property",
    "properties",
    multiple=True,
    type=Pair(),
    metavar="NAME=VALUE",
    help="Property of the message. Can be repeated.",
)
@_CODEC
@click.option(
    "--death",
    type=click.Choice(["raise", "kill"]),
    default="raise",
    show_default=True,
    help="How a worker dies: by an exception, or by a kill of its process.",
)
@click.option(
    "--file",
    "files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, resolve_path=True),
    metavar="FILE",
    help="File in whose lines a worker is stopped and killed. Can be repeated. Default: the "
    "handler's file.",
)
@click.option(
    "--places",
    "max_places",
    type=click.IntRange(min=1),
    default=40,
    show_default=True,
    metavar="N",
    help="Maximum number of lines, evenly chosen.",
)
@click.option(
    "--patience",
    "patience_s",
    type=Length(whole=False),
    default="1s",
    show_default=True,
    help="Maximum time that the next holder waits for a stopped one.",
)
def prove_fencing(**options: Any) -> None:
    """Simulate late and dying workers, and check their effects.

    The message is delivered repeatedly to workers that do not notice the end of their lease. No
    queue is used. The handler writes to its own database: use one for tests.

    Example: leasehold worker prove-fencing jobs:handle --probe checks:rows --reset checks:empty
    """
    screen = Screen(as_json=options.pop("as_json"), no_color=options.pop("no_color"))
    sys.exit(prove(screen, **options))


@worker.command("stages", cls=LocalCommand)
@click.argument("pipeline", metavar="MODULE:PIPELINE")
@MERMAID
def stages(pipeline: str, mermaid: bool, as_json: bool, no_color: bool) -> None:
    """Describe the stages of a pipeline.

    Example: leasehold worker stages video:pipeline --mermaid
    """
    screen = Screen(as_json=as_json, no_color=no_color)
    sys.exit(describe(screen, pipeline, mermaid=mermaid))


# --- worker proof ------------------------------------------------------------------------------
#
# ``leasehold worker prove-fencing`` and ``leasehold worker stages``.


_GOOD: Final = tuple(each.value for each in fencing_proof.Verdict if each.is_good)
_BAD: Final = tuple(each.value for each in fencing_proof.Verdict if not each.is_good)
_NEEDS_RESET: Final = (
    "--reset is missing, so one effect cannot be told from two: name a function that removes the "
    "effects."
)


def prove(screen: Screen, handler: str, **options: Any) -> int:
    """Prove that a handler bears late workers; print the table and return the exit code.

    Args:
        screen: Where to write.
        handler: Which one, as ``module:name``.
        **options: The options of the command; see its help.
    """
    has_reset = options["reset"] is not None
    screen.hint(f"Playing late and dying workers against {handler} …")
    cannot = f"{handler} cannot be proven"
    try:
        report = _report(handler, options)
    except NotFound as error:
        return refuse(screen, str(error))
    except (fencing_proof.CannotProve, ValueError) as error:
        return refuse(screen, f"{cannot}: {error}")
    except Exception as error:  # noqa: BLE001 - what the user's probe, reset and later raise
        return refuse(screen, f"{cannot}: {told(error)}")
    if screen.as_json:
        screen.document(report.to_json())
        return ExitCode.DONE if report.holds else ExitCode.REFUSED
    for line in clean_lines(report.table()).splitlines():
        text = Text(line)
        if not text.highlight_words(_BAD, "bold red"):
            text.highlight_words(_GOOD, "green")
        screen.row(text)
    screen.row(Text())
    if report.holds:
        screen.row(Text("Proven: no late worker did harm.", "bold green"))
        return ExitCode.DONE
    screen.row(Text("Not proven.", "bold red"))
    if not has_reset:
        screen.hint(_NEEDS_RESET)
    return ExitCode.REFUSED


def _report(handler: str, options: dict[str, Any]) -> fencing_proof.ProofReport:
    target = find_target(handler, None)
    if isinstance(target.handler, Mapping):
        raise NotFound(f"{handler} has a handler for each queue: name one of them")
    functions: dict[str, Any] = {
        name: None if text is None else find_function(text)
        for name, text in ((name, options.pop(name)) for name in ("probe", "reset", "later"))
    }
    body, body_file = options.pop("body"), options.pop("body_file")
    codec, files = options.pop("codec"), options.pop("files")
    if target.stages is not None and not files:
        # The lines to stop at are not those of the library's pipeline.
        files = (str(sys.modules[handler.partition(":")[0]].__file__),)
    report = fencing_proof.prove(
        target.handler,
        body=body.encode() if body_file is None else body_file.read(),
        decode=None if codec is None else codec_named(codec).decode,
        properties=dict(options.pop("properties")),
        files=files,
        **functions,
        **options,
    )
    return replace(report, handler=handler)


def describe(screen: Screen, pipeline: str, *, mermaid: bool) -> int:
    """Print the stages of a pipeline and return the exit code."""
    try:
        found = find_stages(pipeline)
        layout = found.layout
    except (NotFound, ValueError) as error:
        return refuse(screen, str(error))
    if screen.as_json:
        stages = [
            {"name": name, "weight": weight}
            for name, weight in zip(layout.names, layout.weights, strict=True)
        ]
        screen.document({"pipeline": pipeline, "version": layout.version, "stages": stages})
    else:
        for line in found.describe("mermaid" if mermaid else "text").splitlines():
            screen.row(Text(line))
    return ExitCode.DONE


# --- worker run --------------------------------------------------------------------------------
#
# ``leasehold worker run``: say what will be done, let the worker work, say what it did.


_QUIET: Final = ("azure", "py4j", "httpx", "httpcore", "urllib3", "asyncio")
"""Loggers of libraries that tell of every request."""
_LOOK_S: Final = 0.5
_PATIENCE_S: Final = 1.0
"""For the thread, once the worker has stopped."""


def run(
    screen: Screen, options: RunOptions, given: Mapping[str, Any], around: WorkerSurroundings
) -> int:
    """Run a worker to its end; return the exit code.

    Args:
        screen: Where to write.
        options: The options.
        given: The connection options that all commands share.
        around: What tests replace.
    """
    try:
        if options.tracing:
            spans.start("leasehold-worker")
        with ExitStack() as stack:
            stopping = Stopping(options.grace_s, screen.hint)
            preparation = Preparation(options, given, around, stack)
            worker = preparation.worker(stopping)
            lines = preparation.lines()
            if not screen.as_json:
                _print_plan(screen, options.handler, lines)
            stack.enter_context(logging_lines())
            _run(screen, options, worker, stopping)
            return stopping.exit_code
    except Refused as refused:
        _print_problems(screen, refused)
        return refused.code


def _run(screen: Screen, options: RunOptions, worker: Worker, stopping: Stopping) -> None:
    time = SystemTime()
    began_s = time.monotonic_s()
    failure: Exception | None = None
    with stopping.installed():
        try:
            _work(worker, stopping, until_idle=options.until_idle)
        except (QueueError, WorkerError, RuntimeError) as error:
            failure = error
    took_s = time.monotonic_s() - began_s
    if screen.as_json:
        screen.document(summary_members(options.handler, worker.stats, took_s))
    else:
        screen.hint(f"Worked for {length(took_s)}.")
        screen.show(summary_table(worker.stats, took_s))
    if failure is not None:
        raise Refused([f"the worker failed: {failure}"], ExitCode.REFUSED)


def _work(worker: Worker, stopping: Stopping, *, until_idle: bool) -> None:
    """Let it work in another thread: this one has to be free for signals."""
    ended = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            if until_idle:
                worker.run_until_idle()
            else:
                worker.run(install_signals=False)
        except BaseException as error:  # noqa: BLE001 - for the main thread
            # There was still something to do: that is what the signal was for.
            if not (isinstance(error, TimeoutError) and stopping.was_asked):
                failures.append(error)
        finally:
            ended.set()

    thread = threading.Thread(target=work, name="leasehold-run", daemon=True)
    stopping.on_stopped = ended.set
    thread.start()
    # A signal that comes just before a wait is only noticed when that is over.
    while not ended.wait(_LOOK_S):
        pass
    thread.join(_PATIENCE_S)
    if failures:
        raise failures[0]


def _print_plan(screen: Screen, handler: str, lines: list[tuple[str, str]]) -> None:
    screen.plan(f"Worker {handler}", facts(lines, indent=2))


def _print_problems(screen: Screen, refused: Refused) -> None:
    if screen.as_json:
        screen.error_line({"error": {"code": "worker", "problems": refused.problems}})
        return
    head = Text.assemble(("Error: ", "bold red"))
    if len(refused.problems) == 1:
        screen.error(head.append(refused.problems[0]))
        return
    screen.error(head.append("the worker did not start:"))
    for each in refused.problems:
        screen.error(Text(f"- {each}"))


class _Lines(logging.Handler):
    """Writes to whatever standard error is at the moment: a progress bar takes its place."""

    def emit(self, record: logging.LogRecord) -> None:
        """See :class:`logging.Handler`."""
        try:
            sys.stderr.write(f"{self.format(record)}\n")
        except Exception:  # noqa: BLE001 - as all handlers do
            self.handleError(record)


@contextmanager
def logging_lines() -> Iterator[None]:
    """Write the worker's log, and the handler's, to standard error."""
    root = logging.getLogger()
    handler = _Lines()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


# --- worker signals ----------------------------------------------------------------------------
#
# What Ctrl+C and SIGTERM do to a worker.


_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_SIGNALLED: Final = 128
"""What shells add to the number of a signal for an exit code."""


class Stopping(Hooks):
    """Stops a worker that has it as a hook, each signal less patiently than the one before.

    The first lets handlers finish. The second does not wait for them. The third ends the process.

    Args:
        grace_s: How long handlers may go on after the first signal, in seconds.
        say: Tells people.
    """

    def __init__(self, grace_s: float, say: Callable[[str], None]) -> None:
        self._worker: Worker | None = None
        self._grace_s = grace_s
        self._say = say
        self._heard: list[int] = []
        self.on_stopped: Callable[[], object] = lambda: None
        """Called when the worker is at its end."""

    @property
    def was_asked(self) -> bool:
        """Whether a signal has come."""
        return bool(self._heard)

    @property
    def exit_code(self) -> int:
        """What the process should end with, as far as signals go."""
        return _SIGNALLED + self._heard[1] if len(self._heard) > 1 else 0

    def starting(self, worker: Worker) -> None:
        """See :class:`Hooks`. A signal may have come before there was anything to be stopped."""
        self._worker = worker
        if self.was_asked:
            worker.request_stop(self._grace_s)

    def stopped(self, worker: Worker) -> None:
        """See :class:`Hooks`."""
        del worker
        self.on_stopped()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Listen to signals; for the main thread, elsewhere it does nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before: dict[int, Any] = {each: signal.signal(each, self._hear) for each in _SIGNALS}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        self._heard.append(number)
        if len(self._heard) > 2:  # noqa: PLR2004 - the third
            os._exit(self.exit_code)
        # The main thread may hold any lock at this moment.
        threading.Thread(
            target=self.stop, args=(len(self._heard),), name="leasehold-signal", daemon=True
        ).start()

    def stop(self, count: int) -> None:
        """Do what the signal number *count* asks for, and wait until it is done."""
        worker = self._worker
        if worker is None:
            return
        if count == 1:
            busy = worker.snapshot().in_work
            wait = f" Messages in work: {busy}, which have {length(self._grace_s)}." if busy else ""
            self._say(f"Stopping: no more messages are received.{wait} Again: stop at once.")
        else:
            self._say("Stopping at once.")
            worker.hurry()
        worker.stop(self._grace_s)
