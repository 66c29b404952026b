"""Roles of bearer tokens."""

from __future__ import annotations

import pytest

from leasehold.auth.roles import OPERATION_ACTIONS, ROLE_ACTIONS, operations_of
from leasehold.auth.types import Operation

_READER = {Operation.LIST_QUEUES, Operation.GET_QUEUE_METADATA, Operation.PEEK_MESSAGES}
_QUEUES = {
    Operation.LIST_QUEUES,
    Operation.CREATE_QUEUE,
    Operation.DELETE_QUEUE,
    Operation.GET_QUEUE_METADATA,
    Operation.SET_QUEUE_METADATA,
}
_MESSAGES = {
    operation for operation in Operation if operation.value.endswith(("message", "messages"))
}
_SERVICE = {
    Operation.GET_SERVICE_PROPERTIES,
    Operation.SET_SERVICE_PROPERTIES,
    Operation.GET_SERVICE_STATS,
}
_ACL = {Operation.GET_QUEUE_ACL, Operation.SET_QUEUE_ACL}

# Written by hand, from the descriptions of the built-in roles.
_BY_HAND = {
    "Storage Queue Data Contributor": _QUEUES | _MESSAGES | {Operation.GET_USER_DELEGATION_KEY},
    "Storage Queue Data Reader": _READER,
    "Storage Queue Data Message Processor": {
        Operation.PEEK_MESSAGES,
        Operation.GET_MESSAGES,
        Operation.DELETE_MESSAGE,
    },
    "Storage Queue Data Message Sender": {Operation.PUT_MESSAGE},
    "Storage Account Contributor": _QUEUES | _SERVICE | _ACL,
}


@pytest.mark.parametrize("role", list(ROLE_ACTIONS))
def test_what_each_role_may_do(role: str) -> None:
    """Each role opens exactly the operations its description names."""
    assert operations_of(frozenset((role,))) == _BY_HAND[role]


def test_roles_add_up() -> None:
    """Several roles open together what each of them opens."""
    roles = frozenset(("Storage Queue Data Reader", "Storage Queue Data Message Sender"))
    assert operations_of(roles) == _READER | {Operation.PUT_MESSAGE}


@pytest.mark.parametrize(
    "role",
    [
        "StorageQueueDataReader",
        "Storage.Queue.Data.Reader",
        "storage_queue_data_reader",
        "storage-queue-data-reader",
    ],
)
def test_spelling_of_roles(role: str) -> None:
    """Issuers that allow no spaces in roles can spell them otherwise."""
    assert operations_of(frozenset((role,))) == _READER


@pytest.mark.parametrize(
    "role", ["", "Reader", "Owner", "Storage Queue Data", "\u017ftorage queue data reader"]
)
def test_unknown_roles_open_nothing(role: str) -> None:
    """A role of another name opens nothing."""
    assert operations_of(frozenset((role,))) == frozenset()
    assert operations_of(frozenset()) == frozenset()


def test_every_operation_asks_for_some_action() -> None:
    """No operation is beyond all roles, and none is open to a token without any."""
    assert set(OPERATION_ACTIONS) == set(Operation)
    assert all(needed for alternatives in OPERATION_ACTIONS.values() for needed in alternatives)
    assert operations_of(frozenset(ROLE_ACTIONS)) == set(Operation)


def test_only_who_may_do_everything_gets_delegation_keys() -> None:
    """A delegation key opens all that is done with messages, so its owner must be able to."""
    for role in ROLE_ACTIONS:
        may = operations_of(frozenset((role,)))
        if Operation.GET_USER_DELEGATION_KEY in may:
            assert may >= _MESSAGES
