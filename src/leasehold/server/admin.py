"""The server's own pages: ``/healthz``, ``/readyz`` and ``/metrics``."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import Final

from leasehold import __version__
from leasehold.clock import Clock
from leasehold.engine.account_router import ServerEngine
from leasehold.engine.engine import Served
from leasehold.http.guard import Guard
from leasehold.http.requests import Response
from leasehold.server.metrics import CONTENT_TYPE, Metrics

_TEXT: Final = (b"content-type", b"text/plain; charset=utf-8")
_JSON: Final = (b"content-type", b"application/json")
_NO_STORE: Final = (b"cache-control", b"no-store")


class AdminPages:
    """Answers for the process itself. None of the pages needs credentials.

    ``/healthz`` says that the process is up. ``/readyz`` says whether requests should be sent
    here; not while there is no room for those that come. A full disk does not make the server
    unready: producers are told so one by one, and consumers, who alone can make room, must still
    get through. Of several stores all must be there.

    Args:
        engine: What is asked how the store is.
        guard: What is asked whether there is room.
        clock: What is asked how far the wall clock was moved.
        draining: Tells whether the server is stopping.
        metrics: What writes ``/metrics``; None for no such page.
        accounts: Those that the server serves, to say which of them have moved away.
    """

    def __init__(  # noqa: PLR0913 - keyword-only, and each is a collaborator of its own
        self,
        *,
        engine: ServerEngine,
        guard: Guard,
        clock: Clock,
        draining: Callable[[], bool],
        metrics: Metrics | None,
        accounts: Collection[str] = (),
    ) -> None:
        self.paths = frozenset({"/healthz", "/readyz"} | ({"/metrics"} if metrics else set()))
        self._engine = engine
        self._guard = guard
        self._clock = clock
        self._draining = draining
        self._metrics = metrics
        self._accounts = sorted(accounts)

    async def answer(self, path: str) -> Response:
        """Answer a GET of one of ``paths``."""
        if path == "/healthz":
            return Response(200, [_TEXT, _NO_STORE], b"ok\n")
        if path == "/metrics" and self._metrics is not None:
            kind = (b"content-type", CONTENT_TYPE.encode("ascii"))
            return Response(200, [kind, _NO_STORE], await self._metrics.text())
        return self._readiness()

    def _readiness(self) -> Response:
        first, *others = self._engine.stores()
        draining = self._draining()
        # One that has failed ends the server, and with it what the others do.
        failed = self._engine.failed.is_set()
        ready = first.is_ready and all(each.is_ready for each in others)
        ready = ready and not failed and not draining and not self._guard.is_crowded
        report = {
            "ready": ready,
            "draining": draining,
            "version": __version__,
            "store": _plain(first),
            "account_stores": [
                {"accounts": each.accounts, "ready": each.is_ready, **_plain(each)}
                for each in others
            ],
            "accounts_away": [each for each in self._accounts if self._engine.is_relocated(each)],
            "load": _load(self._guard),
            "clock": {"wall_drift_s": round(self._clock.wall_drift_s(), 3)},
        }
        body = json.dumps(report, indent=2).encode() + b"\n"
        return Response(200 if ready else 503, [_JSON, _NO_STORE], body)


def _load(guard: Guard) -> dict[str, object]:
    return {
        "crowded": guard.is_crowded,
        "connections": len(guard.connections),
        "max_connections": guard.limits.max_connections,
        "buffered_bytes": guard.buffered,
        "max_buffered_bytes": guard.limits.max_buffered_bytes,
        "unproved_bytes": guard.unproved_bytes,
        "max_unproved_bytes": guard.limits.max_unproved_bytes,
    }


def _plain(served: Served) -> dict[str, object]:
    health = served.health
    return {
        "kind": health.kind,
        "failed": served.failed,
        "reachable": served.reachable,
        "bodies_known": served.has_bodies,
        "durable": health.durable,
        "writable": health.writable and not served.failed,
        "details": health.details,
    }
