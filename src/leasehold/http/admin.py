"""The server's own pages: ``/healthz``, ``/readyz`` and ``/metrics``."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from leasehold import __version__
from leasehold.clock import Clock
from leasehold.engine.engine import Engine
from leasehold.http.messages import Response
from leasehold.http.metrics import CONTENT_TYPE, Metrics

_TEXT: Final = (b"content-type", b"text/plain; charset=utf-8")
_JSON: Final = (b"content-type", b"application/json")
_NO_STORE: Final = (b"cache-control", b"no-store")


class AdminPages:
    """Answers for the process itself. None of the pages needs credentials.

    ``/healthz`` says that the process is up. ``/readyz`` says whether requests should be sent
    here. A full disk does not make the server unready: producers are told so one by one, and
    consumers, who alone can make room, must still get through.

    Args:
        engine: What is asked how the store is.
        clock: What is asked how far the wall clock was moved.
        draining: Tells whether the server is stopping.
        metrics: What writes ``/metrics``; None for no such page.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        clock: Clock,
        draining: Callable[[], bool],
        metrics: Metrics | None,
    ) -> None:
        self.paths = frozenset({"/healthz", "/readyz"} | ({"/metrics"} if metrics else set()))
        self._engine = engine
        self._clock = clock
        self._draining = draining
        self._metrics = metrics

    async def answer(self, path: str) -> Response:
        """Answer a GET of one of ``paths``."""
        if path == "/healthz":
            return Response(200, [_TEXT, _NO_STORE], b"ok\n")
        if path == "/metrics" and self._metrics is not None:
            kind = (b"content-type", CONTENT_TYPE.encode("ascii"))
            return Response(200, [kind, _NO_STORE], await self._metrics.text())
        return self._readiness()

    def _readiness(self) -> Response:
        health = self._engine.health()
        failed, draining = self._engine.failed.is_set(), self._draining()
        ready = not failed and not draining
        report = {
            "ready": ready,
            "draining": draining,
            "version": __version__,
            "store": {
                "kind": health.kind,
                "failed": failed,
                "durable": health.durable,
                "writable": health.writable and not failed,
                "details": health.details,
            },
            "clock": {"wall_drift_s": round(self._clock.wall_drift_s(), 3)},
        }
        body = json.dumps(report, indent=2).encode() + b"\n"
        return Response(200 if ready else 503, [_JSON, _NO_STORE], body)
