"""The dialect with the real authenticator and the store that is the oracle, without HTTP."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from leasehold.auth.authenticator import Authenticator
from leasehold.auth.types import Account
from leasehold.domain.admin import GetJob, Job, StepJob, is_over
from leasehold.domain.claims import ClaimState, OpenClaim, Opened
from leasehold.domain.command import AnyCommand
from leasehold.domain.commands import Receive
from leasehold.domain.errors import LeaseholdError
from leasehold.domain.model import AccessPolicy, Lease
from leasehold.engine.long_poll import Gone
from leasehold.engine.stats import EngineStats
from leasehold.http.native import NativeDialect, Services
from leasehold.http.requests import Request, Response
from leasehold.stores.memory import MemoryStore
from leasehold.testing import ManualClock
from tests.unit.http.native import checking

ACCOUNT = "devstoreaccount1"
# The emulator's key, which is public.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
INSPECTOR_KEY = b64encode(b"i" * 32).decode("ascii")
BASE = f"/v1/accounts/{ACCOUNT}"
QUEUE = f"{BASE}/queues/orders"
MESSAGES = f"{QUEUE}/messages"


def path_of(template: str, item: str = "x") -> str:
    """Return the path of a route, with *item* for everything but account and queue."""
    names = {"account": ACCOUNT, "queue": "orders", "number": "1"}
    named = (part[1:-1] for part in template.split("/") if part[:1] == "{")
    return template.format(**{name: names.get(name, item) for name in named})


class Answer:
    """A response whose JSON has been read."""

    def __init__(self, response: Response) -> None:
        self.status = response.status
        self.headers = {name.decode(): value.decode() for name, value in response.headers}
        assert len(self.headers) == len(response.headers)
        self.body = response.body
        is_json = self.headers.get("content-type", "").endswith("json")
        self.json: Any = json.loads(response.body) if response.body and is_json else None

    @property
    def code(self) -> str:
        """The code of a problem, whose form is checked."""
        assert self.headers["content-type"] == "application/problem+json"
        assert self.json["status"] == self.status
        assert self.json["type"] == f"/v1/problems/{self.json['code']}"
        return cast("str", self.json["code"])


def errors_of_items(answer: dict[str, Any]) -> list[tuple[str, str] | None]:
    """Return code and place of each refused item, None for one that is done."""
    return [
        (result["error"]["code"], result["error"].get("field", "")) if "error" in result else None
        for result in answer["results"]
    ]


class Native:
    """A server without HTTP. Every answer it gives is checked against the OpenAPI document."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore()
        self.stats = EngineStats(since_ms=self.clock.now_ms())
        self.runner = asyncio.Runner()
        self.commands: list[AnyCommand] = []
        self.waits: list[float] = []
        self.observed: list[tuple[str, int]] = []
        self.failures: dict[type, Exception] = {}
        """What to raise in place of carrying out a type of command."""
        accounts = {
            ACCOUNT: Account(name=ACCOUNT, keys=(b64decode(KEY),)),
            "other": Account(name="other", keys=(b"o" * 32,)),
        }
        self.authenticator = Authenticator(
            accounts, self.find_policy, inspectors={ACCOUNT: (b64decode(INSPECTOR_KEY),)}
        )
        self.services = Services(
            perform=self.perform,
            receive=self.receive,
            find_queue=self.store.find_queue,
            activity=self.stats.activity,
            wait_for_job=self.wait_for_job,
            open_claim=self.open_claim,
        )
        self.change_services()

    def change_services(self, **changes: Any) -> None:
        """Make a dialect with other services."""
        self.services = replace(self.services, **changes)
        self.dialect = NativeDialect(
            services=self.services,
            authenticator=self.authenticator,
            clock=self.clock,
            observe=lambda operation, status: self.observed.append((operation, status)),
        )

    # --- collaborators -----------------------------------------------------------------------

    async def perform(self, command: AnyCommand) -> Any:
        """Carry a command out as the engine would."""
        self.commands.append(command)
        failure = self.failures.get(type(command))
        if failure is not None:
            raise failure
        now_ms = self.stats.now_ms = self.clock.now_ms()
        [result] = self.store.execute([command], now_ms=now_ms)
        self.store.commit()
        self.stats.count(command, result)
        if isinstance(result, LeaseholdError):
            raise result
        return result

    async def receive(
        self, command: Receive, wait_s: float, gone: Gone | None = None
    ) -> tuple[Lease, ...]:
        """Receive as the engine would, but let the time pass at once."""
        self.waits.append(wait_s)
        assert gone is not None
        leases = cast("tuple[Lease, ...]", await self.perform(command))
        if not leases:
            self.clock.advance(s=wait_s)
            leases = cast("tuple[Lease, ...]", await self.perform(command))
        return leases

    async def open_claim(
        self, command: OpenClaim, wait_s: float, gone: Gone | None = None
    ) -> Opened:
        """Open a claim as the engine would, but let the time pass at once."""
        self.waits.append(wait_s)
        opened = cast("Opened", await self.perform(command))
        if opened.claim is None and wait_s:
            assert gone is not None
            self.clock.advance(s=wait_s)
            opened = cast("Opened", await self.perform(command))
        while opened.claim is not None and opened.claim.state is ClaimState.OPENING:
            opened = cast("Opened", await self.perform(command))
        return opened

    async def wait_for_job(self, account: str, job_id: str, wait_s: float) -> Job:
        """Carry the job on."""
        self.waits.append(wait_s)
        job = await self.perform(GetJob(account, job_id))
        while isinstance(job, Job) and not is_over(job):
            job = await self.perform(StepJob(job_id, 1_000))
        assert isinstance(job, Job)
        return job

    def find_policy(self, account: str, queue: str, policy_id: str) -> AccessPolicy | None:
        """Look a stored policy up."""
        found = self.store.find_queue(account, queue)
        policies = found.policies if found else ()
        return next((policy for policy in policies if policy.policy_id == policy_id), None)

    # --- requests ----------------------------------------------------------------------------

    def send(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: str = "",
        key: str | None = KEY,
        headers: Mapping[str, str] | None = None,
        client_ip: str = "127.0.0.1",
        https: bool = False,
        too_large: bool = False,
    ) -> Answer:
        """Send a request; *body* is written as JSON unless it is bytes."""
        sent = {} if key is None else {"authorization": f"Bearer {key}"}
        raw = (
            body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        )
        request = Request(
            method=method,
            raw_path=path,
            raw_query=query,
            headers={**sent, **(headers or {})},
            body=raw,
            body_too_large=too_large,
            client_ip=client_ip,
            https=https,
        )
        response = self.runner.run(self.dialect.handle(request))
        checking.check_answer(method, path, response)
        return Answer(response)

    def get(self, path: str, query: str = "") -> Any:
        """Get something that is there."""
        answer = self.send("GET", path, query=query)
        assert answer.status == 200, answer.json
        return answer.json

    def post(self, path: str, body: object = None) -> Any:
        """Post something that is taken."""
        answer = self.send("POST", path, body)
        assert answer.status == 200, answer.json
        return answer.json

    def put_bodies(self, *bodies: str, **members: Any) -> list[dict[str, Any]]:
        """Put messages with these bodies."""
        items = [{"body": body, **members} for body in bodies]
        results = self.post(MESSAGES, {"messages": items})
        assert results["failed"] == 0
        return cast("list[dict[str, Any]]", results["results"])

    def receive_one(self, **members: Any) -> dict[str, Any]:
        """Receive a message."""
        [message] = self.post(f"{MESSAGES}/receive", members)["messages"]
        return cast("dict[str, Any]", message)
