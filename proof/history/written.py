"""Histories that are written by hand: one for each rule of the checker, which breaks it.

They are the positive control of the checker, in the tests as in each run of the proof; and there
are some with more than one explanation, in which nothing may be found.
"""

# ruff: noqa: D103 - what these functions write is in their names

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from proof.history.adapters import Promise
from proof.history.checker import check
from proof.history.records import Delivery, History, Operation, Outcome, Verb, body_of

Write: TypeAlias = Callable[["Script"], None]

ALL: Final = Promise(
    ordered=True, saves=True, counts=True, fills=True, renews_again=True, margin_s=0.001
)
LEASE_S: Final = 10.0


@dataclass
class Script:
    """A history that is written by hand: each call takes a tenth of a second."""

    history: History = field(default_factory=lambda: History(drained_s=1_000.0))

    def add(self, at_s: float, verb: Verb, outcome: Outcome = Outcome.OK, **more: Any) -> None:
        """Add a call."""
        number = len(self.history.operations)
        times = {"invoked_s": at_s, "completed_s": at_s + 0.1, **more}
        self.history.operations.append(
            Operation(client="c", number=number, verb=verb, queue="q", outcome=outcome, **times)
        )

    def put(self, at_s: float, message: str = "m", **more: Any) -> None:
        """Add a put of a message."""
        self.add(at_s, Verb.PUT, message=message, **more)

    def receive(self, at_s: float, *taken: Delivery, **more: Any) -> None:
        """Add a receive, which takes these."""
        asked: dict[str, Any] = {"hidden_s": LEASE_S, "limit": max(1, len(taken)), **more}
        self.add(at_s, Verb.RECEIVE, delivered=taken, **asked)

    def act(self, at_s: float, verb: Verb, token: str, **more: Any) -> None:
        """Add what is done with a receipt."""
        self.add(at_s, verb, token=token, **{"message": "m", **more})

    def complete(self, at_s: float, token: str, **more: Any) -> None:
        """Add a completion."""
        self.act(at_s, Verb.COMPLETE, token, **more)

    def found(self, promise: Promise = ALL) -> list[str]:
        """Return the rules that were broken."""
        self.history.operations.sort(key=lambda each: each.invoked_s)
        return [each.rule for each in check(self.history, promise).violations]


def got(token: str, attempt: int | None = None, message: str = "m", **more: str) -> Delivery:
    """Return a delivery."""
    return Delivery(body=body_of(message), token=token, attempt=attempt, **more)


def lived(script: Script) -> None:
    """Add a put, a receive and a completion with nothing wrong."""
    script.put(0)
    script.receive(1, got("t1"))
    script.complete(2, "t1")


def lost(script: Script) -> None:
    script.put(0)
    script.receive(1, got("t1"))


def lost_that_was_unknown(script: Script) -> None:
    script.put(0, outcome=Outcome.UNKNOWN)
    script.receive(1, got("t1"))


def lost_what_was_saved(script: Script) -> None:
    script.put(0)
    script.receive(1, got("t1"))
    script.act(2, Verb.RENEW, "t1", new_token="t2", hidden_s=LEASE_S, saved="page 7")
    script.receive(20, got("t3"))
    script.complete(21, "t3")


def back(script: Script) -> None:
    lived(script)
    script.receive(20, got("t2"))


def back_in_a_peek(script: Script) -> None:
    lived(script)
    script.add(20, Verb.PEEK, delivered=(got(""),))


def doubled(script: Script) -> None:
    script.put(0)
    script.receive(1, got("t1"))
    script.receive(5, got("t2"))
    script.complete(6, "t2")


def doubled_at_once(script: Script) -> None:
    script.put(0)
    script.receive(1, got("t1"))
    script.receive(1.05, got("t2"))
    script.complete(6, "t2")


def doubled_message(script: Script) -> None:
    script.put(0)
    script.receive(1, got("t1", message_id="one"))
    script.receive(20, got("t2", message_id="two"))
    script.complete(21, "t2")


def doubled_receipt(script: Script) -> None:
    script.put(0)
    script.receive(1, got("t1"))
    script.receive(20, got("t1"))
    script.complete(21, "t1")


def doubled_number(script: Script) -> None:
    script.put(0)
    script.receive(1, got("t1", 1))
    script.receive(20, got("t2", 1))
    script.complete(21, "t2")


def doubled_after_a_renewal(script: Script) -> None:
    script.put(0)
    script.receive(1, got("t1"))
    script.act(9, Verb.RENEW, "t1", new_token="t2", hidden_s=LEASE_S)
    script.receive(15, got("t3"))
    script.complete(16, "t3")


def early(script: Script) -> None:
    script.put(0, hidden_s=5.0)
    script.receive(3, got("t1"))
    script.complete(4, "t1")


def early_after_a_release(script: Script) -> None:
    script.put(0)
    script.receive(1, got("t1"))
    script.act(2, Verb.RELEASE, "t1", hidden_s=5.0)
    script.receive(4, got("t2"))
    script.complete(5, "t2")


def late(script: Script) -> None:
    script.put(0)
    script.receive(1)
    script.receive(2, got("t1"))
    script.complete(3, "t1")


def late_after_a_lease(script: Script) -> None:
    script.put(0)
    script.receive(1, got("t1"))
    script.receive(13)
    script.receive(14, got("t2"))
    script.complete(15, "t2")


def stale_by_another(script: Script) -> None:
    script.put(0)
    script.receive(1, got("t1"))
    script.receive(12, got("t2"))
    script.complete(13, "t1")


def stale_by_number(script: Script) -> None:
    script.put(0)
    script.receive(11.95, got("t1", 1), hidden_s=0.0)
    script.receive(12, got("t2", 2))
    script.complete(13, "t1")


def stale_by_renewal(script: Script) -> None:
    script.put(0)
    script.receive(1, got("t1"))
    script.act(2, Verb.RENEW, "t1", new_token="t2", hidden_s=LEASE_S)
    script.complete(3, "t1")


def stale_by_release(script: Script) -> None:
    script.put(0)
    script.receive(1, got("t1"))
    script.act(2, Verb.RELEASE, "t1")
    script.complete(3, "t1")


def stale_by_completion(script: Script) -> None:
    lived(script)
    script.complete(3, "t1")


def refused(script: Script) -> None:
    script.put(0)
    script.receive(1, got("t1"))
    script.complete(2, "t1", outcome=Outcome.REFUSED, reason="lost")
    script.receive(12, got("t2"))
    script.complete(13, "t2")


def refused_for_nothing(script: Script) -> None:
    lived(script)
    script.receive(3, outcome=Outcome.REFUSED, reason="refused: no such queue")


def out_of_order(script: Script) -> None:
    script.put(0, "m", group="g")
    script.put(1, "n", group="g")
    script.receive(2, got("t1", message="n"))
    script.complete(3, "t1", message="n")
    script.receive(4, got("t2"))
    script.complete(5, "t2")


def miscounted(script: Script) -> None:
    script.put(0)
    script.add(1, Verb.COUNT, count=0)
    script.receive(2, got("t1"))
    script.complete(3, "t1")


def miscounted_after(script: Script) -> None:
    lived(script)
    script.add(4, Verb.COUNT, count=1)


def foreign(script: Script) -> None:
    script.receive(0, got("t1"))


def foreign_body(script: Script) -> None:
    lived(script)
    script.receive(3, Delivery(body=body_of("m", 40)[:-1], token="t9"))


def foreign_as_refused(script: Script) -> None:
    script.put(0, outcome=Outcome.REFUSED, reason="busy")
    script.receive(1, got("t1"))
    script.complete(2, "t1")


FAULTS: Final[dict[str, Write]] = {
    "L1": lost,
    "L2": lost_that_was_unknown,
    "L3": lost_what_was_saved,
    "B1": back,
    "B1 ": back_in_a_peek,
    "D1": doubled,
    "D1 ": doubled_at_once,
    "D2": doubled_message,
    "D3": doubled_receipt,
    "D4": doubled_number,
    "D5": doubled_after_a_renewal,
    "E1": early,
    "E2": early_after_a_release,
    "T1": late,
    "T1 ": late_after_a_lease,
    "S1": stale_by_another,
    "S1 ": stale_by_number,
    "S2": stale_by_renewal,
    "S3": stale_by_release,
    "S4": stale_by_completion,
    "R1": refused,
    "R2": refused_for_nothing,
    "O1": out_of_order,
    "C1": miscounted,
    "C1 ": miscounted_after,
    "F1": foreign,
    "F1 ": foreign_body,
    "F3": foreign_as_refused,
}


def unknown_completion(script: Script) -> None:
    """It is done, or not."""
    script.put(0)
    script.receive(1, got("t1"))
    script.complete(2, "t1", outcome=Outcome.UNKNOWN)
    script.receive(14)
    script.add(15, Verb.COUNT, count=0)


def unknown_completion_that_was_not_done(script: Script) -> None:
    """The message comes again."""
    unknown_completion(script)
    del script.history.operations[-2:]
    script.receive(14, got("t2"))
    script.complete(15, "t2")


def unknown_receive(script: Script) -> None:
    """It has taken the message, and nobody got the answer."""
    script.put(0)
    script.receive(1, outcome=Outcome.UNKNOWN)
    script.receive(2)
    script.receive(12, got("t1"))
    script.complete(13, "t1")


def unknown_release(script: Script) -> None:
    """The next one may have the message at once."""
    script.put(0)
    script.receive(1, got("t1"))
    script.act(2, Verb.RELEASE, "t1", outcome=Outcome.UNKNOWN, hidden_s=1.0)
    script.receive(3.5, got("t2"))
    script.complete(4, "t2")


def unknown_renewal_much_later(script: Script) -> None:
    """Nothing says that it does not take effect when the lease is nearly over."""
    script.put(0)
    script.receive(1, got("t1"))
    script.act(2, Verb.RENEW, "t1", outcome=Outcome.UNKNOWN, hidden_s=LEASE_S)
    script.receive(15)
    script.receive(22, got("t2"))
    script.complete(23, "t2")


def calls_at_once(script: Script) -> None:
    """A receive may come before or after what goes on meanwhile."""
    script.put(0)
    script.receive(0.05)
    script.receive(1, got("t1"))
    script.receive(11.05, got("t2"))
    script.receive(11.08)
    script.complete(11.1, "t1")
    script.receive(11.15)


EXPLAINED: Final[tuple[Write, ...]] = (
    unknown_completion,
    unknown_completion_that_was_not_done,
    unknown_receive,
    unknown_release,
    unknown_renewal_much_later,
    calls_at_once,
)
"""Unknown outcomes and calls at once leave room for more than one explanation."""


def missed() -> list[str]:
    """Return the rules that the checker does not find, or finds where they are not broken."""
    wrong = []
    for rule, write in FAULTS.items():
        script = Script()
        write(script)
        if script.found() != [rule.strip()]:
            wrong.append(f"{rule.strip()} ({write.__name__})")
    for write in EXPLAINED:
        script = Script()
        write(script)
        wrong += [f"{rule} in {write.__name__}" for rule in script.found()]
    return wrong
