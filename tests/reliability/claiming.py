"""What the clients do that claim, stage, settle and commit while the server is killed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tests.reliability.claim_calls import (
    OUT,
    Client,
    Request,
    Rig,
    Told,
    body_of,
    name_of,
    put_item,
)

SETTINGS: Final = {"max_body_bytes": 2_000_000, "failure_policy": {"max_failures": 3}}
ITEM_FINE: Final = frozenset({"lease-lost", "message-not-found", "not-done"})
"""Problems that an item may have when somebody else was faster."""
MORTAL_S: Final = 2
"""Time-out of sessions that may die; the shortest there is."""
_FULL: Final = 120
NAP_S: Final = 0.02


def named(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what matters of the answer to a put."""
    return {"id": result["id"], "duplicate": result.get("duplicate", False)}


class Producer(Client):
    """Puts messages, small and large, and does not run far ahead of those who work on them."""

    def __init__(self, rig: Rig, queue: str) -> None:
        super().__init__(rig)
        self._queue = queue

    def step(self) -> None:
        """See Client."""
        name = self.new_name()
        if len(body_of(name)) > 1_000 and self.chance(0.7):
            path = f"/queues/{self._queue}/messages/raw?dedup_key={name}"
            request = Request("POST", path, body_of(name))
            self.ask("put", name, request, tell=lambda told, _: named(told))
        else:
            self._put_one(name, keyed=self.chance(0.8))
        if self.chance(0.05):
            self._wait_for_room()

    def _put_one(self, name: str, *, keyed: bool) -> None:
        key = {"dedup_key": name} if keyed else {}
        request = Request(
            "POST",
            f"/queues/{self._queue}/messages",
            {"messages": [put_item(name, priority=self.rng.choice((8, 8, 3)), **key)]},
        )
        self.ask("put", name, request, tell=lambda told, _: named(told["results"][0]), again=keyed)

    def _wait_for_room(self) -> None:
        path = f"/queues/{self._queue}/counts"
        while not self.target.closed:
            told = self.ask("count", self._queue, Request("GET", path))
            if told.json["total"] < _FULL:
                return
            time.sleep(NAP_S)  # the others have the machine


class Stager(Client):
    """Stages in parts and chunks, and publishes, discards or forgets."""

    def step(self) -> None:
        """See Client."""
        tx = f"tx-{self.new_name(small=True)}"
        parts = [f"part{number}" for number in range(self.rng.randint(1, 3))]
        timeout_s = self.rng.choice((1, 3_600, 3_600, 3_600))
        staged = {part: self.stage(tx, part, timeout_s) for part in parts}
        draw = self.rng.random()
        if timeout_s == 1:
            return
        if draw < 0.15:
            discard = Request("POST", f"/transactions/{tx}/discard", {})
            self.ask("discard", tx, discard)
        elif draw < 0.25:
            return  # nobody ever comes back to it
        else:
            self._publish(tx, staged)

    def stage(self, tx: str, part: str, timeout_s: int = 3_600) -> list[str]:
        """Stage a part; return the names of its messages."""
        names: list[str] = []
        for chunk in range(self.rng.randint(1, 3)):
            names_of_chunk = [self.new_name() for _ in range(self.rng.randint(1, 4))]
            names += names_of_chunk
            self._stage_chunk(tx, (part, chunk), names_of_chunk, timeout_s)
            if self.chance(0.2):
                self._stage_chunk(tx, (part, chunk), names_of_chunk, timeout_s)
            if self.chance(0.1):
                self._stage_wrongly(tx, part, chunk + 2, "chunk-out-of-turn")
        return names

    def _stage_chunk(
        self, tx: str, place: tuple[str, int], names: Sequence[str], timeout_s: int
    ) -> None:
        part, chunk = place
        body = {
            "part": part,
            "chunk": chunk,
            "timeout_s": timeout_s,
            "messages": [put_item(name, queue=OUT) for name in names],
        }
        request = Request("POST", f"/transactions/{tx}/stage", body)
        asked = {"part": part, "chunk": chunk, "names": names}
        if timeout_s > 1:
            self.ask("stage", tx, request, asked=asked, tell=whole)
        else:  # it may vanish before its next chunk comes
            self.ask("stage-briefly", tx, request, fine={"chunk-out-of-turn"})

    def _stage_wrongly(self, tx: str, part: str, chunk: int, problem: str) -> None:
        body = {"part": part, "chunk": chunk, "messages": [put_item("never-0", queue=OUT)]}
        self.must_refuse(tx, Request("POST", f"/transactions/{tx}/stage", body), problem)

    def _publish(self, tx: str, staged: Mapping[str, Sequence[str]]) -> None:
        chosen = list(staged)
        if self.chance(0.3):
            chosen = self.rng.sample(chosen, self.rng.randint(1, len(chosen)))
        body = {} if len(chosen) == len(staged) else {"parts": chosen}
        request = Request("POST", f"/transactions/{tx}/publish", body)
        asked = {"outputs": [name for part in chosen for name in staged[part]]}
        self.ask("publish", tx, request, asked=asked, tell=whole)
        if self.chance(0.2):
            self.ask("publish", tx, request, asked=asked, tell=whole)
        if self.chance(0.1):
            self._stage_wrongly(tx, chosen[0], 0, "already-published")


class Worker(Stager):
    """Receives and completes, in one with what it sends; with a session or without."""

    def __init__(self, rig: Rig, queue: str, *, in_sessions: bool) -> None:
        super().__init__(rig)
        self._queue = queue
        self._in_sessions = in_sessions
        self._session = ""
        self._session_s = 0
        self._heard_s = 0.0

    def step(self) -> None:
        """See Client."""
        if self._in_sessions and not self._session:
            self._open_session()
        held = self._receive()
        if self._session and self.chance(0.5):
            self._beat()
        if held and self.chance(0.9):
            self._commit(held)
        if self._session and self.chance(0.1):
            self._leave()

    def finish(self) -> None:
        """See Client. A session that can die is left to die, with all that it has."""
        if self._session and self._session_s > MORTAL_S:
            self._end()

    def _receive(self) -> list[dict[str, Any]]:
        body: dict[str, Any] = {"max_messages": self.rng.randint(1, 5), "holder": self.name}
        if self._session:
            body |= {"visibility_timeout_s": 3_600, "session": self._session}
        else:
            body["visibility_timeout_s"] = self.rng.choice((1, 2))
        request = Request("POST", f"/queues/{self._queue}/messages/receive", body)
        told = self.ask(
            "receive",
            self._queue,
            request,
            tell=lambda told, _: {"rows": [_sighting(each) for each in told["messages"]]},
            fine={"session-over"},
            again=False,
        )
        if told.problem == "session-over":
            self._mourn()
        if not told.done:
            return []
        self._heard_s = time.monotonic()
        return list(told.json["messages"])

    def _commit(self, held: Sequence[Mapping[str, Any]]) -> None:
        name = f"commit-{self.new_name(small=True)}"
        is_named = self.chance(0.7)
        outputs = [f"out-{self.new_name()}" for _ in held]
        tx = f"tx-{name}" if self.chance(0.2) else ""
        acts = [self._act(each) for each in held]
        body: dict[str, Any] = {
            "send": [put_item(output, queue=OUT) for output in outputs],
            "complete": [item for is_release, item in acts if not is_release],
            "release": [item for is_release, item in acts if is_release],
            "publish": [tx] if tx else [],
        }
        if is_named:
            body["name"] = name
        rows = self.stage(tx, "") if tx else []
        asked = {"ids": [item["id"] for item in body["complete"]], "outputs": outputs + rows}
        request = Request("POST", "/commit", body)
        told = self.ask("commit", name, request, asked=asked, tell=_committed, again=is_named)
        if told.done:
            self._after_commit(told, held)

    def _after_commit(self, told: Told, held: Sequence[Mapping[str, Any]]) -> None:
        lists = [told.json[name] for name in ("send", "complete", "release", "renew")]
        codes = {each["error"]["code"] for items in lists for each in items if "error" in each}
        assert codes <= ITEM_FINE, f"{codes} for {held}"
        if self._session and codes and self._beat():
            raise AssertionError(f"a session that lives has lost a lease: {codes}, {held}")

    def _act(self, message: Mapping[str, Any]) -> tuple[bool, dict[str, Any]]:
        named = {"queue": self._queue, "id": message["id"], "receipt": message["receipt"]}
        if self.chance(0.85):
            return False, named
        return True, named | {"outcome": self.rng.choice(("failed", "returned", "interrupted"))}

    # --- sessions ----------------------------------------------------------------------------

    def _open_session(self) -> None:
        self._session_s = self.rng.choice((MORTAL_S, MORTAL_S, 10))
        body = {"holder": self.name, "timeout_s": self._session_s}
        told = self.ask("session", self.name, Request("POST", "/sessions", body))
        self._session, self._heard_s = told.json["session_id"], time.monotonic()

    def _beat(self) -> bool:
        """Send a heartbeat; return whether the session lives."""
        request = Request("POST", f"/sessions/{self._session}/heartbeat", {})
        if self.ask("beat", self._session, request, fine={"session-over"}).done:
            self._heard_s = time.monotonic()
            return True
        self._mourn()
        return False

    def _mourn(self) -> None:
        """Take note that the session is lost, which must not be while it is heard of."""
        silent_s = time.monotonic() - max(self._heard_s, self.target.ready_s)
        # Some of the silence is how long the answer took.
        assert silent_s > self._session_s / 2, f"lost after {silent_s} s of {self._session_s}"
        self._session = ""

    def _leave(self) -> None:
        if self._session_s > MORTAL_S or self.chance(0.3):
            self._end()
        self._session = ""  # or it is never heard of again, and its leases are for an hour

    def _end(self) -> None:
        request = Request("POST", f"/sessions/{self._session}/end", {"reason": "done"})
        self.ask("end", self._session, request)


class Tail(Client):
    """Reads the log as it grows."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.events: list[Mapping[str, Any]] = []
        self._after = 0

    def step(self) -> None:
        """See Client."""
        told = self.ask("events", "", Request("GET", f"/events?limit=2000&after={self._after}"))
        self.events += told.json["events"]
        self._after = told.json["next_after"]
        if told.json["finished"]:
            time.sleep(NAP_S)  # the others have the machine


def _sighting(message: Mapping[str, Any]) -> list[Any]:
    return [message["id"], name_of(message), message["fence"]]


def whole(told: Any, _: object) -> Mapping[str, Any]:
    return dict(told)


def _committed(told: Any, _: object) -> Mapping[str, Any]:
    return {"already": told["already"], "failed": told["failed"], "published": told["published"]}
