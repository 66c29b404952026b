"""Roles of bearer tokens: which role may do what, as data; and what was verified lately.

Roles carry the names of Azure's built-in ones and the actions those have on queues; an operation
asks for actions.

Sources: Azure RBAC, "Azure built-in roles for Storage"; Azure Storage, "Authorize with Microsoft
Entra ID", permissions for calling queue operations; for the versions the release notes of
Azure's client libraries.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final, Generic, TypeVar

from leasehold.auth.types import Operation

_SERVICE_READ: Final = "read"
_SERVICE_WRITE: Final = "write"
_DELEGATE: Final = "generateUserDelegationKey/action"
_QUEUE_READ: Final = "queues/read"
_QUEUE_WRITE: Final = "queues/write"
_QUEUE_DELETE: Final = "queues/delete"
_GET_ACL: Final = "queues/getAcl/action"
_SET_ACL: Final = "queues/setAcl/action"
_MESSAGE_READ: Final = "queues/messages/read"
_MESSAGE_WRITE: Final = "queues/messages/write"
_MESSAGE_DELETE: Final = "queues/messages/delete"
_MESSAGE_ADD: Final = "queues/messages/add/action"
_MESSAGE_PROCESS: Final = "queues/messages/process/action"

OPERATION_ACTIONS: Final[Mapping[Operation, tuple[frozenset[str], ...]]] = MappingProxyType(
    # Alternatives: all actions of one of the sets are enough.
    {
        Operation.LIST_QUEUES: (frozenset((_QUEUE_READ,)),),
        Operation.GET_SERVICE_PROPERTIES: (frozenset((_SERVICE_READ,)),),
        Operation.SET_SERVICE_PROPERTIES: (frozenset((_SERVICE_WRITE,)),),
        Operation.GET_SERVICE_STATS: (frozenset((_SERVICE_READ,)),),
        Operation.GET_USER_DELEGATION_KEY: (frozenset((_DELEGATE,)),),
        Operation.CREATE_QUEUE: (frozenset((_QUEUE_WRITE,)),),
        Operation.DELETE_QUEUE: (frozenset((_QUEUE_DELETE,)),),
        Operation.GET_QUEUE_METADATA: (frozenset((_QUEUE_READ,)),),
        Operation.SET_QUEUE_METADATA: (frozenset((_QUEUE_WRITE,)),),
        Operation.GET_QUEUE_ACL: (frozenset((_GET_ACL,)),),
        Operation.SET_QUEUE_ACL: (frozenset((_SET_ACL,)),),
        Operation.PUT_MESSAGE: (frozenset((_MESSAGE_ADD,)), frozenset((_MESSAGE_WRITE,))),
        Operation.GET_MESSAGES: (
            frozenset((_MESSAGE_PROCESS,)),
            frozenset((_MESSAGE_READ, _MESSAGE_DELETE)),
        ),
        Operation.PEEK_MESSAGES: (frozenset((_MESSAGE_READ,)),),
        Operation.UPDATE_MESSAGE: (frozenset((_MESSAGE_WRITE,)),),
        Operation.DELETE_MESSAGE: (frozenset((_MESSAGE_PROCESS,)), frozenset((_MESSAGE_DELETE,))),
        Operation.CLEAR_MESSAGES: (frozenset((_MESSAGE_DELETE,)),),
    }
)

ROLE_ACTIONS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    # Only the role that may do everything with messages may ask for delegation keys. The service
    # cuts such a key down to the rights of its owner; here nothing about owners is stored, so a
    # key for a lesser role would be a way to more rights.
    {
        "Storage Queue Data Contributor": frozenset(
            (
                *(_QUEUE_READ, _QUEUE_WRITE, _QUEUE_DELETE, _DELEGATE),
                *(_MESSAGE_READ, _MESSAGE_WRITE, _MESSAGE_DELETE, _MESSAGE_PROCESS),
            )
        ),
        "Storage Queue Data Reader": frozenset((_QUEUE_READ, _MESSAGE_READ)),
        "Storage Queue Data Message Processor": frozenset((_MESSAGE_READ, _MESSAGE_PROCESS)),
        "Storage Queue Data Message Sender": frozenset((_MESSAGE_ADD,)),
        "Storage Account Contributor": frozenset(
            (
                *(_SERVICE_READ, _SERVICE_WRITE, _QUEUE_READ, _QUEUE_WRITE, _QUEUE_DELETE),
                *(_GET_ACL, _SET_ACL),
            )
        ),
    }
)

BEARER_SINCE: Final = "2017-11-09"
"""Protocol version from which on bearer tokens are taken."""
OPERATION_SINCE: Final[Mapping[Operation, str]] = MappingProxyType(
    dict.fromkeys((Operation.GET_QUEUE_ACL, Operation.SET_QUEUE_ACL), "2025-07-05")
)
"""Version from which on a token opens an operation, where that is later."""

_SEPARATORS: Final = str.maketrans("", "", " .-_")


def _plain(role: str) -> str:
    # Values of the ``roles`` claim may not contain spaces in Entra ID, so
    # "Storage.Queue.Data.Reader" and "StorageQueueDataReader" must do as well.
    return role.translate(_SEPARATORS).lower()


_ACTIONS_BY_PLAIN_NAME: Final = {_plain(role): actions for role, actions in ROLE_ACTIONS.items()}


@lru_cache(maxsize=256)
def operations_of(roles: frozenset[str]) -> frozenset[Operation]:
    """Return what a bearer with these roles may do together; unknown roles add nothing.

    Case, spaces, dots, dashes and underscores in a role's name do not matter.
    """
    nothing: frozenset[str] = frozenset()
    actions = nothing.union(*[_ACTIONS_BY_PLAIN_NAME.get(_plain(role), nothing) for role in roles])
    return frozenset(
        operation
        for operation, alternatives in OPERATION_ACTIONS.items()
        if any(needed <= actions for needed in alternatives)
    )


INSPECTOR_OPERATIONS: Final = operations_of(frozenset({"Storage Queue Data Reader"}))
"""What an inspector's key may do: look at queues and messages, and change nothing."""


# --- recent ------------------------------------------------------------------------------------
#
# A small bounded memory of what was verified lately.


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Keeps at least the *capacity* entries used last, and at most twice as many.

    Two generations of a dictionary: when the young one is full it becomes the old one, and what
    stood in the old one unused is forgotten. A hit costs one look-up, not a list operation.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        """Return what was kept under *key*, or None."""
        value = self._young.get(key)
        if value is None and self._old:
            value = self._old.get(key)
            if value is not None:
                self.keep(key, value)
        return value

    def keep(self, key: K, value: V) -> None:
        """Keep *value* under *key*."""
        if len(self._young) >= self._capacity:
            self._old, self._young = self._young, {}
        self._young[key] = value

    def __len__(self) -> int:
        return len(self._young.keys() | self._old.keys())
