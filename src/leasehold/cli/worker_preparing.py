"""Putting a worker together from what stands on the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from leasehold.cli.exit_codes import ExitCode
from leasehold.cli.texts import clean, counted, length, number
from leasehold.cli.worker_finding import NotFound, Target, find_target
from leasehold.cli.worker_queues import Opened, QueueOpener
from leasehold.cli.worker_views import failures_text, lease_text, prefetch_text
from leasehold.extras import install
from leasehold.worker.errors import UnsafeWorker
from leasehold.worker.hooks import Hooks
from leasehold.worker.leases import LeaseSettings
from leasehold.worker.options import Runner
from leasehold.worker.payloads import codec_named
from leasehold.worker.queues import (
    NotSupported,
    QueueClient,
    QueueError,
    QueueMissing,
    Unreachable,
)
from leasehold.worker.queues.specs import QueueSpec
from leasehold.worker.retrying import PoisonRule, RetryRule
from leasehold.worker.worker import Worker

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

REPORT_S: Final = 10.0
"""Seconds between two lines about how it is going, where there is no terminal."""
_PLACES: Final[Mapping[Runner, str]] = {
    "threads": "threads",
    "asyncio": "one event loop",
    "processes": "processes",
}


_OPTIONS: Final = {
    "concurrency": "--concurrency",
    "prefetch": "--prefetch",
    "poison.max_failures": "--max-failures",
    "poison.max_deliveries": "--max-deliveries",
    "lease: visibility_timeout_s": "--lease",
    "lease: message_timeout_s": "--message-timeout",
}
"""By how problems of a worker begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """The options of the command; see its help."""

    handler: str
    queues: tuple[str, ...]
    azure: bool
    mns: str | None
    concurrency: int
    runner: Runner | None
    lease_s: int
    message_timeout_s: float | None
    prefetch: int | None
    max_failures: int
    max_deliveries: int | None
    codec: str | None
    until_idle: bool
    metrics: tuple[str, int] | None
    progress: bool
    grace_s: float
    renewer: Literal["thread", "process"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSurroundings:
    """What tests replace: click hands it on as ``obj``."""

    open_spec: Callable[[QueueSpec], QueueClient] = QueueSpec.open
    hooks: tuple[Hooks, ...] = ()


class Refused(Exception):
    """The worker is not begun, or could not go on.

    Args:
        problems: Why; one or more.
        code: With which the command ends.
    """

    def __init__(self, problems: list[str], code: ExitCode = ExitCode.USAGE) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems
        self.code = code


class Preparation:
    """Finds the handler, opens the queues, makes the worker, and collects all that is wrong.

    Args:
        wishes: The options.
        given: The connection options that all commands share.
        around: What tests replace.
        stack: Closes what is opened here.
    """

    def __init__(
        self,
        wishes: Wishes,
        given: Mapping[str, Any],
        around: WorkerSurroundings,
        stack: ExitStack,
    ) -> None:
        self._wishes = wishes
        self._around = around
        self._stack = stack
        self._problems: list[str] = []
        self._registry: CollectorRegistry | None = None
        self._target = self._found()
        self._queues = self._opened(given)
        self._lease = LeaseSettings.of(wishes.lease_s, wishes.message_timeout_s)
        self._retries = RetryRule()
        self._poison = PoisonRule(
            max_failures=wishes.max_failures, max_deliveries=wishes.max_deliveries
        )

    def worker(self, *hooks: Hooks) -> Worker:
        """Make the worker.

        Raises:
            Refused: With all that is wrong.
        """
        wishes = self._wishes
        self._ask_stages()
        try:
            if wishes.metrics is not None:
                self._registry = _registry()
            worker = Worker(
                # Whatever is missing, the rest is looked at all the same.
                print if self._target is None else self._target.handler,
                {each.client: each.weight for each in self._queues},
                concurrency=wishes.concurrency,
                runner=self._runner,
                lease=self._lease,
                prefetch=wishes.prefetch,
                codec=None if wishes.codec is None else codec_named(wishes.codec),
                retries=self._retries,
                poison=self._poison,
                hooks=(*hooks, *self._around.hooks),
                renewer=wishes.renewer,
                name=wishes.handler,
                registry=self._registry,
                report_s=REPORT_S if wishes.progress else None,
            )
        except UnsafeWorker as error:
            self._problems += [
                _in_options(each)
                for each in error.problems
                if self._queues or not each.startswith("queues:")
            ]
        if self._problems:
            raise Refused(self._problems)
        return worker

    def lines(self) -> list[tuple[str, str]]:
        """Return what the worker will do, and begin to serve its figures.

        Raises:
            Refused: A queue is not there or cannot be reached, or the port is taken.
        """
        wishes, target = self._wishes, self._target
        lines = [("queue", self._queue_text(each)) for each in self._queues]
        where = _PLACES[self._runner]
        lines.append(("handlers", f"{number(wishes.concurrency)} at once, in {where}"))
        if target is not None and target.stages is not None:
            lines.append(("stages", ", then ".join(target.stages.layout.names)))
        lines.append(("lease", lease_text(self._lease, wishes.renewer)))
        lines.append(("buffer", prefetch_text(wishes.prefetch)))
        lines.append(("failures", failures_text(self._retries, self._poison)))
        if wishes.codec is not None:
            lines.append(("payload", wishes.codec))
        if wishes.metrics is not None:
            lines.append(("metrics", self._serve_metrics(*wishes.metrics)))
        end = "when nothing is left, or at" if wishes.until_idle else "at"
        grace = f"handlers then have {length(wishes.grace_s)}"
        lines.append(("ends", f"{end} SIGTERM or Ctrl+C; {grace}"))
        return lines

    # --- inside ------------------------------------------------------------------------------

    def _found(self) -> Target | None:
        try:
            return find_target(self._wishes.handler, self._wishes.runner)
        except NotFound as error:
            self._problems.append(f"handler: {error}")
            return None

    def _opened(self, given: Mapping[str, Any]) -> list[Opened]:
        wishes = self._wishes
        opener = QueueOpener(
            given, azure=wishes.azure, mns=wishes.mns, open_spec=self._around.open_spec
        )
        self._stack.callback(opener.close)
        opened = []
        for text in wishes.queues:
            try:
                found = opener.open(text)
            except ValueError as error:
                self._problems.append(str(error))
            else:
                self._stack.callback(found.client.close)
                opened.append(found)
        return opened

    def _ask_stages(self) -> None:
        stages = None if self._target is None else self._target.stages
        if stages is None:
            return
        for each in self._queues:
            try:
                stages.check_queue(each.client)
            except (NotSupported, ValueError) as error:
                self._problems.append(f"queue {each.client.name}: {error}")

    @property
    def _runner(self) -> Runner:
        if self._wishes.runner is not None:
            return self._wishes.runner
        return "asyncio" if self._target is not None and self._target.is_async else "threads"

    def _queue_text(self, queue: Opened) -> str:
        """Ask how many messages there are, and so whether the service can be reached at all."""
        name = clean(queue.client.name)
        try:
            depth = queue.client.depth()
        except QueueMissing:
            remedy = ""
            if queue.where.startswith("leasehold"):
                remedy = f" Create it with leasehold queue create {name}."
            text = f"there is no queue {name} ({queue.where}).{remedy}"
            raise Refused([text], ExitCode.REFUSED) from None
        except Unreachable as error:
            text = f"no answer from the queue {name} ({queue.where}): {clean(str(error))}"
            raise Refused([text], ExitCode.NO_CONNECTION) from None
        except QueueError as error:
            # Whoever may receive need not be allowed to count.
            many = f"its messages cannot be counted: {clean(str(error))}"
        else:
            many = _messages(depth.total)
        weight = f"weight {queue.weight:g}" if len(self._queues) > 1 else ""
        return ", ".join(filter(None, (name, queue.where, many, weight)))

    def _serve_metrics(self, host: str, port: int) -> str:
        from prometheus_client import start_http_server  # noqa: PLC0415 - optional

        assert self._registry is not None
        try:
            server, thread = start_http_server(port, host, self._registry)
        except OSError as error:
            text = f"metrics: {host}:{port} cannot be listened on: {error.strerror}"
            raise Refused([text]) from None

        def end() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        self._stack.callback(end)
        return f"http://{host}:{server.server_port}/metrics"


def _registry() -> CollectorRegistry:
    try:
        from prometheus_client import CollectorRegistry  # noqa: PLC0415 - optional
    except ImportError:
        raise UnsafeWorker(
            [f"metrics: prometheus-client is missing: {install('worker')}"]
        ) from None
    return CollectorRegistry()


def _in_options(problem: str) -> str:
    """Name the option in place of the worker's setting."""
    for setting, option in _OPTIONS.items():
        if problem.startswith(f"{setting} "):
            return f"{option}{problem.removeprefix(setting)}"
    return problem


def _messages(total: int | None) -> str:
    if total is None:
        return ""
    return counted(total, "message")
