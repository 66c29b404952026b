"""The setting of host names; see :mod:`leasehold.settings.fields`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from leasehold.settings.meta import Kind, about
from leasehold.settings.mns import MnsSettings

ANY_HOST: Final = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings(MnsSettings):
    """By which names a server is addressed that anybody on its machine may use."""

    allowed_hosts: tuple[str, ...] = field(
        default=(),
        metadata=about(
            Kind.LIST,
            "Listening",
            "Names that requests may have in their `Host`, besides addresses in figures, "
            "`localhost`, what ends in `.localhost`, and the names in `host`. `*.NAME` stands for "
            "all names under one. Only looked at where anybody can sign, with the development "
            "account or another public key or in test mode, on a loopback address: a web page "
            "whose name was made to mean this machine could otherwise read everything.",
            special="`*` allows all names.",
        ),
    )
