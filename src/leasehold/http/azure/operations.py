"""The table of operations: how each is read, written, and what it asks of a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from leasehold.auth.types import Operation
from leasehold.domain.commands import Command
from leasehold.http.azure import acl, listing, messages, queues, versions
from leasehold.http.azure.call import Call
from leasehold.http.messages import Response


class Rules(NamedTuple):
    """What holds for an operation before it is looked at more closely."""

    since: str = versions.OLDEST
    """First version that has it."""
    on_secondary: bool = False
    """Whether the secondary address serves it; that one is read-only, and Get Messages writes."""
    needs_length: bool = False
    """Whether the request must say how long its body is, or send it in chunks."""


class Handler(NamedTuple):
    """An operation that is one command."""

    read: Callable[[Call], Command]
    write: Callable[[Call, Any], Response]
    wait_s: Callable[[Call], int] | None = None
    """Reads how many seconds it may wait for a result that is not empty; then it is a Receive."""


HANDLERS: Final[Mapping[Operation, Handler]] = {
    Operation.LIST_QUEUES: Handler(listing.parse_list, listing.render_list),
    Operation.CREATE_QUEUE: Handler(queues.parse_create, queues.render_create),
    Operation.DELETE_QUEUE: Handler(queues.parse_delete, messages.render_done),
    Operation.GET_QUEUE_METADATA: Handler(queues.parse_get_metadata, queues.render_metadata),
    Operation.SET_QUEUE_METADATA: Handler(queues.parse_set_metadata, messages.render_done),
    Operation.GET_QUEUE_ACL: Handler(acl.parse_get_acl, acl.render_acl),
    Operation.SET_QUEUE_ACL: Handler(acl.parse_set_acl, messages.render_done),
    Operation.PUT_MESSAGE: Handler(messages.parse_put, messages.render_put),
    Operation.GET_MESSAGES: Handler(messages.parse_get, messages.render_get, messages.wait_s),
    Operation.PEEK_MESSAGES: Handler(messages.parse_peek, messages.render_peek),
    Operation.UPDATE_MESSAGE: Handler(messages.parse_update, messages.render_update),
    Operation.DELETE_MESSAGE: Handler(messages.parse_delete, messages.render_done),
    Operation.CLEAR_MESSAGES: Handler(messages.parse_clear, messages.render_done),
}
"""Operations that are one command each; the others are those of ``service`` and ``delegation``."""

RULES: Final[Mapping[Operation, Rules]] = {
    **dict.fromkeys(Operation, Rules()),
    Operation.LIST_QUEUES: Rules(on_secondary=True),
    Operation.GET_SERVICE_PROPERTIES: Rules(on_secondary=True),
    Operation.SET_SERVICE_PROPERTIES: Rules(needs_length=True),
    Operation.GET_SERVICE_STATS: Rules(since=versions.STATS_SINCE, on_secondary=True),
    Operation.GET_USER_DELEGATION_KEY: Rules(
        since=versions.DELEGATION_KEY_SINCE, on_secondary=True, needs_length=True
    ),
    Operation.GET_QUEUE_METADATA: Rules(on_secondary=True),
    Operation.GET_QUEUE_ACL: Rules(since=versions.ACL_SINCE, on_secondary=True),
    Operation.SET_QUEUE_ACL: Rules(since=versions.ACL_SINCE, needs_length=True),
    Operation.PUT_MESSAGE: Rules(needs_length=True),
    Operation.PEEK_MESSAGES: Rules(on_secondary=True),
    Operation.UPDATE_MESSAGE: Rules(since=versions.UPDATE_MESSAGE_SINCE),
}
