"""What SQL stores keep as JSON comes back as it was."""

from __future__ import annotations

import pytest

from leasehold.domain.admin import JobKind, JobPlan
from leasehold.domain.filters import MessageFilter
from leasehold.domain.model import (
    NO_DETAIL,
    Attempt,
    BodyRef,
    Detail,
    ErrorReport,
    MessageState,
    Outcome,
    Poisoning,
    Progress,
)
from leasehold.stores.sql.plain_json import detail_from_json, detail_to_json, from_plain, to_plain

ATTEMPT = Attempt(
    number=1,
    leased_at_ms=1,
    ended_at_ms=2,
    outcome=Outcome.FAILED,
    error=ErrorReport(text="bad \u1234"),
)
DETAILS = {
    "nothing": NO_DETAIL,
    "everything": Detail(
        properties={"a": "b"},
        message_type="t",
        progress=Progress(at_ms=1, fraction=0.5),
        failures=1,
        first_visible_at_ms=0,
        attempts=(ATTEMPT, ATTEMPT),
        poisoning=Poisoning(queue="q", reason="buried", at_ms=3, time_to_live_ms=4),
        body_ref=BodyRef(key="k", size_bytes=1, sha256="s"),
    ),
    "half of a character": Detail(message_type="\ud800"),
}


@pytest.mark.parametrize("name", DETAILS)
def test_details(name: str) -> None:
    """Also those that only Python's strings can hold."""
    detail = DETAILS[name]
    text = detail_to_json(detail)
    assert detail_from_json(text) == detail
    assert (text is None) == (detail is NO_DETAIL)
    assert text is None or text.isascii()


def test_what_was_saved_is_kept_elsewhere() -> None:
    """It is large, and the rest changes with every lease."""
    assert detail_to_json(Detail(failures=1, saved="[1]")) == '{"failures":1}'
    assert detail_to_json(Detail(saved="[1]")) is None


def test_what_is_unknown_is_passed_over() -> None:
    """A newer version may have written it."""
    assert detail_from_json('{"failures":1,"news":[1]}') == Detail(failures=1)


def test_sets_and_enums() -> None:
    """They are lists and values in JSON."""
    states = frozenset({MessageState.LEASED, MessageState.VISIBLE})
    plan = JobPlan(kind=JobKind.PURGE, filter=MessageFilter(states=states))
    plain = to_plain(plan)
    assert plain == {"kind": "purge", "filter": {"states": ["leased", "visible"]}}
    assert from_plain(JobPlan, plain) == plan
