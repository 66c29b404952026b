"""The switches of a server in test mode: its clock, and failures on demand.

None of them asks for credentials: such a server can only be reached from its own machine.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from leasehold.engine.faults import Faults
from leasehold.http.controls import LATEST_MS, Controls
from leasehold.http.messages import Response
from leasehold.http.native import shapes
from leasehold.http.native.call import Call
from leasehold.http.native.problems import Refused, problem
from leasehold.http.native.reading import read_body, within

MAX_ADVANCE_S: Final = 315_360_000
"""Longest single step of the clock: ten years."""
MAX_FAULTS: Final = 1_000_000
MAX_DELAY_S: Final = 60


class AdvanceRequest(msgspec.Struct, forbid_unknown_fields=True):
    """How far to move the clock."""

    seconds: float


class FaultsRequest(msgspec.Struct, forbid_unknown_fields=True):
    """What is to fail; what is left out is not."""

    fail_commits: int | None = None
    drop_answers: int | None = None
    delay_answers_s: float | None = None


_ADVANCE: Final = msgspec.json.Decoder(AdvanceRequest)
_FAULTS: Final = msgspec.json.Decoder(FaultsRequest)
_NOTHING: Final = msgspec.json.Decoder(shapes.NoRequest)


def _controls(call: Call) -> Controls:
    controls = call.services.controls
    assert controls is not None, "there are routes to here in test mode only"
    return controls


def _show_clock(controls: Controls) -> dict[str, Any]:
    return {
        "now_ms": controls.now_ms(),
        "virtual": controls.is_virtual,
        "waiting": controls.waiting,
    }


def _show_faults(faults: Faults) -> dict[str, Any]:
    return {
        "fail_commits": faults.fail_commits,
        "drop_answers": faults.drop_answers,
        "delay_answers_s": faults.delay_answers_s,
    }


async def clock(call: Call) -> Response:
    """Tell the time that messages go by."""
    return call.reply(_show_clock(_controls(call)))


async def advance(call: Call) -> Response:
    """Move the clock, and do what becomes due on the way."""
    controls = _controls(call)
    request = read_body(_ADVANCE, call)
    if not controls.is_virtual:
        raise Refused(
            problem(
                "no-such-route",
                "The clock of this server is the system's, which nobody can move.",
                remedy="Start the server with --clock virtual.",
            )
        )
    most_s = min(MAX_ADVANCE_S, (LATEST_MS - controls.now_ms()) // 1000)
    length_s = within("$.seconds", request.seconds, (0, most_s))
    await controls.advance(round(length_s * 1000))
    return call.reply(_show_clock(controls))


async def faults(call: Call) -> Response:
    """Tell what is still to fail."""
    return call.reply(_show_faults(_controls(call).faults))


async def set_faults(call: Call) -> Response:
    """Say what is to fail, in place of what was said before."""
    found = _controls(call).faults
    request = read_body(_FAULTS, call)
    wanted = Faults(
        fail_commits=within("$.fail_commits", request.fail_commits or 0, (0, MAX_FAULTS)),
        drop_answers=within("$.drop_answers", request.drop_answers or 0, (0, MAX_FAULTS)),
        delay_answers_s=within(
            "$.delay_answers_s", request.delay_answers_s or 0.0, (0, MAX_DELAY_S)
        ),
    )
    found.replace(wanted)
    return call.reply(_show_faults(found))


async def clear_faults(call: Call) -> Response:
    """Let nothing fail any more."""
    _controls(call).faults.replace(Faults())
    return call.reply_nothing()
