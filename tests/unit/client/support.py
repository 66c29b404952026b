"""Both clients behind one face, and a server made of prepared answers."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from typing import Any, TypeAlias

import httpx

from leasehold.client import AsyncClient, Client, RetryPolicy
from tests.patience import PATIENCE_S

AnyClient: TypeAlias = Client | AsyncClient
Reply: TypeAlias = httpx.Response | Exception
AT_ONCE = RetryPolicy(initial_s=0)
ID = "7f1c"
RECEIVED = {
    "id": ID,
    "body": "héllo",
    "inserted_at_ms": 1,
    "expires_at_ms": None,
    "visible_at_ms": 31_000,
    "dequeue_count": 2,
    "fence": 7,
    "receipt": "r1",
}
VIEW = RECEIVED | {
    "queue": "jobs",
    "state": "leased",
    "body_bytes": 6,
    "why": "It is on a lease.",
    "priority": 3,
    "type": None,
    "properties": {"a": "b"},
    "lease": {"holder": "me", "since_ms": 1, "until_ms": 2, "renewals": 0, "progress": None},
    "attempts": [
        {
            "number": 1,
            "leased_at_ms": 1,
            "ended_at_ms": 2,
            "outcome": "failed",
            "holder": None,
            "renewals": 0,
            "error": {"text": "boom", "type": None, "fingerprint": None},
        }
    ],
    "poisoned": {"queue": "jobs", "reason": "failures", "at_ms": 9},
    "last_error": None,
}
QUEUE = {
    "name": "jobs",
    "metadata": {"team": "a"},
    "settings": {
        "visibility_timeout_s": 30,
        "lapsed_receipts": "strict",
        "failure_policy": {"max_failures": 3, "backoff": {"kind": "fixed", "initial_s": 1}},
        "adaptive": {"floor_s": 5, "cap_s": 60},
    },
    "visibility_timeout_s": 30,
    "created_at_ms": 1,
}
COUNTS = {
    "at_ms": 5,
    "visible": 1,
    "leased": 2,
    "delayed": 3,
    "deferred": 4,
    "poisoned": 5,
    "total": 10,
    "exact": True,
    "oldest_age_s": {"visible": 1.25},
}
SESSION = {
    "session_id": "s1",
    "holder": "me",
    "state": "live",
    "timeout_s": 16,
    "progress_timeout_s": None,
    "started_at_ms": 1,
    "last_heartbeat_ms": 1,
    "ended_at_ms": None,
    "reason": None,
    "leases": 2,
}
CLAIM = {
    "number": 4,
    "state": "open",
    "size": 9,
    "lost": 0,
    "remaining": 9,
    "limit": 10,
    "max_bytes": None,
    "opened_at_ms": 1,
    "until_ms": 60_000,
    "holder": None,
    "extensions": 0,
}
STREAM = {
    "stream": "totals",
    "token": 7,
    "last_settled": 3,
    "attached_at_ms": 1,
    "claims": [CLAIM],
}
TRANSACTION = {
    "name": "import:1",
    "state": "staged",
    "created_at_ms": 1,
    "until_ms": 2,
    "rows": 5,
    "parts": [{"part": "p", "rows": 5, "chunks": 1}],
}
JOB = {"job_id": "j1", "queue": "jobs", "kind": "purge", "state": "running"}


class Script:
    """Answers requests in turn, the last answer again and again, and keeps what was asked."""

    def __init__(self, *replies: Reply) -> None:
        self._replies = list(replies) or [httpx.Response(204)]
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        """Answer one request."""
        self.requests.append(request)
        reply = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
        if isinstance(reply, Exception):
            raise reply
        # A response is used up by reading it.
        return httpx.Response(reply.status_code, headers=reply.headers, content=reply.content)

    @property
    def last(self) -> httpx.Request:
        """The latest request."""
        return self.requests[-1]

    @property
    def sent(self) -> Any:
        """The JSON of the latest request."""
        return json.loads(self.last.content)


class Driver:
    """Uses one of the clients from a test that need not know which one it is."""

    def __init__(self, *, is_async: bool) -> None:
        self.is_async = is_async
        self._runner = asyncio.Runner() if is_async else None
        self._opened: list[AnyClient] = []

    def client(self, handler: Callable[[httpx.Request], httpx.Response], **options: Any) -> Any:
        """Return a client whose requests go to *handler*."""
        return self.real(**{"transport": httpx.MockTransport(handler)} | options)

    def real(self, *arguments: Any, **options: Any) -> Any:
        """Return a client that uses the network."""
        kind = AsyncClient if self.is_async else Client
        chosen: dict[str, Any] = {"retries": AT_ONCE, **options}
        return self.keep(kind(*arguments, **chosen))

    def keep(self, client: AnyClient) -> AnyClient:
        """Have a client closed in the end."""
        self._opened.append(client)
        return client

    def do(self, value: Any) -> Any:
        """Return what a call gives: its result, or all that it yields."""
        if self._runner is None:
            return list(value) if hasattr(value, "__next__") else value
        if isinstance(value, AsyncIterable):
            return self._runner.run(_all(value))
        return self._runner.run(_awaited(value))

    def named(self, owner: Any, name: str) -> Any:
        """Return the method that is called *name* in the synchronous client."""
        renamed = {"__enter__": "__aenter__", "__exit__": "__aexit__", "close": "aclose"}
        return getattr(owner, renamed[name] if self.is_async else name)

    def wait(self, event: threading.Event) -> None:
        """Wait until something has happened in the background."""
        if self._runner is None:
            assert event.wait(PATIENCE_S)
        else:
            assert self._runner.run(asyncio.to_thread(event.wait, PATIENCE_S))

    def token_provider(self, tokens: Iterable[str]) -> Callable[[], Any]:
        """Return a provider of these tokens, one after the other."""
        left = iter(tokens)
        if not self.is_async:
            return lambda: next(left)

        async def provide() -> str:
            return next(left)

        return provide

    def close(self) -> None:
        """Close all clients, and the loop."""
        for client in self._opened:
            if isinstance(client, AsyncClient):
                self.do(client.aclose())
            else:
                client.close()
        if self._runner is not None:
            self._runner.close()


async def _all(values: AsyncIterable[Any]) -> list[Any]:
    return [value async for value in values]


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


def answer(content: object, status: int = 200, **headers: str) -> httpx.Response:
    """Return an answer as the server gives it."""
    return httpx.Response(status, json=content, headers=_headers(headers))


def problem(
    code: str, status: int, *, headers: dict[str, str] | None = None, **members: Any
) -> Any:
    """Return a refusal as the server gives it."""
    content = {"type": f"/v1/problems/{code}", "title": "T", "status": status, "detail": "D"}
    return httpx.Response(
        status,
        content=json.dumps(content | {"code": code} | members),
        headers={"content-type": "application/problem+json", "request-id": "r-1"} | (headers or {}),
    )


def results(*items: dict[str, Any]) -> httpx.Response:
    """Return an answer about items."""
    return answer({"results": list(items), "failed": sum("error" in item for item in items)})


def refused(code: str, **members: Any) -> dict[str, Any]:
    """Return the result of an item that was refused."""
    return {"error": {"code": code, "detail": "D"} | members}


PUT_RESULT = {
    "id": ID,
    "inserted_at_ms": 1,
    "expires_at_ms": None,
    "visible_at_ms": 1,
    "receipt": "r0",
}


def _headers(names: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in names.items()}
