"""Bodies that are kept outside the database, put, replaced, purged and expired amid kills.

Messages to KEEP are put, get other bodies and are completed; BRIEF ones expire; those to SWEEP are
purged. A body tells which version of which message it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tests.reliability.claim_calls import (
    INLINE_BYTES,
    Client,
    Request,
    Rig,
    body_of,
    name_of,
    put_item,
)
from tests.reliability.claim_history import Deed, Found
from tests.reliability.history import Violation

QUEUE: Final = "claims-spill"
KINDS: Final = ("keep", "keep", "keep", "brief", "sweep")
LARGE: Final = (INLINE_BYTES + 1_000, 60_000, 200_000, 300_000, 1_000_000)
_FULL: Final = 40
_FINE: Final = frozenset({"lease-lost", "message-not-found", "visibility-past-expiry"})
_VERSION: Final = ".v"


def root_of(name: str) -> str:
    """Return the message of which a body is a version."""
    return name.partition(_VERSION)[0]


class Spiller(Client):
    """Puts, receives, replaces, completes, reads, removes, and purges large bodies."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self._there = 0
        """Messages, as of the last look."""
        self._path = f"/queues/{QUEUE}/messages"

    def step(self) -> None:
        """See Client."""
        draw = self.rng.random()
        if draw < 0.45 and self._there < _FULL:
            self._put()
        elif draw < 0.9:
            self._work()
        elif draw < 0.95:
            body = {"filter": {"message_type": "sweep"}, "wait_s": 0.05}
            self.ask("purge", QUEUE, Request("POST", f"/queues/{QUEUE}/purge", body), again=False)
        else:
            told = self.ask("count", QUEUE, Request("GET", f"/queues/{QUEUE}/counts"))
            self._there = told.json["total"]

    def _version(self, root: str = "") -> str:
        name = self.new_name(small=True)
        return f"{root or name}{_VERSION}{name}-{self.rng.choice(LARGE)}"

    def _put(self) -> None:
        kind, version = self.rng.choice(KINDS), self._version()
        root = root_of(version)
        life = f"&time_to_live_s={self.rng.randint(1, 3)}" if kind == "brief" else ""
        path = f"{self._path}/raw?type={kind}&dedup_key={root}{life}"
        asked = {"kind": kind, "version": version}
        self._there += 1
        self.ask("spill", root, Request("POST", path, body_of(version)), asked=asked)

    def _work(self) -> None:
        body = {"max_messages": 2, "visibility_timeout_s": self.rng.choice((1, 2))}
        told = self.ask(
            "receive",
            QUEUE,
            Request("POST", f"{self._path}/receive", body),
            tell=lambda told, _: {"rows": [_sighting(each) for each in told["messages"]]},
            again=False,
        )
        for message in told.json["messages"] if told.done else ():
            draw = self.rng.random()
            if draw < 0.4:
                self._replace(message)
            elif draw < 0.6:
                self._read(message)
            elif draw < 0.8:
                self._drop(message)
            elif draw < 0.9:
                path = f"{self._path}/{message['id']}?force=true"
                self._drop_by(message, Request("DELETE", path))

    def _replace(self, message: Mapping[str, Any]) -> None:
        root = root_of(name_of(message))
        version = self._version(root)
        item = put_item(version, id=message["id"], receipt=message["receipt"])
        request = Request(
            "POST", f"{self._path}/renew", {"items": [item | {"visibility_timeout_s": 1}]}
        )
        asked = {"version": version}
        self.ask("respill", root, request, asked=asked, tell=_first_problem, again=False)

    def _read(self, message: Mapping[str, Any]) -> None:
        request = Request("GET", f"{self._path}/{message['id']}/body")
        told = self.ask("body", message["id"], request, fine={"message-not-found"})
        if told.done:
            assert told.answer is not None
            version = told.answer.body.partition(b"\n")[0].decode("latin-1")
            assert told.answer.body == body_of(version), f"the body of {message['id']}"

    def _drop(self, message: Mapping[str, Any]) -> None:
        item = {"id": message["id"], "receipt": message["receipt"]}
        self._drop_by(message, Request("POST", f"{self._path}/complete", {"items": [item]}))

    def _drop_by(self, message: Mapping[str, Any], request: Request) -> None:
        root = root_of(name_of(message))
        fine = {"message-not-found"}
        self.ask("drop", root, request, tell=_first_problem, fine=fine, again=False)


class SpillJudge:
    """Compares the large bodies that there are with what is on record."""

    def __init__(self, deeds: Iterable[Deed], found: Sequence[Found]) -> None:
        self._kinds: dict[str, str] = {}
        self._versions: dict[str, set[str]] = defaultdict(set)
        """Those that the body may be."""
        self._there: set[str] = set()
        self._gone: set[str] = set()
        self._perhaps: set[str] = set()
        for deed in deeds:
            self._take(deed)
        self._found = [each for each in found if each.queue == QUEUE]

    def _take(self, deed: Deed) -> None:
        refused = deed.answered and (deed.problem or deed.told.get("problem"))
        if refused:
            return
        if deed.act == "spill":
            self._kinds[deed.what] = deed.asked["kind"]
            self._versions[deed.what].add(deed.asked["version"])
            if deed.done:
                self._there.add(deed.what)
        elif deed.act == "respill":
            if deed.done:
                self._versions[deed.what].clear()
            self._versions[deed.what].add(deed.asked["version"])
        elif deed.act == "drop":
            (self._gone if deed.done else self._perhaps).add(deed.what)

    def judged(self) -> list[Violation]:
        """Return everything that must not be."""
        violations: list[Violation] = []
        by_root: dict[str, list[Found]] = defaultdict(list)
        for each in self._found:
            root = root_of(each.name)
            by_root[root].append(each)
            if each.name not in self._versions[root]:
                detail = f"{each} may be one of {self._versions[root]}"
                violations.append(Violation("body", detail))
        for root, found in by_root.items():
            if len(found) > 1:
                violations.append(Violation("doubled", f"{root}: {found}"))
            if root in self._gone:
                violations.append(Violation("resurrected", f"{root}: {found}"))
        missing = self._there - self._gone - self._perhaps - by_root.keys()
        violations += [Violation("lost", root) for root in missing if self._kinds[root] == "keep"]
        return violations


def _sighting(message: Mapping[str, Any]) -> list[Any]:
    return [message["id"], name_of(message), message["fence"]]


def _first_problem(told: Any, _: object) -> Mapping[str, Any]:
    """Return why the only item was refused, if it was."""
    if not told or "error" not in told["results"][0]:
        return {}
    code = told["results"][0]["error"]["code"]
    assert code in _FINE, told
    return {"problem": code}
