"""The application with the console and the native API, on an engine without HTTP."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any, Self

from leasehold.auth.authenticator import Authenticator
from leasehold.auth.console import ConsoleSessions
from leasehold.auth.types import Account
from leasehold.engine.engine import Engine
from leasehold.http.admission import Admission
from leasehold.http.console import ConsoleDialect
from leasehold.http.console.figures import ServerFigures
from leasehold.http.console.history import History
from leasehold.http.console.live import Live
from leasehold.http.console.pages import StaticFiles
from leasehold.http.console.sign_in import SignIn
from leasehold.http.console.workers import Workers
from leasehold.http.guard import ConnectionLimits, Guard
from leasehold.http.native import NativeDialect, Services
from leasehold.http.requests import Request, Response
from leasehold.stores.memory import MemoryStore
from leasehold.testing import ManualClock

ACCOUNT = "devstoreaccount1"
KEY = b64encode(b"k" * 32).decode("ascii")
SECOND_KEY = b64encode(b"s" * 32).decode("ascii")
INSPECTOR_KEY = b64encode(b"i" * 32).decode("ascii")
QUEUE = f"/v1/accounts/{ACCOUNT}/queues/orders"
SESSION = "/console/api/session"
CSRF = "x-leasehold-csrf"


class Answer:
    """A response whose JSON has been read."""

    def __init__(self, response: Response) -> None:
        self.status = response.status
        self.headers = {name.decode(): value.decode() for name, value in response.headers}
        self.cookies = [
            value.decode().partition(";")[0]
            for name, value in response.headers
            if name == b"set-cookie"
        ]
        self.body = response.body
        self.stream = response.stream
        is_json = self.headers.get("content-type", "").endswith("json")
        self.json: Any = json.loads(response.body) if response.body and is_json else None

    @property
    def code(self) -> str:
        """The code of a problem."""
        return str(self.json["code"])

    def all_cookies(self) -> str:
        """What a browser sends back that was told to keep or forget several."""
        return "; ".join(each for each in self.cookies if not each.endswith("="))

    @property
    def cookie(self) -> str:
        """What a browser sends back."""
        return self.headers["set-cookie"].partition(";")[0]


class Console:
    """A server with a console; everything it is asked runs in its own loop."""

    def __init__(self, folder: Path | None = None) -> None:
        self.clock = ManualClock()
        self.runner = asyncio.Runner()
        self.store = MemoryStore()
        self.engine = Engine(self.store, self.clock)
        self.sealing_key = self.store.sealing_key
        self.accounts = {
            ACCOUNT: Account(
                name=ACCOUNT,
                keys=(b64decode(KEY), b64decode(SECOND_KEY)),
                sealing_key=lambda: self.sealing_key,
            ),
            "other": Account(name="other", keys=(b"o" * 32,)),
        }
        self.issuers = {ACCOUNT: "the issuer"}
        inspectors = {ACCOUNT: (b64decode(INSPECTOR_KEY),)}
        policies = lambda *_: None  # noqa: E731 - no queue here has one
        authenticator = Authenticator(self.accounts, policies, inspectors=inspectors)
        self.sessions = ConsoleSessions(
            authenticator,
            self.accounts,
            policies,
            self.clock.now_ms,
            inspectors,
            development=ACCOUNT,
            issuers=self.issuers,
        )
        guard = Guard(ConnectionLimits(), self.clock)
        services = self.services = Services(
            perform=self.engine.perform,
            receive=self.engine.receive,
            find_queue=self.engine.find_queue,
            activity=self.engine.activity,
            wait_for_job=self.engine.wait_for_job,
        )
        figures = ServerFigures(
            engine=self.engine,
            guard=guard,
            admission=Admission(self.engine.perform, limit=10, receive=self.engine.receive),
            clock=self.clock,
            draining=lambda: False,
            max_pending=10,
        )
        # No test waits so long: they look by hand.
        self.live = Live(self.sessions, self.engine, figures, self.clock, interval_s=3_600.0)
        self.sign_in = SignIn(self.sessions, self.clock, ACCOUNT)
        self.console = ConsoleDialect(
            services=services,
            clock=self.clock,
            files=StaticFiles(folder),
            sign_in=self.sign_in,
            live=self.live,
            history=History(self.sessions, self.clock),
            workers=Workers(self.sessions, self.clock),
        )
        self.native = NativeDialect(
            services=services,
            authenticator=authenticator,
            clock=self.clock,
            sessions=self.sessions,
        )

    def __enter__(self) -> Self:
        self.runner.__enter__()
        self.runner.run(self.engine.start())
        return self

    def __exit__(self, *_: object) -> None:
        self.runner.run(self.engine.stop())
        self.runner.__exit__(None, None, None)

    async def asked(
        self,
        method: str,
        path: str,
        content: object = None,
        headers: dict[str, str] | None = None,
        *,
        client_ip: str = "127.0.0.1",
        https: bool = False,
    ) -> Answer:
        """Answer a request."""
        raw_path, _, query = path.partition("?")
        fields = {"host": "queues.example.net", "content-type": "application/json"}
        body = b"" if content is None else json.dumps(content).encode()
        request = Request(
            method=method,
            raw_path=raw_path,
            raw_query=query,
            headers={**fields, **(headers or {})},
            body=body,
            body_too_large=False,
            client_ip=client_ip,
            https=https,
        )
        dialect = self.native if raw_path.startswith("/v1/") else self.console
        return Answer(await dialect.handle(request))

    def ask(self, *args: Any, **options: Any) -> Answer:
        """Answer a request, outside the loop."""
        return self.runner.run(self.asked(*args, **options))

    def enter(self, role: str = "operator", **options: Any) -> dict[str, str]:
        """Sign in; return the fields that a page of the console sends."""
        content = {"kind": "key", "account": ACCOUNT, "key": KEY, "role": role}
        answer = self.ask("POST", SESSION, content, **options)
        assert answer.status == 200, answer.json
        return {"cookie": answer.cookie, CSRF: answer.json["csrf"]}
