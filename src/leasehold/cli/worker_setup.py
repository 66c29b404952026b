"""Putting a worker together from what stands on the command line."""

from __future__ import annotations

import difflib
import importlib
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple
from urllib.parse import urlsplit

import click
from rich.console import Group, RenderableType
from rich.text import Text

from leasehold.cli.output import Cell, Column, Listing, clean, counted, length, number, per_second
from leasehold.cli.remote import WRONG_KEY, ExitCode, check_options, open_session
from leasehold.client import Client
from leasehold.extras import LIBRARIES, install, library_of
from leasehold.server.settings import DEV_ACCOUNT
from leasehold.server.settings.values import DEV_KEY
from leasehold.worker.adapters import (
    NotSupported,
    QueueClient,
    QueueError,
    QueueMissing,
    Unauthenticated,
    Unreachable,
)
from leasehold.worker.adapters.native import NativeQueue
from leasehold.worker.adapters.specs import CONNECTION_VARIABLE, QueueSpec, parts_of
from leasehold.worker.errors import UnsafeWorker
from leasehold.worker.handlers import Handler, is_async
from leasehold.worker.hooks import Hooks
from leasehold.worker.leases import LeaseSettings
from leasehold.worker.options import Runner
from leasehold.worker.outcomes import Kind
from leasehold.worker.payloads import codec_named
from leasehold.worker.reporting import QueueStats, Stats
from leasehold.worker.retry_policy import PoisonRule, RetryRule
from leasehold.worker.stages import Stages
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
    "ordered": "--ordered",
    "concurrency_per_group": "--concurrency-per-group",
    "poison.max_failures": "--max-failures",
    "poison.max_deliveries": "--max-deliveries",
    "lease: visibility_timeout_s": "--lease",
    "lease: message_timeout_s": "--message-timeout",
}
"""By how problems of a worker begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of the command; see its help."""

    handler: str
    queues: tuple[str, ...]
    azure: bool
    mns: str | None
    concurrency: int
    runner: Runner | None
    lease_s: int
    lease_as_set: bool
    message_timeout_s: float | None
    prefetch: int | None
    ordered: bool
    concurrency_per_group: int | None
    max_failures: int
    max_deliveries: int | None
    codec: str | None
    until_idle: bool
    metrics: tuple[str, int] | None
    progress: bool
    grace_s: float
    renewer: Literal["thread", "process"]
    tracing: bool


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
        options: The options.
        given: The connection options that all commands share.
        around: What tests replace.
        stack: Closes what is opened here.
    """

    def __init__(
        self,
        options: RunOptions,
        given: Mapping[str, Any],
        around: WorkerSurroundings,
        stack: ExitStack,
    ) -> None:
        self._wishes = options
        self._around = around
        self._stack = stack
        self._problems: list[str] = []
        self._registry: CollectorRegistry | None = None
        self._target = self._found()
        self._queues = self._opened(given)
        self._lease = LeaseSettings.of(options.lease_s, options.message_timeout_s)
        self._retries = RetryRule()
        self._poison = PoisonRule(
            max_failures=options.max_failures, max_deliveries=options.max_deliveries
        )

    def worker(self, *hooks: Hooks) -> Worker:
        """Make the worker.

        Raises:
            Refused: With all that is wrong.
        """
        options = self._wishes
        self._ask_stages()
        try:
            if options.metrics is not None:
                self._registry = _registry()
            worker = Worker(
                # Whatever is missing, the rest is looked at all the same.
                print if self._target is None else self._target.handler,
                {each.client: each.weight for each in self._queues},
                concurrency=options.concurrency,
                runner=self._runner,
                lease=self._lease,
                lease_as_set=options.lease_as_set,
                prefetch=options.prefetch,
                ordered=options.ordered,
                concurrency_per_group=options.concurrency_per_group,
                codec=None if options.codec is None else codec_named(options.codec),
                retries=self._retries,
                poison=self._poison,
                hooks=(*hooks, *self._around.hooks),
                renewer=options.renewer,
                name=options.handler,
                registry=self._registry,
                report_s=REPORT_S if options.progress else None,
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
            Refused: A queue is not there, cannot be reached or does not accept the credentials,
                or the port is taken.
        """
        options, target = self._wishes, self._target
        lines = [("queue", self._queue_text(each)) for each in self._queues]
        where = _PLACES[self._runner]
        lines.append(("handlers", f"{number(options.concurrency)} at once, in {where}"))
        if target is not None and target.stages is not None:
            lines.append(("stages", ", then ".join(target.stages.layout.names)))
        lease = lease_text(self._lease, options.renewer)
        lines.append(("lease", "as set on the server" if options.lease_as_set else lease))
        lines.append(("buffer", prefetch_text(options.prefetch)))
        lines.append(("failures", failures_text(self._retries, self._poison)))
        if options.codec is not None:
            lines.append(("payload", options.codec))
        if options.metrics is not None:
            lines.append(("metrics", self._serve_metrics(*options.metrics)))
        end = "when nothing is left, or at" if options.until_idle else "at"
        grace = f"handlers then have {length(options.grace_s)}"
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
        options = self._wishes
        opener = QueueOpener(
            given, azure=options.azure, mns=options.mns, open_spec=self._around.open_spec
        )
        self._stack.callback(opener.close)
        opened = []
        for text in options.queues:
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
        except QueueMissing as error:
            near = _NEAR.search(str(error))
            text = f"There is no queue `{name}` ({queue.where}).{near[0] if near else ''}"
            if queue.where.startswith("leasehold"):
                text += f" Create it: leasehold queue create {name}"
            raise Refused([text], ExitCode.REFUSED) from None
        except Unreachable as error:
            text = f"no answer from the queue {name} ({queue.where}): {clean(str(error))}"
            raise Refused([text], ExitCode.NO_CONNECTION) from None
        except Unauthenticated as error:
            why = clean(str(error))
            if WRONG_KEY in why:
                why = "the key is not that of the account"
            text = f"the credentials for the queue {name} ({queue.where}) are not accepted: {why}"
            raise Refused([text], ExitCode.REFUSED) from None
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
    from prometheus_client import CollectorRegistry  # noqa: PLC0415 - few workers have metrics

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


# --- worker queues -----------------------------------------------------------------------------
#
# The queues of a worker, from what stands on the command line.


_NEAR: Final = re.compile(r" Near: `[^.]*\.")
"""What a Leasehold server says of queues with similar names."""
_WEIGHT: Final = re.compile(r"(.+)=(\d+(?:\.\d+)?)")
_OPTION: Final = re.compile(r".*[?&][a-z_]+")
"""An address up to the value of one of its options."""
_NOT_AZURE: Final = ("send_key", "ca_file")
_NOT_MNS: Final = (*_NOT_AZURE, "connection_string", "url", "account", "key_file")
_DEVELOPMENT: Final = "UseDevelopmentStorage=true"
_DEVELOPMENT_URL: Final = "http://127.0.0.1:10001"


@dataclass(frozen=True, slots=True)
class Opened:
    """A queue, ready to be worked on."""

    client: QueueClient
    weight: float
    where: str
    """Of which service, for people; no secret is in it."""


def read_weight(text: str) -> tuple[str, float]:
    """Split ``orders=3`` into name and weight; without one the weight is 1."""
    found = _WEIGHT.fullmatch(text)
    if found is None or _OPTION.fullmatch(found[1]):
        return text, 1.0
    return found[1], float(found[2])


class QueueOpener:
    """Opens queues: by their names at one service, by their addresses anywhere.

    Args:
        given: The connection options that all commands share.
        azure: Whether names are those of queues of Azure.
        mns: The endpoint of MNS at which names are; None: names are not of MNS.
        open_spec: Opens a queue; tests replace it.

    Raises:
        click.UsageError: The options do not go together.
    """

    def __init__(
        self,
        given: Mapping[str, Any],
        *,
        azure: bool,
        mns: str | None,
        open_spec: Callable[[QueueSpec], QueueClient] = QueueSpec.open,
    ) -> None:
        self._given = given
        self._mns = mns
        self._open_spec = open_spec
        self._shared: Client | None = None
        if azure and mns is not None:
            raise click.UsageError("--azure and --mns exclude each other.")
        self._service: Literal["leasehold", "azure"] = "azure" if azure else "leasehold"
        other = "azure" if azure else "mns"
        unused = _NOT_AZURE if azure else _NOT_MNS if mns is not None else ()
        for name in unused:
            if given[name]:
                option = name.replace("_", "-")
                raise click.UsageError(f"--{option} does not go with --{other}.")

    def open(self, text: str) -> Opened:
        """Open a queue. Nothing is asked of the service.

        Args:
            text: A name or an address, with a weight or without.

        Raises:
            ValueError: It cannot be opened; the text says why, and shows no secret.
            click.UsageError: The connection options are wrong.
        """
        name, weight = read_weight(text)
        try:
            if "://" not in name and (self._given["send_key"] or self._given["ca_file"]):
                return self._through_client(name, weight)
            spec = self._spec(name)
            return Opened(self._open_spec(spec), weight, _where(spec))
        except ImportError as error:
            library = library_of(error)
            if library is None:
                raise
            needed = install(LIBRARIES.get(library, ""))
            raise ValueError(
                f"queue {_shown(name)}: the library {library} is missing: {needed}"
            ) from None
        except ValueError as error:
            raise ValueError(f"queue {_shown(name)}: {error}") from None

    def close(self) -> None:
        """Close what several queues share."""
        if self._shared is not None:
            self._shared.close()

    def _through_client(self, name: str, weight: float) -> Opened:
        """Open a queue with what has no place in a connection string."""
        if self._shared is None:
            self._shared = open_session(dict(self._given), None).client
        return Opened(
            NativeQueue(self._shared.queue(name)), weight, f"leasehold at {self._shared.url}"
        )

    def _spec(self, name: str) -> QueueSpec:
        if "://" in name:
            return QueueSpec.parse(name)
        if self._mns is not None:
            endpoint = self._mns if "://" in self._mns else f"https://{self._mns}"
            return QueueSpec.parse(f"mns+{endpoint.rstrip('/')}/{name}")
        return QueueSpec(self._service, name, self._connection())

    def _connection(self) -> str:
        """Return the connection string that the options amount to."""
        given = self._given
        url, account, key_file = given["url"], given["account"], given["key_file"]
        if url is None and account is None and key_file is None:
            if given["connection_string"] is not None:
                return str(given["connection_string"])
            connection = os.environ.get(CONNECTION_VARIABLE)
            if not connection and self._service == "azure":
                raise ValueError(f"set {CONNECTION_VARIABLE}, or give --connection-string")
            return connection or _DEVELOPMENT
        check_options(given)
        account = account or DEV_ACCOUNT
        key = DEV_KEY if key_file is None else Path(key_file).read_text("utf-8").strip()
        base = (url or _DEVELOPMENT_URL).rstrip("/").removesuffix(f"/{account}")
        scheme = base.partition(":")[0]
        return (
            f"DefaultEndpointsProtocol={scheme};AccountName={account};AccountKey={key};"
            f"QueueEndpoint={base}/{account};"
        )


def _where(spec: QueueSpec) -> str:
    """Return the service and its address for people."""
    if spec.service == "memory":
        return "memory"
    parts = parts_of(spec.connection)
    address = parts.get("queueendpoint") or parts.get("endpoint")
    if address is not None:
        found = urlsplit(address)
        return f"{spec.service} at {found.scheme}://{found.netloc.rpartition('@')[2]}"
    if "usedevelopmentstorage" in parts:
        return f"{spec.service} at {_DEVELOPMENT_URL}"
    return f"{spec.service}, account {parts.get('accountname', '?')}"


def _shown(name: str) -> str:
    """Return a name or an address without what may be secret in it."""
    if "://" not in name:
        return name
    scheme, _, rest = name.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"


# --- worker finding ----------------------------------------------------------------------------
#
# Finding what ``module:name`` means, from where the command was typed.


_SHOWN: Final = 8


class NotFound(Exception):
    """There is no such thing, or it is not what it should be; the text is for people."""


class Target(NamedTuple):
    """What is to handle messages."""

    handler: Handler | Mapping[str, Handler]
    is_async: bool
    stages: Stages | None


def find_target(text: str, runner: str | None) -> Target:
    """Return the handler, or the pipeline, that *text* names.

    Args:
        text: ``module:name``; the name may have dots. A mapping has a handler for each queue.
        runner: What the user chose, if anything: in an event loop a pipeline is called otherwise.

    Raises:
        NotFound: See there.
    """
    found = find(text)
    if isinstance(found, Stages):
        in_loop = runner == "asyncio" or (runner is None and found.is_async)
        return Target(found.acall if in_loop else found, in_loop, found)
    if isinstance(found, Mapping):
        each = list(found.values())
        if each and all(map(callable, each)):
            return Target(found, any(map(is_async, each)), None)
    elif callable(found) and not isinstance(found, type):
        return Target(found, is_async(found), None)
    raise NotFound(f"{text} is {_kind(found)}, and no handler that could be called with a message")


def find_stages(text: str) -> Stages:
    """Return the pipeline that *text* names.

    Raises:
        NotFound: See there.
    """
    found = find(text)
    if isinstance(found, Stages):
        return found
    raise NotFound(f"{text} is {_kind(found)}, and no pipeline (leasehold.worker.stages.Stages)")


def find_function(text: str) -> Callable[..., Any]:
    """Return the function that *text* names.

    Raises:
        NotFound: See there.
    """
    found = find(text)
    if callable(found):
        function: Callable[..., Any] = found
        return function
    raise NotFound(f"{text} is {_kind(found)}, and cannot be called")


def find(text: str) -> Any:
    """Return what *text* names, in the current directory or among what is installed.

    Raises:
        NotFound: It is not there, or its module cannot be imported.
    """
    module_name, colon, path = text.partition(":")
    if not (module_name and colon and path):
        raise NotFound(f"{text!r} is not of the form module:name, such as jobs:handle")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    found: Any = _imported(module_name)
    module = found
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise NotFound(
                f"module {module_name} has no {path}{_suggestion(module, path)}"
            ) from None
    return found


def told(error: BaseException) -> str:
    """Say what an error of the user's code is, and where in that code it came about."""
    here = str(Path.cwd())
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename.startswith(here) and "site-packages" not in frame.filename
    ]
    where = ""
    if isinstance(error, SyntaxError) and error.filename:
        where = f" ({Path(error.filename).name}, line {error.lineno})"
    elif own:
        where = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})"
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return type(error).__name__ + (f": {text}" if text else "") + where


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise NotFound(
                f"there is no module {error.name} in {Path.cwd()}, and none is installed. Name a "
                "handler as MODULE:HANDLER, such as jobs:handle of jobs.py"
            ) from None
        raise NotFound(f"module {name} cannot be imported: {told(error)}") from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a module may raise anything, SystemExit too
        raise NotFound(f"module {name} cannot be imported: {told(error)}") from None


def _suggestion(module: Any, path: str) -> str:
    """Say which names the user may have meant."""
    own = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (isinstance(value, Stages) or getattr(value, "__module__", None) == module.__name__)
        and not isinstance(value, type)
        and callable(value)
    ]
    near = difflib.get_close_matches(path, own, n=_SHOWN, cutoff=0.5) or own[:_SHOWN]
    return f"; it has {', '.join(near)}" if near else ""


def _kind(found: object) -> str:
    if isinstance(found, type):
        return f"the class {found.__name__}"
    return f"of the type {type(found).__name__}"


# --- worker views ------------------------------------------------------------------------------
#
# What ``leasehold worker run`` says before it begins, and when it is over.


_COLUMNS: Final = (
    Column("QUEUE", cut=True, least=8),
    Column("DONE", right=True),
    Column("FAILED", right=True),
    Column("GIVEN BACK", right=True),
    Column("BURIED", right=True),
    Column("LOST", right=True),
    Column("PER SECOND", right=True, drop=1),
)
_FIRST_WAITS: Final = 3
_MIDDLE: Final = 0.5
_TROUBLES: Final = (
    ("receive_errors", "Failed receives"),
    ("settle_errors", "Messages that could not be settled and are delivered again"),
    ("redone", "Messages that were delivered again after they were done"),
)


def lease_text(lease: LeaseSettings, renewer: str) -> str:
    """Say how leases are kept."""
    by = "a process of its own" if renewer == "process" else "a thread"
    return (
        f"{length(lease.visibility_timeout_s)}, renewed by {by} when {length(lease.renew_at_s)} are"
        f" left, for {length(lease.message_timeout_s)} at most"
    )


def prefetch_text(prefetch: int | None) -> str:
    """Say how many messages may wait."""
    if prefetch is None:
        return "enough messages to bridge the round trips"
    if prefetch == 0:
        return "none: a message is received when a handler is free"
    return f"at most {number(prefetch)}, and no more than can begin within their lease"


def failures_text(retries: RetryRule, poison: PoisonRule) -> str:
    """Say what becomes of a message whose work fails."""
    most = poison.max_failures or 1
    unseen = f"or unseen after {counted(poison.most_deliveries or 0, 'delivery', 'deliveries')}"
    if most == 1:
        return f"a message whose work fails is buried, {unseen}"
    waits = (retries.delay_s(tries, _MIDDLE) or 0 for tries in range(1, most))
    shown = ", ".join(length(each) for each in islice(waits, _FIRST_WAITS))
    more = ", ..." if most - 1 > _FIRST_WAITS else ""
    return f"tried again after {shown}{more}; buried by failure {number(most)}, {unseen}"


def summary_table(stats: Stats, took_s: float) -> RenderableType:
    """Return what was done, a row for each queue."""
    rows = [_row(each.queue, [each], took_s) for each in stats.queues]
    foot = _row("all", stats.queues, took_s) if len(rows) > 1 else None
    parts: list[RenderableType] = [Listing(_COLUMNS, rows, foot=foot)]
    parts += [Text(f"{what}: {number(many)}", "yellow") for many, what in _troubles(stats) if many]
    return Group(*parts)


def summary_members(name: str, stats: Stats, took_s: float) -> dict[str, Any]:
    """Return the same for scripts."""
    return {
        "worker": name,
        "seconds": round(took_s, 3),
        "queues": [
            {
                "queue": each.queue,
                **_counts([each]),
                "receive_errors": each.receive_errors,
                "settle_errors": each.settle_errors,
                "redone": each.redone,
            }
            for each in stats.queues
        ],
        **_counts(stats.queues),
        "done_per_second": round(_counts(stats.queues)["done"] / took_s, 3) if took_s else 0.0,
        "lost_sessions": stats.lost_sessions,
        "dead_processes": stats.dead_processes,
        "late_renewals": stats.late_renewals,
    }


def _counts(queues: Iterable[QueueStats]) -> dict[str, int]:
    def count(*kinds: Kind) -> int:
        return sum(each.outcomes[kind] for each in found for kind in kinds)

    found = list(queues)
    return {
        "done": count(Kind.DONE),
        "failed": count(Kind.FAILED),
        "given_back": count(Kind.RETURNED, Kind.INTERRUPTED),
        "buried": count(Kind.POISONED, Kind.CANCELLED),
        "lost": count(Kind.LOST),
    }


def _row(name: str, queues: Iterable[QueueStats], took_s: float) -> tuple[Cell, ...]:
    counts = _counts(queues)
    rate = counts["done"] / took_s if took_s > 0 else 0.0
    return (clean(name), *map(number, counts.values()), per_second(rate))


def _troubles(stats: Stats) -> Iterable[tuple[int, str]]:
    for name, what in _TROUBLES:
        yield sum(getattr(each, name) for each in stats.queues), what
    yield stats.lost_sessions, "Lost sessions, with all their leases"
    yield stats.dead_processes, "Handler processes that died"
    yield stats.late_renewals, "Renewals so late that leases were in danger"
