"""The server's own pages: ``/healthz``, ``/readyz`` and ``/metrics``."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import Final

from leasehold import __version__
from leasehold.clock import Clock
from leasehold.engine.engine import Engine, Served
from leasehold.http.messages import Response
from leasehold.http.metrics import CONTENT_TYPE, Metrics

_TEXT: Final = (b"content-type", b"text/plain; charset=utf-8")
_JSON: Final = (b"content-type", b"application/json")
_NO_STORE: Final = (b"cache-control", b"no-store")


class AdminPages:
    """Answers for the process itself. None of the pages needs credentials.

    ``/healthz`` says that the process is up. ``/readyz`` says whether requests should be sent
    here. A full disk does not make the server unready: producers are told so one by one, and
    consumers, who alone can make room, must still get through. Of several stores all must be there.

    Args:
        engine: What is asked how the store is.
        clock: What is asked how far the wall clock was moved.
        draining: Tells whether the server is stopping.
        metrics: What writes ``/metrics``; None for no such page.
        accounts: Those that the server serves, to say which of them have moved away.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        clock: Clock,
        draining: Callable[[], bool],
        metrics: Metrics | None,
        accounts: Collection[str] = (),
    ) -> None:
        self.paths = frozenset({"/healthz", "/readyz"} | ({"/metrics"} if metrics else set()))
        self._engine = engine
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
        ready = ready and not failed and not draining
        report = {
            "ready": ready,
            "draining": draining,
            "version": __version__,
            "store": _plain(first),
            "account_stores": [
                {"accounts": each.accounts, "ready": each.is_ready, **_plain(each)}
                for each in others
            ],
            "accounts_away": [each for each in self._accounts if self._engine.is_away(each)],
            "clock": {"wall_drift_s": round(self._clock.wall_drift_s(), 3)},
        }
        body = json.dumps(report, indent=2).encode() + b"\n"
        return Response(200 if ready else 503, [_JSON, _NO_STORE], body)


def _plain(served: Served) -> dict[str, object]:
    health = served.health
    return {
        "kind": health.kind,
        "failed": served.failed,
        "reachable": served.reachable,
        "durable": health.durable,
        "writable": health.writable and not served.failed,
        "details": health.details,
    }
