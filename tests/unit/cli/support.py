"""The command line against a server made of prepared answers, at a time that stands still."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, TypeAlias

import httpx
from click.testing import CliRunner, Result

from leasehold.cli import main
from leasehold.cli.remote import Surroundings
from leasehold.testing.time import START_MS, ManualClock
from tests.unit.client.support import answer

Reply: TypeAlias = httpx.Response | Exception
ONE_OF_MANY = re.compile(
    r"(?<![\d.,:-])1 (messages|queues|deliveries|events|tasks|files|rows|lines|claims|leases"
    r"|members|workers|sessions|servers|attempts|failures|jobs|streams|parts|transactions|times"
    r"|renewals|receipts|bytes)\b"
)
"""A plural behind the number one."""
ID = "00000000-0001-8abc-9def-0123456789ab"
RECEIPT = "AAAAAAAABQAAAAFI0nwM7oHxE7Ocz64hm2SK"
ACCOUNT = "/v1/accounts/devstoreaccount1"
MESSAGE = {
    "id": ID,
    "body": '{"order": 17}',
    "inserted_at_ms": START_MS - 90_000,
    "expires_at_ms": None,
    "visible_at_ms": START_MS + 60_000,
    "dequeue_count": 2,
}
VIEW = MESSAGE | {
    "queue": "orders",
    "state": "leased",
    "body_bytes": 13,
    "why": "It is leased to worker-7.",
    "lease": {"holder": "worker-7", "since_ms": START_MS, "until_ms": START_MS, "renewals": 3},
}
QUEUE = {
    "name": "orders",
    "metadata": {"team": "shipping"},
    "settings": {"visibility_timeout_s": 30},
    "visibility_timeout_s": 30,
    "created_at_ms": START_MS - 7_200_000,
}
COUNTS = {
    "at_ms": START_MS,
    "visible": 1234,
    "leased": 2,
    "delayed": 0,
    "deferred": 0,
    "poisoned": 5,
    "total": 1236,
    "staged": 0,
    "claimed": 0,
    "expired": 0,
    "exact": True,
    "oldest_age_s": {"visible": 95},
}
JOB = {
    "job_id": "j1",
    "queue": "orders",
    "kind": "purge",
    "state": "done",
    "dry_run": False,
    "examined": 1236,
    "matched": 1236,
    "moved": 1236,
    "expected": 1236,
}


class Server:
    """Answers by method and path; keeps what was asked."""

    def __init__(self) -> None:
        self.requests: list[httpx.Request] = []
        self._replies: dict[tuple[str, str], list[Reply]] = {}

    def on(self, method: str, path: str, *replies: Reply | dict[str, Any]) -> None:
        """Answer requests for *path* below the account in turn, the last again and again."""
        made = [answer(each) if isinstance(each, dict) else each for each in replies]
        self._replies[method, f"{ACCOUNT}{path}"] = made

    def __call__(self, request: httpx.Request) -> httpx.Response:
        """Answer one request."""
        self.requests.append(request)
        replies = self._replies[request.method, request.url.path]
        reply = replies.pop(0) if len(replies) > 1 else replies[0]
        if isinstance(reply, Exception):
            raise reply
        return httpx.Response(reply.status_code, headers=reply.headers, content=reply.content)

    @property
    def sent(self) -> Any:
        """The JSON of the latest request."""
        return json.loads(self.requests[-1].content)

    @property
    def asked(self) -> list[str]:
        """Method and path below the account of each request."""
        return [f"{each.method} {each.url.path.removeprefix(ACCOUNT)}" for each in self.requests]


class Shell:
    """Runs the command line."""

    def __init__(self) -> None:
        self.server = Server()
        self.clock = ManualClock()
        self.on_sleep: Callable[[float], None] = lambda length_s: self.clock.advance(s=length_s)
        self.is_interactive = False

    def __call__(self, *arguments: str, stdin: str | bytes | None = None, **env: str) -> Result:
        """Run a command, in 120 columns and an environment without a connection string."""
        around = Surroundings(
            clock=self.clock,
            sleep=self.on_sleep,
            transport=httpx.MockTransport(self.server),
            is_interactive=self.is_interactive,
        )
        unset: dict[str, str | None] = {"AZURE_STORAGE_CONNECTION_STRING": None, "COLUMNS": "120"}
        result = CliRunner().invoke(main, arguments, input=stdin, obj=around, env=unset | env)
        if "analyze" not in arguments:  # its figures are averages, rounded
            assert ONE_OF_MANY.search(result.output) is None, result.output
        return result
