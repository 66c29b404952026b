"""One scenario with one worker: the server, the work that it does, and what was seen.

The server's clock is virtual. It goes on with the real one, but never by more than a moment at
once, and not while the worker or the server is ready to run and waits for a processor: as Linux
tells for each thread how long that was, a loaded machine makes no lease end. What is expected of
the worker is waited for by the same clock. A scenario may also let time jump.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import signal
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import httptools

from leasehold.client import AsyncClient
from leasehold.client.errors import MessageNotFound, MessageNotLeased
from leasehold.client.models import Event
from leasehold.clock import Clock
from leasehold.testing import InProcessServer
from leasehold.testing.certify.proxy import (
    AZURE_AND_NATIVE,
    MNS,
    Exchange,
    Kind,
    Proxy,
    read_whole,
)

T = TypeVar("T")

QUEUE: Final = "certify"
POISON_QUEUE: Final = f"{QUEUE}-poison"
MAX_ATTEMPTS: Final = 5
"""Failures after which a worker is told to stop trying a message."""
_TICK_S: Final = 0.05
_LONGEST_TICK_S: Final = 0.1
_TURNS: Final = 3
_LOOK_S: Final = 0.03
_KILL_WAIT_S: Final = 10.0
_MOST_STARVED: Final = 0.25
"""Share of a visibility timeout; with more the worker, which goes by the real clock, may be right
to take for lost what the server's clock says it has."""
_SLOWEST: Final = 6
"""By the real clock things are waited for so many times as long: then the machine is too slow."""
_PROCESSES: Final = Path("/proc")
_MNS_SHORTEST_LEASE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Options:
    """How every scenario is played."""

    command: tuple[str, ...]
    """The worker: a program and its arguments."""
    lease_s: int = 4
    """Visibility timeout that the worker is told to use, whole seconds from 2."""
    grace_s: float = 10.0
    """Seconds that the worker has to end after SIGTERM."""
    patience_s: float = 20.0
    """Seconds of the worker's time that something expected is waited for."""
    saves_progress: bool = False
    """Whether the worker says that it saves the steps that it has done."""
    speaks_mns: bool = False
    """Whether the worker speaks MNS, and not the Azure or the native interface."""
    reads_base64: bool = False
    """Whether bodies are put in Base64, as some SDKs have them."""


class Missed(Exception):
    """The worker did not do what it should have done by now; the rule, and a sentence."""

    def __init__(self, rule: str, told: str) -> None:
        super().__init__(told)
        self.rule = rule
        self.told = told


@dataclass(slots=True, eq=False)
class Work:
    """The worker asked the web service to do a message's work."""

    text: str
    """Of the message."""
    step: int
    """0 for all of the work, or the number of the step, from 1."""
    begun_s: float
    ended_s: float | None = None
    is_done: bool = False
    is_dropped: bool = False
    """Whether the worker closed the connection before an answer."""
    answer: asyncio.Future[bool] = field(default_factory=asyncio.Future)

    def finish(self, *, well: bool = True) -> None:
        """Let it end: well, or as a failure."""
        if not self.answer.done():
            self.answer.set_result(well)


class Worker:
    """The worker's process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.output = bytearray()
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while piece := await self._process.stdout.read(4_096):
            self.output += piece
            del self.output[:-20_000]

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.returncode

    def send(self, number: signal.Signals) -> None:
        """Send it and all that it has started a signal."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    async def end(self) -> None:
        """Kill what is left of it."""
        self.send(signal.SIGKILL)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), _KILL_WAIT_S)
        self._reading.cancel()
        with suppress(asyncio.CancelledError):
            await self._reading

    @property
    def pid(self) -> int:
        """The number of its first process."""
        return self._process.pid


class Starvation:
    """How long threads that are ready to run wait for a processor, as Linux counts it."""

    def __init__(self) -> None:
        self._before_ns: dict[str, int] = {}

    def since_s(self, pid: int | None, threads: Iterable[int | None]) -> float:
        """Return the seconds that the one that waited most has waited since the last call.

        Where the system does not tell that is 0.

        Args:
            pid: A process, which counts with those that it has started; None for none.
            threads: Some of this process; None for one that has not begun.
        """
        own = (_PROCESSES / "self" / "task" / str(each) for each in threads)
        now_ns = dict(_waits_ns(own))
        if pid is not None:
            now_ns.update(_waits_of_process_ns(str(pid)))
        # What is new here has waited since it began, and that was since the last call.
        waited_ns = [ns - self._before_ns.get(thread, 0) for thread, ns in now_ns.items()]
        self._before_ns = now_ns
        return max(waited_ns, default=0) / 1e9


def _waits_ns(threads: Iterable[Path]) -> Iterator[tuple[str, int]]:
    """Yield names of threads, and how many nanoseconds each has waited in all."""
    for thread in threads:
        with suppress(OSError):  # it may end at any moment
            # Nanoseconds that it ran, that it waited, and how often.
            _, waited_ns, _ = (thread / "schedstat").read_text().split()
            yield thread.name, int(waited_ns)


def _waits_of_process_ns(pid: str) -> Iterator[tuple[str, int]]:
    with suppress(OSError):
        threads = list((_PROCESSES / pid / "task").iterdir())
        yield from _waits_ns(threads)
        for thread in threads:
            for child in (thread / "children").read_text().split():
                yield from _waits_of_process_ns(child)


class Trial:
    """What a scenario acts through. Made by :func:`trial`."""

    def __init__(
        self, options: Options, server: InProcessServer, client: AsyncClient, clock: Clock
    ) -> None:
        self.options = options
        self.clock = clock
        self.proxy = (
            Proxy(server.mns_url, MNS, clock)
            if options.speaks_mns
            else Proxy(server.url, AZURE_AND_NATIVE, clock)
        )
        self.queue = client.queue(QUEUE)
        self.client = client
        self.works: list[Work] = []
        self.held: set[str] = set()
        """Texts of messages whose work waits until the scenario lets it end."""
        self.failures: dict[str, float] = {}
        """Texts of messages whose work fails, and how often it will."""
        self.repeats: dict[str, int] = {}
        """Texts of messages whose work may be begun again, and how often, for a good reason."""
        self.ids: dict[str, str] = {}
        """Message ids by text."""
        self.worker: Worker | None = None
        self.may_end = False
        """Whether the worker may end by itself now."""
        self._server = server
        self._proxy_port = 0
        self._work_port = 0
        self.passed_s = 0.0
        """Seconds that have passed for the server, without jumps: those that the worker had."""
        self.was_starved = False
        """Whether the real clock went on so much faster, for a time as long as a lease, that what
        is found may be the machine's fault."""
        self._taken: set[Work] = set()
        self._jobs: set[asyncio.Task[None]] = set()

    # --- what a scenario does ----------------------------------------------------------------

    async def put(self, text: str, *, hold: bool = False, fails: float = 0, **more: Any) -> None:
        """Put a message whose work ends at once, waits for the scenario, or fails so often."""
        if hold:
            self.held.add(text)
        self.failures[text] = fails
        body = base64.b64encode(text.encode()) if self.options.reads_base64 else text
        self.ids[text] = (await self.queue.put(body, **more)).id

    async def put_unreadable(self, body: str) -> None:
        """Put a body that the worker cannot read; what it makes of the message is not judged."""
        await self.queue.put(body)

    async def begun(self, text: str, *, step: int = 0, behind_s: float = 0) -> Work:
        """Wait until the worker begins the work of a message (again), and return it.

        Args:
            text: Of the message.
            step: 0 for all of the work, or the number of the step, from 1.
            behind_s: Seconds that other work may take before, on top of the usual patience.
        """

        async def found() -> Work | None:
            for work in self.works:
                if work.text == text and work.step == step and work not in self._taken:
                    return work
            return None

        what = f"the work of {text!r} was not begun"
        patience_s = self.options.patience_s + behind_s
        work = await self.until(found, "lost", what, patience_s=patience_s)
        assert work is not None
        self._taken.add(work)
        return work

    def let(self, text: str, *, well: bool = True) -> None:
        """Let the work of a message end, however often it was begun, and hold it no more."""
        self.held.discard(text)
        for work in self.works:
            if work.text == text:
                work.finish(well=well)

    async def gone(self, text: str) -> None:
        """Wait until the worker has deleted a message."""

        async def is_deleted() -> bool:
            return any(event.type == "completed" for event in await self.events(text))

        await self.until(is_deleted, "lost", f"{text!r} was not deleted")

    async def finished(self, text: str) -> None:
        """Wait until the worker has begun the work of a message (again), and deleted it."""
        await self.begun(text)
        await self.gone(text)

    async def left(self, text: str) -> None:
        """Wait until a message is not in the queue any more, or is poisoned by the server."""

        async def is_gone() -> bool:
            kinds = {event.type for event in await self.events(text)}
            return bool(kinds & {"completed", "poisoned", "removed"})

        told = f"{text!r} did not leave the queue"
        await self.until(is_gone, "poison-endless", told)

    async def set_aside(self) -> None:
        """Wait until a message is in the poison queue; it may have been retried as copies."""

        async def is_there() -> bool:
            return bool(await self.client.queue(POISON_QUEUE).peek(1))

        await self.until(is_there, "poison-lost", f"it is not in {POISON_QUEUE}")

    async def is_leased(self, text: str) -> bool:
        """Tell whether a message is in the queue, on a lease."""
        try:
            return (await self.queue.get(self.ids[text])).state == "leased"
        except MessageNotFound:
            return False

    async def end_lease(self, text: str, *, delay_s: int) -> None:
        """End the lease of a message as an operator does; it is visible after the delay."""
        with self._being_there(text):
            await self.queue.end_lease(self.ids[text], delay_s=delay_s)

    async def remove(self, text: str) -> None:
        """Remove a message that the worker has, as an operator does."""
        with self._being_there(text):
            await self.queue.remove(self.ids[text], force=True)

    @contextlib.contextmanager
    def _being_there(self, text: str) -> Iterator[None]:
        """Say what is wrong if the worker does not hold a message whose work it does."""
        try:
            yield
        except MessageNotFound:
            told = f"{text!r} was deleted when none of its work had ended"
            raise Missed("deleted-early", told) from None
        except MessageNotLeased:
            told = f"the lease of {text!r} ended while the worker had it"
            raise Missed("lease-lost", told) from None

    async def rival(self) -> None:
        """Have another worker look for messages: what it finds on an ended lease is noted.

        The service notices the end of a lease when it is about to hand the message out again. What
        was found is given back at once.
        """
        taken = await self.queue.receive(32)
        if taken:
            await self.queue.release_many(taken)

    async def pass_s(self, seconds: float) -> None:
        """Let time pass, for the server as for the worker."""
        until_s = self.passed_s + seconds

        async def has_passed() -> bool:
            return self.passed_s >= until_s

        await self.until(has_passed, "machine", "time did not pass", patience_s=seconds + 10)

    async def jump(self, seconds: float) -> None:
        """Let time pass for the server at once."""
        await asyncio.to_thread(self._server.advance, seconds)

    async def quiet(self, kind: Kind, seconds: float) -> int:
        """Let time pass; return how many requests of a kind the worker made in it."""
        before = len(self.of_kind(kind))
        await self.pass_s(seconds)
        return len(self.of_kind(kind)) - before

    async def stop(self, rule: str = "impolite-stop") -> None:
        """Ask the worker to end by SIGTERM, and wait until it has."""
        assert self.worker is not None
        self.may_end = True
        worker = self.worker
        worker.send(signal.SIGTERM)

        async def has_ended() -> bool:
            return worker.code is not None

        told = "asked to end by SIGTERM it did not"
        await self.until(has_ended, rule, told, patience_s=self.options.grace_s)
        code = worker.code
        if code not in {0, -signal.SIGTERM, 128 + signal.SIGTERM}:
            raise Missed(rule, f"asked to end by SIGTERM it ended with code {code}")

    async def let_return(self) -> None:
        """Let the second pass after which MNS gives back what was given up, if that is spoken."""
        if self.options.speaks_mns:
            await self.jump(_MNS_SHORTEST_LEASE_S)

    async def kill(self) -> None:
        """End the worker with SIGKILL."""
        assert self.worker is not None
        self.may_end = True
        await self.worker.end()

    async def start(self) -> None:
        """Start the worker, anew if one has run."""
        environment = {
            **os.environ,
            **self._credentials(),
            "CERTIFY_QUEUE": QUEUE,
            "CERTIFY_POISON_QUEUE": POISON_QUEUE,
            "CERTIFY_WORK_URL": f"http://127.0.0.1:{self._work_port}/work",
            "CERTIFY_VISIBILITY_TIMEOUT_S": str(self.options.lease_s),
            "CERTIFY_MAX_ATTEMPTS": str(MAX_ATTEMPTS),
            "NO_PROXY": "127.0.0.1",
            "PYTHONUNBUFFERED": "1",
        }
        self.may_end = False
        self.worker = Worker(
            await asyncio.create_subprocess_exec(
                *self.options.command,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        )

    def _credentials(self) -> dict[str, str]:
        """Return the variables that say how the worker reaches the server, through the proxy."""
        url = f"http://127.0.0.1:{self._proxy_port}"
        if self.options.speaks_mns:
            key_id, secret = self._server.account, self._server.key
            return {
                "ALIBABA_CLOUD_ACCESS_KEY_ID": key_id,
                "ALIBABA_CLOUD_ACCESS_KEY_SECRET": secret,
                "CERTIFY_MNS_ENDPOINT": url,
                "CERTIFY_MNS_ACCESS_KEY_ID": key_id,
                "CERTIFY_MNS_ACCESS_KEY_SECRET": secret,
            }
        connection = self._server.connection_string.replace(self._server.url, url)
        return {
            "AZURE_STORAGE_CONNECTION_STRING": connection,
            "CERTIFY_CONNECTION_STRING": connection,
        }

    # --- what was seen -----------------------------------------------------------------------

    def of_kind(self, kind: Kind) -> list[Exchange]:
        """Return the requests of a kind on the queue, in the order in which they came."""
        return [each for each in self.proxy.exchanges if each.kind is kind and each.queue == QUEUE]

    def works_of(self, text: str, *, step: int = 0) -> list[Work]:
        """Return the times that the work of a message was begun."""
        return [work for work in self.works if work.text == text and work.step == step]

    async def events(self, text: str | None = None) -> list[Event]:
        """Return what happened to all messages of the queue, or to one."""
        return [
            event
            async for event in self.client.events()
            if event.message_id is not None
            and (text is None or event.message_id == self.ids.get(text))
        ]

    # --- waiting -----------------------------------------------------------------------------

    async def until(
        self,
        look: Callable[[], Awaitable[T]],
        rule: str,
        told: str,
        *,
        patience_s: float | None = None,
    ) -> T:
        """Look again and again until something is seen, and return that.

        Args:
            look: Returns something that is true once it is seen.
            rule: What the worker has broken if it is not.
            told: What it did not do.
            patience_s: Seconds of the worker's time; None: as the options say.

        Raises:
            Missed: It was not seen in time, or the worker has ended.
        """
        patience_s = self.options.patience_s if patience_s is None else patience_s
        until_s = self.passed_s + patience_s
        at_last_s = self.clock.monotonic_s() + patience_s * _SLOWEST
        while not (found := await look()):
            self._check_worker()
            if self.passed_s > until_s:
                raise Missed(rule, f"{told} within {patience_s:g} s")
            if self.clock.monotonic_s() > at_last_s:
                raise Missed("machine", f"{told}, but the worker had no processor most of the time")
            await asyncio.sleep(_LOOK_S)
        return found

    def _check_worker(self) -> None:
        if self.worker is not None and self.worker.code is not None and not self.may_end:
            raise Missed("crashed", f"the worker ended by itself, with code {self.worker.code}")

    # --- what goes on beside it --------------------------------------------------------------

    async def _tick(self) -> None:
        before_s = self.clock.monotonic_s()
        ours, its = Starvation(), Starvation()
        # The proxy and the web service are in this thread, the server is in one of its own.
        own = (threading.get_native_id(), self._server.thread_id)
        ours.since_s(None, own)  # what was before does not count
        lost: deque[tuple[float, float]] = deque()
        works = 0
        while True:
            await asyncio.sleep(_TICK_S)
            for _ in range(_TURNS):  # so that what has arrived is seen
                await asyncio.sleep(0)
            now_s = self.clock.monotonic_s()
            real_s = now_s - before_s
            before_s = now_s
            worker = self.worker
            pid = None if worker is None or worker.code is not None else worker.pid
            own_s, its_s = ours.since_s(None, own), its.since_s(pid, ())
            least_s = max(0.0, min(real_s, _LONGEST_TICK_S) - max(own_s, its_s))
            # A worker that has asked for nothing has not waited for us, however late we are.
            was_asked = self.proxy.was_asked() or len(self.works) > works
            works = len(self.works)
            most_s = min(real_s, _LONGEST_TICK_S + own_s) - its_s
            step_s = least_s if was_asked else max(least_s, most_s)
            await asyncio.to_thread(self._server.advance, step_s)
            self.passed_s += step_s
            lost.append((now_s, real_s - least_s))
            while lost[0][0] < now_s - self.options.lease_s:
                lost.popleft()
            if sum(each for _, each in lost) > _MOST_STARVED * self.options.lease_s:
                self.was_starved = True

    async def _serve_work(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), suppress(OSError, httptools.HttpParserError):
            while request := await read_whole(reader, httptools.HttpRequestParser):
                step = request.path.rpartition("/")[2]
                work = Work(
                    text=request.body.decode("utf-8", "replace"),
                    step=int(step) if step.isdecimal() else 0,
                    begun_s=self.clock.monotonic_s(),
                )
                self.works.append(work)
                if work.text not in self.held:
                    left = self.failures.get(work.text, 0)
                    self.failures[work.text] = left - 1
                    work.finish(well=left < 1)
                if not await self._outcome(work, reader):
                    return
                status = b"200 OK" if work.is_done else b"500 Failed"
                writer.write(b"HTTP/1.1 %b\r\ncontent-length: 0\r\n\r\n" % status)
                await writer.drain()

    async def _outcome(self, work: Work, reader: asyncio.StreamReader) -> bool:
        """Wait until a work ends; tell whether the worker still waits for it."""
        gone: asyncio.Future[bytes] = asyncio.ensure_future(reader.read(1))
        either: set[asyncio.Future[Any]] = {gone, work.answer}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        work.ended_s = self.clock.monotonic_s()
        if work.answer.done():
            work.is_done = work.answer.result()
            gone.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await gone
            return True
        work.is_dropped = True
        return False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve the worker; end it and everything else at the end."""
        self._proxy_port = await self.proxy.start()
        service = await asyncio.start_server(self._serve_work, "127.0.0.1", 0)
        self._work_port = service.sockets[0].getsockname()[1]
        settings: dict[str, Any] = {"visibility_timeout_s": self.options.lease_s}
        if self.options.speaks_mns:
            settings["lapsed_receipts"] = "strict"  # as of a queue that MNS has made
        await self.queue.create(settings=settings)
        await self.client.queue(POISON_QUEUE).create()
        ticking = asyncio.create_task(self._tick())
        try:
            yield
        finally:
            if self.worker is not None:
                await self.worker.end()
            ticking.cancel()
            with suppress(asyncio.CancelledError):
                await ticking
            service.close()
            for work in self.works:
                work.finish(well=False)
            await self.proxy.stop()


@asynccontextmanager
async def trial(options: Options, clock: Clock) -> AsyncIterator[Trial]:
    """Give a server and everything else to one scenario."""
    server = InProcessServer()
    await asyncio.to_thread(server.start)
    try:
        client = AsyncClient.from_connection_string(server.connection_string)
        async with client:
            made = Trial(options, server, client, clock)
            async with made.running():
                yield made
    finally:
        await asyncio.to_thread(server.stop)
