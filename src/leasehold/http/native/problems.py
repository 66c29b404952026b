"""Errors: one table from every domain and authentication error to the protocol's problems.

Source of the form: RFC 9457, "Problem Details for HTTP APIs".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec

from leasehold.auth import types as auth
from leasehold.domain import errors as domain
from leasehold.domain.wording import count_of, time_of
from leasehold.http.native.codes import CODES, PROBLEMS

Header: TypeAlias = tuple[bytes, bytes]

RETRY_AFTER_S: Final = 1
_SHOWN_CHARS: Final = 100
"""Longer values are cut: the sender has the rest."""
_WHOLE_NUMBERS: Final = 2**64
"""Larger ones are shown as text: hardly a reader of JSON holds them as numbers."""


class Problem(msgspec.Struct, omit_defaults=True):
    """What is wrong, as the client will see it; ``None`` members are left out."""

    code: str
    status: int
    detail: str
    field: str | None = None
    """Path of a member, such as ``$.messages[3].delay_s``, or the name of a query parameter."""
    value: Any = None
    minimum: float | None = None
    maximum: float | None = None
    limit: int | None = None
    remedy: str | None = None
    reason: str | None = None
    holder: str | None = None
    until_ms: int | None = None
    retry_after_s: int | None = None
    state: str | None = None
    token: int | None = None
    expected: int | None = None
    last_settled: int | None = None
    settled_with: str | None = None
    size: int | None = None
    lost: int | None = None


class Refused(Exception):
    """A request, or one item of it, that is refused before the engine hears of it."""

    def __init__(self, problem: Problem, *headers: Header) -> None:
        super().__init__(problem.code)
        self.problem = problem
        self.headers = headers


def problem(code: str, detail: str = "", **members: Any) -> Problem:
    """Return a problem with the status, and unless given the texts, that belong to *code*."""
    known = CODES[code]
    members.setdefault("remedy", known.remedy)
    return Problem(code, known.status, detail or known.meaning, **members)


def invalid(field: str | None, detail: str, **members: Any) -> Refused:
    """Return the refusal of something that cannot be read, or makes no sense."""
    value = members.get("value")
    if isinstance(value, str):
        members["value"] = shown(value)
    return Refused(problem("invalid-request", detail, field=field, **members))


def out_of_range(
    field: str, value: float, bounds: tuple[float, float], remedy: str | None = None
) -> Refused:
    """Return the refusal of a value outside *bounds*."""
    low, high = bounds
    members: dict[str, Any] = {} if remedy is None else {"remedy": remedy}
    absurd = isinstance(value, int) and abs(value) >= _WHOLE_NUMBERS
    sent = shown(str(value)) if absurd else f"{value:,.15g}"
    return Refused(
        problem(
            "out-of-range",
            f"`{field}` is {sent}; it may be from {low:,.15g} to {high:,.15g}.",
            field=field,
            value=sent if absurd else value,
            minimum=low,
            maximum=high,
            **members,
        )
    )


def too_large(field: str | None, size_bytes: int, limit_bytes: int) -> Refused:
    """Return the refusal of a message's body."""
    return Refused(_body_too_large_problem(size_bytes, limit_bytes, field))


def document(found: Problem) -> dict[str, Any]:
    """Return a problem with the members of RFC 9457 first."""
    return {
        "type": PROBLEMS + found.code,
        "title": CODES[found.code].title,
        **msgspec.to_builtins(found),
    }


def shown(text: str) -> str:
    """Return *text*, cut where it is long; an answer must not be as large as what was sent."""
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"


def _body_too_large_problem(size_bytes: int, limit_bytes: int, field: str | None) -> Problem:
    return problem(
        "body-too-large",
        f"The body has {size_bytes:,} bytes; a message may have {limit_bytes:,}.",
        field=field,
        value=size_bytes,
        limit=limit_bytes,
        remedy=f"Split it into {-(-size_bytes // limit_bytes)} messages or more, or keep it "
        "elsewhere and send where it is.",
    )


def _body_too_large(error: domain.BodyTooLarge) -> Problem:
    return _body_too_large_problem(error.size_bytes, error.limit_bytes, None)


def _body_unreadable(error: domain.BodyUnreadable) -> Problem:
    return problem(
        "body-unreadable",
        f"The body of the message {error.message_id} is {error.reason}.",
        value=error.message_id,
        reason=error.reason,
    )


def _out_of_range(error: domain.OutOfRange) -> Problem:
    return out_of_range(error.field, error.value, (error.minimum, error.maximum)).problem


_NAME_REASONS: Final[Mapping[Literal["length", "characters"], str]] = {
    "length": "has {0} characters; it must have 1 to 256",
    "characters": "may hold A-Z, a-z, 0-9 and dashes only, and not begin with a dash",
}


def _invalid_queue_name(error: domain.InvalidQueueName) -> Problem:
    reason = _NAME_REASONS[error.reason].format(len(error.name))
    return problem(
        "invalid-queue-name",
        f"A queue cannot be called {shown(error.name)!r}: the name {reason}.",
        value=shown(error.name),
        reason=error.reason,
    )


def _receipt_malformed(error: domain.ReceiptMalformed) -> Problem:
    return problem("receipt-malformed", value=shown(error.receipt))


_VERBS: Final = {
    "put": "could first be received",
    "renew": "would be on lease until",
    "release": "could be received again only",
}


def _visibility_past_expiry(error: domain.VisibilityPastExpiry) -> Problem:
    seconds = error.visibility_timeout_s
    return problem(
        "visibility-past-expiry",
        f"The message {_VERBS[error.verb]} {seconds:,} s from now, when it has expired.",
        value=seconds,
    )


_LOST: Final = {
    "superseded": "The message was received or renewed since; a later receipt is in force.",
    "lapsed": "The lease ran out, and in this queue a receipt dies with its lease.",
    "foreign": "This server never issued the receipt, or issued it for another message.",
}


def _lease_lost(error: domain.LeaseLost) -> Problem:
    return problem("lease-lost", _LOST[error.reason], reason=error.reason)


def _message_leased(error: domain.MessageLeased) -> Problem:
    holder = "somebody who gave no name" if error.holder is None else repr(shown(error.holder))
    return problem(
        "message-leased",
        f"The message is leased to {holder} until {time_of(error.until_ms)}.",
        holder=error.holder,
        until_ms=error.until_ms,
    )


def _session_over(error: domain.SessionOver) -> Problem:
    how = "was lost" if error.state == "lost" else "was ended"
    why = "" if error.reason is None else f": {shown(error.reason)}"
    return problem("session-over", f"The session {how}{why}.", state=error.state)


def _stale_token(error: domain.StaleToken) -> Problem:
    return problem(
        "stale-token",
        f"Somebody else has attached to the stream since; the token is {error.token} now.",
        token=error.token,
    )


def _claim_out_of_turn(error: domain.ClaimOutOfTurn) -> Problem:
    return problem(
        "claim-out-of-turn", f"The next number is {error.expected}.", expected=error.expected
    )


def _claim_settled(error: domain.ClaimSettled) -> Problem:
    return problem(
        "claim-settled",
        f"The claims up to number {error.last_settled} have been settled.",
        last_settled=error.last_settled,
        settled_with=error.settled_with,
    )


def _claim_lapsed(error: domain.ClaimLapsed) -> Problem:
    return problem(
        "claim-lapsed",
        f"The claim lapsed at {time_of(error.until_ms)}: nobody extended it in time.",
        until_ms=error.until_ms,
    )


def _claim_broken(error: domain.ClaimBroken) -> Problem:
    return problem(
        "claim-broken",
        f"Of the {count_of(error.size, 'member')} of the claim {error.lost} "
        f"{'is' if error.lost == 1 else 'are'} gone.",
        size=error.size,
        lost=error.lost,
    )


def _member_not_found(error: domain.MemberNotFound) -> Problem:
    return problem("member-not-found", field="$.exemptions", value=shown(error.message_id))


def _staged_not_found(error: domain.StagedNotFound) -> Problem:
    name = shown(error.name)
    if error.part is None:
        detail = f"Nothing is staged, and nothing has been published, under the name {name!r}."
        return problem("staged-not-found", detail, value=name)
    part = shown(error.part)
    detail = f"The transaction {name!r} has no part {part!r}."
    return problem("staged-not-found", detail, value=part)


def _chunk_out_of_turn(error: domain.ChunkOutOfTurn) -> Problem:
    return problem(
        "chunk-out-of-turn", f"The next chunk is {error.expected}.", expected=error.expected
    )


def _plain(code: str) -> Callable[[Any], Problem]:
    return lambda _: problem(code)


def _busy(code: str) -> Callable[[Any], Problem]:
    return lambda _: problem(code, retry_after_s=RETRY_AFTER_S)


def _auth(code: str) -> Callable[[auth.AuthError], Problem]:
    return lambda error: problem(code, str(error))


_UNAUTHENTICATED: Final = _auth("unauthenticated")
_FORBIDDEN: Final = _auth("forbidden")

TABLE: Final[dict[type[Exception], Callable[[Any], Problem]]] = {
    domain.LeaseholdError: _plain("internal-error"),
    domain.QueueNotFound: _plain("queue-not-found"),
    domain.QueueExists: _plain("queue-exists"),
    domain.SettingsDiffer: _plain("settings-differ"),
    domain.InvalidQueueName: _invalid_queue_name,
    domain.MessageNotFound: _plain("message-not-found"),
    domain.LeaseLost: _lease_lost,
    domain.ReceiptMalformed: _receipt_malformed,
    domain.OutOfRange: _out_of_range,
    domain.VisibilityPastExpiry: _visibility_past_expiry,
    domain.BodyTooLarge: _body_too_large,
    domain.InvalidMarker: _plain("invalid-marker"),
    domain.MessageLeased: _message_leased,
    domain.MessageNotLeased: _plain("message-not-leased"),
    domain.JobNotFound: _plain("job-not-found"),
    domain.NamedTwice: _plain("named-twice"),
    domain.NotDone: _plain("not-done"),
    domain.SessionNotFound: _plain("session-not-found"),
    domain.SessionOver: _session_over,
    domain.StreamNotFound: _plain("stream-not-found"),
    domain.StaleToken: _stale_token,
    domain.ClaimNotFound: _plain("claim-not-found"),
    domain.ClaimOutOfTurn: _claim_out_of_turn,
    domain.ClaimSettled: _claim_settled,
    domain.ClaimLapsed: _claim_lapsed,
    domain.ClaimBroken: _claim_broken,
    domain.MemberNotFound: _member_not_found,
    domain.StagedNotFound: _staged_not_found,
    domain.AlreadyPublished: _plain("already-published"),
    domain.ChunkOutOfTurn: _chunk_out_of_turn,
    domain.BodyUnreadable: _body_unreadable,
    domain.Unavailable: _busy("overloaded"),
    domain.StoreFull: _busy("store-full"),
    domain.Overloaded: _busy("overloaded"),
    domain.Stopping: _busy("stopping"),
    domain.AccountMoved: _busy("account-moved"),
    domain.StoreFailed: _busy("store-failed"),
    auth.AuthError: _UNAUTHENTICATED,
    auth.NoCredentials: _UNAUTHENTICATED,
    auth.MalformedCredentials: _UNAUTHENTICATED,
    auth.BadToken: _UNAUTHENTICATED,
    auth.BadSignature: _UNAUTHENTICATED,
    auth.UnknownAccount: _UNAUTHENTICATED,
    auth.NotAllowed: _FORBIDDEN,
    auth.ForeignPage: _FORBIDDEN,
    auth.PermissionMissing: _FORBIDDEN,
    auth.ProtocolMismatch: _FORBIDDEN,
    auth.SourceAddressMismatch: _FORBIDDEN,
    auth.ServiceMismatch: _FORBIDDEN,
    auth.ResourceTypeMismatch: _FORBIDDEN,
}


def problem_of(error: domain.LeaseholdError | auth.AuthError) -> Problem:
    """Translate an error; a class that the table does not name is treated as its parent."""
    for kind in type(error).__mro__:
        to_problem = TABLE.get(kind)
        if to_problem is not None:
            return to_problem(error)
    raise AssertionError(error)


_ITEM_MEMBERS: Final[Mapping[type[Exception], str]] = {
    domain.MessageNotFound: ".id",
    domain.NamedTwice: ".id",
    domain.LeaseLost: ".receipt",
    domain.ReceiptMalformed: ".receipt",
}


def item_problem(error: domain.LeaseholdError) -> Problem:
    """Translate the error of one item of a batch; the field is named as within the item."""
    found = problem_of(error)
    found.field = _ITEM_MEMBERS.get(type(error), "")
    return found
