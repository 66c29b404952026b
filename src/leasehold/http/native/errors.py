"""Errors: one table from every domain and authentication error to the protocol's problems.

Source of the form: RFC 9457, "Problem Details for HTTP APIs".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import quote

import msgspec

from leasehold.auth import types as auth
from leasehold.domain import errors as domain
from leasehold.domain.wording import count_of, time_of
from leasehold.extras import install
from leasehold.http.app import translate
from leasehold.http.requests import Header
from leasehold.wire.parts import Problem

RETRY_AFTER_S: Final = 1
_SHOWN_CHARS: Final = 100
"""Longer values are cut: the sender has the rest."""
_WHOLE_NUMBERS: Final = 2**64
"""Larger ones are shown as text: hardly a reader of JSON holds them as numbers."""


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
    detail = detail or known.meaning
    return Problem(code=code, status=known.status, detail=detail, **members)


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


def missing_queue(account: str, name: str, near: Sequence[str]) -> Problem:
    """Return the problem of a queue that does not exist.

    Args:
        account: The account.
        name: Of the queue.
        near: Queues of the account with similar names, as far as the caller may know them.
    """
    detail = f"There is no queue `{shown(name)}` in account `{account}`."
    if near:
        detail += f" Near: {', '.join(f'`{queue}`' for queue in near)}."
    path = f"/v1/accounts/{account}/queues/{quote(shown(name), safe='')}"
    return problem("queue-not-found", detail, value=shown(name), remedy=f"Create it: PUT {path}.")


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
        remedy=f"Split it into {-(-size_bytes // limit_bytes)} messages or more, or store the "
        "body elsewhere and send its location.",
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
        f"{shown(error.name)!r} is not a valid queue name: the name {reason}.",
        value=shown(error.name),
        reason=error.reason,
    )


def _receipt_malformed(error: domain.ReceiptMalformed) -> Problem:
    return problem("receipt-malformed", value=shown(error.receipt))


_VERBS: Final = {
    "put": "could be received only",
    "renew": "would be leased until",
    "release": "could be received again only",
}


def _visibility_past_expiry(error: domain.VisibilityPastExpiry) -> Problem:
    seconds = error.visibility_timeout_s
    return problem(
        "visibility-past-expiry",
        f"The message {_VERBS[error.verb]} {seconds:,} s from now, after it expires.",
        value=seconds,
    )


_LOST: Final = {
    "superseded": "The message has been received or renewed since; a newer receipt is valid.",
    "lapsed": "The lease has ended, and in this queue a receipt is valid only while its lease "
    "lasts.",
    "foreign": "This server did not issue the receipt, or issued it for another message.",
}


def _lease_lost(error: domain.LeaseLost) -> Problem:
    return problem("lease-lost", _LOST[error.reason], reason=error.reason)


def _message_leased(error: domain.MessageLeased) -> Problem:
    holder = "an unnamed client" if error.holder is None else repr(shown(error.holder))
    return problem(
        "message-leased",
        f"The message is leased to {holder} until {time_of(error.until_ms)}.",
        holder=error.holder,
        until_ms=error.until_ms,
    )


def _settings_differ(error: domain.SettingsDiffer) -> Problem:
    told = [_difference(name, *pair) for name, pair in error.differences.items()]
    detail = f"A queue of this name already exists with different settings: {'; '.join(told)}."
    return problem("settings-differ", detail if told else "")


def _difference(name: str, there: object, given: object) -> str:
    plain = str | int | float | None  # what is more than a word or a number is only named
    if isinstance(there, plain) and isinstance(given, plain):
        return f"{name} is {_in_words(there)}, not {_in_words(given)}"
    return f"{name} differs"


def _in_words(value: object) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def _session_over(error: domain.SessionOver) -> Problem:
    how = "was lost" if error.state == "lost" else "was ended"
    why = "" if error.reason is None else f": {shown(error.reason)}"
    return problem("session-over", f"The session {how}{why}.", state=error.state)


def _stale_token(error: domain.StaleToken) -> Problem:
    return problem(
        "stale-token",
        f"Another consumer has attached to the stream since; the current token is {error.token}.",
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
        f"The claim lapsed at {time_of(error.until_ms)}: it was not extended in time.",
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
        detail = f"No transaction named {name!r} is staged or published."
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


def _busy(code: str, detail: str = "") -> Callable[[Any], Problem]:
    return lambda _: problem(code, detail, retry_after_s=RETRY_AFTER_S)


def _auth(code: str) -> Callable[[auth.AuthError], Problem]:
    return lambda error: problem(code, str(error))


_UNAUTHENTICATED: Final = _auth("unauthenticated")
_FORBIDDEN: Final = _auth("forbidden")

TABLE: Final[dict[type[Exception], Callable[[Any], Problem]]] = {
    domain.LeaseholdError: _plain("internal-error"),
    domain.QueueNotFound: _plain("queue-not-found"),
    domain.QueueExists: _plain("queue-exists"),
    domain.SettingsDiffer: _settings_differ,
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
    domain.NoGroups: _plain("no-groups"),
    domain.GroupNotHeld: _plain("group-not-held"),
    domain.StagedNotFound: _staged_not_found,
    domain.AlreadyPublished: _plain("already-published"),
    domain.ChunkOutOfTurn: _chunk_out_of_turn,
    domain.BodyUnreadable: _body_unreadable,
    domain.Unavailable: _busy("store-unavailable"),
    domain.StoreFull: _busy("store-full"),
    domain.Overloaded: _busy("overloaded"),
    domain.Stopping: _busy("stopping"),
    domain.AccountMoved: _busy("account-moved"),
    domain.OutcomeUnknown: _busy("outcome-unknown"),
    domain.NotReplicated: _busy(
        "outcome-unknown",
        "The request took effect, but the wait for a synchronous standby of the database was "
        "cancelled. A failover may lose it.",
    ),
    domain.StoreFailed: _busy("store-failed"),
    auth.AuthError: _UNAUTHENTICATED,
    auth.NoCredentials: _UNAUTHENTICATED,
    auth.MalformedCredentials: _UNAUTHENTICATED,
    auth.BadToken: _UNAUTHENTICATED,
    auth.BadSignature: _UNAUTHENTICATED,
    auth.UnknownAccount: _UNAUTHENTICATED,
    auth.NotAllowed: _FORBIDDEN,
    auth.ForeignPage: _FORBIDDEN,
    auth.CsrfTokenMissing: _auth("csrf-token"),
    auth.PermissionMissing: _FORBIDDEN,
    auth.ProtocolMismatch: _FORBIDDEN,
    auth.SourceAddressMismatch: _FORBIDDEN,
    auth.ServiceMismatch: _FORBIDDEN,
    auth.ResourceTypeMismatch: _FORBIDDEN,
}


def problem_of(error: domain.LeaseholdError | auth.AuthError) -> Problem:
    """Translate an error; a class that the table does not name is treated as its parent."""
    return translate(error, TABLE)


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
    if isinstance(error, domain.OutOfRange):
        found.field = f".{error.field}"
    return found


# --- codes -------------------------------------------------------------------------------------
#
# The codes of this protocol: what each means, and what to do about it.
#
# A code is for programs and never changes its meaning; titles, meanings and remedies are for
# people. ``GET /v1/problems/{code}`` shows an entry.


PROBLEMS: Final = "/v1/problems/"
"""Where a code is explained; the ``type`` of a problem is this followed by the code."""


class Code(NamedTuple):
    """What stands behind a code."""

    status: int
    title: str
    meaning: str
    remedy: str
    """What to do about it, where the problem itself says nothing more exact."""


CODES: Final[dict[str, Code]] = {
    "invalid-request": Code(
        400,
        "The request cannot be read",
        "The body is not valid JSON for this operation, or a query parameter is invalid: bad "
        "syntax, a member of the wrong type, or an unknown member. The request had no effect.",
        "Follow the schema of this operation at /v1/openapi.json. `field` names the invalid "
        "member.",
    ),
    "out-of-range": Code(
        400,
        "A value is outside its limits",
        "`field` has the value `value`, but may be from `minimum` to `maximum`.",
        "Send a value from `minimum` to `maximum`, both included.",
    ),
    "invalid-queue-name": Code(
        400,
        "The queue name is invalid",
        "The name of a queue is 1 to 256 of A-Z, a-z, 0-9 and dashes, and does not begin with one. "
        "Clients of Azure can use 3 to 63 of a-z, 0-9 and single dashes between them.",
        "Use lower-case letters, digits and single inner dashes, which every protocol takes.",
    ),
    "body-too-large": Code(
        413,
        "The body of a message is too large",
        "The body has `value` bytes, and a message may have `limit`. The size is that of the body "
        "itself, not of its encoding in JSON.",
        "Split the message, or store large content elsewhere and send its location.",
    ),
    "request-too-large": Code(
        413,
        "The request is too large",
        "The body of the request has more than `limit` bytes. It was not read to its end.",
        "Send fewer messages in one request.",
    ),
    "receipt-malformed": Code(
        400,
        "The receipt is malformed",
        "The value does not have the form of a receipt.",
        "Send the receipt unchanged, as returned by the last receive or renewal of the message.",
    ),
    "visibility-past-expiry": Code(
        400,
        "The message would expire before it could be received",
        "The message's time to live ends before the message would become visible.",
        "Choose a shorter delay or visibility timeout, or a longer time to live.",
    ),
    "unauthenticated": Code(
        401,
        "The request is not authenticated",
        "The request has no key, signature or token, or an invalid one.",
        "Send `Authorization: Bearer` with the account's key over https, sign the request, or add "
        "a shared access signature to its query.",
    ),
    "forbidden": Code(
        403,
        "The credentials do not allow this operation",
        "The caller is authenticated but lacks the permission, or may not use it from this "
        "address or over this connection.",
        "Use credentials that grant the operation. An inspector key is read-only.",
    ),
    "csrf-token": Code(
        403,
        "The request lacks the CSRF token of its session",
        "With a console session, requests that change something must send the session's token in "
        "`x-leasehold-csrf`, as the console's own pages do.",
        "Ask GET /console/api/session for `csrf` and send it; or send `Authorization` and no "
        "cookie.",
    ),
    "too-many-sign-ins": Code(
        429,
        "Too many attempts to sign in have failed",
        "Too many invalid keys or signatures were sent from this address.",
        "Wait `retry_after_s` seconds, then sign in with a valid key or signature.",
    ),
    "no-such-route": Code(
        404,
        "The path does not exist",
        "The native API has no operation with this path.",
        "Look up the path in the document at /v1/openapi.json.",
    ),
    "queue-not-found": Code(
        404,
        "The queue does not exist",
        "The account has no queue of this name.",
        "Create it first: PUT the address of the queue.",
    ),
    "message-not-found": Code(
        404,
        "The message does not exist",
        "The queue has no message with this id: the message never existed, was completed, removed "
        "or moved to another queue, or has expired.",
        "If a worker gets this error when it completes a message, another worker completed the "
        f"message, or the server moved it to the poison queue after too many deliveries; GET "
        f"/messages/{id} shows which. Take no further step for the message.",
    ),
    "job-not-found": Code(
        404,
        "The job does not exist",
        "The account has no job with this id. The server deletes jobs a while after their end.",
        "List the jobs: GET `/jobs` below the address of the account.",
    ),
    "method-not-allowed": Code(
        405,
        "The method is not allowed",
        "The path exists but does not support this method.",
        "Use one of the methods in the header Allow.",
    ),
    "queue-exists": Code(
        409,
        "The queue exists with different metadata",
        "A queue of this name already exists, and its metadata differ from the metadata in the "
        "request.",
        "Leave `metadata` out to take the queue as it is, or change them with PATCH.",
    ),
    "settings-differ": Code(
        409,
        "The queue exists with different settings",
        "A queue of this name already exists, and its settings differ from the settings in the "
        "request.",
        "Leave `settings` out to take the queue as it is, or change them with PATCH.",
    ),
    "message-leased": Code(
        409,
        "The message is leased",
        "The message is leased to `holder` until `until_ms`.",
        "Wait until then, or send `force` to end the lease as well.",
    ),
    "message-not-leased": Code(
        409,
        "The message is not leased",
        "There is no lease to end.",
        "Nothing needs to be done: no worker holds the message.",
    ),
    "lease-lost": Code(
        409,
        "The receipt is not the current one",
        "The receipt is no longer valid. `reason` is `superseded` (received or "
        "renewed since), `lapsed` (its lease ran out, and the queue's rule is strict) or `foreign` "
        "(this server never issued it, or it belongs to another message).",
        "Stop working on the message: another worker may hold it. Renew earlier, or ask for a "
        "longer visibility timeout.",
    ),
    "no-groups": Code(
        409,
        "The queue has no group settings",
        "The settings of the queue have no `groups`, so its message groups can be neither halted "
        "nor held.",
        "Set `groups` first: PATCH the address of the queue.",
    ),
    "group-not-held": Code(
        409,
        "The session does not hold the group",
        "Another session holds it, no session holds it, or this session holds it with a newer "
        "fence: the hold was "
        "released, ended by an operator, or ended with its session.",
        "Stop working on the group. Hold it again: POST `/groups/hold` below the address of the "
        "queue.",
    ),
    "session-not-found": Code(
        404,
        "The session does not exist",
        "The account has no session with this id. The server deletes a session one hour after its "
        "end.",
        "Open a new session: POST `/sessions` below the address of the account.",
    ),
    "session-over": Code(
        409,
        "The session has ended",
        "The session was lost because no heartbeat arrived in time, or it was ended; `state` is "
        "`lost` or `ended`. All its leases have ended.",
        "Stop the work of the session: other workers may have its messages. Open a new session "
        "before you receive again, and send a heartbeat every quarter of its timeout.",
    ),
    "stream-not-found": Code(
        404,
        "The stream does not exist",
        "The queue has no stream of this name.",
        "Attach it first: PUT the address of the stream.",
    ),
    "stale-token": Code(
        409,
        "Another consumer has attached to the stream",
        "The token is outdated: the last attach returned the token `token`.",
        "Stop: another consumer reads the stream. Attach again only to take the stream over.",
    ),
    "claim-not-found": Code(
        404,
        "The claim does not exist",
        "The stream has no usable claim with this number: it was never opened, was released, or "
        "is still being opened.",
        "Open it: PUT the address of the claim. An open that finds no messages creates no claim.",
    ),
    "claim-out-of-turn": Code(
        409,
        "The claim is not the next one",
        "Claims are opened and settled in order of their numbers; `expected` is the next number.",
        "Continue with the number `expected`.",
    ),
    "claim-settled": Code(
        409,
        "The claim has been settled",
        "All claims up to `last_settled` are settled, and their messages are gone. If publishing "
        "a transaction settled them, `settled_with` is its name.",
        "Continue with the number after `last_settled`.",
    ),
    "claim-lapsed": Code(
        409,
        "The claim has lapsed",
        "The claim was not extended before `until_ms`, so other consumers may receive its members.",
        "Open it again with the same number: the claim is complete as long as no other consumer "
        "has received a member. Extend "
        "earlier, or open with a longer `lease_s`.",
    ),
    "claim-broken": Code(
        409,
        "Members of the claim were lost",
        "Of the `size` members of the claim, `lost` are no longer available, so the claim cannot "
        "be replayed.",
        "Open it again with `accept_loss` to continue with the remaining members, or release it.",
    ),
    "member-not-found": Code(
        404,
        "The message is not a member of the claim",
        "An exemption names the message `value`, which is not a remaining member of the claims. "
        "No claim was settled.",
        "Leave out the exemption: another consumer has the message.",
    ),
    "staged-not-found": Code(
        404,
        "The staged transaction does not exist",
        "The account has no such transaction, or the transaction has no such part (`value`). "
        "Unpublished messages are discarded after a time-out. The request had no effect.",
        "Stage again, then publish. To publish nothing, send an empty list of `parts`.",
    ),
    "already-published": Code(
        409,
        "The transaction has been published",
        "Messages cannot be staged under the name of a published transaction.",
        "If this is a retry, the earlier request succeeded. Use another name for new messages.",
    ),
    "chunk-out-of-turn": Code(
        409,
        "The chunk is not the next one",
        "The chunks of a part are staged in order; `expected` is the number of the next chunk.",
        "Stage from chunk `expected` on. If `expected` is 0, the staged messages were discarded.",
    ),
    "arrow-not-installed": Code(
        406,
        "The server cannot answer in Arrow",
        "The request asks for an Arrow stream, and the library for it is not installed on the "
        "server.",
        f"On the server, {install('arrow')}; or request JSON.",
    ),
    "arrow-not-taken": Code(
        415,
        "The server cannot read Arrow",
        "The request holds an Arrow stream, and the library for it is not installed on the server.",
        f"On the server, {install('arrow')}; or send JSON.",
    ),
    "named-twice": Code(
        400,
        "The message is named twice",
        "An earlier item of the same all-or-nothing batch names this message.",
        "Name each message once.",
    ),
    "not-done": Code(
        409,
        "The item was not executed",
        "Another item of the same all-or-nothing batch was refused.",
        "Correct or remove the refused items, and send the batch again.",
    ),
    "invalid-marker": Code(
        400,
        "The page marker is invalid",
        "`after` is not a `next_after` value of an earlier page.",
        "Start again without `after`.",
    ),
    "internal-error": Code(
        500,
        "Internal server error",
        "An unexpected error occurred. Whether the request took effect is unknown.",
        "Look for the Request-Id in the server's log.",
    ),
    "body-unreadable": Code(
        500,
        "The body of the message cannot be read",
        "The body of the message is stored outside the database and is `missing` or `corrupt` "
        "there (`reason`). `value` is the id of the message.",
        "Restore the body from a backup, set a new body (amend-message), or remove the message.",
    ),
    "store-full": Code(
        503,
        "The disk of the server is full",
        "No message can be put until disk space is available. Messages can still be received and "
        "completed.",
        "Consume messages or give the server more disk, then send the request again.",
    ),
    "overloaded": Code(
        503,
        "Too many requests are waiting",
        "The server has reached its limit of waiting requests. This request was not executed.",
        "Retry with exponential back-off.",
    ),
    "stopping": Code(
        503,
        "The server is stopping",
        "The server accepts no more requests. This request was not executed.",
        "Retry; the server may be available again soon.",
    ),
    "account-moved": Code(
        503,
        "The account was moved to another store",
        "The server still reads the account from its former store. The request had no effect.",
        "The operator must set `account_stores` to the account's new store and restart the "
        "server; then retry. No data are lost.",
    ),
    "store-unavailable": Code(
        503,
        "The store is unavailable",
        "The database or the store of large bodies cannot be reached or is busy. The request had "
        "no effect.",
        "Retry with exponential back-off.",
    ),
    "outcome-unknown": Code(
        503,
        "The outcome is unknown",
        "The connection to the database was lost while the request was committed. Whether it took "
        "effect is unknown.",
        "Retry if a repeated request does no harm; a message put with a `dedup_key` is not put "
        "twice.",
    ),
    "store-failed": Code(
        503,
        "The disk failed",
        "The store failed while writing. Whether the request took effect is unknown.",
        "Check the server's log. Retry when the server is available again; a message put "
        "with a `dedup_key` is not put twice.",
    ),
}
