"""What the shapes are made of: kinds of members with their ranges, and problems.

Ranges stand here for the document. They are checked where values are used, so that a refusal can
name the value and both ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeAlias

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from leasehold.domain.limits import (
    MAX_GROUP_ID,
    MAX_QUEUE_NAME,
    MAX_WAIT_S,
    NATIVE,
    NEVER,
    PRIORITIES,
)

MAX_TEXT: Final = 1_024
"""Characters of a name or a note: a holder, a type, a key, a reason."""
MAX_NAME: Final = 256
"""Characters of the name of a stream, a transaction or a part of one."""
NUMBERS: Final = (1, 2**53)
"""Of tokens and claims; readers of JSON may not hold larger ones exactly."""


def between(bounds: tuple[float, float], **more: object) -> Meta:
    """Say in the document which values are allowed, both ends included.

    Args:
        bounds: The two ends.
        more: Other keywords of JSON Schema, such as ``default``.
    """
    low, high = bounds
    return Meta(extra_json_schema={"minimum": low, "maximum": high, **more})


def said(**keywords: object) -> Meta:
    """Say something in the document with keywords of JSON Schema."""
    return Meta(extra_json_schema=keywords)


def one_of(*words: str, **more: object) -> Meta:
    """Say in the document which words there are; clients take others that are added later."""
    return Meta(extra_json_schema={"enum": list(words), **more})


QueueName: TypeAlias = Annotated[
    str, said(minLength=1, maxLength=MAX_QUEUE_NAME, pattern="^[A-Za-z0-9][A-Za-z0-9-]*$")
]
Code: TypeAlias = Annotated[str, Meta(extra_json_schema={"$ref": "#/components/schemas/Code"})]
Name: TypeAlias = Annotated[
    str, said(minLength=1, maxLength=MAX_NAME, pattern=r"^(?!\.{1,2}$)[A-Za-z0-9._:~-]+$")
]
"""Of a stream or a transaction."""
ShortText: TypeAlias = Annotated[str, said(minLength=1, maxLength=MAX_TEXT)]
GroupId: TypeAlias = Annotated[str, said(minLength=1, maxLength=MAX_GROUP_ID)]
State: TypeAlias = Annotated[
    str, one_of("visible", "delayed", "leased", "deferred", "expired", "poisoned", "staged")
]
Ms: TypeAlias = Annotated[int, Meta(description="Unix milliseconds.")]
Delay: TypeAlias = Annotated[
    int,
    between(NATIVE.delay_s, description="Seconds until the message can be received."),
]
TimeToLive: TypeAlias = Annotated[
    int,
    said(
        anyOf=[
            {"const": NEVER},
            {"minimum": NATIVE.time_to_live_s[0], "maximum": NATIVE.time_to_live_s[1]},
        ],
        description="Seconds until the message expires; -1 for never.",
    ),
]
Priority: TypeAlias = Annotated[
    int, between(PRIORITIES, description="Of 1, received first, to 16. 8 if left out.")
]
Properties: TypeAlias = Annotated[
    Mapping[str, str],
    Meta(description="Names and values of the sender; 8,192 bytes together."),
]
LeaseS: TypeAlias = Annotated[int, between(NATIVE.lease_s)]
Wait: TypeAlias = Annotated[float, between((0, MAX_WAIT_S))]
Number: TypeAlias = Annotated[int, between(NUMBERS)]
"""A token, or the number of a claim."""
NextAfter: TypeAlias = Annotated[
    str | None,
    Meta(description="Send it as `after` to get the next page; null on the last page."),
]
AnyJson: TypeAlias = Raw | UnsetType
"""JSON that is passed on as it is; UNSET where it was left out."""


class Request(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What a client sends.

    ``null`` and a member left out are the same, unless said otherwise. The server refuses members
    that it does not know.
    """


class NoRequest(Request):
    """Nothing: the address says it all."""


class WithBody(Request):
    """What names a body in one of three ways."""

    body: str | None = None
    """The body as text; stored as UTF-8."""
    body_base64: Annotated[str, said(contentEncoding="base64")] | None = None
    """The body as base64 of any bytes."""
    json: AnyJson = UNSET
    """The body as JSON; stored as text without blanks between its parts. ``null`` counts as left
    out: send ``"body": "null"`` for that."""


class Problem(Struct, kw_only=True, omit_defaults=True):
    """What the server says about a refusal (RFC 9457, with our own members).

    What there is nothing to say of is left out.
    """

    code: Code
    status: Annotated[int, between((400, 599))]
    """HTTP status."""
    detail: str
    """What is wrong with this request."""
    field: str | None = None
    """Path of a member, such as ``$.messages[3].delay_s``, or the name of a query parameter."""
    value: Any = None
    """What was sent."""
    minimum: Annotated[Any, said(type="number")] = None
    """Smallest value allowed."""
    maximum: Annotated[Any, said(type="number")] = None
    """Largest value allowed."""
    limit: int | None = None
    """Largest size allowed, in bytes."""
    remedy: str | None = None
    """What to do about it."""
    reason: (
        Annotated[
            str,
            one_of(
                *("superseded", "lapsed", "foreign", "length", "characters"),
                *("missing", "corrupt"),
            ),
        ]
        | None
    ) = None
    """Why a lease is lost, or what is wrong with a name or a body."""
    holder: str | None = None
    """Who is working on the message."""
    until_ms: int | None = None
    """Until when; Unix milliseconds."""
    retry_after_s: int | None = None
    """Seconds to wait before trying again."""
    state: Annotated[str, one_of("lost", "ended")] | None = None
    """How a session came to its end."""
    token: int | None = None
    """That of the last attach."""
    expected: int | None = None
    """The number that is next."""
    last_settled: int | None = None
    """All claims of the stream up to this number are settled."""
    settled_with: str | None = None
    """Name of the transaction whose publishing settled the last of them."""
    size: int | None = None
    """Members that a claim had."""
    lost: int | None = None
    """How many of them are gone."""


class ItemProblem(Struct, gc=False):
    """Why one item of a batch was refused."""

    error: Problem


class CodePage(Struct):
    """What a code means."""

    type: str
    """``/v1/problems/`` followed by the code."""
    code: Code
    status: int
    title: str
    meaning: str
    remedy: str
    """What to do about it."""
