"""The models with their bounds, and the bugs that are planted in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from proof.model.tlc import Model

RULES: Final = ("until-retaken", "strict")
_CORE: Final = (
    "NothingEarly",
    "NoTwoLiveLeases",
    "NoStaleAction",
    "FenceOrder",
    "SettledOnce",
    "NothingLost",
    "ExactCounts",
    "NothingExpired",
    "PoisonInTime",
)
# Those of a module come first: where a step breaks two laws, its own says more.
_LAWS: Final = {
    "Leases": _CORE,
    "Claims": (
        "ClaimIsFixed",
        "ClaimHides",
        "NoStaleCall",
        "PublishedWhole",
        # Expired members may be handed out while their claim hides them.
        *[law for law in _CORE if law != "NothingExpired"],
        "SettledStays",
    ),
    "Sessions": ("SessionIsOver", "SessionEndsLeases", *_CORE),
    "Groups": ("GroupOrder", "GroupLimit", "GroupStandsStill", *_CORE),
}
_NEVER: Final = 99


def _model(module: str, **constants: Any) -> Model:
    base = {"Delay": 1, "Lives": {_NEVER}, "Never": _NEVER, "MaxDeliveries": 2}
    return Model(module=module, constants={**base, **constants}, laws=_LAWS[module])


class Bounded(NamedTuple):
    """One model in the sizes that it is checked in."""

    short: Model
    """All states, in about half a minute."""
    long: Model
    """All states, in up to an hour."""
    walk: Model
    """Too many states for that: random walks."""


_LEASES: Final = {"Lease": 2, "Lives": {3, _NEVER}}
_CLAIMS: Final = {"Lease": 1, "Delay": 0, "ClaimLease": 1, "MaxClaims": 2, "MaxToken": 2}
_SESSIONS: Final = {"Lease": 2, "MaxDeliveries": 1, "Silence": 1}
_FIFO: Final = {"Lease": 1, "Fifo": True, "Halts": True, "GroupCount": 1, "Limit": 2}
_LIMITED: Final = {"Lease": 1, "Fifo": False, "Halts": False, "GroupCount": 1, "Limit": 1}

MODELS: Final[Mapping[str, Bounded]] = {
    "Leases": Bounded(
        _model("Leases", Count=1, MaxFence=6, **_LEASES),
        _model("Leases", Count=2, MaxFence=4, **_LEASES),
        _model("Leases", Count=4, MaxFence=30, **_LEASES | {"Lease": 3, "Lives": {4, 9, _NEVER}}),
    ),
    "Claims": Bounded(
        _model("Claims", Count=2, MaxFence=2, **_CLAIMS),
        _model("Claims", Count=3, MaxFence=2, **_CLAIMS),
        _model("Claims", Count=5, MaxFence=30, **_CLAIMS | {"ClaimLease": 2, "MaxClaims": 3}),
    ),
    "Sessions": Bounded(
        _model("Sessions", Count=1, MaxFence=4, Workers=2, **_SESSIONS),
        _model("Sessions", Count=2, MaxFence=2, Workers=2, **_SESSIONS),
        _model("Sessions", Count=4, MaxFence=30, Workers=4, **_SESSIONS | {"Silence": 2}),
    ),
    "Groups in order": Bounded(
        _model("Groups", Count=3, MaxFence=1, **_FIFO),
        _model("Groups", Count=3, MaxFence=2, **_FIFO),
        _model("Groups", Count=6, MaxFence=30, **_FIFO | {"GroupCount": 2, "Limit": 3}),
    ),
    "Groups within limits": Bounded(
        _model("Groups", Count=2, MaxFence=2, **_LIMITED),
        _model("Groups", Count=3, MaxFence=2, **_LIMITED),
        _model("Groups", Count=6, MaxFence=30, **_LIMITED | {"GroupCount": 2, "Limit": 2}),
    ),
}


class Plant(NamedTuple):
    """A bug, the model that it is planted in, and the law that it must be found to break."""

    model: str
    law: str
    in_log: bool
    """Whether the events up to there show it, without the receipts that were used and without the
    rows of the store."""
    bounds: Mapping[str, object] = {}
    """Other ones, where the small ones do not let it happen."""


PLANTS: Final[Mapping[str, Plant]] = {
    "two-leases": Plant("Leases", "NoTwoLiveLeases", in_log=True),
    "stale-complete": Plant("Leases", "NoStaleAction", in_log=False),
    "stale-renew": Plant("Leases", "NoStaleAction", in_log=False),
    "receipt-kept": Plant("Leases", "FenceOrder", in_log=True),
    "early-delayed": Plant("Leases", "NothingEarly", in_log=True),
    "early-lapse": Plant("Leases", "NothingEarly", in_log=True),
    "lost-on-release": Plant("Leases", "NothingLost", in_log=False),
    "lost-on-lapse": Plant("Leases", "NothingLost", in_log=False),
    "complete-kept": Plant("Leases", "SettledOnce", in_log=True),
    "fence-stays": Plant("Leases", "FenceOrder", in_log=True),
    "claim-changed": Plant("Claims", "ClaimIsFixed", in_log=True),
    "settled-twice": Plant("Claims", "SettledOnce", in_log=True),
    "exemption-lost": Plant("Claims", "NothingLost", in_log=False),
    "staged-visible": Plant("Claims", "NothingEarly", in_log=True),
    "staged-lost": Plant("Claims", "PublishedWhole", in_log=True, bounds={"Count": 3}),
    # Leases of a session may end in several steps, and the log ends with the first.
    "session-kept": Plant("Sessions", "SessionEndsLeases", in_log=False),
    "session-stale": Plant("Sessions", "SessionIsOver", in_log=True),
    "count-off": Plant("Leases", "ExactCounts", in_log=False),
    "group-overtaken": Plant("Groups in order", "GroupOrder", in_log=True),
    "cap-exceeded": Plant("Groups within limits", "GroupLimit", in_log=True),
    "poison-late": Plant("Leases", "PoisonInTime", in_log=True),
    "expired-delivered": Plant("Leases", "NothingExpired", in_log=True),
    # Only in the model: no event and no answer that the other checkers read shows these.
    "stale-token": Plant("Claims", "NoStaleCall", in_log=False),
    "halt-ignored": Plant(
        "Groups in order", "GroupStandsStill", in_log=True, bounds={"MaxFence": 3}
    ),
}
"""By name: those that the planted bugs of the code have too."""
