"""Keeping the leases of messages while a worker has them: renewed in time, lost knowingly."""

from typing import TYPE_CHECKING, Any

from leasehold.worker.errors import LeaseLost, LossKind
from leasehold.worker.leases.base import BaseLeaseManager, RenewerStopped
from leasehold.worker.leases.held import (
    AlreadySettled,
    Held,
    HeldState,
    LeaseCounts,
    LeaseHooks,
    Loss,
)
from leasehold.worker.leases.learning import LeaseLearner
from leasehold.worker.leases.manager import LeaseManager
from leasehold.worker.leases.settings import LeaseSettings, SettingProblem, UnsafeSettings

if TYPE_CHECKING:
    from leasehold.worker.leases.process import ProcessLeaseManager

__all__ = [
    "AlreadySettled",
    "BaseLeaseManager",
    "Held",
    "HeldState",
    "LeaseCounts",
    "LeaseHooks",
    "LeaseLearner",
    "LeaseLost",
    "LeaseManager",
    "LeaseSettings",
    "Loss",
    "LossKind",
    "ProcessLeaseManager",
    "RenewerStopped",
    "SettingProblem",
    "UnsafeSettings",
]


def __getattr__(name: str) -> Any:
    if name != "ProcessLeaseManager":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Few need it, and it brings much of multiprocessing along.
    from leasehold.worker.leases import process  # noqa: PLC0415

    return process.ProcessLeaseManager
