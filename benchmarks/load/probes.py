"""How long it takes to look: pages of messages in every state, and counts."""

from __future__ import annotations

import resource
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final
from urllib.parse import quote

from benchmarks.load.dialects import LEASE_S
from benchmarks.load.job import Job
from benchmarks.load.native import NativeClient, queue_path
from benchmarks.load.process import ServerProcesses
from benchmarks.load.workloads import LoadFailed
from benchmarks.records import COUNTS, PAGE, Latency, Measured, Memory, Phase

LEASED_SHARE: Final = 20
"""One message in so many is leased while the pages are read."""
_MOST: Final = 10_000


def run(job: Job) -> Measured:
    """Carry out the probe that *job* names.

    Raises:
        LoadFailed: An answer was wrong: a message missing, twice, or changed by being looked at.
    """
    with NativeClient(job.port) as client:
        before = _counts(client, job)["total"]
        phase, memory = PROBES[job.workload](client, job)
        after = _counts(client, job)["total"]
    if after != before:
        raise LoadFailed(f"{before} messages should be there, and {after} are")
    return Measured(phases=(phase,), waiting_before=before, waiting_after=after, memory=memory)


def _inspect(client: NativeClient, job: Job) -> tuple[Phase, Memory | None]:
    """Page through everything, with some of it leased; nothing may change by that."""
    total = _counts(client, job)["total"]
    leased = _lease(client, job, total // LEASED_SHARE)
    try:
        watch = _Watch(job)
        seen = _pages(client, job, "", watch)
        phase, memory = watch.phase(PAGE, len(seen)), watch.memory()
        if len(seen) != total:
            raise LoadFailed(f"{len(seen)} of {total} messages were shown")
        shown = {id_: view for id_, view in seen.items() if view[0] == "leased"}
        if shown.keys() != leased.keys():
            raise LoadFailed(f"{len(shown)} messages were shown as leased, and {len(leased)} are")
        again = _pages(client, job, "&state=leased", _Watch(job))
        if again != shown:
            raise LoadFailed("the leased messages were not the same when looked at again")
        counts = _counts(client, job)
        if (counts["leased"], counts["visible"]) != (len(leased), total - len(leased)):
            raise LoadFailed(f"the counts are wrong: {counts}")
    finally:
        _release(client, job, leased)
    return phase, memory


def _pages(client: NativeClient, job: Job, which: str, watch: _Watch) -> dict[str, tuple[str, int]]:
    """Return the state and the dequeue count of each message, by its id."""
    path = f"{queue_path(job)}/messages?limit={job.batch}{which}"
    seen: dict[str, tuple[str, int]] = {}
    after, number = "", 0
    while True:
        page = client.call("GET", path + after)
        watch.note(client.taken_ns)
        for view in page["messages"]:
            seen[view["id"]] = (view["state"], view["dequeue_count"])
        number += len(page["messages"])
        if len(seen) != number:
            raise LoadFailed("a message was shown twice")
        if page.get("next_after") is None:
            return seen
        after = "&after=" + quote(page["next_after"], safe="")


def _lease(client: NativeClient, job: Job, count: int) -> dict[str, str]:
    """Receive *count* messages; return their receipts by their ids."""
    leased: dict[str, str] = {}
    while len(leased) < count:
        asked = {"max_messages": min(count - len(leased), _MOST), "visibility_timeout_s": LEASE_S}
        found = client.call("POST", queue_path(job) + "/messages/receive", asked)["messages"]
        if not found:
            raise LoadFailed(f"{count} messages should be visible, and {len(leased)} were")
        leased.update((one["id"], one["receipt"]) for one in found)
    return leased


def _release(client: NativeClient, job: Job, leased: dict[str, str]) -> None:
    items = [{"id": id_, "receipt": receipt} for id_, receipt in leased.items()]
    for at in range(0, len(items), _MOST):
        part = {"items": items[at : at + _MOST]}
        failed = client.call("POST", queue_path(job) + "/messages/release", part)["failed"]
        if failed:
            raise LoadFailed(f"{failed} leases could not be given back")


def _ask_counts(client: NativeClient, job: Job) -> tuple[Phase, Memory | None]:
    """Ask for the counts until the time is over; each answer must be right."""
    first = _counts(client, job)
    kept = ("visible", "leased", "delayed", "deferred", "poisoned", "total")
    watch, asked = _Watch(job), 0
    while watch.seconds() < job.duration_s:
        counts = _counts(client, job)
        watch.note(client.taken_ns)
        asked += 1
        if not counts["exact"] or any(counts[name] != first[name] for name in kept):
            raise LoadFailed(f"the counts changed or are not exact: {first}, {counts}")
    return watch.phase(COUNTS, asked), watch.memory()


def _counts(client: NativeClient, job: Job) -> Any:
    return client.call("GET", queue_path(job) + "/counts")


PROBES: Final[dict[str, Callable[[NativeClient, Job], tuple[Phase, Memory | None]]]] = {
    "inspect": _inspect,
    "counts": _ask_counts,
}


class _Watch:
    """The cost of one phase, from now on."""

    def __init__(self, job: Job) -> None:
        self._server = ServerProcesses(job.server_pids)
        self._taken: list[int] = []
        self._server_s, self._own = self._server.cpu_s(), _own_usage()
        self._began = perf_counter()

    def note(self, taken_ns: int) -> None:
        """Note how long one request took."""
        self._taken.append(taken_ns)

    def seconds(self) -> float:
        """Return how long it has been."""
        return perf_counter() - self._began

    def memory(self) -> Memory | None:
        """Return the memory of the server now."""
        return self._server.memory()

    def phase(self, name: str, operations: int) -> Phase:
        """Return what was measured."""
        user_s, kernel_s = (now - then for now, then in zip(_own_usage(), self._own, strict=True))
        return Phase(
            name=name,
            operations=operations,
            requests=len(self._taken),
            seconds=round(self.seconds(), 6),
            latencies={name: Latency.of(self._taken)},
            server_cpu_s=round(self._server.cpu_s() - self._server_s, 6),
            generator_cpu_s=round(user_s + kernel_s, 6),
            generator_kernel_s=round(kernel_s, 6),
        )


def _own_usage() -> tuple[float, float]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime, usage.ru_stime
