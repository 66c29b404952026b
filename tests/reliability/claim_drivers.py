"""Drivers that claim, read and settle while the server is killed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from tests.reliability.claim_calls import (
    ARROW,
    OUT,
    Request,
    Rig,
    put_item,
    rows_in_arrow,
    rows_in_json,
)
from tests.reliability.claim_history import LONG_S, MARK
from tests.reliability.claiming import NAP_S, Stager, whole

OUTCOMES: Final = ("failed", "returned", "interrupted", "buried")


@dataclass(slots=True)
class Holding:
    """A claim that a driver works on."""

    number: int
    key: str
    """Stream, number, and how often the number was given back before."""
    rows: list[list[Any]] = field(default_factory=list)
    opened: bool = False
    loss: bool = False
    """Members have gone, and that was accepted."""


class Driver(Stager):
    """Claims, reads and settles, step by step. Its stream has its own name."""

    def __init__(self, rig: Rig, queue: str, lease_s: int) -> None:
        super().__init__(rig)
        self._stream = rig.name
        self._path = f"/queues/{queue}/streams/{rig.name}"
        self._lease_s = lease_s
        self._token = 0
        self._old_tokens: tuple[int, ...] = ()
        self._settled = 0
        self._given_back = 0

    def step(self) -> None:
        """See Client."""
        if not self._token:
            self._attach()
        holdings: list[Holding] = []
        for _ in range(self.rng.choice((1, 1, 1, 2))):
            number = self._settled + 1 + len(holdings)
            holding = Holding(number, f"{self._stream}/{number}#{self._given_back}")
            if not self._open(holding):
                time.sleep(NAP_S)  # the producers have the machine
                break
            holdings.append(holding)
        holdings = [each for each in holdings if self._read(each) or self._give_back(each)]
        if not holdings:
            return
        self._tend(holdings[-1])
        if self.chance(0.15):
            self._give_back(holdings.pop())
        if holdings:
            self._settle(holdings)

    # --- attaching and opening ---------------------------------------------------------------

    def _attach(self) -> None:
        told = self.ask("attach", self._stream, Request("PUT", self._path), tell=_attached)
        if self._token:
            self._old_tokens = (*self._old_tokens[-3:], self._token)
        self._token = told.json["token"]

    def _open(self, holding: Holding, *, accept_loss: bool = False) -> bool:
        body = {
            "token": self._token,
            "limit": self.rng.randint(1, 12),
            "lease_s": self._lease_s,
            "holder": self.name,
            "accept_loss": accept_loss,
        }
        request = Request("PUT", f"{self._path}/claims/{holding.number}", body)
        asked = {"lease_s": self._lease_s, "new": not holding.opened}
        # Whoever is slow to ask again may find that it has lapsed meanwhile.
        fine = set() if self._lease_s >= LONG_S or accept_loss else {"claim-broken"}
        told = self.ask("open", holding.key, request, asked=asked, tell=whole, fine=fine)
        if told.problem:
            holding.opened = True
            return self._open(holding, accept_loss=True)
        holding.loss |= accept_loss
        holding.opened = told.json["claim"] is not None
        return holding.opened

    # --- reading -----------------------------------------------------------------------------

    def _read(self, holding: Holding, parts: int = 1) -> bool:
        """Read a claim, and open it again where it has lapsed; return whether that was possible."""
        for _ in range(5):
            problem = ""
            rows: list[list[Any]] = []
            for part in range(parts):
                problem = self._read_part(holding, part, parts, rows)
                if problem:
                    break
            if not problem:
                holding.rows = rows
                return True
            assert self._lease_s < LONG_S, f"{problem} of {holding}"
            self._open(holding, accept_loss=problem == "claim-broken")
            parts = 1
        return False

    def _read_part(self, holding: Holding, part: int, parts: int, rows: list[list[Any]]) -> str:
        as_arrow, found = self.chance(0.5), []
        after: str | None = ""
        while after is not None:
            query = f"part={part}&parts={parts}&limit={self.rng.choice((3, 1_000))}&after={after}"
            request = Request(
                "GET",
                f"{self._path}/claims/{holding.number}/messages?{query}",
                accept=ARROW if as_arrow else "application/json",
            )
            told = self.ask("page", holding.key, request, fine={"claim-lapsed", "claim-broken"})
            if not told.done:
                return told.problem
            assert told.answer is not None
            if as_arrow:
                found += rows_in_arrow(told.answer.body)
                after = told.answer.headers.get("leasehold-next-after")
            else:
                found += rows_in_json(told.json)
                after = told.json["next_after"]
            after = after and quote(after, safe="")
        asked = {"part": part, "parts": parts, "loss": holding.loss}
        place = self.deeds.intend("read", holding.key, asked)
        self.deeds.answer(place, 0, "", {"rows": found})
        rows += found
        return ""

    # --- tending -----------------------------------------------------------------------------

    def _tend(self, holding: Holding) -> None:
        draw = self.rng.random()
        if draw < 0.15:
            self._attach()
            self._be_fenced(holding)
            self._open(holding)
        elif draw < 0.45:
            body = {"token": self._token, "lease_s": self._lease_s, "park": draw < 0.25}
            request = Request("POST", f"{self._path}/claims/{holding.number}/extend", body)
            fine = set() if self._lease_s >= LONG_S else {"claim-broken"}
            self.ask("extend", holding.key, request, fine=fine)
        elif draw < 0.6 and self._lease_s < LONG_S:
            time.sleep(self.rng.uniform(0.5, 1.0) * self._lease_s)  # it lapses, or nearly so
        self._read(holding, self.rng.randint(1, 3))

    def _be_fenced(self, holding: Holding) -> None:
        """Whatever comes with an older token is refused."""
        for token in self._old_tokens:
            path = f"{self._path}/claims/{holding.number}"
            open_ = {"token": token, "limit": 1, "lease_s": 1}
            for request in (
                Request("PUT", path, open_),
                Request("POST", f"{path}/extend", {"token": token, "lease_s": 1}),
                Request("POST", f"{path}/give-back", {"token": token}),
                Request("POST", f"{path}/bind", {"token": token, "transaction": "stale"}),
                Request("POST", f"{self._path}/settle", {"token": token, "upto": holding.number}),
            ):
                self.must_refuse(holding.key, request, "stale-token")

    def _give_back(self, holding: Holding) -> bool:
        request = Request(
            "POST", f"{self._path}/claims/{holding.number}/give-back", {"token": self._token}
        )
        # Not found: it was given back, and the answer got lost.
        self.ask("give-back", holding.key, request, fine={"claim-not-found"})
        self._given_back += 1
        return False

    # --- settling ----------------------------------------------------------------------------

    def _settle(self, holdings: Sequence[Holding]) -> None:
        upto = holdings[-1].number
        key = f"{self._stream}.{upto}.{self.new_name(small=True)}"
        exempt = {
            row[0]: (each.number, self.rng.choice(OUTCOMES))
            for each in holdings
            for row in each.rows
            if self.chance(0.2)
        }
        outputs = [f"out-{self.new_name()}" for _ in range(self.rng.randint(1, 3))]
        tx = f"tx-{key}" if self.chance(0.4) else ""
        rows = [*self.stage(tx, "p"), *self.stage(tx, "q")] if tx else []
        mark = f"{MARK}{key}"
        body: dict[str, Any] = {
            "token": self._token,
            "upto": upto,
            "exemptions": [
                {"number": number, "id": each, "outcome": outcome, "error": {"text": mark}}
                for each, (number, outcome) in exempt.items()
            ],
            "sends": [put_item(output, queue=OUT) for output in outputs],
            "publish": [tx] if tx else [],
        }
        asked = {
            "claims": {each.key: [row[0] for row in each.rows] for each in holdings},
            "exempt": {each: outcome for each, (_, outcome) in exempt.items()},
            "outputs": outputs + rows,
            "rows": len(rows),
            "mark": mark,
        }
        request = Request("POST", f"{self._path}/settle", body)
        what = f"{self._stream}/{upto}"
        tell, fine = whole, {"member-not-found"}
        ready = True
        if self.chance(0.4):
            ready = self._bind(holdings, body["exemptions"], key)
            send = {"name": key, "send": body["sends"], "publish": body["publish"]}
            request, tell = Request("POST", "/commit", send), _settled
            fine = {"claim-broken"}
        fine = set() if self._lease_s >= LONG_S else fine
        if ready:
            told = self.ask("settle", what, request, asked=asked, tell=tell, fine=fine)
        if not ready or not told.done:
            for each in reversed(holdings):
                self._give_back(each)
            return
        self._settled = upto
        if self.chance(0.2):
            self.ask("settle", what, request, asked=asked, tell=tell)
        if self.chance(0.1):
            read = Request("GET", f"{self._path}/claims/{upto}/messages")
            self.must_refuse(what, read, "claim-settled")

    def _bind(
        self, holdings: Sequence[Holding], exemptions: Sequence[dict[str, Any]], name: str
    ) -> bool:
        """Note exemptions with their claims, and bind the last one; tell whether that was done."""
        fine = {"member-not-found", "claim-lapsed", "claim-broken"}
        fine = set() if self._lease_s >= LONG_S else fine
        for each in holdings:
            own = [dict(given) for given in exemptions if given["number"] == each.number]
            for given in own:
                del given["number"]
            path = f"{self._path}/claims/{each.number}"
            if own:
                note = {"token": self._token, "exemptions": own}
                request = Request("POST", f"{path}/exemptions", note)
                if not self.ask("exempt", each.key, request, fine=fine).done:
                    return False
        bind = {"token": self._token, "transaction": name}
        request = Request("POST", f"{path}/bind", bind)
        return self.ask("bind", holdings[-1].key, request, fine=fine).done


def _settled(told: Any, _: object) -> Mapping[str, Any]:
    """Return of the answer to a commit what a settling tells."""
    nothing = {"completed": 0, "exempted": 0, "lost": 0}
    settled = told["settled"][0] if told["settled"] else nothing
    return {**settled, "already": told["already"], "published": told["published"]}


def _attached(told: Any, _: object) -> Mapping[str, Any]:
    return {"token": told["token"], "last_settled": told["last_settled"]}
