"""Reads of a claim and heartbeats on one server, beside a second server that is busy.

``python -m benchmarks.shared_looks --url postgresql://...`` needs an empty database. Two processes
use the PostgreSQL store, without HTTP. One reads the pages of a claim as executors of Spark do,
with a heartbeat between two of them; the other puts, receives and completes messages, in batches.
In turns, the reads and heartbeats take the lock that their classes declare, and have the store
alone as up to 0.1: that is forced by what the first process takes for commands that share.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from benchmarks.records import Latency
from benchmarks.single import Record
from leasehold.clock import SystemClock
from leasehold.domain import claims as k
from leasehold.domain import commands as c
from leasehold.domain import sessions as s
from leasehold.domain.command import AnyCommand
from leasehold.stores.postgres import PostgresStore, store

FORMS: Final = ("alone", "shared")
ACCOUNT: Final = "bench"
MEMBERS: Final = 4_000
PAGE: Final = 500
BODY: Final = b"x" * 1024
BATCH: Final = 16
_PAUSE_S: Final = 0.002
"""Between two reads: what an executor does with a page."""
_ENTROPY: Final = b"0123456789"


class Server:
    """A store, as the engine of one server uses it."""

    def __init__(self, url: str, name: str) -> None:
        self.clock = SystemClock()
        self.store = PostgresStore(url, name=name, now_ms=self.clock.now_ms())
        self.times_ns: list[int] = []

    def ask(self, *commands: AnyCommand) -> list[Any]:
        """Carry a batch out, and note how long it took."""
        began_s = self.clock.monotonic_s()
        results = self.store.execute(commands, now_ms=self.clock.now_ms())
        self.store.commit()
        self.times_ns.append(round((self.clock.monotonic_s() - began_s) * 1e9))
        return results


def put(queue: str) -> c.Put:
    """Return a command that puts a message."""
    return c.Put(ACCOUNT, queue, BODY, 0, None, _ENTROPY)


def prepare(url: str) -> None:
    """Make a queue for each server, and a claim."""
    server = Server(url, "prepare")
    for queue in ("claimed", "busy"):
        server.ask(c.CreateQueue(ACCOUNT, queue, {}))
    for _ in range(MEMBERS // PAGE):
        server.ask(*[put("claimed")] * PAGE)
    (stream,) = server.ask(k.AttachStream(ACCOUNT, "claimed", "spark"))
    opening: Any = None
    while opening is None or opening.claim.state is k.ClaimState.OPENING:
        (opening,) = server.ask(
            k.OpenClaim(ACCOUNT, "claimed", "spark", stream.token, 1, MEMBERS, 86_400)
        )
    server.store.close()


def reads() -> Iterator[k.ReadClaim]:
    """Return the reads of all parts of the claim, again and again."""
    parts = MEMBERS // PAGE
    while True:
        for part in range(parts):
            yield k.ReadClaim(ACCOUNT, "claimed", "spark", 1, part, parts, "", PAGE, columns=True)


def read(url: str, form: str, seconds: float, answers: Any) -> None:
    """Read the claim; run in a process of its own."""
    if form == "alone":
        sharing = store._SHARING - {k.ReadClaim, s.Heartbeat}  # noqa: SLF001
        setattr(store, "_SHARING", sharing)  # noqa: B010 - mypy would object
    server = Server(url, form)
    (session,) = server.ask(s.OpenSession(ACCOUNT, "executor", _ENTROPY, 3_600))
    server.times_ns.clear()
    until_s = server.clock.monotonic_s() + seconds
    for command in reads():
        if server.clock.monotonic_s() > until_s:
            break
        server.ask(command)
        time.sleep(_PAUSE_S)
        server.ask(s.Heartbeat(ACCOUNT, session.session_id))
    server.store.close()
    answers.put(("reader", server.times_ns))


def work(url: str, seconds: float, answers: Any) -> None:
    """Put, receive and complete; run in a process of its own."""
    server = Server(url, "busy")
    until_s = server.clock.monotonic_s() + seconds
    while server.clock.monotonic_s() < until_s:
        server.ask(*[put("busy")] * BATCH)
        (leases,) = server.ask(c.Receive(ACCOUNT, "busy", BATCH, 60))
        server.ask(
            *[
                c.Complete(ACCOUNT, "busy", lease.message.message_id, lease.receipt)
                for lease in leases
            ]
        )
    server.store.close()
    answers.put(("busy", server.times_ns))


def measure(url: str, form: str, seconds: float) -> dict[str, list[int]]:
    """Let both work for a while; return how long their batches took, nanoseconds."""
    context = get_context("spawn")
    answers = context.Queue()
    both = [
        context.Process(target=read, args=(url, form, seconds, answers)),
        context.Process(target=work, args=(url, seconds, answers)),
    ]
    for each in both:
        each.start()
    found = dict(answers.get(timeout=seconds + 60) for _ in both)
    for each in both:
        each.join()
    return found


def summary_of(rounds: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the medians over the rounds, by form."""
    found = {}
    for form in FORMS:
        of_form = [each for each in rounds if each["form"] == form]
        for figure in ("busy_messages_per_s", "busy_p99_us", "read_p50_us", "read_p99_us"):
            found[f"{form}_{figure}"] = round(statistics.median(r[figure] for r in of_form), 1)
    return found


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True, help="an empty PostgreSQL database")
    parser.add_argument("--rounds", type=int, default=5, help="of each form, in turns")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a round")
    parser.add_argument("--out", type=Path, help="file for the result, JSON")
    options = parser.parse_args()
    record = Record("shared_looks")
    prepare(options.url)
    rounds: list[dict[str, Any]] = []
    for turn in range(options.rounds):
        for form in FORMS if turn % 2 == 0 else FORMS[::-1]:
            found = measure(options.url, form, options.seconds)
            busy, reader = Latency.of(found["busy"]), Latency.of(found["reader"])
            rounds.append(
                {
                    "form": form,
                    "busy_messages_per_s": round(busy.count / 3 * BATCH / options.seconds, 1),
                    "busy_p99_us": busy.p99_us,
                    "read_p50_us": reader.p50_us,
                    "read_p99_us": reader.p99_us,
                    "busy": asdict(busy),
                    "reader": asdict(reader),
                }
            )
            print({name: rounds[-1][name] for name in list(rounds[-1])[:5]}, flush=True)
    summary = summary_of(rounds)
    print(summary)
    if options.out is not None:
        record.write(options.out, {"rounds": rounds, "summary": summary})


if __name__ == "__main__":
    main()
