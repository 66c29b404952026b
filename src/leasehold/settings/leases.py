"""The setting of leases; see :mod:`leasehold.settings.fields`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from leasehold.settings.hosts import HostSettings
from leasehold.settings.meta import Kind, about

REFUSE: Final = "refuse"
ACCEPT: Final = "accept"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings(HostSettings):
    """How leases are renewed."""

    renewals_past_expiry: str = field(
        default=REFUSE,
        metadata=about(
            Kind.TEXT,
            "Leases",
            "What becomes of a renewal that would end after its message expires, in every "
            "protocol. `refuse`: it is an error and changes nothing, as Azure Queue Storage and "
            "MNS document it. `accept`: the lease is renewed.",
            choices=(REFUSE, ACCEPT),
            special="The expiry wins either way: the message is removed then, and its receipt "
            "with it. Version 2011-08-18 of Azure's protocol accepts them whatever is set. It "
            "holds for what renews a lease, not for delays of what is put or given back.",
        ),
    )

    def accepts_late_renewals(self) -> bool:
        """Tell whether a renewal may end after its message expires."""
        return self.renewals_past_expiry == ACCEPT
