"""Which permission a shared access signature needs for which operation: data, no code.

An operation that a table does not name is never allowed by that kind of signature.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from leasehold.auth.types import Operation


class AccountRight(NamedTuple):
    """What an account signature must grant."""

    resource_type: str
    """Letter that ``srt`` must contain: ``s`` service, ``c`` queue, ``o`` message."""
    letters: str
    """Letters of which ``sp`` must contain at least one."""


ACCOUNT_RIGHTS: Final[Mapping[Operation, AccountRight]] = MappingProxyType(
    # Source: Azure Storage, "Create an account SAS", table for queues. Reading and writing
    # stored policies and asking for a delegation key are beyond every account signature.
    {
        Operation.LIST_QUEUES: AccountRight("s", "l"),
        Operation.GET_SERVICE_PROPERTIES: AccountRight("s", "r"),
        Operation.SET_SERVICE_PROPERTIES: AccountRight("s", "w"),
        Operation.GET_SERVICE_STATS: AccountRight("s", "r"),
        Operation.CREATE_QUEUE: AccountRight("c", "cw"),
        Operation.DELETE_QUEUE: AccountRight("c", "d"),
        Operation.GET_QUEUE_METADATA: AccountRight("c", "r"),
        Operation.SET_QUEUE_METADATA: AccountRight("c", "w"),
        Operation.PUT_MESSAGE: AccountRight("o", "a"),
        Operation.GET_MESSAGES: AccountRight("o", "p"),
        Operation.PEEK_MESSAGES: AccountRight("o", "r"),
        Operation.UPDATE_MESSAGE: AccountRight("o", "u"),
        Operation.DELETE_MESSAGE: AccountRight("o", "p"),
        Operation.CLEAR_MESSAGES: AccountRight("o", "d"),
    }
)

QUEUE_RIGHTS: Final[Mapping[Operation, str]] = MappingProxyType(
    # Source: Azure Storage, "Create a service SAS", permissions for a queue. The same letters
    # serve user delegation signatures.
    {
        Operation.GET_QUEUE_METADATA: "r",
        Operation.PEEK_MESSAGES: "r",
        Operation.PUT_MESSAGE: "a",
        Operation.UPDATE_MESSAGE: "u",
        Operation.GET_MESSAGES: "p",
        Operation.DELETE_MESSAGE: "p",
    }
)
QUEUE_LETTERS: Final = frozenset("raup")
