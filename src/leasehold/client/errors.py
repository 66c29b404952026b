"""What can go wrong for a caller of the client.

::

    LeaseholdClientError
    ├── InvalidConnectionString   (also a ValueError)
    ├── ConnectionFailed          no server answered
    ├── UnexpectedAnswer          what answered is not a Leasehold server
    └── ServerProblem             the server refused; ``code`` says why
        ├── QueueNotFound         ├── QueueExists
        ├── MessageNotFound       ├── MessageLeased
        ├── JobNotFound           ├── MessageNotLeased
        ├── LeaseLost             ├── OutOfRange
        ├── BodyTooLarge          ├── NotDone
        ├── SessionNotFound       ├── SessionOver
        ├── StreamNotFound        ├── StaleToken
        ├── ClaimNotFound         ├── ClaimOutOfTurn
        ├── ClaimSettled          ├── ClaimLapsed
        ├── ClaimBroken           ├── MemberNotFound
        ├── StagedNotFound        ├── AlreadyPublished
        ├── ChunkOutOfTurn        ├── NoGroups
        ├── GroupNotHeld
        ├── Unauthenticated       ├── Forbidden
        └── Unavailable           the server cannot do it now

``outcome_unknown`` of each says whether the call may have been carried out all the same, by the try
that failed last or by one before it.

Codes without a class of their own are a plain ServerProblem. No text of an error shows an account
key, a shared access signature or a token.
"""

from __future__ import annotations

from typing import Final

from leasehold.wire import parts

_SERVER_ERROR: Final = 500
_NOT_PASSED_ON: Final = range(300, 500)
_PLAIN_HTTP: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
"""How OpenSSL names an answer that is no TLS; the second since 3.2."""
_EARLIER: Final = "An earlier attempt of this call had no clear response and may have succeeded."


class Problem(  # type: ignore[misc]  # the server fills its own in bit by bit
    parts.Problem, frozen=True, kw_only=True, omit_defaults=False
):
    """What the server says about a refusal (RFC 9457, with our own members)."""

    status: int = 0
    """HTTP status; 0 if it is unknown."""
    title: str = ""
    detail: str = ""
    retry_after_s: float | None = None  # type: ignore[assignment]  # fractions will do as well
    """Seconds to wait before trying again."""
    item: int | None = None
    """For a batch: the other item that this refusal is about."""
    request_id: str | None = None
    """Under which the server has logged the request."""
    repeated: bool = False
    """An earlier try of the same call got no answer, so it may be its success that is the reason
    for this refusal."""


class LeaseholdClientError(Exception):
    """The call did not succeed.

    ``results_so_far`` is for calls that were split into several requests: the results of those
    that were answered, in the order of the items.
    """

    results_so_far: tuple[object, ...] = ()

    outcome_unknown: bool = False
    """Whether the call may have been carried out all the same: by the try that failed last, or by
    an earlier one that had no clear answer. False: it is certain that nothing was done."""


class InvalidConnectionString(LeaseholdClientError, ValueError):
    """The connection string cannot be used. The text names the part, never its value."""


class ConnectionFailed(LeaseholdClientError):
    """No answer came: nothing listens there, the connection broke, or it took too long."""

    def __init__(
        self,
        url: str,
        reason: str,
        outcome_unknown: bool,
        repeated: bool = False,
        is_untrusted: bool = False,
    ) -> None:
        super().__init__(url, reason, outcome_unknown, repeated, is_untrusted)
        self.url = url
        """Scheme, host and port of the server."""
        self.reason = reason
        self.repeated = repeated
        """Whether an earlier try of the same call had no clear answer."""
        self.outcome_unknown = outcome_unknown or repeated
        """False: no request has left, so nothing was done. True: it may have been done."""
        self.is_untrusted = is_untrusted
        """Whether something answers there whose certificate was refused."""
        self._was_sent = outcome_unknown

    def __str__(self) -> str:
        if self._was_sent:
            return (
                f"No response from {self.url}: {self.reason}. Whether the request took effect is "
                "unknown."
            )
        if self.url.startswith("https:") and any(sign in self.reason for sign in _PLAIN_HTTP):
            plain = self.url.replace("https:", "http:", 1)
            return f"The server at {self.url} does not speak https. Use {plain}."
        if self.is_untrusted:
            text = (
                f"The certificate of {self.url} is not trusted: {self.reason}. If it was signed by "
                "an authority of your own, name the file with that authority's certificate: "
                "--ca-file for commands, ssl_context for the client, SSL_CERT_FILE for both."
            )
            return f"{text} {_EARLIER}" if self.repeated else text
        text = f"No Leasehold server can be reached at {self.url}: {self.reason}. "
        if self.repeated:
            return text + _EARLIER
        return text + "Start one there with leasehold serve, or correct the address."


class UnexpectedAnswer(LeaseholdClientError):
    """The answer is not one of Leasehold's native API."""

    def __init__(self, url: str, status: int, what: str, repeated: bool = False) -> None:
        super().__init__(url, status, what, repeated)
        self.url = url
        self.status = status
        self.what = what
        self.repeated = repeated
        """Whether an earlier try of the same call had no clear answer."""
        # What lies between may have passed the request on, unless it says that it did not.
        self.outcome_unknown = repeated or status not in _NOT_PASSED_ON

    def __str__(self) -> str:
        text = (
            f"{self.url} answered {self.status} with {self.what}: this is no Leasehold server, or "
            "a proxy changes its answers. Correct the address."
        )
        return f"{text} {_EARLIER}" if self.repeated else text


class ServerProblem(LeaseholdClientError):
    """The server refused the call."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.problem = problem
        """Everything that the server said."""
        self.code = problem.code
        self.status = problem.status
        self.detail = problem.detail
        self.field = problem.field
        self.value = problem.value
        self.minimum = problem.minimum
        self.maximum = problem.maximum
        self.limit = problem.limit
        self.remedy = problem.remedy
        self.request_id = problem.request_id
        self.repeated = problem.repeated
        unclear = problem.status >= _SERVER_ERROR and problem.code not in REFUSED_BEFORE_WORK
        self.outcome_unknown = problem.repeated or unclear

    def __str__(self) -> str:
        problem = self.problem
        text = f"{problem.code}: {problem.detail or problem.title or 'the server refused'}"
        if problem.field is not None:
            text += f" (at {problem.field})"
        if problem.remedy is not None:
            text += f" {problem.remedy}"
        if problem.repeated:
            text += f" {_EARLIER}"
        return text


class QueueNotFound(ServerProblem):
    """The queue does not exist. ``value`` is its name, if the server says which one is missing."""

    def __str__(self) -> str:
        if not isinstance(self.value, str):
            return super().__str__()
        create = f"Create it with client.queue({self.value!r}).create()."
        text = f"{self.code}: {self.detail} {create}"
        return f"{text} {_EARLIER}" if self.repeated else text


class QueueExists(ServerProblem):
    """A queue of this name exists already and has other metadata, or other settings."""


class MessageNotFound(ServerProblem):
    """There is no such message: never put, or completed, removed or expired."""


class JobNotFound(ServerProblem):
    """There is no such job."""


class LeaseLost(ServerProblem):
    """The receipt is not the message's current one: stop working on the message."""

    @property
    def reason(self) -> str | None:
        """``superseded``, ``lapsed`` or ``foreign``."""
        return self.problem.reason


class MessageLeased(ServerProblem):
    """The message is leased."""

    @property
    def holder(self) -> str | None:
        """Who, if they said."""
        return self.problem.holder

    @property
    def until_ms(self) -> int | None:
        """Until when, Unix milliseconds."""
        return self.problem.until_ms


class MessageNotLeased(ServerProblem):
    """The message is not leased, so there is no lease to end."""


class NoGroups(ServerProblem):
    """The settings of the queue do not speak of message groups."""


class GroupNotHeld(ServerProblem):
    """The session does not hold the message group any more: stop working on it."""


class OutOfRange(ServerProblem):
    """A value is outside ``minimum`` to ``maximum``; ``field`` says which."""


class BodyTooLarge(ServerProblem):
    """The body has ``value`` bytes, and the queue takes ``limit``."""


class NotDone(ServerProblem):
    """Nothing was done, because another item of the same all-or-nothing batch was refused."""


class SessionNotFound(ServerProblem):
    """There is no such session; one that was over for long is forgotten."""


class SessionOver(ServerProblem):
    """The session is over: all its leases have ended, and others may have the messages."""

    @property
    def state(self) -> str | None:
        """``lost``, for want of a heartbeat, or ``ended``."""
        return self.problem.state


class StreamNotFound(ServerProblem):
    """The queue has no such stream: attach it first."""


class StaleToken(ServerProblem):
    """Another consumer has attached to the stream since: stop working on it."""

    @property
    def token(self) -> int | None:
        """The current token."""
        return self.problem.token


class ClaimNotFound(ServerProblem):
    """The stream has no claim of this number open."""


class ClaimOutOfTurn(ServerProblem):
    """Claims are opened and settled one after the other."""

    @property
    def expected(self) -> int | None:
        """The number that is next."""
        return self.problem.expected


class ClaimSettled(ServerProblem):
    """The claim has been settled."""

    @property
    def last_settled(self) -> int | None:
        """The last number that was."""
        return self.problem.last_settled

    @property
    def settled_with(self) -> str | None:
        """The transaction whose publishing settled the last claims that were; None if none did."""
        return self.problem.settled_with


class ClaimLapsed(ServerProblem):
    """The claim was not extended in time: open it again before it is read."""

    @property
    def until_ms(self) -> int | None:
        """When it lapsed, Unix milliseconds."""
        return self.problem.until_ms


class ClaimBroken(ServerProblem):
    """Others have taken members of the claim: it cannot be read whole any more."""

    @property
    def size(self) -> int | None:
        """How many members it had."""
        return self.problem.size

    @property
    def lost(self) -> int | None:
        """How many of them are gone."""
        return self.problem.lost


class MemberNotFound(ServerProblem):
    """A message exempted is no member of the claims; ``value`` is its id. Nothing was done."""


class StagedNotFound(ServerProblem):
    """Nothing is staged, or was published, under this name, or there is no such part."""


class AlreadyPublished(ServerProblem):
    """The transaction has been published: nothing can be added to it."""


class ChunkOutOfTurn(ServerProblem):
    """The chunks of a part come one after the other."""

    @property
    def expected(self) -> int | None:
        """The number of the next one."""
        return self.problem.expected


class Unauthenticated(ServerProblem):
    """The server does not take the key, signature or token."""


class Forbidden(ServerProblem):
    """The credential is genuine but does not give this right."""


class Unavailable(ServerProblem):
    """The server cannot do this now: full, overloaded, stopping, or its store failed or moved.

    ``outcome_unknown`` is true if it may have been done all the same.
    """

    @property
    def retry_after_s(self) -> float | None:
        """Seconds to wait before the next try, as the server asks."""
        return self.problem.retry_after_s


REFUSED_BEFORE_WORK: Final = frozenset(
    {"store-full", "store-unavailable", "overloaded", "stopping", "account-moved"}
)
"""Codes of 503 after which it is certain that nothing was done."""

_CLASSES: Final[dict[str, tuple[type[ServerProblem], int]]] = {
    "queue-not-found": (QueueNotFound, 404),
    "queue-exists": (QueueExists, 409),
    "settings-differ": (QueueExists, 409),
    "message-not-found": (MessageNotFound, 404),
    "job-not-found": (JobNotFound, 404),
    "lease-lost": (LeaseLost, 409),
    "message-leased": (MessageLeased, 409),
    "message-not-leased": (MessageNotLeased, 409),
    "no-groups": (NoGroups, 409),
    "group-not-held": (GroupNotHeld, 409),
    "out-of-range": (OutOfRange, 400),
    "body-too-large": (BodyTooLarge, 413),
    "not-done": (NotDone, 409),
    "session-not-found": (SessionNotFound, 404),
    "session-over": (SessionOver, 409),
    "stream-not-found": (StreamNotFound, 404),
    "stale-token": (StaleToken, 409),
    "claim-not-found": (ClaimNotFound, 404),
    "claim-out-of-turn": (ClaimOutOfTurn, 409),
    "claim-settled": (ClaimSettled, 409),
    "claim-lapsed": (ClaimLapsed, 409),
    "claim-broken": (ClaimBroken, 409),
    "member-not-found": (MemberNotFound, 404),
    "staged-not-found": (StagedNotFound, 404),
    "already-published": (AlreadyPublished, 409),
    "chunk-out-of-turn": (ChunkOutOfTurn, 409),
    "unauthenticated": (Unauthenticated, 401),
    "forbidden": (Forbidden, 403),
    "store-full": (Unavailable, 503),
    "overloaded": (Unavailable, 503),
    "stopping": (Unavailable, 503),
    "account-moved": (Unavailable, 503),
    "store-unavailable": (Unavailable, 503),
    "outcome-unknown": (Unavailable, 503),
    "store-failed": (Unavailable, 503),
}
_BY_STATUS: Final[dict[int, type[ServerProblem]]] = {
    401: Unauthenticated,
    403: Forbidden,
    503: Unavailable,
}


def problem_error(problem: Problem) -> ServerProblem:
    """Return the exception for what the server said, of the class that its code has."""
    known = _CLASSES.get(problem.code)
    if known is None:
        return _BY_STATUS.get(problem.status, ServerProblem)(problem)
    return known[0](problem)


def usual_status(code: str) -> int:
    """Return the HTTP status that goes with a code, 0 if the code is not known here."""
    known = _CLASSES.get(code)
    return 0 if known is None else known[1]
