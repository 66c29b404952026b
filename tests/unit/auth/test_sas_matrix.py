"""Which permission opens which operation: the whole matrix, and a copy written by hand."""

from __future__ import annotations

from itertools import product

import pytest

from leasehold.auth.authenticator import Authenticator
from leasehold.auth.sas import (
    ACCOUNT_RIGHTS,
    QUEUE_RIGHTS,
    SasTerms,
    make_account_sas,
    make_service_sas,
)
from leasehold.auth.types import (
    AuthError,
    NotAllowed,
    Operation,
    PermissionMissing,
    ResourceTypeMismatch,
)
from tests.unit.auth.support import ACCOUNTS, KEY, NAME, NOON_MS, no_policies, request, target

_LATER = "2030-01-01"
_ACCOUNT_LETTERS = "rwdxlacupytfi"
_NEVER_BY_SAS = {
    Operation.GET_QUEUE_ACL,
    Operation.SET_QUEUE_ACL,
    Operation.GET_USER_DELEGATION_KEY,
}
# Written by hand, from the documentation: operation, resource type, letters that open it.
_ACCOUNT_BY_HAND = {
    Operation.LIST_QUEUES: ("s", "l"),
    Operation.GET_SERVICE_PROPERTIES: ("s", "r"),
    Operation.SET_SERVICE_PROPERTIES: ("s", "w"),
    Operation.CREATE_QUEUE: ("c", "cw"),
    Operation.DELETE_QUEUE: ("c", "d"),
    Operation.PUT_MESSAGE: ("o", "a"),
    Operation.GET_MESSAGES: ("o", "p"),
    Operation.DELETE_MESSAGE: ("o", "p"),
    Operation.CLEAR_MESSAGES: ("o", "d"),
}
_QUEUE_BY_HAND = {
    "r": {Operation.PEEK_MESSAGES, Operation.GET_QUEUE_METADATA},
    "a": {Operation.PUT_MESSAGE},
    "u": {Operation.UPDATE_MESSAGE},
    "p": {Operation.GET_MESSAGES, Operation.DELETE_MESSAGE},
}
_WITHOUT_QUEUE = {
    Operation.LIST_QUEUES,
    Operation.GET_SERVICE_PROPERTIES,
    Operation.SET_SERVICE_PROPERTIES,
    Operation.GET_SERVICE_STATS,
    Operation.GET_USER_DELEGATION_KEY,
}


def _outcome(token: str, operation: Operation) -> type[AuthError] | None:
    authenticator = Authenticator(ACCOUNTS, no_policies)
    queue = None if operation in _WITHOUT_QUEUE else "q1"
    try:
        authenticator.check(request(query=token), target(operation, queue), now_ms=NOON_MS)
    except AuthError as refusal:
        return type(refusal)
    return None


def _account_token(letters: str, resource_types: str) -> str:
    terms = SasTerms(permission=letters, expiry=_LATER)
    return make_account_sas(NAME, KEY, terms, resource_types=resource_types)


@pytest.mark.parametrize("operation", list(Operation))
def test_account_matrix(operation: Operation) -> None:
    """Each operation opens to its letter at its resource type, and to nothing else."""
    right = ACCOUNT_RIGHTS.get(operation)
    for letter, resource_type in product(_ACCOUNT_LETTERS, "sco"):
        outcome = _outcome(_account_token(letter, resource_type), operation)
        if right is None:
            assert outcome is NotAllowed
        elif resource_type != right.resource_type:
            assert outcome is ResourceTypeMismatch
        elif letter not in right.letters:
            assert outcome is PermissionMissing
        else:
            assert outcome is None


@pytest.mark.parametrize("operation", list(Operation))
def test_one_missing_letter_closes(operation: Operation) -> None:
    """All other letters together do not make up for the missing one."""
    right = ACCOUNT_RIGHTS.get(operation)
    others = "".join(sorted(set(_ACCOUNT_LETTERS) - set(right.letters if right else "")))
    assert _outcome(_account_token(others, "sco"), operation) is not None


@pytest.mark.parametrize(("operation", "right"), list(_ACCOUNT_BY_HAND.items()))
def test_account_cells_written_by_hand(operation: Operation, right: tuple[str, str]) -> None:
    """The table says what the documentation says."""
    resource_type, letters = right
    opened = {
        letter
        for letter in _ACCOUNT_LETTERS
        if _outcome(_account_token(letter, resource_type), operation) is None
    }
    assert opened == set(letters)


def test_what_no_signature_opens() -> None:
    """Stored policies and delegation keys are beyond all signatures."""
    assert set(Operation) - set(ACCOUNT_RIGHTS) == _NEVER_BY_SAS
    for operation in _NEVER_BY_SAS:
        assert _outcome(_account_token(_ACCOUNT_LETTERS, "sco"), operation) is NotAllowed


@pytest.mark.parametrize("operation", list(Operation))
def test_queue_matrix(operation: Operation) -> None:
    """Every subset of the four letters opens what its letters say, and nothing else."""
    for chosen in product((False, True), repeat=4):
        letters = "".join(letter for letter, there in zip("raup", chosen, strict=True) if there)
        terms = SasTerms(permission=letters, expiry=_LATER)
        outcome = _outcome(make_service_sas(NAME, KEY, "q1", terms), operation)
        by_hand: set[Operation] = set().union(*[_QUEUE_BY_HAND[letter] for letter in letters])
        assert (outcome is None) is (operation in by_hand)
        if letters and operation not in QUEUE_RIGHTS:
            assert outcome is NotAllowed
        elif letters and operation not in by_hand:
            assert outcome is PermissionMissing
