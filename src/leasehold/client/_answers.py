"""From what the server answers to models and errors, and whether to try again: without I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import astuple

from leasehold.client._calls import Leased
from leasehold.client.errors import (
    REFUSED_BEFORE_WORK,
    ConnectionFailed,
    LeaseholdClientError,
    MessageNotFound,
    Problem,
    ServerProblem,
    UnexpectedAnswer,
    problem_error,
    usual_status,
)
from leasehold.client.models import (
    Attempt,
    CancelRequest,
    Counts,
    ErrorReport,
    Explanation,
    GroupHold,
    Groups,
    GroupView,
    HaltState,
    Job,
    LeaseRef,
    MessageView,
    PeekedMessage,
    QueueInfo,
    ReceivedMessage,
    Released,
    Renewal,
    Sent,
)
from leasehold.client.retries import RetryPolicy
from leasehold.wire import queues as shapes
from leasehold.wire.admin import HeldGroup, Jobs, View, Views
from leasehold.wire.messages import Peeked, PeekedMessages, Received, ReceivedMessages, Results

_ERROR_FROM = 400
_REDIRECT_FROM = 300
_T = TypeVar("_T")
M = TypeVar("M", bound=ReceivedMessage | LeaseRef)


class Answer(NamedTuple):
    """What came back for a call that was not refused."""

    url: str
    """Of the server, for errors."""
    status: int
    content_type: str
    content: bytes
    repeated: bool
    """Whether an earlier try got no answer and may have succeeded."""
    next_after: str | None = None
    """Where the next page begins, of an answer whose content has no room for that."""


class _Received(Received, kw_only=True):
    expires_at_ms: int | None = None
    fence: int = 0


class _ReceivedMessages(ReceivedMessages):
    messages: Sequence[_Received]


class _Peeked(Peeked, kw_only=True):
    expires_at_ms: int | None = None


class _PeekedMessages(PeekedMessages):
    messages: Sequence[_Peeked]


class _View(View, kw_only=True):
    attempts: tuple[Attempt, ...] = ()


class _Views(Views):
    messages: Sequence[_View]


class QueuePage(shapes.QueuePage):
    """Some queues, and where the next page starts (None at the end)."""

    queues: Sequence[QueueInfo]


class Result(Struct):
    """Any ItemResult of the server; which members it has depends on the verb."""

    error: Problem | None = None
    id: str = ""
    receipt: str = ""
    inserted_at_ms: int = 0
    expires_at_ms: int | None = None
    visible_at_ms: int = 0
    duplicate: bool = False
    poisoned: str | None = None
    cancel: CancelRequest | None = None


_SHOWN_OTHERWISE = {
    *("body", "body_base64", "body_problem", "body_bytes"),
    *("saved", "last_error", "previous"),
}
_VIEW_FIELDS = tuple(name for name in _View.__struct_fields__ if name not in _SHOWN_OTHERWISE)
_PROBLEM = msgspec.json.Decoder(Problem)
_RECEIVED = msgspec.json.Decoder(_ReceivedMessages)
_PEEKED = msgspec.json.Decoder(_PeekedMessages)
_RESULT = msgspec.json.Decoder(Result)
_RESULTS = msgspec.json.Decoder(Results[Result])
_QUEUE = msgspec.json.Decoder(QueueInfo)
_QUEUES = msgspec.json.Decoder(QueuePage)
_COUNTS = msgspec.json.Decoder(Counts)
_GROUPS = msgspec.json.Decoder(Groups)
_POLICIES = msgspec.json.Decoder(shapes.Policies)
_HALT_STATE = msgspec.json.Decoder(HaltState)
_HELD_GROUP = msgspec.json.Decoder(HeldGroup)
_GROUP = msgspec.json.Decoder(GroupView)
_EXPLANATION = msgspec.json.Decoder(Explanation)
_VIEW = msgspec.json.Decoder(_View)
_VIEWS = msgspec.json.Decoder(_Views)
_JOB = msgspec.json.Decoder(Job)
_JOBS = msgspec.json.Decoder(Jobs)


class Reply(NamedTuple):
    """What came back."""

    status: int
    headers: Mapping[str, str]
    """By names in small letters."""
    content: bytes


def failure_of(
    url: str, status: int, headers: Mapping[str, str], content: bytes, *, repeated: bool
) -> LeaseholdClientError | None:
    """Return the error that an answer stands for, or None if the call succeeded."""
    if status < _REDIRECT_FROM:
        return None
    content_type = headers.get("content-type", "")
    if status < _ERROR_FROM or "json" not in content_type:
        return UnexpectedAnswer(url, status, _shown(content_type), repeated)
    try:
        problem = _PROBLEM.decode(content)
    except msgspec.MsgspecError:
        return UnexpectedAnswer(url, status, "JSON of another type", repeated)
    asked_s = problem.retry_after_s
    if asked_s is None:
        asked_s = _seconds(headers.get("retry-after", ""))
    return problem_error(
        msgspec.structs.replace(
            problem,
            status=status,
            retry_after_s=asked_s,
            request_id=headers.get("request-id", problem.request_id),
            repeated=repeated,
        )
    )


def root_of(error: BaseException, outer: BaseException | None) -> BaseException:
    """Return the error of the operating system or of TLS behind those of the libraries.

    Args:
        error: What was raised; itself if there is none behind it.
        outer: What was being handled before, which may be anything.
    """
    root, behind = error, error.__cause__ or error.__context__
    while behind is not None and behind is not outer:
        if isinstance(behind, OSError):
            root = behind
        behind = behind.__cause__ or behind.__context__
    return root


def received(answer: Answer, queue: str) -> list[ReceivedMessage]:
    """Return the messages that a receive has leased from *queue*."""
    return [
        ReceivedMessage(
            id=raw.id,
            body=(body := _body(raw)),
            body_bytes=len(body),
            inserted_at_ms=raw.inserted_at_ms,
            expires_at_ms=raw.expires_at_ms,
            visible_at_ms=raw.visible_at_ms,
            dequeue_count=raw.dequeue_count,
            fence=raw.fence,
            receipt=raw.receipt,
            priority=raw.priority,
            type=raw.type,
            properties=raw.properties or {},
            traceparent=raw.traceparent,
            dedup_key=raw.dedup_key,
            group_id=raw.group_id,
            queue=queue,
            session=raw.session,
            saved=_saved(raw),
            lease_s=raw.lease_s,
        )
        for raw in decoded(_RECEIVED, answer).messages
    ]


def peeked(answer: Answer) -> list[PeekedMessage]:
    """Return the messages that a peek has shown."""
    return [
        PeekedMessage(
            id=raw.id,
            body=(body := _body(raw)),
            body_problem=raw.body_problem,
            body_bytes=len(body) if raw.body_bytes is None else raw.body_bytes,
            inserted_at_ms=raw.inserted_at_ms,
            expires_at_ms=raw.expires_at_ms,
            visible_at_ms=raw.visible_at_ms,
            dequeue_count=raw.dequeue_count,
            priority=raw.priority,
            type=raw.type,
            properties=raw.properties or {},
            traceparent=raw.traceparent,
            dedup_key=raw.dedup_key,
            group_id=raw.group_id,
        )
        for raw in decoded(_PEEKED, answer).messages
    ]


def sent(answer: Answer, items: Sequence[object]) -> list[Sent | ServerProblem]:
    """Return what became of each message that was put."""
    return [refusal_of(result, answer) or sent_of(result) for result in _results(answer, items)]


def sent_alone(answer: Answer) -> Sent:
    """Return a message that was put in a request of its own."""
    return sent_of(decoded(_RESULT, answer))


def renewed(
    answer: Answer, items: Iterable[M], body: str | bytes | None, saved: Any
) -> list[M | ServerProblem]:
    """Return each message with its new receipt, and with what else it was given."""
    items = list(items)
    new_body = body.encode() if isinstance(body, str) else body
    return [
        refusal_of(result, answer) or renewed_one(item, result, new_body, saved)
        for item, result in zip(items, _results(answer, items), strict=True)
    ]


def renewed_each(
    answer: Answer, renewals: Sequence[Renewal]
) -> list[ReceivedMessage | LeaseRef | ServerProblem]:
    """Return the same where each was given something of its own."""
    found: list[ReceivedMessage | LeaseRef | ServerProblem] = []
    for given, result in zip(renewals, _results(answer, renewals), strict=True):
        body = given.body.encode() if isinstance(given.body, str) else given.body
        refusal = refusal_of(result, answer)
        found.append(refusal or renewed_one(given.message, result, body, given.saved))
    return found


def completed(answer: Answer, items: Sequence[Leased]) -> list[ServerProblem | None]:
    """Return None for each message that is completed, else why it is not."""
    refusals = [refusal_of(result, answer) for result in _results(answer, items)]
    if not answer.repeated:
        return refusals
    # The try that got no answer has completed it: that is what the repeat was for.
    return [None if isinstance(refusal, MessageNotFound) else refusal for refusal in refusals]


def released(answer: Answer, items: Sequence[object]) -> list[Released | ServerProblem]:
    """Return what became of each message that was given back."""
    return [refusal_of(result, answer) or released_of(result) for result in _results(answer, items)]


def only(results: Sequence[_T | ServerProblem]) -> _T:
    """Return the one result, or raise it."""
    (result,) = results
    if isinstance(result, ServerProblem):
        raise result
    return result


def queue(answer: Answer) -> QueueInfo:
    """Return a queue."""
    return decoded(_QUEUE, answer)


def queues(answer: Answer) -> QueuePage:
    """Return a page of queues."""
    return decoded(_QUEUES, answer)


def counts(answer: Answer) -> Counts:
    """Return a queue's counts."""
    return decoded(_COUNTS, answer)


def explanation(answer: Answer) -> Explanation:
    """Return an explanation."""
    return decoded(_EXPLANATION, answer)


def groups(answer: Answer) -> Groups:
    """Return groups of a queue."""
    return decoded(_GROUPS, answer)


def policies(answer: Answer) -> list[shapes.Policy]:
    """Read the stored access policies of a queue."""
    return [*decoded(_POLICIES, answer).policies]


def halt_state(answer: Answer) -> HaltState:
    """Return whether a group gives messages."""
    return decoded(_HALT_STATE, answer)


def held_group(answer: Answer) -> tuple[GroupHold | None, bytes]:
    """Return a hold, None for none, and what was saved for the group."""
    found = decoded(_HELD_GROUP, answer)
    return found.hold, found.state_base64


def group(answer: Answer) -> GroupView:
    """Return one group."""
    return decoded(_GROUP, answer)


def view(answer: Answer) -> MessageView:
    """Return a message as inspectors see it."""
    return _view_of(decoded(_VIEW, answer))


def views(answer: Answer) -> tuple[list[MessageView], str | None]:
    """Return a page of messages, and where the next one starts (None at the end)."""
    page = decoded(_VIEWS, answer)
    return [_view_of(raw) for raw in page.messages], page.next_after


def job(answer: Answer) -> Job:
    """Return a job."""
    return decoded(_JOB, answer)


def jobs(answer: Answer) -> list[Job]:
    """Return jobs."""
    return decoded(_JOBS, answer).jobs


def decoded(decoder: msgspec.json.Decoder[_T], answer: Answer) -> _T:
    """Return what an answer says.

    Raises:
        UnexpectedAnswer: It is not what a Leasehold server answers.
    """
    try:
        return decoder.decode(answer.content)
    except msgspec.ValidationError as error:
        # It names members and types, never values.
        raise UnexpectedAnswer(answer.url, answer.status, f"other JSON: {error}") from None
    except msgspec.MsgspecError:
        raise UnexpectedAnswer(answer.url, answer.status, _shown(answer.content_type)) from None


def _results(answer: Answer, items: Sequence[object]) -> list[Result]:
    results = decoded(_RESULTS, answer).results
    if len(results) != len(items):
        what = f"{len(results)} results for {len(items)} items"
        raise UnexpectedAnswer(answer.url, answer.status, what)
    return results


def sent_of(result: Result) -> Sent:
    """Return an item that was put."""
    return Sent(
        result.id,
        result.inserted_at_ms,
        result.expires_at_ms,
        result.visible_at_ms,
        result.receipt,
        result.duplicate,
    )


def released_of(result: Result) -> Released:
    """Return an item that was given back."""
    return Released(result.id, result.visible_at_ms, result.poisoned)


def refusal_of(result: Result, answer: Answer) -> ServerProblem | None:
    """Return why an item was refused, None if it was not."""
    problem = result.error
    if problem is None:
        return None
    return problem_error(
        msgspec.structs.replace(
            problem,
            status=problem.status or usual_status(problem.code),
            repeated=answer.repeated,
        )
    )


def renewed_one(item: M, result: Result, body: bytes | None, saved: Any) -> M:
    """Return an item that was renewed."""
    changes: dict[str, Any] = {
        "receipt": result.receipt,
        "visible_at_ms": result.visible_at_ms,
        "cancel": result.cancel,
    }
    if body is not None and isinstance(item, ReceivedMessage):
        changes |= {"body": bytes(body), "body_bytes": len(body)}
    if saved is not UNSET and isinstance(item, ReceivedMessage):
        changes["saved"] = saved
    return msgspec.structs.replace(item, **changes)


def _body(raw: Received | Peeked | View) -> bytes:
    if isinstance(raw.body, str):
        return raw.body.encode()
    return raw.body_base64 or b""


def _saved(raw: Received | View) -> Any:
    return msgspec.json.decode(raw.saved) if raw.saved else None


def _view_of(raw: _View) -> MessageView:
    values = {name: getattr(raw, name) for name in _VIEW_FIELDS}
    error = raw.last_error
    return MessageView(
        last_error=None if error is None else ErrorReport(*astuple(error)),
        body=_body(raw),
        body_problem=raw.body_problem or None,
        body_bytes=raw.body_bytes,
        saved=_saved(raw),
        previous=raw.previous or None,
        **values,
    )


def _shown(content_type: str) -> str:
    return content_type.partition(";")[0] or "no content"


def _seconds(text: str) -> float | None:
    """Read a Retry-After header; one that is a date is passed over."""
    return float(text) if text.isascii() and text.isdigit() else None


# --- repeating -------------------------------------------------------------------------------
#
# When to try again, and how long to wait before: decisions only, no waiting.


_TOO_MANY_REQUESTS: Final = 429
_MAYBE_LATER: Final = frozenset({502, 503, 504})
_SMALLEST_SHARE: Final = 0.5


class Tries:
    """The tries of one call."""

    __slots__ = ("_made", "_policy", "_repeatable", "_waited_s", "maybe_done")

    def __init__(self, policy: RetryPolicy, *, repeatable: bool) -> None:
        """*repeatable*: whether doing the call twice is the same as doing it once."""
        self._policy = policy
        self._repeatable = repeatable
        self._made = 0
        self._waited_s = 0.0
        self.maybe_done = False
        """Whether a failed try may have been carried out."""

    def wait_s(self, failure: LeaseholdClientError, jitter: float) -> float | None:
        """Note a failed try; return the seconds to wait before the next, or None to give up.

        Args:
            failure: How the try ended.
            jitter: A random number from 0 to 1.
        """
        policy = self._policy
        self._made += 1
        self.maybe_done = self.maybe_done or failure.outcome_unknown
        if self._made >= policy.attempts or not may_repeat(failure, repeatable=self._repeatable):
            return None
        own_s = min(policy.cap_s, policy.initial_s * 2.0 ** (self._made - 1))
        asked_s = failure.problem.retry_after_s if isinstance(failure, ServerProblem) else None
        if asked_s is None:
            pause_s = own_s * (_SMALLEST_SHARE + (1 - _SMALLEST_SHARE) * jitter)
        else:
            pause_s = max(asked_s, 0.0) + own_s * jitter
        self._waited_s += pause_s
        return pause_s if self._waited_s <= policy.patience_s else None


def may_repeat(failure: LeaseholdClientError, *, repeatable: bool) -> bool:
    """Tell whether the call may be made again after *failure*."""
    if isinstance(failure, ConnectionFailed):
        return repeatable or not failure.outcome_unknown
    if isinstance(failure, ServerProblem):
        if failure.code in REFUSED_BEFORE_WORK or failure.status == _TOO_MANY_REQUESTS:
            return True
        return repeatable and failure.status in _MAYBE_LATER
    if isinstance(failure, UnexpectedAnswer):
        # A proxy that says 502, 503 or 504 does not know what became of the request.
        return failure.status == _TOO_MANY_REQUESTS or (
            repeatable and failure.status in _MAYBE_LATER
        )
    return False


def is_done(failure: LeaseholdClientError, done_if: str | None) -> bool:
    """Tell whether the refusal of a repeated call means that an earlier try has succeeded."""
    return isinstance(failure, ServerProblem) and failure.code == done_if
