"""Clients that send under keys, fail, bury, redrive and purge, while the server is killed.

As in :mod:`tests.reliability.killing`, the server is a process of its own, and the clients and
their records live here.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, Final

from tests.e2e.server import DEV_ACCOUNT, DEV_KEY
from tests.reliability.governed_history import (
    KINDS,
    POISON_SUFFIX,
    Audit,
    Deed,
    Deeds,
    Found,
    Judge,
    kind_of,
)
from tests.reliability.history import Violation
from tests.reliability.killing import FILES, Target, integrity
from tests.reliability.running import (
    Answer,
    Connection,
    KillableServer,
    eventually,
    serialize,
)

QUEUES: Final = ("governed-a", "governed-b")
FINE: Final = frozenset({"lease-lost", "message-not-found", "not-done"})
"""Problems that an item may have when somebody else was faster."""
_PAGE: Final = 1000
_MAX_JOBS: Final = 3
_SETTINGS: Final = {"failure_policy": {"max_failures": 2}, "dedup_window_s": 86_400}


class Native:
    """Speaks the native API over one connection, which it opens when it is needed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connection: Connection | None = None

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Return the answer's JSON; raise OSError when there is no answer, fail if it is no 2xx."""
        content = b"" if body is None else json.dumps(body).encode()
        headers = {
            "host": "127.0.0.1",
            "authorization": f"Bearer {DEV_KEY}",
            "content-type": "application/json",
            "content-length": str(len(content)),
        }
        answer = self._send(
            serialize(method, f"/v1/accounts/{DEV_ACCOUNT}{path}", headers, content)
        )
        assert answer.status < 300, f"{method} {path} {body}: {answer}"
        return json.loads(answer.body)

    def _send(self, raw: bytes) -> Answer:
        if self._connection is None:
            self._connection = Connection(self._port)
        try:
            self._connection.send(raw)
            return self._connection.read_answer()
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@dataclass(frozen=True, slots=True)
class Held:
    """A lease that its holder believes in."""

    message_id: str
    receipt: str
    root: str


class Client:
    """One thread that does as :meth:`_step` says until told to end."""

    def __init__(self, name: str, seed: int, target: Target, deeds: Deeds) -> None:
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.answered = 0
        self.broken: list[str] = []
        """Calls that failed while the server was meant to be up."""
        self._name = name
        self._rng = random.Random(f"{seed}/{name}")
        self._target = target
        self._deeds = deeds

    def _run(self) -> None:
        while (port := self._target.wait()) is not None:
            native = Native(port)
            try:
                while not self._target.closed:
                    self._step(native)
                    self.answered += 1
            except OSError as error:
                if self._target.is_up(port):
                    self.broken.append(repr(error))
            except AssertionError as error:
                self.broken.append(str(error))
                return
            finally:
                native.close()

    def _step(self, native: Native) -> None:
        raise NotImplementedError


class Worker(Client):
    """Sends, receives, completes, fails and buries."""

    def __init__(self, number: int, seed: int, target: Target, deeds: Deeds) -> None:
        super().__init__(f"worker{number}", seed, target, deeds)
        self._queue = QUEUES[number % len(QUEUES)]
        self._held: list[Held] = []
        self._sent: list[str] = []
        self._unanswered: list[str] = []
        self._numbers = count()

    def _step(self, native: Native) -> None:
        self.settle_sends(native)
        draw = self._rng.random()
        if draw < 0.4:
            self._send(native, [self._name_one() for _ in range(self._rng.randint(1, 4))])
        elif draw < 0.5 and self._sent:
            self._send(native, self._rng.choices(self._sent, k=2))
        elif draw < 0.7 or not self._held:
            self._receive(native)
        elif draw < 0.8:
            self._complete(native)
        else:
            self._release(native)

    def settle_sends(self, native: Native) -> None:
        """Send again what may not have arrived, under the same keys."""
        if self._unanswered:
            self._send(native, [])

    def _name_one(self) -> str:
        kind = self._rng.choices(KINDS, weights=(3, 3, 1))[0]
        return f"{kind}-{self._name}-{next(self._numbers)}"

    def _send(self, native: Native, roots: list[str]) -> None:
        self._unanswered += roots
        roots = list(self._unanswered)
        places = self._deeds.intend(
            *(Deed(act="send", queue=self._queue, root=root) for root in roots)
        )
        messages = [
            {"json": {"kind": kind_of(root), "root": root}, "dedup_key": root} for root in roots
        ]
        asked = {"messages": messages, "atomic": self._rng.random() < 0.5}
        answer = native.call("POST", f"/queues/{self._queue}/messages", asked)
        self._unanswered.clear()
        self._sent = [*self._sent[-50:], *roots]
        for place, result in zip(places, answer["results"], strict=True):
            intended = self._deeds.all[place]
            self._deeds.answer(
                place, replace(intended, answered=True, done=True, message_id=result["id"])
            )

    def _receive(self, native: Native) -> None:
        asked = {
            "max_messages": self._rng.randint(1, 8),
            "visibility_timeout_s": self._rng.choice((1, 2)),
            "holder": self._name,
        }
        answer = native.call("POST", f"/queues/{self._queue}/messages/receive", asked)
        self._held += [
            Held(each["id"], each["receipt"], json.loads(each["body"])["root"])
            for each in answer["messages"]
        ]

    def _complete(self, native: Native) -> None:
        staying = [held for held in self._held if kind_of(held.root) == "stay"]
        self._settle(native, "complete", staying[:3], {})

    def _release(self, native: Native) -> None:
        outcome = self._rng.choice(("failed", "failed", "failed", "buried", "returned"))
        error = {"text": "no such codec", "type": "CodecError"}
        self._settle(native, "release", self._held[:4], {"outcome": outcome, "error": error})

    def _settle(self, native: Native, verb: Any, held: Sequence[Held], how: dict[str, Any]) -> None:
        if not held:
            return
        # Out of hand before the call: without an answer nobody knows what they are worth.
        self._held = [each for each in self._held if each not in held]
        places = self._deeds.intend(
            *(
                Deed(act=verb, queue=self._queue, root=each.root, message_id=each.message_id)
                for each in held
            )
        )
        items = [{"id": each.message_id, "receipt": each.receipt, **how} for each in held]
        asked = {"items": items, "atomic": self._rng.random() < 0.3}
        answer = native.call("POST", f"/queues/{self._queue}/messages/{verb}", asked)
        for place, result in zip(places, answer["results"], strict=True):
            problem = result.get("error")
            assert problem is None or problem["code"] in FINE, result
            self._deeds.answer(
                place,
                replace(
                    self._deeds.all[place],
                    answered=True,
                    done=problem is None,
                    poisoned=result.get("poisoned") or "",
                ),
            )


class Governor(Client):
    """Redrives what is to go again and purges what is to be swept."""

    def __init__(self, seed: int, target: Target, deeds: Deeds) -> None:
        super().__init__("governor", seed, target, deeds)

    def _step(self, native: Native) -> None:
        jobs = native.call("GET", f"/jobs?limit={_PAGE}")["jobs"]
        running = [job for job in jobs if job["state"] == "running"]
        if len(running) >= _MAX_JOBS:
            native.call("GET", f"/jobs/{running[0]['job_id']}")
            return
        queue, draw = self._rng.choice(QUEUES), self._rng.random()
        verb, kind = ("redrive", "again") if draw < 0.7 else ("purge", "sweep")
        wanted: dict[str, Any] = {"json_path": "kind", "json_value": kind}
        asked: dict[str, Any] = {"filter": wanted, "wait_s": self._rng.choice((0, 0.05))}
        if verb == "redrive":
            asked["rate_per_s"] = self._rng.choice((None, 50, 400))
        elif draw < 0.9:
            wanted["states"] = ["visible", "leased", "poisoned"]
        (place,) = self._deeds.intend(Deed(act="job", queue=queue, root=verb))
        job = native.call("POST", f"/queues/{queue}/{verb}", asked)
        intended = self._deeds.all[place]
        self._deeds.answer(
            place, replace(intended, answered=True, done=True, message_id=job["job_id"])
        )


@dataclass(slots=True)
class GovernedCampaign:
    """Rounds of load and SIGKILL on one data folder."""

    server: KillableServer
    data: Path
    seed: int
    workers: int = 4
    answers: tuple[int, int] = (80, 600)
    """Fewest and most answers of a round before the kill."""
    after_kill: Callable[[int], None] = lambda _: None
    """Called with the number of the kill while nothing runs."""
    kills: int = 0
    cut_jobs: int = 0
    """Jobs that were under way when the server was found up again."""
    broken: list[str] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    deeds: list[Deed] = field(default_factory=list)
    audit: Audit = field(default_factory=lambda: Audit(found=()))
    """The last one."""

    def play(self, rounds: int, records: Path) -> None:
        """Load and kill so many times, let all jobs end, and check."""
        target = Target()
        logs = [Deeds(records / f"{number}.jsonl") for number in range(self.workers + 1)]
        workers = [Worker(n, self.seed, target, logs[n]) for n in range(self.workers)]
        clients: list[Client] = [*workers, Governor(self.seed, target, logs[-1])]
        port = self.server.start().port
        self._make_queues(port)
        for client in clients:
            client.thread.start()
        rng = random.Random(self.seed)
        for _ in range(rounds):
            target.up(port)
            wanted = sum(client.answered for client in clients) + rng.randint(*self.answers)
            eventually(
                lambda least=wanted: (  # type: ignore[misc]
                    sum(client.answered for client in clients) >= least or self._broken(clients)
                ),
                f"{wanted} answers",
            )
            target.down()
            self._kill()
            port = self.server.start().port
            self._look(port, [deed for log in logs for deed in log.all])
        target.up(port)
        target.close()
        for client in clients:
            client.thread.join()
            self.broken += client.broken
        native = Native(port)
        for worker in workers:
            worker.settle_sends(native)
        native.close()
        for log in logs:
            log.close()
        self.deeds = [deed for log in logs for deed in log.all]
        self._finish(port)

    def _broken(self, clients: Sequence[Client]) -> bool:
        return any(client.broken for client in clients)

    def _make_queues(self, port: int) -> None:
        native = Native(port)
        for queue in QUEUES:
            native.call("PUT", f"/queues/{queue}", {"settings": _SETTINGS})
            native.call("PUT", f"/queues/{queue}{POISON_SUFFIX}", {})
        native.close()

    def _kill(self) -> None:
        self.server.kill()
        self.kills += 1
        self.after_kill(self.kills)
        verdict = integrity(self.data / FILES[0])
        if verdict != "ok":
            self.broken.append(f"after {self.kills} kills: {verdict}")

    def _look(self, port: int, deeds: list[Deed]) -> None:
        """Audit while the clients wait and the jobs go on."""
        native = Native(port)
        jobs = native.call("GET", f"/jobs?limit={_PAGE}")["jobs"]
        self.cut_jobs += sum(job["state"] == "running" for job in jobs)
        audit = Audit(found=listed(native), final=False)
        native.close()
        self.violations += Judge(deeds, audit).judged()

    def _finish(self, port: int) -> None:
        native = Native(port)

        def over() -> bool:
            jobs = native.call("GET", f"/jobs?limit={_PAGE}")["jobs"]
            return not any(job["state"] == "running" for job in jobs)

        eventually(over, "all jobs are over")
        names = [queue + suffix for queue in QUEUES for suffix in ("", POISON_SUFFIX)]
        self.audit = Audit(
            found=listed(native),
            jobs=native.call("GET", f"/jobs?limit={_PAGE}")["jobs"],
            counted={name: native.call("GET", f"/queues/{name}/counts")["total"] for name in names},
        )
        native.close()
        self.violations += Judge(self.deeds, self.audit).judged()

    def summary(self) -> str:
        """Return the totals in a few lines."""
        done = [deed for deed in self.deeds if deed.done]
        sends = [deed for deed in done if deed.act == "send"]
        poisoned = sum(bool(deed.poisoned) for deed in done)
        moved = {
            kind: sum(job["moved"] for job in self.audit.jobs if job["kind"] == kind)
            for kind in ("redrive", "purge")
        }
        return (
            f"{self.kills} kills; {len(sends)} sends of {len({deed.root for deed in sends})} keys, "
            f"{poisoned} moves to a poison queue, {moved['redrive']} redriven, "
            f"{moved['purge']} purged by {len(self.audit.jobs)} jobs, {self.cut_jobs} of them cut "
            f"off; {sum(not deed.answered for deed in self.deeds)} deeds unanswered; "
            f"{len(self.violations)} violations"
        )


def listed(native: Native) -> list[Found]:
    """List all messages of all queues, each by the queue that it is in."""
    found: list[Found] = []
    for queue in QUEUES:
        for name in (queue, queue + POISON_SUFFIX):
            after: str | None = ""
            while after is not None:
                # Of a queue its own ones only; those in its poison queue are listed there.
                query = f"limit={_PAGE}&after={after}&state=visible,leased,delayed,deferred,expired"
                page = native.call("GET", f"/queues/{name}/messages?{query}")
                found += [_found(name, view) for view in page["messages"]]
                after = page["next_after"]
    return found


def _found(queue: str, view: dict[str, Any]) -> Found:
    poisoned = view["poisoned"] or {"queue": "", "reason": ""}
    return Found(
        queue=queue,
        message_id=view["id"],
        root=json.loads(view["body"])["root"],
        poisoned_in=poisoned["queue"],
        reason=poisoned["reason"],
        redriven=view["redriven"],
    )
