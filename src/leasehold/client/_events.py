"""The event log and the test mode without I/O: requests and answers."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from leasehold.client._answers import Answer, decoded
from leasehold.client._calls import Call, account_path, get, message_path, send
from leasehold.client.models import EventPage, Faults

CLOCK: Final = "/v1/test/clock"
ADVANCE: Final = "/v1/test/advance"
FAULTS: Final = "/v1/test/faults"


class _Clock(Struct):
    now_ms: int


_PAGE = msgspec.json.Decoder(EventPage)
_CLOCK = msgspec.json.Decoder(_Clock)
_FAULTS = msgspec.json.Decoder(Faults)


def events(account: str, after: int, limit: int) -> Call:
    """Return a call for one page of the account's events."""
    return get(f"{account_path(account)}/events", _window(after, limit))


def trace(queue: str, message_id: str, after: int, limit: int) -> Call:
    """Return a call for one page of a message's events, given its queue's path."""
    return get(f"{message_path(queue, message_id)}/trace", _window(after, limit))


def advance(length_s: float) -> Call:
    """Return a call that moves the server's clock. Twice moves it twice."""
    return send("POST", ADVANCE, {"seconds": length_s}, repeatable=False)


def set_faults(wanted: Faults) -> Call:
    """Return a call that says which failures to make."""
    return send("PUT", FAULTS, msgspec.structs.asdict(wanted), repeatable=True)


def clear_faults() -> Call:
    """Return a call that ends all failures."""
    return Call(method="DELETE", path=FAULTS, repeatable=True)


def page(answer: Answer) -> EventPage:
    """Return a page of events."""
    return decoded(_PAGE, answer)


def now_ms(answer: Answer) -> int:
    """Return the server's time."""
    return decoded(_CLOCK, answer).now_ms


def faults(answer: Answer) -> Faults:
    """Return the failures that are left to make."""
    return decoded(_FAULTS, answer)


def _window(after: int, limit: int) -> tuple[tuple[str, str], ...]:
    return (("after", str(after)), ("limit", str(limit)))
