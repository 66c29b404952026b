"""Errors: one table from every domain and authentication error to the protocol's problems.

Source of the form: RFC 9457, "Problem Details for HTTP APIs".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple

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
    holder = "a client that gave no name" if error.holder is None else repr(shown(error.holder))
    return problem(
        "message-leased",
        f"The message is leased to {holder} until {time_of(error.until_ms)}.",
        holder=error.holder,
        until_ms=error.until_ms,
    )


def _settings_differ(error: domain.SettingsDiffer) -> Problem:
    told = [_difference(name, *pair) for name, pair in error.differences.items()]
    detail = f"A queue of this name exists already, with other settings: {'; '.join(told)}."
    return problem("settings-differ", detail if told else "")


def _difference(name: str, there: object, given: object) -> str:
    plain = str | int | float | None  # what is more than a word or a number is only named
    if isinstance(there, plain) and isinstance(given, plain):
        return f"{name} is {_in_words(there)}, not {_in_words(given)}"
    return f"{name} is another"


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
        f"Another consumer has attached to the stream since; the token is {error.token} now.",
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
        "The body is not the JSON that this call takes, or a query parameter cannot be read: bad "
        "syntax, a member of the wrong type, or one that the call does not know. Nothing was done.",
        "Send what the document at /v1/openapi.json shows for this call. `field` names the place.",
    ),
    "out-of-range": Code(
        400,
        "A value is outside its limits",
        "`field` has the value `value`, but may be from `minimum` to `maximum`.",
        "Send a value between the two; both ends are allowed.",
    ),
    "invalid-queue-name": Code(
        400,
        "This cannot be the name of a queue",
        "The name of a queue is 1 to 256 of A-Z, a-z, 0-9 and dashes, and does not begin with one. "
        "Clients of Azure can use 3 to 63 of a-z, 0-9 and single dashes between them.",
        "Use lower-case letters, digits and single inner dashes, which every protocol takes.",
    ),
    "body-too-large": Code(
        413,
        "The body of a message is too large",
        "The body has `value` bytes, and a message may have `limit`. The size is that of the body "
        "itself, not of its encoding in JSON.",
        "Split the message, or keep what is large elsewhere and send where it is.",
    ),
    "request-too-large": Code(
        413,
        "The request is too large",
        "The body of the request has more than `limit` bytes. It was not read to its end.",
        "Send fewer messages in one request.",
    ),
    "receipt-malformed": Code(
        400,
        "This is no receipt",
        "What was sent as a receipt does not have the form of one.",
        "Send the receipt exactly as the last receive or renewal of the message gave it.",
    ),
    "visibility-past-expiry": Code(
        400,
        "The message would expire before it could be received",
        "The message would become visible only when its time to live has run out.",
        "Choose a shorter delay or visibility timeout, or a longer time to live.",
    ),
    "unauthenticated": Code(
        401,
        "The request does not prove who sent it",
        "The request carries no key, signature or token, or one that is not right.",
        "Send `Authorization: Bearer` with the account's key over https, sign the request, or add "
        "a shared access signature to its query.",
    ),
    "forbidden": Code(
        403,
        "These credentials do not allow this",
        "The sender is known, but may not do this, or not from there.",
        "Use credentials that grant the operation. An inspector's key only reads.",
    ),
    "csrf-token": Code(
        403,
        "The request lacks the token of its session",
        "A session of the console changes things only for the console's own page, which sends the "
        "session's token along in `x-leasehold-csrf`.",
        "Ask GET /console/api/session for `csrf` and send it; or send `Authorization` and no "
        "cookie.",
    ),
    "too-many-sign-ins": Code(
        429,
        "Too many attempts to sign in have failed",
        "From this address keys and signatures were tried that are not right.",
        "Wait for as many seconds as `retry_after_s` says, and look for the right key meanwhile.",
    ),
    "no-such-route": Code(
        404,
        "There is nothing at this address",
        "The path is none of this protocol.",
        "Look up the path in the document at /v1/openapi.json.",
    ),
    "queue-not-found": Code(
        404,
        "There is no such queue",
        "The account has no queue of this name.",
        "Create it first: PUT /v1/accounts/{account}/queues/{queue}.",
    ),
    "message-not-found": Code(
        404,
        "There is no such message",
        "The queue holds no message of this id: it never did, or the message is completed, removed "
        "or expired, or was moved to another queue.",
        "If a worker gets this on completing, the message was completed by another worker, or set "
        "aside after too many deliveries, which GET /messages/{id} tells: take no further step "
        "for it.",
    ),
    "job-not-found": Code(
        404,
        "There is no such job",
        "The account has no job of this id. A job is forgotten a while after its end.",
        "List the jobs: GET /v1/accounts/{account}/jobs.",
    ),
    "method-not-allowed": Code(
        405,
        "The address does not take this method",
        "The path is right, but not with this method.",
        "Use one of the methods in the header Allow.",
    ),
    "queue-exists": Code(
        409,
        "The queue is there with other metadata",
        "A queue of this name exists already, and its metadata are not those sent.",
        "Leave `metadata` out to take the queue as it is, or change them with PATCH.",
    ),
    "settings-differ": Code(
        409,
        "The queue is there with other settings",
        "A queue of this name exists already, and has other settings than those sent.",
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
        "The receipt does not act on the message any more. `reason` is `superseded` (received or "
        "renewed since), `lapsed` (its lease ran out, and the queue's rule is strict) or `foreign` "
        "(this server never issued it, or it belongs to another message).",
        "Stop working on the message: another worker may hold it. Renew earlier, or ask for a "
        "longer visibility timeout.",
    ),
    "no-groups": Code(
        409,
        "The queue knows no groups",
        "The settings of the queue do not speak of message groups, so none can stand still or be "
        "held.",
        "Set `groups` first: PATCH /v1/accounts/{account}/queues/{queue}.",
    ),
    "group-not-held": Code(
        409,
        "The session does not hold the group",
        "Another session does, or none, or this one does under a newer fence: the hold was "
        "released, ended by an operator, or ended with its session.",
        "Stop working on the group. Hold it again: POST "
        "/v1/accounts/{account}/queues/{queue}/groups/hold.",
    ),
    "session-not-found": Code(
        404,
        "There is no such session",
        "The account has no session of this id. One that is over is forgotten an hour later.",
        "Open a new session: POST /v1/accounts/{account}/sessions.",
    ),
    "session-over": Code(
        409,
        "The session is over",
        "The session was lost, because no heartbeat came in time, or was ended; `state` says "
        "which. All its leases have ended.",
        "Drop the work of the session: others may have its messages. Open a new session before "
        "you receive again, and send a heartbeat every quarter of its timeout.",
    ),
    "stream-not-found": Code(
        404,
        "There is no such stream",
        "The queue has no stream of this name.",
        "Attach it first: PUT /v1/accounts/{account}/queues/{queue}/streams/{stream}.",
    ),
    "stale-token": Code(
        409,
        "Another consumer has attached to the stream",
        "The token is not that of the last attach, which has the token `token`.",
        "Stop: another run works on the stream. Attach again only if you are to take it over.",
    ),
    "claim-not-found": Code(
        404,
        "There is no such claim",
        "The stream has no claim of this number that can be used: it was never opened, was given "
        "back, or is still being opened.",
        "Open it: PUT the address of the claim. An open that found no messages made no claim.",
    ),
    "claim-out-of-turn": Code(
        409,
        "The claim is not the next one",
        "Claims are opened, and settled, one after the other; `expected` is the number that is "
        "next.",
        "Go on with the number `expected`.",
    ),
    "claim-settled": Code(
        409,
        "The claim has been settled",
        "All claims up to `last_settled` are settled, and their messages are gone. `settled_with` "
        "names the transaction whose publishing did that, if it was one.",
        "Go on with the number after `last_settled`.",
    ),
    "claim-lapsed": Code(
        409,
        "The claim has lapsed",
        "The claim was not extended before `until_ms`, so that others may take its members.",
        "Open it again with the same number: while no member was taken it is whole. Extend "
        "earlier, or open with a longer `lease_s`.",
    ),
    "claim-broken": Code(
        409,
        "Others have taken members of the claim",
        "Of the `size` members of the claim `lost` are gone: it can not be read as it was.",
        "Open it again with `accept_loss` to go on with what remains, or give it back.",
    ),
    "member-not-found": Code(
        404,
        "A message is no member of the claim",
        "An exemption names the message `value`, which is not among the members that the claims "
        "still have. Nothing was settled.",
        "Leave out the exemption: another consumer has the message.",
    ),
    "staged-not-found": Code(
        404,
        "Nothing is staged under this name",
        "The account has no such transaction, or the transaction has no such part (`value`). "
        "What is not published vanishes after a time-out. Nothing was done.",
        "Stage again, then publish. To publish nothing, send an empty list of `parts`.",
    ),
    "already-published": Code(
        409,
        "The transaction has been published",
        "Nothing can be staged under the name of a transaction that has been published.",
        "If this is a repetition, it has been done. For new messages choose another name.",
    ),
    "chunk-out-of-turn": Code(
        409,
        "The chunk is not the next one",
        "The chunks of a part are staged one after the other; `expected` is the number of the "
        "next one.",
        "Stage from the chunk `expected` on. If that is 0, what was staged has vanished.",
    ),
    "arrow-not-installed": Code(
        406,
        "The server cannot answer in Arrow",
        "The request asks for an Arrow stream, and the library for it is not installed where the "
        "server runs.",
        f"Beside the server {install('arrow')}; or ask for JSON.",
    ),
    "arrow-not-taken": Code(
        415,
        "The server cannot read Arrow",
        "The request holds an Arrow stream, and the library for it is not installed where the "
        "server runs.",
        f"Beside the server {install('arrow')}; or send JSON.",
    ),
    "named-twice": Code(
        400,
        "The message is named twice",
        "An earlier item of the same all-or-nothing batch names this message.",
        "Name each message once.",
    ),
    "not-done": Code(
        409,
        "Nothing was done",
        "Another item of the same all-or-nothing batch was refused.",
        "Mend or leave out the refused items, and send the batch again.",
    ),
    "invalid-marker": Code(
        400,
        "This is no place to go on from",
        "`after` is not what an earlier page gave as `next_after`.",
        "Start again without `after`.",
    ),
    "internal-error": Code(
        500,
        "The server met an error of its own",
        "Something went wrong that should not. Whether anything was done is not known.",
        "Look for the Request-Id in the server's log.",
    ),
    "body-unreadable": Code(
        500,
        "The body of the message cannot be read",
        "The message has a large body, which is kept outside the database and is `missing` or "
        "`corrupt` there (`reason`). `value` is the id of the message.",
        "Put the body back from a backup, or give the message a new one (amend-message), or remove "
        "the message.",
    ),
    "store-full": Code(
        503,
        "The disk of the server is full",
        "Nothing can be put until there is room. Messages can still be received and completed.",
        "Consume messages or give the server more disk, then send the request again.",
    ),
    "overloaded": Code(
        503,
        "Too many requests are waiting",
        "The server has as many requests waiting as it takes. This one was not begun.",
        "Send it again after a pause that grows from try to try.",
    ),
    "stopping": Code(
        503,
        "The server is stopping",
        "The server takes no more requests. This one was not begun.",
        "Send it again; the server may be back soon.",
    ),
    "account-moved": Code(
        503,
        "The account was moved to another store",
        "The server still looks for the account in the store that it has left. Nothing was done.",
        "Whoever runs the server names the account's new store in `account_stores` and starts the "
        "server again; after that, send the request once more. Nothing is lost.",
    ),
    "store-unavailable": Code(
        503,
        "The store cannot be used now",
        "The database or the store of large bodies cannot be reached, or is busy. Nothing was "
        "done.",
        "Send it again after a pause that grows from try to try.",
    ),
    "outcome-unknown": Code(
        503,
        "Whether it was done is not known",
        "The connection to the database was lost while the request was committed. Whether it took "
        "effect is not known.",
        "Send the request again if that does no harm; a message put with a `dedup_key` is not put "
        "twice.",
    ),
    "store-failed": Code(
        503,
        "The disk failed",
        "The store failed while writing. Whether the request took effect is not known.",
        "Look at the server's log. Send the request again when the server is back; a message put "
        "with a `dedup_key` is not put twice.",
    ),
}
