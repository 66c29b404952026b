"""Copying and deleting a message, when one of the requests gets no answer."""

from __future__ import annotations

import pytest

from leasehold.testing import ManualTime
from leasehold.worker.adapters import (
    Delivery,
    Denied,
    Fault,
    Lease,
    LeaseGone,
    QueueError,
    Renewed,
    Unreachable,
)
from leasehold.worker.adapters.fallbacks import BURIAL_S, Burials

DELIVERY = Delivery(queue="orders", message_id="m1", receipt="r0")
FAULT = Fault(text="no such customer")
NO_ANSWER = Unreachable("no answer")
LIMIT_S = 3.0


class Service:
    """A message on a lease; each renewal gives another receipt, and kills the one before."""

    def __init__(self) -> None:
        self.time = ManualTime()
        self.receipt = "r0"
        self.is_there = True
        self.copies = 0
        self.calls: list[str] = []
        self.fails: dict[str, QueueError] = {}
        self.carries_out = False
        """Whether what fails is carried out all the same."""
        self.burials = Burials(renew=self.renew, copy=self.copy, delete=self.delete, time=self.time)

    def bury(self, receipt: str = "r0") -> None:
        self.burials.bury(DELIVERY, receipt, FAULT, timeout_s=LIMIT_S)

    def renew(self, lease: Lease, visibility_timeout_s: int, timeout_s: float | None) -> Renewed:
        assert (visibility_timeout_s, timeout_s) == (BURIAL_S, LIMIT_S)
        error = self._begin("renew")
        self._check(lease, error)
        self.receipt = f"r{int(self.receipt[1:]) + 1}"
        self._end(error)
        return Renewed(self.receipt)

    def copy(self, delivery: Delivery, fault: Fault, timeout_s: float | None) -> None:
        assert (delivery, fault, timeout_s) == (DELIVERY, FAULT, LIMIT_S)
        error = self._begin("copy")
        self.copies += 1
        self._end(error)

    def delete(self, lease: Lease, timeout_s: float | None) -> None:
        assert timeout_s == LIMIT_S
        error = self._begin("delete")
        self._check(lease, error)
        self.is_there = False
        self._end(error)

    def _begin(self, name: str) -> QueueError | None:
        self.calls.append(name)
        error = self.fails.pop(name, None)
        if error is not None and not self.carries_out:
            raise error
        return error

    def _end(self, error: QueueError | None) -> None:
        if error is not None:
            raise error

    def _check(self, lease: Lease, error: QueueError | None) -> None:
        if not self.is_there or lease.receipt != self.receipt:
            raise error or LeaseGone("not the newest receipt")


@pytest.fixture
def service() -> Service:
    return Service()


def test_deletion_without_an_answer_is_made_again_with_the_newest_receipt(
    service: Service,
) -> None:
    """The second call finds the message there, deletes it, and makes no second copy."""
    service.fails["delete"] = NO_ANSWER
    with pytest.raises(Unreachable, match=r"a copy is in orders-poison already"):
        service.bury()
    service.bury()
    assert not service.is_there
    assert service.copies == 1
    assert service.calls == ["renew", "copy", "delete", "delete"]


def test_deletion_that_was_carried_out_is_done(service: Service) -> None:
    """While nobody else can have the message, one that is gone was deleted by the first call."""
    service.fails["delete"], service.carries_out = NO_ANSWER, True
    with pytest.raises(Unreachable):
        service.bury()
    service.bury()
    assert service.copies == 1


def test_message_that_somebody_has_taken_is_lost(service: Service) -> None:
    """When the lease of the burial is over, one that is gone may be in other hands."""
    service.fails["delete"] = NO_ANSWER
    with pytest.raises(Unreachable):
        service.bury()
    service.time.advance(BURIAL_S)
    service.receipt = "r9"
    with pytest.raises(LeaseGone, match="may not be the last"):
        service.bury()
    assert service.is_there


def test_lease_that_is_over_is_renewed_first(service: Service) -> None:
    """If nobody has taken the message by then it is ours, and is deleted."""
    service.fails["delete"] = NO_ANSWER
    with pytest.raises(Unreachable):
        service.bury()
    service.time.advance(BURIAL_S)
    service.bury()
    assert service.calls == ["renew", "copy", "delete", "renew", "delete"]
    assert not service.is_there


def test_renewal_without_an_answer_may_have_cost_the_lease(service: Service) -> None:
    """Its new receipt is not known, so that the message comes again, and that is said."""
    service.fails["renew"], service.carries_out = NO_ANSWER, True
    with pytest.raises(Unreachable):
        service.bury()
    with pytest.raises(LeaseGone):
        service.bury()
    assert service.is_there
    assert service.copies == 0


def test_copy_without_an_answer_is_made_again(service: Service) -> None:
    """Two copies are better than none; no time is spent on another renewal."""
    service.fails["copy"], service.carries_out = NO_ANSWER, True
    with pytest.raises(Unreachable):
        service.bury()
    service.bury()
    assert service.copies == 2
    assert service.calls == ["renew", "copy", "copy", "delete"]


def test_deletion_that_is_gone_at_once_is_no_success(service: Service) -> None:
    """Where no deletion was sent before, nobody can have carried it out."""
    service.fails["delete"] = LeaseGone("taken")
    with pytest.raises(LeaseGone, match="a copy is in orders-poison"):
        service.bury()


def test_other_lease_begins_anew(service: Service) -> None:
    """What is remembered is for the lease it was asked for with."""
    service.fails["delete"] = Denied("no right")
    with pytest.raises(Denied, match="a copy is in orders-poison"):
        service.bury()
    service.receipt = "r5"
    service.bury("r5")
    assert service.copies == 2
    assert not service.is_there
