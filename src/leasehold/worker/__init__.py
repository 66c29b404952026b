"""The worker library: a person writes a handler, and the library keeps the leases.

It speaks to a queue through :class:`leasehold.worker.adapters.QueueClient`, so that the same worker
runs on Leasehold, Azure Queue Storage and Alibaba MNS. More names are in the modules:
``leasehold.worker.adapters`` (services), ``leases`` (how leases are kept), ``stages`` (work that
resumes), ``once`` (effects that happen once), ``payloads`` (bodies of every kind).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leasehold.worker.errors import (
        Cancelled,
        GiveBack,
        LeaseLost,
        MessageExpired,
        Poison,
        Retry,
    )
    from leasehold.worker.hooks import Hooks, StopMessage
    from leasehold.worker.leases import LeaseSettings
    from leasehold.worker.message import Message
    from leasehold.worker.retry_policy import PoisonRule, RetryRule
    from leasehold.worker.worker import Worker

__all__ = [
    "Cancelled",
    "GiveBack",
    "Hooks",
    "LeaseLost",
    "LeaseSettings",
    "Message",
    "MessageExpired",
    "Poison",
    "PoisonRule",
    "Retry",
    "RetryRule",
    "StopMessage",
    "Worker",
]

_HOMES = {
    "errors": ("Cancelled", "GiveBack", "LeaseLost", "MessageExpired", "Poison", "Retry"),
    "hooks": ("Hooks", "StopMessage"),
    "leases": ("LeaseSettings",),
    "message": ("Message",),
    "retry_policy": ("PoisonRule", "RetryRule"),
    "worker": ("Worker",),
}


def __getattr__(name: str) -> Any:
    # Looked up when asked for: an adapter can be imported without the worker, and the worker
    # without what only some need.
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
