"""Shooting requests at a server, and judging what comes back.

A *shot* is the bytes of one request (or of no request at all) together with what is wrong with
it. Whatever is shot, the server must answer in the protocol's form or close the connection, in
time, and what it refuses must change nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Final
from xml.etree import ElementTree as ET

from tests.patience import PATIENCE_S
from tests.reliability.running import Answer, Client, Connection, UnansweredError, deliveries

TIMEOUT_S: Final = PATIENCE_S
"""What takes longer than this counts as a hang."""

CODES: Final[Mapping[str, tuple[int, ...]]] = {
    # Source: "Common REST API error codes" and "Queue Storage error codes".
    **dict.fromkeys(("InvalidAuthenticationInfo",), (400, 401)),
    "NoAuthenticationInformation": (401,),
    **dict.fromkeys(
        (
            *("InvalidMarker", "InvalidQueryParameterValue", "OutOfRangeQueryParameterValue"),
            *("MissingRequiredQueryParameter", "UnsupportedQueryParameter", "OutOfRangeInput"),
            *("InvalidResourceName", "InvalidInput", "InvalidUri", "RequestUrlFailedToParse"),
            *("InvalidXmlDocument", "InvalidXmlNodeValue", "MissingRequiredXmlNode"),
            *("UnsupportedXmlNode", "EmptyMetadataKey", "InvalidMetadata", "MetadataTooLarge"),
            *("InvalidHeaderValue", "MissingRequiredHeader", "UnsupportedHeader", "InvalidMd5"),
            *("Md5Mismatch", "ConditionHeadersNotSupported", "InvalidHttpVerb"),
            *("PopReceiptMismatch", "MessageTooLarge"),
        ),
        (400,),
    ),
    **dict.fromkeys(
        (
            *("AuthenticationFailed", "AuthorizationFailure", "AuthorizationPermissionMismatch"),
            *("AuthorizationProtocolMismatch", "AuthorizationSourceIPMismatch"),
            *("AuthorizationServiceMismatch", "AuthorizationResourceTypeMismatch"),
            *("InsufficientAccountPermissions", "AccountIsDisabled", "CorsPreflightFailure"),
        ),
        (403,),
    ),
    **dict.fromkeys(("QueueNotFound", "MessageNotFound", "ResourceNotFound"), (404,)),
    "UnsupportedHttpVerb": (405,),
    **dict.fromkeys(
        (
            *("QueueAlreadyExists", "QueueBeingDeleted", "QueueDisabled", "QueueNotEmpty"),
            *("FeatureVersionMismatch", "ResourceAlreadyExists", "ResourceTypeMismatch"),
        ),
        (409,),
    ),
    "MissingContentLengthHeader": (411,),
    "RequestBodyTooLarge": (413,),
}
"""The protocol's codes and their statuses; those of 500 and 503 are no answer to bad input."""

DETAILS: Final = frozenset(
    (
        *("QueryParameterName", "QueryParameterValue", "MinimumAllowed", "MaximumAllowed"),
        *("Reason", "HeaderName", "HeaderValue", "MaxLimit", "LineNumber", "LinePosition"),
        *("AuthenticationErrorDetail", "XmlNodeName", "XmlNodeValue"),
    )
)
BELOW_THE_PROTOCOL: Final = (400, 408, 413, 414, 421, 431)
"""Statuses that the HTTP server gives by itself, in plain text; besides 503 to who sends requests
without waiting for any answer."""

ERROR_CODE_HEADER_SINCE: Final = b"2017-07-29"
_VERSION_FIELD: Final = re.compile(rb"\r\nx-ms-version: (\d{4}-\d\d-\d\d)\r\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """Some bytes to send."""

    kind: str
    """What is wrong with them."""
    raw: bytes
    must_be_refused: bool = True
    must_be_answered: bool = True
    """False where closing the connection without a word will do."""
    head: bool = False
    """Whether it is a HEAD request, whose answer has no body."""


class AnswersOfBytes(Connection):
    """Takes the answers out of bytes that have been read already."""

    def __init__(self, data: bytes) -> None:
        self._buffer = data

    def all_answers(self, *, head: bool) -> list[Answer]:
        """Return them; *head* tells that the first one answers a HEAD."""
        answers: list[Answer] = []
        while self._buffer:
            answers.append(self.read_answer(head=head and not answers))
        return answers

    def _more(self) -> None:
        raise UnansweredError(f"an answer is cut short: {self._buffer[:200]!r}")


def shoot(port: int, shot: Shot) -> bytes:
    """Send a shot, then no more, and return all that comes until the server closes.

    Raises:
        TimeoutError: The server neither answers nor closes.
    """
    with Connection(port, TIMEOUT_S) as connection:
        with suppress(BrokenPipeError, ConnectionResetError):  # it may have heard enough
            connection.send(shot.raw)
        connection.half_close()
        return connection.read_rest()


@dataclass(slots=True)
class Verdict:
    """What a number of shots came to."""

    shots: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    """Refusals by code, or by status where the HTTP server gave them."""
    accepted: int = 0
    closed: int = 0
    """Connections closed without an answer."""
    complaints: list[str] = field(default_factory=list)

    def judge(self, shot: Shot, came: bytes) -> None:
        """Say what is wrong with what came back."""
        self.shots[shot.kind] += 1
        try:
            answers = AnswersOfBytes(came).all_answers(head=shot.head)
        except (AssertionError, OSError, ValueError) as error:
            self._complain(shot, f"not HTTP: {error!r}", came)
            return
        if not answers:
            self.closed += 1
            if shot.must_be_answered:
                self._complain(shot, "closed without an answer", came)
        for number, answer in enumerate(answers):
            for problem in self._problems(shot, answer, first=number == 0):
                self._complain(shot, problem, came)

    def summary(self) -> str:
        """Return the totals in a few lines."""
        codes = ", ".join(f"{code} {times}" for code, times in self.refused.most_common())
        return (
            f"{self.shots.total()} shots of {len(self.shots)} kinds: {self.accepted} accepted, "
            f"{self.refused.total()} refused, {self.closed} connections closed; "
            f"{len(self.complaints)} complaints\n{codes}"
        )

    def _complain(self, shot: Shot, problem: str, came: bytes) -> None:
        self.complaints.append(f"{shot.kind}: {problem}\n  {shot.raw[:700]!r}\n  {came[:700]!r}")

    def _problems(self, shot: Shot, answer: Answer, *, first: bool) -> Iterable[str]:
        if answer.status < 400:
            self.accepted += 1
            if shot.must_be_refused:
                yield f"accepted with {answer.status}"
            if answer.body and ET.fromstring(answer.body) is None:
                yield "an answer without a root element"
            return
        self.refused[answer.code or str(answer.status)] += 1
        code_needed = _names_new_version(shot.raw)
        kind = answer.headers.get("content-type", "")
        if kind.startswith("text/plain"):
            told_to_wait = answer.status == 503 and "retry-after" in answer.headers
            if answer.status not in BELOW_THE_PROTOCOL and not told_to_wait:
                yield f"plain text with status {answer.status}"
        elif answer.status >= 500:
            yield f"answered {answer.status}"
        elif shot.head and first:
            if answer.code not in CODES and (answer.code or code_needed):
                yield f"HEAD without a documented code: {answer.code!r}"
        else:
            yield from error_problems(answer, code_needed=code_needed)


def _names_new_version(raw: bytes) -> bool:
    """Tell whether a request names a version whose errors have their code in a header."""
    versions = _VERSION_FIELD.findall(raw.partition(b"\r\n\r\n")[0] + b"\r\n")
    return len(versions) == 1 and versions[0] >= ERROR_CODE_HEADER_SINCE


def error_problems(answer: Answer, *, code_needed: bool) -> Iterable[str]:
    """Yield what is wrong with the form of an error."""
    if answer.headers.get("content-type") != "application/xml":
        yield f"an error of type {answer.headers.get('content-type')!r}"
        return
    try:
        root = ET.fromstring(answer.body)
    except ET.ParseError as error:
        yield f"an error that is not XML: {error}"
        return
    names = [child.tag for child in root]
    code = root.findtext("Code", "")
    if root.tag != "Error" or names[:2] != ["Code", "Message"] or any(len(child) for child in root):
        yield f"an error of another structure: {root.tag}, {names}"
    if not set(names[2:]) <= DETAILS:
        yield f"undocumented details: {set(names[2:]) - DETAILS}"
    if answer.status not in CODES.get(code, ()):
        yield f"code {code} with status {answer.status}"
    if answer.code != code and (answer.code or code_needed):
        yield f"x-ms-error-code {answer.code!r} and code {code!r}"
    text = root.findtext("Message", "").split("\n")
    ids = [line.removeprefix("RequestId:") for line in text if line.startswith("RequestId:")]
    if ids != [answer.headers.get("x-ms-request-id")] or not text[-1].startswith("Time:"):
        yield f"a message without its request id and time: {text}"


class Sentinel:
    """An account with a bit of everything in it, which nothing that is refused may change."""

    QUEUES: Final = ("sentinel-one", "sentinel-two")
    _ACL: Final = (
        b"<SignedIdentifiers><SignedIdentifier><Id>readers</Id><AccessPolicy>"
        b"<Start>2026-01-01T00:00:00Z</Start><Expiry>2030-01-01T00:00:00Z</Expiry>"
        b"<Permission>r</Permission></AccessPolicy></SignedIdentifier></SignedIdentifiers>"
    )
    _PROPERTIES: Final = (
        b"<StorageServiceProperties><Cors><CorsRule><AllowedOrigins>http://a.example"
        b"</AllowedOrigins><AllowedMethods>GET</AllowedMethods><AllowedHeaders>*</AllowedHeaders>"
        b"<ExposedHeaders>*</ExposedHeaders><MaxAgeInSeconds>5</MaxAgeInSeconds></CorsRule></Cors>"
        b"</StorageServiceProperties>"
    )

    def __init__(self, client: Client) -> None:
        self.client = client
        """A client of an account that nothing else uses."""
        one, two = self.QUEUES
        assert client.create(one, colour="blue", size="9").status == 201
        assert client.create(two).status == 201
        numbers = count()
        for _ in range(8):
            assert client.put(one, f"sentinel {next(numbers)}").status == 201
        assert client.put(one, "delayed", "visibilitytimeout=86400").status == 201
        self.held = deliveries(client.get(one, 3, 86_400))
        assert len(self.held) == 3
        acl = client.asked("PUT", one, "comp=acl", body=self._ACL)
        assert client.call_signed(acl).status == 204
        properties = client.asked(
            "PUT", "", "restype=service&comp=properties", body=self._PROPERTIES
        )
        assert client.call_signed(properties).status == 202

    def state(self) -> dict[str, object]:
        """Return everything that can be seen of the account."""
        client = self.client
        seen: dict[str, object] = {
            "queues": client.call(client.asked("GET", "", "comp=list&include=metadata")).body,
            "properties": client.call(
                client.asked("GET", "", "restype=service&comp=properties")
            ).body,
        }
        for queue in self.QUEUES:
            metadata = client.call(client.asked("GET", queue, "comp=metadata")).headers
            seen[f"{queue} metadata"] = {
                name: value
                for name, value in metadata.items()
                if name.startswith(("x-ms-meta-", "x-ms-approximate"))
            }
            seen[f"{queue} acl"] = client.call_signed(client.asked("GET", queue, "comp=acl")).body
            seen[f"{queue} messages"] = client.peek(queue).body
        return seen

    def still_held(self) -> bool:
        """Complete what was leased; tell whether all receipts were still good."""
        queue = self.QUEUES[0]
        done = [self.client.delete(queue, each.message_id, each.receipt) for each in self.held]
        return all(answer.status == 204 for answer in done)
