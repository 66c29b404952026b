"""The settings of the MNS dialect; see :mod:`leasehold.settings.fields`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from leasehold.settings.event_log import EventLogSettings
from leasehold.settings.meta import Kind, about
from leasehold.settings.values import AccessKeyPair

AUTO: Final = "auto"
OFF: Final = "off"
SHARED: Final = "shared"
MAX_PORT: Final = 65_535

_MNS: Final = "Message Service (MNS)"
MNS_PORT_DISTANCE: Final = 10
"""From ``port`` to that of MNS, unless told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MnsSettings(EventLogSettings):
    """How clients of Alibaba Cloud's Message Service are served."""

    mns_port: str = field(
        default=AUTO,
        metadata=about(
            Kind.TEXT,
            _MNS,
            "TCP port for clients of Alibaba Cloud's Message Service, at the addresses in `host`: "
            "`auto`, `shared`, `off`, or a number from 0 to 65,535.",
            special="`auto`: ten above `port`, so 10011; any free one if `port` is 0. `shared`: no "
            "port of its own. Unless it is `off`, requests to a host `ACCOUNT.mns.ANYTHING` are of "
            "this protocol on `port` as well. 0 takes any free port; the ready line names it.",
        ),
    )
    mns_receipts: str = field(
        default="strict",
        metadata=about(
            Kind.TEXT,
            _MNS,
            "What a receipt handle is worth in queues that are made through this protocol. "
            "`strict`: it dies with its lease, and when a change of visibility replaces it, as is "
            "documented. `same-lease`: a replaced one works too, until the lease ends.",
            choices=("strict", "same-lease"),
            special="For a queue that is there, set `lapsed_receipts` in its settings.",
        ),
    )
    mns_keys: tuple[AccessKeyPair, ...] = field(
        default=(),
        metadata=about(
            Kind.ACCESS_KEYS,
            _MNS,
            "Access keys besides those of the accounts: an AccessKeyId, its AccessKeySecret, and "
            "the account that it opens. Each account has one anyway: its name, and as the secret "
            "one of its keys in base64.",
            special="In the file: a table `[mns_keys.ID]` with `secret` and `account`. In the "
            "environment: `id:secret:account;id2:secret2:account`. "
            "There is no option for it: command lines can be read by other users.",
        ),
    )

    def speaks_mns(self) -> bool:
        """Tell whether requests of MNS are answered at all."""
        return self.mns_port != OFF

    def port_of_mns(self, main_port: int) -> int | None:
        """Return the port for MNS alone, 0 for any free one; None if it has none.

        Args:
            main_port: The port of the other protocols, as it is set.
        """
        if self.mns_port in {OFF, SHARED}:
            return None
        if self.mns_port != AUTO:
            return int(self.mns_port)
        above = main_port + MNS_PORT_DISTANCE
        return above if main_port and above <= MAX_PORT else 0
